"""Graphs and their memory: lifetimes, offsets, the verifier, prices and pictures; needs neither Triton nor a device."""
