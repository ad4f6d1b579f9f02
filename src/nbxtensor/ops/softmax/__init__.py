"""softmax and log_softmax along any axis."""
