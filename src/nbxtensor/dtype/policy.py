"""Precision policies: plain, immutable data that decides the dtype in which an op computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from nbxtensor.dtype.itemsize import canonical, facts, is_storage_only
from nbxtensor.dtype.limits import finfo
from nbxtensor.dtype.promotion import promoted, result_type
from nbxtensor.dtype.table import read_yaml
from nbxtensor.errors import ArgumentError, DtypeError

__all__ = ["Policy", "get_policy", "op_class"]

_FIELDS = {"params": "params", "compute": "compute", "output": "output", "p": "params", "c": "compute", "o": "output"}


@dataclass(frozen=True)
class Policy:
    """The dtypes of a model's parameters, computation and outputs; it holds no state and never changes.

    Attributes:
        params: The dtype parameters are held in.
        compute: The dtype matrix products compute in.
        output: The dtype outputs are returned in.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: One of them is no float that arithmetic is done in.
    """

    params: str
    compute: str
    output: str

    def __post_init__(self) -> None:
        for field, name in (("params", self.params), ("compute", self.compute), ("output", self.output)):
            if facts(name).kind != "float" or is_storage_only(name):
                raise DtypeError(
                    f"policy: {field} is a float that arithmetic is done in. Got {name}. "
                    "float16, bfloat16, float32 and float64 are accepted."
                )

    def __str__(self) -> str:
        return f"params={self.params},compute={self.compute},output={self.output}"

    def replace(self, *, params: str | None = None, compute: str | None = None, output: str | None = None) -> Policy:
        """Return a policy with some dtypes changed; any spelling of a dtype is read.

        >>> get_policy("float32").replace(compute="half").compute
        'float16'
        """
        given = {"params": params, "compute": compute, "output": output}
        return replace(self, **{field: canonical(name) for field, name in given.items() if name is not None})

    def compute_dtype(self, op: str, inputs: Sequence[str]) -> str:
        """Return the dtype in which an op computes.

        Args:
            op: The op's ATen name; a namespace before it and an overload after it are not read.
            inputs: The dtypes of its array operands, by name; at least one.

        Returns:
            By the op's class (:func:`op_class`): float32, the policy's compute dtype, or the widest float of the
            inputs (the compute dtype, for float16 with bfloat16). What the inputs promote to, for an op in no
            class, and for inputs that the classes do not cover: a float64, a complex, no float.

        Raises:
            UnknownDtypeError: The table has no such dtype.
            DtypeError: The inputs have to promote and do not.

        >>> get_policy("p=float32,c=float16,o=float32").compute_dtype("aten.mm.default", ["float32", "float32"])
        'float16'
        """
        rows = [facts(name) for name in inputs]
        covered = any(row.kind == "float" for row in rows) and not any(
            row.kind == "complex" or row.name == "float64" for row in rows
        )
        group = op_class(op) if covered else None
        if group == "float32":
            return "float32"
        if group == "compute":
            return self.compute
        if group == "widest":
            return promoted(inputs) or self.compute
        return result_type(*inputs)

    def fill_value(self, op: str, value: float, dtype: str) -> float:
        """Return the number an op that fills writes into an array of a dtype.

        Args:
            op: The op's ATen name (see :meth:`compute_dtype`).
            value: The number asked for.
            dtype: The array's dtype.

        Returns:
            For a filling op and a float dtype, a finite value held to the dtype's finite range; else the value.

        >>> get_policy("float16").fill_value("masked_fill", -3.39e38, "float16")
        -65504.0
        """
        if facts(dtype).kind != "float" or _bare(op) not in _rules().fills or not math.isfinite(value):
            return value
        limits = finfo(dtype)
        return min(max(value, limits.min), limits.max)


@lru_cache(maxsize=64)
def get_policy(spec: str) -> Policy:
    """Return the policy that a text names.

    Args:
        spec: ``params=…,compute=…,output=…`` in any order (or ``p``, ``c``, ``o``), or one dtype for all three;
            any spelling of a dtype is read.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        ArgumentError: No text, or a part is missing, unknown or given twice.
        DtypeError: A dtype is no float that arithmetic is done in.

    >>> get_policy("params=float32,compute=float16,output=float32").compute
    'float16'
    """
    if not isinstance(spec, str):
        raise _refused(spec)
    if "=" not in spec:
        name = canonical(spec.strip())
        return Policy(name, name, name)
    given: dict[str, str] = {}
    for part in spec.split(","):
        key, _, name = part.partition("=")
        field = _FIELDS.get(key.strip())
        if field is None or field in given:
            raise _refused(spec)
        given[field] = canonical(name.strip())
    if len(given) < 3:
        raise _refused(spec)
    return Policy(**given)


def op_class(op: str) -> str | None:
    """Return the class of an op: ``compute``, ``float32`` or ``widest``, or None for an op in no class.

    Args:
        op: The op's ATen name; a namespace before it and an overload after it are not read.

    >>> op_class("softmax"), op_class("aten::_softmax"), op_class("add")
    ('float32', 'float32', None)
    """
    return _rules().classes.get(_bare(op))


def _refused(spec: str) -> ArgumentError:
    return ArgumentError(
        f"get_policy: a policy names params, compute and output, each once. Got {spec!r}. "
        "'params=float32,compute=float16,output=float32' or one dtype for all three is accepted."
    )


def _bare(op: str) -> str:
    return op.removeprefix("aten::").removeprefix("aten.").partition(".")[0]


@dataclass(frozen=True)
class _Rules:
    classes: Mapping[str, str]
    fills: frozenset[str]


@lru_cache(maxsize=1)
def _rules() -> _Rules:
    raw = read_yaml("policy.yml")
    classes = {op: name for name, lists in raw["classes"].items() for ops in lists.values() for op in ops}
    for name, spellings in raw["spellings"].items():
        classes.update({other: name for others in spellings.values() for other in others})
    return _Rules(classes=MappingProxyType(classes), fills=frozenset(raw["fills"]))
