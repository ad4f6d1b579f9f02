"""One declared case, run and compared: guarded operands, poisoned results and workspace, derived error bounds."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from nbxtensor import ops
from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import kind, numpy_dtype
from nbxtensor.op import Call, Case, Kernel, Op, Pointer, Spec, Target
from nbxtensor.run.binding import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbxtensor.backend.contract import Backend, DeviceMemory

GUARD = 128  # bytes before and after every buffer
SENTINEL = 0xA5
POISON = 0xFF  # a NaN in every float, -1 in every signed integer

Values = np.ndarray[Any, Any]


# ---- what there is to test


def declared_ops() -> list[Op]:
    """Return every op that a module of `nbxtensor.ops` exports, by name."""
    found: dict[str, Op] = {}
    for module in pkgutil.walk_packages(ops.__path__, "nbxtensor.ops."):
        if module.name.endswith(".kernel"):
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            op = getattr(getattr(loaded, name), "op", None)
            if isinstance(op, Op):
                found[op.name] = op
    return [found[name] for name in sorted(found)]


def case_id(op: Op, index: int) -> str:
    """Return a name for case ``index`` of ``op`` that says what it is called with."""
    case = op.cases[index]
    operands = "-".join(f"{s.dtype}{'x'.join(map(str, s.shape)) or '()'}" for s in case.operands.values())
    return f"{op.name}-{index}-{operands}"[:90]


# ---- values on the host


def value_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype whose values (not bit patterns) are those of dtype ``name``."""
    extra = getattr(ml_dtypes, name, None)
    return np.dtype(extra) if extra is not None else np.dtype(numpy_dtype(name))


def exact(values: Values) -> Values:
    """Return ``values`` as a reference takes them: floats of any kind as float64, all else as it is."""
    if values.dtype.kind in "iub":
        return values
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, 2.5, -2.5, 3.0, 1e-6, 100.0)


def draw(rng: np.random.Generator, count: int, dtype: str, fill: str) -> Values:
    """Return ``count`` values of ``dtype``.

    Args:
        rng: Where they come from.
        count: How many.
        dtype: A name of the dtype table.
        fill: A word of `Case.fill`, or "" for the dtype's own: normal floats, integers small and large, random bools.
    """
    target = value_dtype(dtype)
    if fill.startswith("index:"):
        return rng.integers(0, int(fill.removeprefix("index:")), count).astype(target)
    if kind(dtype) == "bool" or fill == "bool":
        return rng.integers(0, 2, count).astype(target)
    if fill == "special":
        if kind(dtype) in ("int", "uint"):
            info = np.iinfo(target)
            special = np.array([info.min, info.max, 0, 1, 2, 3, 7, info.max - 1, info.min + 1], target)
            return special[rng.integers(0, len(special), count)]
        limits = ml_dtypes.finfo(target)
        special = np.array(
            [*_SPECIAL, float(limits.max), float(limits.smallest_normal), -float(limits.smallest_subnormal)]
        )
        return special[rng.permutation(max(count, len(special)))[:count] % len(special)].astype(target)
    if kind(dtype) in ("int", "uint"):
        info = np.iinfo(target)
        small = rng.integers(max(info.min, -9), 10, count, dtype=np.int64).astype(target)
        large = rng.integers(info.min, info.max, count, dtype=target, endpoint=True)
        return np.where(rng.random(count) < 0.5, small, large).astype(target) if not fill else np.abs(small)
    if fill in ("uniform", "probability"):
        return rng.uniform(-1 if fill == "uniform" else 0, 1, count).astype(target)
    values = rng.standard_normal(count)
    return (np.abs(values) + 1e-2 if fill == "positive" else values).astype(target)


@dataclass
class Laid:
    """Values laid out as a spec says: the bytes of the block, and where the first element is in it."""

    spec: Spec
    block: Values  # uint8
    start: int  # bytes from the block's first byte to element 0

    @property
    def values(self) -> Values:
        """The elements, a view into the block."""
        dtype = value_dtype(self.spec.dtype)
        flat = self.block.view(dtype)
        strides = tuple(n * dtype.itemsize for n in self.spec.strides)
        return np.lib.stride_tricks.as_strided(flat[self.start // dtype.itemsize :], self.spec.shape, strides)


def layout(spec: Spec) -> Laid:
    """Return a block of poison that holds the elements of ``spec``, those with negative strides too."""
    size = value_dtype(spec.dtype).itemsize
    span = shapes.extent_span(spec.shape, spec.strides)
    low = sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True) if s < 0) if span else 0
    return Laid(spec, np.full(span * size, POISON, np.uint8), -low * size)


def operand(spec: Spec, rng: np.random.Generator, fill: str = "") -> Laid:
    """Return random values laid out as ``spec``; the gaps between its elements are poison."""
    laid = layout(spec)
    if spec.numel:
        laid.values[...] = draw(rng, spec.numel, spec.dtype, fill).reshape(spec.shape)
    return laid


def lay(values: Values, dtype: str, strides: tuple[int, ...] = ()) -> Laid:
    """Return given values as a block of ``dtype``, laid out by ``strides`` (row-major for ())."""
    laid = layout(Spec(values.shape, dtype, strides))
    laid.values[...] = values
    return laid


def operands(case: Case, seed: int) -> dict[str, Laid]:
    """Return the operands of ``case``, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    return {name: operand(spec, rng, case.fill.get(name, "")) for name, spec in case.operands.items()}


def case_seed(op: Op, index: int) -> int:
    """Return a seed that is the same in every process."""
    return zlib.crc32(f"{op.name}/{index}".encode())


def call_of(op: Op, case: Case, target: Target | None = None) -> Call:
    """Return the call that ``case`` is, the defaults of its other parameters filled in."""
    present = {name.rpartition(".")[0] or name for name in case.operands}
    defaults = {n: p.default for n, p in op.signature.parameters.items() if n not in present}
    return op.call(case.operands, {**defaults, **case.params}, target)


# ---- the reference


def reference(
    op: Op, arrays: Mapping[str, Values], params: Mapping[str, Any], *, absolute: bool = False
) -> tuple[Values, ...]:
    """Return the results of ``op``'s reference on exact values, or on the absolute values of the floats."""

    def taken(array: Values) -> Values:
        values = exact(array)
        return np.abs(values) if absolute and values.dtype.kind == "f" else values

    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in op.signature.parameters.items():
        members = [k for k in arrays if k.rpartition(".")[0] == name]
        if name in arrays:
            value = taken(arrays[name])
        elif members:
            value = [taken(arrays[k]) for k in members]
        else:
            value = params.get(name, parameter.default)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    with np.errstate(all="ignore"):
        results = op.reference(*positional, **named)
    return tuple(np.asarray(r) for r in (results if isinstance(results, tuple) else (results,)))


# ---- the run


class _Guarded:
    """One block of device memory between two sentinels."""

    def __init__(self, memory: DeviceMemory, content: Values, *, start: int = 0) -> None:
        self._memory = memory
        self._nbytes = content.nbytes
        self._base = memory.allocate(content.nbytes + 2 * GUARD)
        edge = np.full(GUARD, SENTINEL, np.uint8)
        memory.copy_in(self._base, memoryview(np.concatenate([edge, content, edge])))
        self.address = self._base + GUARD + start

    def read(self) -> Values:
        """Return the content; fails where a sentinel was touched."""
        whole = np.empty(self._nbytes + 2 * GUARD, np.uint8)
        self._memory.copy_out(memoryview(whole), self._base)
        before, content, after = np.split(whole, [GUARD, GUARD + self._nbytes])
        assert (before == SENTINEL).all(), "the bytes before a buffer were written"
        assert (after == SENTINEL).all(), "the bytes after a buffer were written"
        return content

    def poison(self) -> None:
        """Overwrite the content."""
        self._memory.fill(self._base + GUARD, POISON, self._nbytes)

    def free(self) -> None:
        """Give the block back."""
        self._memory.free(self._base)


def run(call: Call, kernel: Kernel, given: Mapping[str, Laid], backend: Backend, *, bake: bool) -> tuple[Values, ...]:
    """Return the results of one kernel of ``call`` on device 0 of ``backend``.

    Every buffer lies between sentinels; results and workspace start as poison, and workspace is poisoned again once
    its declared lifetime is over. Operands and the gaps of strided results must be left as they were. A result that
    the call says lies on an operand lies there.
    """
    memory = backend.memory(0)
    launches = kernel.launch(call)
    inputs = {name: _Guarded(memory, laid.block, start=laid.start) for name, laid in given.items()}
    laid_out = [given[call.in_place[i]] if i in call.in_place else layout(s) for i, s in enumerate(call.outputs)]
    laid_out = [Laid(laid.spec, laid.block.copy(), laid.start) for laid in laid_out]
    outputs = [
        inputs[call.in_place[i]] if i in call.in_place else _Guarded(memory, laid.block, start=laid.start)
        for i, laid in enumerate(laid_out)
    ]
    buffers = kernel.cost(call).buffers
    workspace = {b.name: _Guarded(memory, np.full(b.nbytes, POISON, np.uint8)) for b in buffers}

    def resolve(pointer: Pointer) -> int:
        if pointer.role == "input":
            return inputs[str(pointer.key)].address
        return outputs[int(pointer.key)].address if pointer.role == "output" else workspace[str(pointer.key)].address

    def aligned(pointer: Pointer) -> bool:
        return resolve(pointer) % 16 == 0

    for index, prepared in enumerate(prepare(call, kernel, launches, backend, 0, bake=bake, aligned=aligned)):
        backend.launch(prepared.bind(resolve), 0)
        for buffer in buffers:
            if buffer.last == index:
                backend.synchronize(0)
                workspace[buffer.name].read()
                workspace[buffer.name].poison()
    backend.synchronize(0)
    for name, laid in given.items():
        if name not in call.in_place.values():
            assert np.array_equal(inputs[name].read(), laid.block), f"operand {name} was written"
    results: list[Values] = []
    for guarded, laid in zip(outputs, laid_out, strict=True):
        laid.block = guarded.read()
        results.append(laid.values.copy())
        if laid.block.size:
            laid.values[...] = np.full((), POISON, np.uint8).repeat(laid.values.itemsize).view(laid.values.dtype)
            assert (laid.block == POISON).all(), "bytes between the elements of a result were written"
    for guarded in {id(g): g for g in (*inputs.values(), *outputs, *workspace.values())}.values():
        guarded.free()
    return tuple(results)


def evaluate(
    op: Op, given: Mapping[str, Laid], params: Mapping[str, Any], backend: Backend, *, bake: bool = False
) -> tuple[Values, ...]:
    """Return the results of ``op`` on values that are laid out already."""
    case = Case({name: laid.spec for name, laid in given.items()}, params)
    call = call_of(op, case, backend.target(0))
    return run(call, op.kernel(call), given, backend, bake=bake)


def in_place(call: Call, kernel: Kernel) -> Call:
    """Return ``call`` with every result that may lie on an operand laid there."""
    outputs = tuple(call[kernel.in_place[i]] if i in kernel.in_place else s for i, s in enumerate(call.outputs))
    return replace(call, outputs=outputs, in_place=kernel.in_place)


def kernels(call: Call) -> Iterator[Kernel]:
    """Yield every kernel of the op that serves ``call`` on its target."""
    for kernel in call.op.kernels:
        if kernel.needs <= call.device.features and (kernel.accepts is None or kernel.accepts(call)):
            yield kernel


# ---- the comparison

_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_ULPS = 4.0  # error of one device function, in units of the last place of the dtype it computes in
_SPREAD = 5.0  # deviations: rounding errors of n operations grow as sqrt(n) (Higham and Mary 2019, theorem 2.4)


def roundoff(dtype: str) -> float:
    """Return the largest relative error of one rounding to ``dtype``."""
    if dtype in _ROUNDOFF:
        return _ROUNDOFF[dtype]
    return float(ml_dtypes.finfo(value_dtype(dtype)).eps) / 2


def error_bound(
    call: Call, want: Values, magnitude: Values, dtype: str, flops: int, rtol: float | None
) -> Values | float:
    """Return the largest error accepted of each element of a float result.

    The result is rounded once to its dtype. Before that, a pointwise function is off by a few units in the last place
    of the dtype it computes in, and a sum of n products by sqrt(n) roundings of the sum of their magnitudes.

    Args:
        call: The call.
        want: The exact result.
        magnitude: What the reference gives on the absolute values of the operands.
        dtype: The result's dtype.
        flops: Operations of the whole call, as its kernel declares them.
        rtol: The case's own bound, relative to the largest magnitude of the result.
    """
    limits = ml_dtypes.finfo(value_dtype(dtype))
    finite = np.abs(np.where(np.isfinite(want), want, 0.0))
    if rtol is not None:
        return rtol * finite.max(initial=0.0) + float(limits.smallest_subnormal)
    inner = roundoff("float64" if dtype == "float64" else "float32")
    once = roundoff(dtype) * finite + _ULPS * float(limits.smallest_subnormal)
    if call.op.pointwise is not None:
        return once + 2 * _ULPS * inner * finite
    per_result = max(flops / max(want.size, 1), 1.0)
    scale = np.maximum(finite, np.where(np.isfinite(magnitude), np.abs(magnitude), 0.0))
    return once + (2 * _ULPS + _SPREAD * np.sqrt(per_result)) * inner * scale


def compare(
    call: Call, got: Values, want: Values, magnitude: Values, dtype: str, *, flops: int, rtol: float | None = None
) -> None:
    """Fail unless ``got`` is ``want`` within the bound that its dtype and its operations allow."""
    assert got.shape == want.shape
    if kind(dtype) in ("int", "uint", "bool", "complex"):
        np.testing.assert_array_equal(got, want.astype(got.dtype))
        return
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype).astype(np.float64)
        bound = np.broadcast_to(error_bound(call, want, magnitude, dtype, flops, rtol), want.shape)
        result = got.astype(np.float64)
        error = np.abs(result - want)
        largest = float(ml_dtypes.finfo(got.dtype).max)
        overflow = np.isinf(result) & (np.abs(want) + bound >= largest) & (np.sign(result) == np.sign(want))
        fine = (error <= bound) | (result == rounded) | (np.isnan(result) & np.isnan(want)) | overflow
    if not fine.all():
        worst = np.argwhere(~fine)
        where = tuple(worst[np.nanargmax(np.where(np.isnan(error[~fine]), np.inf, error[~fine]))])
        raise AssertionError(
            f"{len(worst)} of {want.size} elements are wrong; the worst at {where}: got {result[where]!r}, want "
            f"{want[where]!r}, error {error[where]:.3g}, accepted {bound[where]:.3g}"
        )
