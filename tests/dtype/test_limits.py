"""The extremes of dtypes, against numpy's and ml_dtypes' own tables."""

import ml_dtypes
import numpy as np
import pytest

from nbxtensor.dtype.itemsize import facts, names
from nbxtensor.dtype.limits import finfo, iinfo
from nbxtensor.errors import DtypeError

FLOATS = [name for name in names() if facts(name).kind == "float"]
INTS = [name for name in names() if facts(name).kind in {"int", "uint"}]


@pytest.mark.parametrize("name", FLOATS)
def test_finfo_is_the_formats(name):
    found = finfo(name)
    known = ml_dtypes.finfo(getattr(ml_dtypes, name, name))
    for field in ("bits", "max", "min", "eps", "smallest_normal", "smallest_subnormal"):
        assert getattr(found, field) == float(getattr(known, field)), field
    assert found.dtype == name


@pytest.mark.parametrize("name", INTS)
def test_iinfo_is_the_formats(name):
    found = iinfo(name)
    known = ml_dtypes.iinfo(getattr(ml_dtypes, name, name))
    assert (found.bits, found.min, found.max) == (known.bits, int(known.min), int(known.max))


@pytest.mark.parametrize(("name", "part"), [("complex64", "float32"), ("complex128", "float64")])
def test_a_complex_has_its_parts_limits(name, part):
    assert finfo(name) == finfo(part)
    assert finfo(name).max == float(np.finfo(name).max)


@pytest.mark.parametrize("name", [*INTS, "bool"])
def test_finfo_refuses_what_is_no_float(name):
    with pytest.raises(DtypeError, match=name):
        finfo(name)


@pytest.mark.parametrize("name", [*FLOATS, "bool", "complex64"])
def test_iinfo_refuses_what_is_no_integer(name):
    with pytest.raises(DtypeError, match=name):
        iinfo(name)
