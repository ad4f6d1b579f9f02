"""What a device file may say: every field, its meaning and its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from nbxtensor.dtype.itemsize import names as dtype_names
from nbxtensor.errors import FormatError

__all__ = ["FIELDS", "Field", "check", "field_of", "leaves", "sources_of"]

Kind = Literal["text", "texts", "flag", "number", "numbers", "dtypes"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a device file.

    Attributes:
        kind: What it holds; a number is a whole number above 0.
        meaning: What it states, and its unit.
        needed: Whether every file has it. A field that is not needed is left out where its value is not known.
    """

    kind: Kind
    meaning: str
    needed: bool = False


FIELDS: Mapping[str, Field] = {
    "name": Field("text", "name of the product, with what tells it from its siblings", needed=True),
    "vendor": Field("text", "who makes it: the name of the file's folder", needed=True),
    "architecture": Field("text", "generation, in the vendor's word", needed=True),
    "compute_capability": Field("text", "what kernels are compiled for, as the target spells it", needed=True),
    "recognised_as": Field("texts", "names that the driver or the system gives it", needed=True),
    "shares_host_memory": Field("flag", "whether device and host use one memory", needed=True),
    "memory.bytes": Field("number", "size of the device's memory"),
    "memory.bandwidth": Field("number", "bytes per second of the memory interface, as the vendor states it"),
    "memory.copy_bandwidth": Field("number", "bytes per second, read and written, of a large device copy, as measured"),
    "memory.read_bandwidth": Field("number", "bytes per second of reading memory alone, as measured"),
    "memory.l2_nbytes": Field("number", "bytes of the last cache that all units share"),
    "memory.l2_usable_nbytes": Field("number", "most bytes that come from that cache when read again, as measured"),
    "memory.l2_bandwidth": Field("number", "bytes per second of reading what that cache holds, as measured"),
    "memory.l2_copy_bandwidth": Field("number", "bytes per second, read and written, of a copy in it, as measured"),
    "memory.unit_bandwidth": Field("number", "bytes per second that one unit reads from it at most, as measured"),
    "memory.latency_ns": Field("number", "nanoseconds from a load to one that needs it, from memory, as measured"),
    "memory.l2_latency_ns": Field("number", "nanoseconds from a load to one that needs it, from it, as measured"),
    "memory.begin_ns": Field("number", "nanoseconds that reading memory takes beyond bytes and launch, as measured"),
    "memory.step_ns": Field("number", "nanoseconds from asking for a block to having multiplied it, as measured"),
    "memory.l2_step_ns": Field("number", "the same from the cache that all units share, as measured"),
    "memory.granule_nbytes": Field("number", "bytes that the driver hands out memory in, as measured"),
    "memory.max_shared_memory_per_block": Field("number", "bytes of shared memory that one program can be given"),
    "memory.max_registers_per_block": Field("number", "32-bit registers that one program can be given"),
    "memory.warp_size": Field("number", "threads that run one instruction together"),
    "compute.units": Field("number", "multiprocessors, compute units or GPU cores"),
    "compute.matrix_flops.*": Field("number", "operations per second of the matrix unit, dense, by operand dtype"),
    "compute.vector_flops.*": Field("number", "operations per second of the other units (an FMA counts two), by dtype"),
    "rates.matrix.*": Field("number", "operations per second that the library's products reach, as measured"),
    "rates.vector.*": Field("number", "multiplications and additions per second, one by one, as measured"),
    "compute.matrix_tile": Field("numbers", "m, n, k of the float16 matrix instruction that kernels are tiled by"),
    "dispatch.max_grid": Field("numbers", "programs along the three axes of a launch"),
    "dispatch.programs_per_second": Field("number", "programs of 128 threads that the device starts, as measured"),
    "dispatch.max_threads_per_block": Field("number", "threads of one program"),
    "launch.eager_ns": Field("number", "nanoseconds that a launch costs the host, as measured"),
    "launch.round_ns": Field("number", "nanoseconds of a sum over a program that waits for the last, as measured"),
    "launch.recorded_ns": Field("number", "nanoseconds that a launch takes inside a recording, as measured"),
    "launch.early_ns": Field("number", "the same where it starts before the launch before it is done, as measured"),
    "cpu.vector_bits": Field("number", "width of a vector register"),
    "cpu.lanes_f32": Field("number", "float32 elements of a vector register"),
    "cpu.registers": Field("number", "vector registers"),
    "cpu.l1_nbytes": Field("number", "bytes of a core's first-level data cache, typical of the level"),
    "cpu.l2_nbytes": Field("number", "bytes of a core's second-level cache, typical of the level"),
    "cpu.features": Field("texts", "LLVM's names of what every processor of the level has"),
    "dtypes.stored": Field("dtypes", "dtypes that its memory may hold", needed=True),
    "dtypes.computed": Field("dtypes", "real dtypes that its arithmetic or matrix instructions take", needed=True),
}
"""Every field by its path; ``*`` stands for a dtype (or "tensorfloat32", the rounding of float32 operands)."""


def field_of(path: str) -> Field | None:
    """Return the field that a path of a description is of; None where there is no such field."""
    return FIELDS.get(path) or FIELDS.get(f"{path.rpartition('.')[0]}.*")


def check(description: Mapping[str, Any], *, where: str) -> None:
    """Check a device file, its sources included.

    Raises:
        FormatError: A field is unknown, missing or of another kind, or a number has not exactly one source.
    """
    body = {key: value for key, value in description.items() if key != "sources"}
    found = dict(leaves(body))
    for path, value in found.items():
        _check_field(path, value, where)
    missing = [path for path, field in FIELDS.items() if field.needed and path not in found]
    if missing:
        raise FormatError(f"{where}: a needed field is missing. Got none for {', '.join(missing)}.")
    sources = sources_of(description, where=where)
    used: set[str] = set()
    for path, value in found.items():
        covering = [given for given in sources if path == given or path.startswith(given + ".")]
        expected = 1 if _is_number(value) else 0
        if len(covering) != expected:
            raise FormatError(f"{where}: every number has one source, and nothing else has. Got {covering} for {path}.")
        used.update(covering)
    if used != set(sources):
        raise FormatError(f"{where}: a source states a number. Got {', '.join(sorted(set(sources) - used))}.")


def leaves(description: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every field of a description."""
    for key, value in description.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(cast("Mapping[str, Any]", value), path + ".")
        else:
            yield path, value


def sources_of(description: Mapping[str, Any], *, where: str) -> dict[str, str]:
    """Return the source of each path that the sources of a description state.

    Raises:
        FormatError: The sources are not a list of ``{from: text, states: [path, ...]}``, or state a path twice.
    """
    found: dict[str, str] = {}
    for entry in description.get("sources", ()):
        match entry:
            case {"from": str(text), "states": [*paths]} if len(entry) == 2:
                for path in paths:
                    if path in found:
                        raise FormatError(f"{where}: a path has one source. Got two for {path}.")
                    found[path] = text
            case _:
                raise FormatError(f"{where}: a source has the keys from and states. Got {entry!r}.")
    return found


def _check_field(path: str, value: Any, where: str) -> None:
    last = path.rpartition(".")[2]
    field = field_of(path)
    if field is None:
        raise FormatError(f"{where}: no such field. Got {path}. The fields are in backend/device_schema.py.")
    if path not in FIELDS and last != "tensorfloat32":
        _check_dtypes([last], path, where)
    good = {
        "text": isinstance(value, str) and value != "",
        "flag": isinstance(value, bool),
        "number": _is_count(value),
        "numbers": _is_list(value) and all(map(_is_count, value)),
        "texts": _is_list(value) and all(isinstance(item, str) for item in value),
        "dtypes": _is_list(value),
    }[field.kind]
    if not good:
        raise FormatError(f"{where}: {path} is a {field.kind} ({field.meaning}). Got {value!r}.")
    if field.kind == "dtypes":
        _check_dtypes(value, path, where)


def _check_dtypes(names: Sequence[str], path: str, where: str) -> None:
    unknown = [name for name in names if name not in dtype_names()]
    if unknown:
        raise FormatError(f"{where}: {path} names dtypes of the dtype table. Got {unknown}.")


def _is_number(value: Any) -> bool:
    return _is_count(value) or (_is_list(value) and any(map(_is_count, value)))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(cast("list[Any]", value)) > 0
