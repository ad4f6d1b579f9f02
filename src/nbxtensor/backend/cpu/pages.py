"""Zeroed memory of the process's own, a whole number of pages, given back when nothing refers to it."""

from __future__ import annotations

import ctypes
import mmap

__all__ = ["Pages"]


class Pages:
    """Private memory: a child process gets a copy of it, never the same bytes.

    Attributes:
        nbytes: Size asked for.
        view: The bytes; it keeps them alive.
        address: First byte, at the start of a page.
        pointer: The same as a ctypes pointer.
    """

    __slots__ = ("_pages", "address", "nbytes", "pointer", "view")

    def __init__(self, nbytes: int) -> None:
        self.nbytes: int = nbytes
        self._pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view: memoryview = memoryview(self._pages)
        self.address: int = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.pointer: ctypes.c_void_p = ctypes.c_void_p(self.address)

    def advise_huge(self, start: int, nbytes: int) -> None:
        """Ask the system to hold ``nbytes`` bytes from ``start`` (a multiple of the page size) in huge pages."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
