"""Reductions over any axes: sums, means, extremes, norms, and where the extremes are."""
