"""Triton kernels compiled for the CPU and run on guarded buffers, with poisoned scratch."""

import ctypes
import functools
import itertools
import struct

import numpy as np

from nbxtensor.backend.cpu import codegen, elf, frontend, levels

LEVELS = [level for level in codegen.LEVELS if level <= levels.detect()]
TRITON = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
}  # fmt: skip
GUARD = 256  # bytes before and after each buffer, and the byte they hold
SENTINEL = 0xA5


def pointer(array):
    return "*" + TRITON[array.dtype.name]


class Kernel:
    """A compiled kernel."""

    def __init__(self, text, level, features=frozenset()):
        self.ttir = text
        self.compiled = codegen.compile_ttir(text, level, features)
        self.module = elf.load(self.compiled.object)
        address = self.module.address(self.compiled.name)
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4)(address)

    def launch(self, *arguments, grid=(1,), cuts=None):
        """Run over the grid and return what the array arguments hold afterwards, in order.

        ``cuts``: program numbers at which the range is cut into several calls.
        """
        slots, guarded = [], []
        for kind, argument in zip(self.compiled.parameters, arguments, strict=True):
            if isinstance(argument, np.ndarray):
                room = np.full(argument.nbytes + 2 * GUARD, SENTINEL, np.uint8)
                room[GUARD : GUARD + argument.nbytes] = np.ascontiguousarray(argument).view(np.uint8).reshape(-1)
                guarded.append((room, argument))
                slots.append(struct.pack("<Q", room.ctypes.data + GUARD))
            elif kind in {"f32", "f64"}:
                slots.append(struct.pack("<f4x" if kind == "f32" else "<d", argument))
            else:
                slots.append(struct.pack("<q", argument))
        gx, gy, gz = (*grid, 1, 1)[:3]
        scratch = np.empty(self.compiled.scratch_nbytes + 64 + GUARD, np.uint8)
        start = -(-scratch.ctypes.data // 64) * 64
        bounds = [0, *(cuts or ()), gx * gy * gz]
        for low, high in itertools.pairwise(bounds):
            scratch.fill(0xFF)
            self.call(b"".join(slots), start, low, high, gx, gy)
            after = scratch[start - scratch.ctypes.data + self.compiled.scratch_nbytes :]
            assert (after == 0xFF).all(), "wrote past the scratch"
        results = []
        for room, argument in guarded:
            guards = np.concatenate([room[:GUARD], room[-GUARD:]])
            assert (guards == SENTINEL).all(), "wrote past a buffer"
            results.append(room[GUARD : GUARD + argument.nbytes].view(argument.dtype).reshape(argument.shape))
        return results


@functools.cache
def _compiled(function, signature, constants, level, features):
    return Kernel(frontend.ttir(function, dict(signature), dict(constants)), level, features)


def compiled(function, signature, constants=None, level="x86-64-v4", features=frozenset()):
    """The kernel, compiled once per process; ``signature`` names the parameters that are not constants."""
    constants = constants or {}
    full = {n: "constexpr" if n in constants else signature[n] for n in function.arg_names}
    return _compiled(function, tuple(full.items()), tuple(constants.items()), level, features)


def run(function, level, *arguments, grid=(1,), cuts=None, scalars=None, features=frozenset(), **constants):
    """Compile for the types of the arguments and launch; scalars are i32 or fp32 unless ``scalars`` says else."""
    names = [n for n in function.arg_names if n not in constants]
    types = {}
    for name, argument in zip(names, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            types[name] = pointer(argument)
        else:
            types[name] = (scalars or {}).get(name) or ("fp32" if isinstance(argument, float) else "i32")
    kernel = compiled(function, types, constants, level, features)
    return kernel.launch(*arguments, grid=grid, cuts=cuts)
