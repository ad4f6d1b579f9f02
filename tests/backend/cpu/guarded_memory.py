"""Arrays that end where memory ends: one element too far is a fault, not a wrong number."""

import ctypes
import mmap

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(rows, row, columns, dtype):
    """A [rows, columns] array with ``row`` elements between rows, its last element at the end of a page."""
    nbytes = ((rows - 1) * row + columns) * np.dtype(dtype).itemsize
    page = mmap.PAGESIZE
    whole = -(-nbytes // page) * page
    pages = mmap.mmap(-1, whole + page)
    memory = np.frombuffer(pages, np.uint8)
    memory[:] = 0xFF  # NaN in every float format
    if _libc.mprotect(memory.ctypes.data + whole, page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    flat = memory[whole - nbytes : whole].view(dtype)
    size = np.dtype(dtype).itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (row * size, size))
