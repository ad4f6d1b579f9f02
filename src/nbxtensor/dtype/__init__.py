"""The dtype table, its enum, conversions, promotion and precision policy.

``nbxtensor.dtype.itemsize`` is the reader's module; its function of that name is
``nbxtensor.dtype.itemsize.itemsize``.
"""

from nbxtensor.dtype.itemsize import bits, canonical, kind, names, nbytes, numpy_dtype
from nbxtensor.dtype.limits import finfo, iinfo
from nbxtensor.dtype.promotion import result_type

__all__ = ["bits", "canonical", "finfo", "iinfo", "kind", "names", "nbytes", "numpy_dtype", "result_type"]
