"""Measurements on a GPU, beside torch: `python -m bench --device cuda` from the root of the repository."""
