"""Ops computed one element at a time: arithmetic, elementary functions, comparisons, activations, selection."""
