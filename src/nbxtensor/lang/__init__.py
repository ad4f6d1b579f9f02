"""Triton device functions that kernels of several families call."""
