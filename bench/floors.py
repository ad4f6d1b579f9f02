"""The least that a case can take on this machine: its bytes moved and nothing else, raced beside the contenders."""

from __future__ import annotations

import functools

import numpy as np

from bench import machine
from bench.race import Contender
from nbxtensor.backend.contract import Bound, Compiled
from nbxtensor.backend.cpu import backend, levels
from nbxtensor.backend.cpu.codegen import object_code
from nbxtensor.backend.cpu.host_kernel import HostKernel
from nbxtensor.backend.cpu.pages import Pages
from nbxtensor.backend.cpu.probes import SCRATCH_NBYTES, probes_text

NAME = "floor"
_STEP = 512  # bytes that a turn of a probe moves


def moving(read: int, written: int, threads: int) -> Contender:
    """Return a contender that copies as much as is written, and reads what is read beyond that."""
    share = _STEP * threads
    copied, more = min(read, written), abs(read - written)
    source, target = Pages(read + written + share), Pages(read + written + share)
    for pages in (source, target):
        pages.advise_huge(0, pages.nbytes)
        np.frombuffer(pages.view, np.uint8)[:] = 1
    launches: list[Bound] = []
    if copied // share:
        part = copied // share * _STEP
        launches.append(Bound(_probe("copy"), (threads, 1, 1), (source.address, part, target.address)))
    if more // share:
        part = more // share * _STEP
        where = source if read > written else target
        launches.append(Bound(_probe("read"), (threads, 1, 1), (where.address + copied, part)))
    replay = backend().record(launches)
    kept = (source, target)
    return Contender(NAME, replay.run, lambda _: np.zeros(len(kept)))


def seconds(moved: float, flops: float, dtype: str, threads: int) -> tuple[float, str]:
    """Return the floor and what sets it: the bytes as measured, or the operations at the rate of products."""
    rate = machine.rates(threads).get(f"compute.matrix_flops.{dtype}")
    computing = flops / rate if rate else 0.0
    return (moved, "bytes") if moved >= computing else (computing, "flops")


@functools.cache
def _probe(name: str) -> HostKernel:
    level = levels.detect()
    code = object_code(probes_text(level, frozenset()), level, frozenset())
    parameters = (("source", "*i8"), ("nbytes", "i64"), ("target", "*i8"))[: 3 if name == "copy" else 2]
    metadata = {"scratch_nbytes": SCRATCH_NBYTES, "arch": level, "features": []}
    return backend().load(Compiled(name, code, parameters, metadata))
