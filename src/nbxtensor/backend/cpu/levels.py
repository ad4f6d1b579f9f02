"""The instruction set level of this processor, and what it has beyond."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from nbxtensor.backend import sysctl
from nbxtensor.errors import MissingFactError

__all__ = ["LEVELS", "detect", "features"]

# Spellings of /proc/cpuinfo. x86-64-v3 and v4: System V ABI, AMD64 supplement, table "Micro-architecture
# levels".
_V3 = frozenset(
    [
        "cx16",
        "lahf_lm",
        "popcnt",
        "pni",
        "sse4_1",
        "sse4_2",
        "ssse3",
        "avx",
        "avx2",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "abm",
        "movbe",
        "xsave",
    ]
)
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_NEON = frozenset(["fp", "asimd"])

LEVELS: Mapping[str, frozenset[str]] = {"x86-64-v4": _V4, "x86-64-v3": _V3, "aarch64-neon": _NEON}
"""Each level that kernels are compiled for, and the flags of ``/proc/cpuinfo`` it takes; the best first."""

# Flag of /proc/cpuinfo -> LLVM's name of the feature.
_EXTRA: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "avx_vnni": "avxvnni",
        "avx512vbmi": "avx512vbmi",
        "avx512_vbmi2": "avx512vbmi2",
        "avx512_vnni": "avx512vnni",
        "avx512_bf16": "avx512bf16",
        "avx512_fp16": "avx512fp16",
        "avx512_bitalg": "avx512bitalg",
        "avx512_vpopcntdq": "avx512vpopcntdq",
        "gfni": "gfni",
        "amx_tile": "amx-tile",
        "amx_int8": "amx-int8",
        "amx_bf16": "amx-bf16",
        "amx_fp16": "amx-fp16",
    },
    "aarch64": {
        "asimddp": "dotprod",
        "asimdhp": "fullfp16",
        "asimdfhm": "fp16fml",
        "bf16": "bf16",
        "i8mm": "i8mm",
        "sve": "sve",
        "sve2": "sve2",
    },
}
_APPLE = {  # name under hw.optional.arm -> LLVM's name
    "FEAT_DotProd": "dotprod",
    "FEAT_FP16": "fullfp16",
    "FEAT_FHM": "fp16fml",
    "FEAT_BF16": "bf16",
    "FEAT_I8MM": "i8mm",
}


def detect() -> str:
    """Return the best declared level that this processor has: "x86-64-v4", "x86-64-v3" or "aarch64-neon".

    Raises:
        MissingFactError: It has none; names the flags that the lowest level of its architecture lacks.
    """
    machine = _machine()
    return level_of(machine, frozenset(_NEON) if _is_apple(machine) else _flags())


def features() -> frozenset[str]:
    """Return LLVM's names of the features beyond the level that kernels may use ("avx512bf16", "dotprod").

    Empty where the system does not say. AMX needs the system's permission for each process before it is used.
    """
    machine = _machine()
    if _is_apple(machine):
        return frozenset(llvm for name, llvm in _APPLE.items() if sysctl.integer(f"hw.optional.arm.{name}"))
    return features_of(machine, _flags())


def level_of(machine: str, flags: frozenset[str]) -> str:
    """Return the best level that a machine with these ``/proc/cpuinfo`` flags has.

    Raises:
        MissingFactError: It has none.

    >>> level_of("aarch64", frozenset(["fp", "asimd", "asimddp"]))
    'aarch64-neon'
    """
    known = [name for name in LEVELS if name.startswith(machine.replace("_", "-"))]
    for name in known:
        if LEVELS[name] <= flags:
            return name
    if not known:
        raise MissingFactError(f"a CPU level of {machine}", f"Levels are {', '.join(LEVELS)}.")
    lacking = ", ".join(sorted(LEVELS[known[-1]] - flags))
    raise MissingFactError(f"a CPU level without {lacking}", f"The lowest level of {machine} is {known[-1]}.")


def features_of(machine: str, flags: frozenset[str]) -> frozenset[str]:
    """Return LLVM's names of the features beyond any level among ``/proc/cpuinfo`` flags.

    >>> sorted(features_of("x86_64", frozenset(["avx2", "avx512_bf16", "amx_tile"])))
    ['amx-tile', 'avx512bf16']
    """
    return frozenset(llvm for flag, llvm in _EXTRA.get(machine, {}).items() if flag in flags)


def flags_in(cpuinfo: str) -> frozenset[str]:
    """Return the flags that every processor of a ``/proc/cpuinfo`` has."""
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else frozenset()


@functools.cache
def _flags() -> frozenset[str]:
    try:
        return flags_in(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()


def _machine() -> str:
    machine = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _is_apple(machine: str) -> bool:
    return machine == "aarch64" and sysctl.integer("hw.optional.neon") == 1
