"""The dtype table, its enum, conversions, promotion and precision policy.

``nbxtensor.dtype.itemsize`` is the reader's module; its function of that name is
``nbxtensor.dtype.itemsize.itemsize``.
"""

from nbxtensor.dtype.itemsize import bits, canonical, kind, names, nbytes, numpy_dtype

__all__ = ["bits", "canonical", "kind", "names", "nbytes", "numpy_dtype"]
