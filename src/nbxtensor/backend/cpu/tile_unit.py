"""Permission to use the processor's tile unit (AMX), which the system gives to a process that asks."""

from __future__ import annotations

import ctypes
import functools
import platform

__all__ = ["permitted", "usable"]

# Linux, asm/prctl.h and Documentation/arch/x86/xstate.rst: the call, the request, and the number of the tiles' state.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def permitted() -> bool:
    """Ask the system once for the tile unit, for all threads of this process; return whether it gave it."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    syscall = ctypes.CDLL(None).syscall
    return syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA)) == 0


def usable(features: frozenset[str]) -> frozenset[str]:
    """Return ``features`` without those of the tile unit where the system does not give it to this process.

    >>> usable(frozenset({"avx512bf16"}))
    frozenset({'avx512bf16'})
    """
    tiles = frozenset(name for name in features if name.startswith("amx-"))
    return features if not tiles or permitted() else features - tiles
