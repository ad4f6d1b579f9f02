"""Packed low-bit weights on the host."""

from nbxtensor.quant.int4_g128_asym import Int4G128Asym, dequantise, quantise

__all__ = ["Int4G128Asym", "dequantise", "quantise"]
