"""Loads and stores of a vector of elements: contiguous, reversed, uniform, or each lane at its own address."""

from __future__ import annotations

from nbxtensor.backend.cpu.ir import vector_type
from nbxtensor.backend.cpu.state import BYTES, LLVM, Pointer, Register, State

__all__ = ["always", "load", "store"]


def always(mask: Register | None) -> bool:
    """Return whether a mask is absent or known to be true."""
    return mask is None or mask.value in {"true", "-1", "1", "splat (i1 true)", "splat (i1 -1)", "splat (i1 1)"}


def load(
    state: State, pointer: Pointer | Register, element: str, lanes: int, mask: Register | None, other: Register | None
) -> Register:
    """Write the load of ``lanes`` elements (one when the address is the same in all lanes).

    Args:
        state: The lowering.
        pointer: Where to read.
        element: What to read; a boolean takes a byte in memory.
        lanes: Lanes of the vector; 0 for a scalar.
        mask: Lanes that are read; None for all.
        other: What the other lanes get; None for anything (zeros).
    """
    if element == "i1":
        other = None if other is None else _widened(state, other)
        raw = load(state, pointer, "i8", lanes, mask, other)
        zero = state.b.splat("0", "i8", raw.lanes)
        return Register(state.b.op(f"icmp ne {raw.type} {raw.value}, {zero}"), "i1", raw.lanes)
    if always(mask):
        mask = None
    step = _step(pointer)
    scalar = LLVM[element]
    align = BYTES[element]
    if step == 0:
        address = pointer.value if isinstance(pointer, Register) else state.address(pointer)
        return _load_one(state, address, element, lanes, mask, other)
    kind = vector_type(scalar, lanes)
    default = state.vector(other, lanes) if other else "zeroinitializer"
    if isinstance(pointer, Pointer) and step in {align, -align}:
        backward = step < 0
        address = _first(state, pointer, element, lanes)
        if mask is None:
            value = state.b.op(f"load {kind}, ptr {address}, align {align}")
        else:
            chosen = state.vector(mask, lanes)
            if backward:
                chosen, default = _reversed(state, chosen, "i1", lanes), _reversed(state, default, scalar, lanes)
            arguments = [("ptr", address), ("i32", str(align)), (vector_type("i1", lanes), chosen), (kind, default)]
            value = state.b.call(kind, f"llvm.masked.load.v{lanes}{_suffix(element)}.p0", arguments)
        return Register(_reversed(state, value, scalar, lanes) if backward else value, element, lanes)
    addresses = _vector_of_addresses(state, pointer, lanes)
    chosen = state.vector(mask, lanes) if mask else "splat (i1 true)"
    arguments = [
        (vector_type("ptr", lanes), addresses),
        ("i32", str(align)),
        (vector_type("i1", lanes), chosen),
        (kind, default),
    ]
    name = f"llvm.masked.gather.v{lanes}{_suffix(element)}.v{lanes}p0"
    return Register(state.b.call(kind, name, arguments), element, lanes)


def store(state: State, pointer: Pointer | Register, value: Register, lanes: int, mask: Register | None) -> None:
    """Write the store of a vector; where the address is the same in all lanes, the last active lane wins."""
    if value.element == "i1":
        value = _widened(state, value)
    if always(mask):
        mask = None
    element = value.element
    scalar, align = LLVM[element], BYTES[element]
    step = _step(pointer)
    kind = vector_type(scalar, lanes)
    if not lanes or (step == 0 and not value.lanes and (mask is None or not mask.lanes)):
        address = pointer.value if isinstance(pointer, Register) else state.address(pointer)
        _store_one(state, address, value, mask)
        return
    data = state.vector(value, lanes)
    chosen = state.vector(mask, lanes) if mask else "splat (i1 true)"
    if isinstance(pointer, Pointer) and step in {align, -align}:
        address = _first(state, pointer, element, lanes)
        if step < 0:
            data = _reversed(state, data, scalar, lanes)
            chosen = _reversed(state, chosen, "i1", lanes) if mask else chosen
        if mask is None:
            state.b.do(f"store {kind} {data}, ptr {address}, align {align}")
            return
        arguments = [(kind, data), ("ptr", address), ("i32", str(align)), (vector_type("i1", lanes), chosen)]
        state.b.call("void", f"llvm.masked.store.v{lanes}{_suffix(element)}.p0", arguments)
        return
    arguments = [
        (kind, data),
        (vector_type("ptr", lanes), _vector_of_addresses(state, pointer, lanes)),
        ("i32", str(align)),
        (vector_type("i1", lanes), chosen),
    ]
    state.b.call("void", f"llvm.masked.scatter.v{lanes}{_suffix(element)}.v{lanes}p0", arguments)


def _suffix(element: str) -> str:
    return {"ptr": "p0", "float": "f32", "double": "f64"}.get(LLVM[element], LLVM[element])


def _step(pointer: Pointer | Register) -> int | None:
    """Bytes from lane to lane: 0 when all lanes share an address, None when that is not one constant."""
    if isinstance(pointer, Register):
        return None if pointer.lanes else 0
    if pointer.index is not None and pointer.index.lanes:
        return None
    if pointer.index is not None or not pointer.offset.lane.is_constant():
        return None if not pointer.offset.uniform else 0
    return pointer.offset.lane.value()


def _vector_of_addresses(state: State, pointer: Pointer | Register, lanes: int) -> str:
    register = pointer if isinstance(pointer, Register) else state.addresses(pointer, lanes)
    return state.vector(register, lanes)


def _first(state: State, pointer: Pointer, element: str, lanes: int) -> str:
    """The lowest address of a vector whose lanes follow one another, up or down."""
    address = state.address(pointer)
    if pointer.offset.lane.value() < 0:
        return state.b.pure(f"getelementptr i8, ptr {address}, i64 {(1 - lanes) * BYTES[element]}")
    return address


def _reversed(state: State, value: str, scalar: str, lanes: int) -> str:
    if value.startswith(("splat", "zero")):
        return value
    kind = vector_type(scalar, lanes)
    order = ", ".join(f"i32 {k}" for k in reversed(range(lanes)))
    return state.b.pure(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> <{order}>")


def _widened(state: State, register: Register) -> Register:
    """A boolean as the byte that stands for it in memory."""
    kind = vector_type("i8", register.lanes)
    return Register(state.b.pure(f"zext {register.type} {register.value} to {kind}"), "i8", register.lanes)


def _load_one(
    state: State, address: str, element: str, lanes: int, mask: Register | None, other: Register | None
) -> Register:
    """Load one element that all lanes share, if any lane wants it."""
    kind = LLVM[element]
    if mask is None:
        return Register(state.b.op(f"load {kind}, ptr {address}, align {BYTES[element]}"), element)
    condition = mask.value
    if mask.lanes:
        arguments = [(vector_type("i1", mask.lanes), mask.value)]
        condition = state.b.call("i1", f"llvm.vector.reduce.or.v{mask.lanes}i1", arguments)
    zero = "null" if element == "ptr" else "zeroinitializer"
    default = other.value if other and not other.lanes else zero
    (value,) = state.b.choose(
        condition,
        lambda: [state.b.op(f"load {kind}, ptr {address}, align {BYTES[element]}")],
        lambda: [default],
        [kind],
    )
    if not mask.lanes and not (other and other.lanes):
        return Register(value, element)
    wide = vector_type(kind, lanes)
    filled = state.b.splat(value, kind, lanes)
    rest = state.vector(other, lanes) if other else "zeroinitializer"
    chosen = state.vector(mask, lanes)
    picked = state.b.op(f"select {vector_type('i1', lanes)} {chosen}, {wide} {filled}, {wide} {rest}")
    return Register(picked, element, lanes)


def _store_one(state: State, address: str, value: Register, mask: Register | None) -> None:
    def write() -> list[str]:
        state.b.do(f"store {value.type} {value.value}, ptr {address}, align {BYTES[value.element]}")
        return []

    if mask is None:
        write()
    else:
        state.b.choose(mask.value, write)
