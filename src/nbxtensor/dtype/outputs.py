"""What an op returns under a half compute dtype, when it computes in float32 inside; and what a trace says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbxtensor.dtype.itemsize import canonical, facts, is_storage_only, kind
from nbxtensor.errors import DtypeError, MissingFactError

__all__ = ["amp_fp32_output_dtype", "traced_output_is_complex"]

_HALVES = ("float16", "bfloat16")


def amp_fp32_output_dtype(compute: str, graph: str, *, safe: bool, narrowed: bool, traced: str | None = None) -> str:
    """Return the output dtype of an op that computes in float32 inside, under a half compute dtype.

    bfloat16 has float32's range, so any float32 result fits it: the output follows the graph, bfloat16 in a
    bfloat16 graph and float32 in a graph of another dtype, which had float32 there. float16 ends at 65504, so
    the output is float32 unless a contract says that the result fits.

    Args:
        compute: The compute dtype: float16 or bfloat16.
        graph: The dtype the model's graph was traced in.
        safe: The contract for a whole model: its activations were found to fit float16.
        narrowed: The contract for this op: its result was found to fit float16.
        traced: The output dtype the trace gives this op, where known. float32 in a half graph was the author's
            choice, and only the contract for the op narrows it.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: ``compute`` is no half dtype, or ``graph`` is no float that arithmetic is done in.

    >>> amp_fp32_output_dtype("bfloat16", "float32", safe=False, narrowed=False)
    'float32'
    """
    if compute not in _HALVES:
        raise DtypeError(
            f"amp_fp32_output_dtype: the compute dtype is a half one. Got {compute}. "
            "float16 and bfloat16 are accepted: with any other, an op returns the dtype it computes in."
        )
    if facts(graph).kind != "float" or is_storage_only(graph):
        raise DtypeError(
            f"amp_fp32_output_dtype: a graph is traced in a float. Got {graph}. "
            "float16, bfloat16, float32 and float64 are accepted."
        )
    if compute == "bfloat16":
        return "bfloat16" if graph == "bfloat16" else "float32"
    kept_by_author = traced == "float32" and graph in _HALVES
    return "float16" if narrowed or (safe and not kept_by_author) else "float32"


def traced_output_is_complex(record: Mapping[str, Any]) -> bool:
    """Return whether a traced op has a complex output, read from the outputs and never from the op's name.

    A product of a real array and an imaginary number is complex though neither its name nor its array operand is.

    Args:
        record: The op's record in a traced graph; ``output_dtypes`` lists the dtypes of its outputs in any
            spelling, None for an output that is no array.

    Raises:
        MissingFactError: The record does not list its output dtypes.
        UnknownDtypeError: The table has no such dtype.

    >>> traced_output_is_complex({"output_dtypes": ["complex64"]})
    True
    """
    dtypes: Sequence[object] | None = record.get("output_dtypes")
    if dtypes is None:
        raise MissingFactError("the op's output dtypes", "They stand under 'output_dtypes' in a traced op's record.")
    return any(kind(canonical(dtype)) == "complex" for dtype in dtypes if dtype is not None)
