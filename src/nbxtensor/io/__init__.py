"""Files of weights: readers, and the conversions of a weight at load."""
