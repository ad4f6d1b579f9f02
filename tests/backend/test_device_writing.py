import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend import device_files, device_writing
from nbxtensor.backend.device_schema import FIELDS, check, leaves, sources_of
from nbxtensor.errors import FormatError

ALL = [(vendor, name) for vendor in device_files.vendors() for name in device_files.names(vendor)]
PATHS = [p for p, f in FIELDS.items() if f.kind == "number" and "*" not in p]
PATHS += ["rates.matrix.float32", "compute.matrix_flops.float16"]


@given(st.sampled_from(ALL), st.dictionaries(st.sampled_from(PATHS), st.integers(1, 10**15), max_size=8))
def test_what_was_measured_is_stated_with_its_source_and_all_else_stays(device, measured):
    before = device_files.read(*device)
    made = yaml.safe_load(device_writing.dumped(device_writing.with_measured(before, measured, "measured today")))
    check(made, where="made")
    facts, old = dict(leaves({k: v for k, v in made.items() if k != "sources"})), device_files.facts(*device)
    assert facts == {**old, **measured}
    sources = sources_of(made, where="made")
    for path in facts:
        covering = [text for given, text in sources.items() if path == given or path.startswith(given + ".")]
        if path in measured:
            assert covering == ["measured today"]
        elif covering:
            assert covering == [device_files.source(*device, path)]
    assert before == device_files.read(*device)


@pytest.mark.parametrize("device", ALL)
def test_a_file_goes_through_unchanged(device):
    text = device_writing.dumped(device_writing.with_measured(device_files.read(*device), {}, ""))
    assert all(len(line) <= 120 for line in text.splitlines())
    made = yaml.safe_load(text)
    assert {k: v for k, v in made.items() if k != "sources"} == {
        k: v for k, v in device_files.read(*device).items() if k != "sources"
    }


def test_numbers_that_no_file_states_are_left_out():
    facts = {"rates.vector.float32": 123456.7, "workers": 2, "memory.granule_nbytes": 123457, "launch.seconds": 1e-12}
    assert device_writing.measured_fields(facts) == {
        "rates.vector.float32": 123500, "memory.granule_nbytes": 123457, "launch.recorded_ns": 1,
    }  # fmt: skip


def test_a_number_that_is_no_field_is_refused():
    with pytest.raises(FormatError, match="no such field"):
        device_writing.with_measured(device_files.read("nvidia", "h200"), {"memory.colour": 3}, "measured")
