"""Normalisation: of rows by their own mean and variance, of groups of channels, and by given statistics."""
