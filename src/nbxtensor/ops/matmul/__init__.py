"""Matrix products, plain and with packed weights, with a fused epilogue."""
