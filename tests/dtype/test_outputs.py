"""Output dtypes under a half compute dtype, as a truth table; complex outputs of traced ops."""

import itertools

import numpy as np
import pytest

from nbxtensor.dtype.nbx_dtype import NBXDtype
from nbxtensor.dtype.outputs import amp_fp32_output_dtype, traced_output_is_complex
from nbxtensor.errors import DtypeError, MissingFactError, UnknownDtypeError

FLOATS = ["float16", "bfloat16", "float32", "float64"]
FLAGS = list(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize(("safe", "narrowed"), FLAGS)
@pytest.mark.parametrize("graph", FLOATS)
def test_under_bfloat16_the_output_follows_the_graph(graph, safe, narrowed):
    expected = "bfloat16" if graph == "bfloat16" else "float32"
    assert amp_fp32_output_dtype("bfloat16", graph, safe=safe, narrowed=narrowed) == expected


@pytest.mark.parametrize(("safe", "narrowed"), FLAGS)
@pytest.mark.parametrize("graph", FLOATS)
def test_under_float16_only_a_contract_narrows(graph, safe, narrowed):
    expected = "float16" if safe or narrowed else "float32"
    assert amp_fp32_output_dtype("float16", graph, safe=safe, narrowed=narrowed) == expected
    assert amp_fp32_output_dtype("float16", graph, safe=safe, narrowed=narrowed, traced="float16") == expected


@pytest.mark.parametrize("graph", FLOATS)
def test_a_float32_that_the_author_chose_in_a_half_graph_is_narrowed_by_the_ops_own_contract_alone(graph):
    by_model = amp_fp32_output_dtype("float16", graph, safe=True, narrowed=False, traced="float32")
    assert by_model == ("float32" if graph in {"float16", "bfloat16"} else "float16")
    assert amp_fp32_output_dtype("float16", graph, safe=False, narrowed=True, traced="float32") == "float16"


def test_what_is_no_half_compute_dtype_or_no_graph_dtype_is_refused():
    for compute in ("float32", "float64", "int8", "half"):
        with pytest.raises(DtypeError, match=compute):
            amp_fp32_output_dtype(compute, "float16", safe=True, narrowed=True)
    for graph in ("int8", "float8_e4m3fn", "complex64"):
        with pytest.raises(DtypeError, match=graph):
            amp_fp32_output_dtype("bfloat16", graph, safe=True, narrowed=True)
    with pytest.raises(UnknownDtypeError):
        amp_fp32_output_dtype("bfloat16", "bf16", safe=True, narrowed=True)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [(["complex64"], True), (["float32", "torch.complex128"], True), (["cfloat"], True), ([NBXDtype.complex64], True),
     ([np.complex128], True), ([np.dtype("c8"), None], True), (["float32"], False),
     ([None, "int64"], False), ([], False)],
)  # fmt: skip
def test_a_complex_output_is_read_from_the_output(dtypes, expected):
    assert traced_output_is_complex({"op": "aten::mul", "output_dtypes": dtypes}) is expected


def test_a_record_without_output_dtypes_or_with_an_unknown_one_is_refused():
    with pytest.raises(MissingFactError, match="output_dtypes"):
        traced_output_is_complex({"op": "aten::view_as_complex"})
    with pytest.raises(UnknownDtypeError, match="complex32"):
        traced_output_is_complex({"output_dtypes": ["complex32"]})
