"""Attention: softmax(q k^T) v in one kernel."""
