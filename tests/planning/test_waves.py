"""Times on a device of many units against sums made by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.op import Launch, Round, Target
from nbxtensor.planning.price import _Facts
from nbxtensor.planning.waves import Moved, Work, has_waves, waves

FACTS = {
    "compute.units": 10,
    "dispatch.programs_per_second": 1e9,
    "launch.early_ns": 500,
    "launch.round_ns": 100,
    "memory.copy_bandwidth": 4e12,
    "memory.l2_bandwidth": 8e12,
    "memory.l2_copy_bandwidth": 8e12,
    "memory.begin_ns": 400,
    "memory.l2_latency_ns": 100,
    "memory.l2_step_ns": 300,
    "memory.latency_ns": 200,
    "memory.step_ns": 700,
    "memory.read_bandwidth": 4e12,
    "memory.unit_bandwidth": 1e11,
}
NOTHING = Moved(0, 0, 0, 0)


def took(launch, moved=NOTHING, flops=0, rate=1e12, unit="vector", beside=0, **more):
    launches = launch if isinstance(launch, tuple) else (launch,)
    work = Work(flops, unit, lambda: rate, beside, lambda: 1e12)
    seconds, limit = waves(launches, moved, work, _Facts(Target("t", "t", facts=FACTS | more)))
    return seconds * 1e9, limit


def of(programs, **more):
    return Launch("k", (programs,), {}, **more)


def test_a_launch_that_does_nothing_takes_its_start():
    assert took(of(1)) == (pytest.approx(501), "launch")
    assert took((of(1), of(1))) == (pytest.approx(1001), "launch")
    assert took(of(1), **{"launch.early_ns": 200})[0] == pytest.approx(201)


def test_without_a_number_for_early_starts_the_ordinary_one_holds():
    facts = {k: v for k, v in FACTS.items() if k != "launch.early_ns"} | {"launch.recorded_ns": 800}
    known = _Facts(Target("t", "t", facts=facts))
    assert has_waves(known)
    assert waves((of(1),), NOTHING, Work(0, "vector", lambda: 1.0), known)[0] * 1e9 == pytest.approx(801)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_number_is_needed(name):
    known = _Facts(Target("t", "t", facts={k: v for k, v in FACTS.items() if k != name}))
    assert not has_waves(known)


def test_memory_is_read_and_written_at_its_rates_and_begins_later_than_the_cache():
    wide = {"memory.unit_bandwidth": 1e12}
    assert took(of(5), Moved(4_000_000, 0, 0, 0), **wide) == (pytest.approx(500 + 400 + 1000), "memory")
    assert took(of(5), Moved(800_000, 0, 0, 0), **wide)[0] == pytest.approx(500 + 100 + 300 / 2 + 200)  # half filled
    assert took(of(5), Moved(0, 4_000_000, 0, 0), **wide) == (pytest.approx(500 + 1000), "memory")
    slow = wide | {"memory.copy_bandwidth": 3.2e12}  # as much read as written: reading takes 1000 of 2500
    assert took(of(5), Moved(4_000_000, 4_000_000, 0, 0), **slow)[0] == pytest.approx(500 + 400 + 2500)
    assert took(of(10), Moved(0, 0, 8_000_000, 0), **wide)[0] == pytest.approx(500 + 1000)


def test_one_unit_reads_no_faster_than_it_can():
    few = Moved(0, 0, 100_000, 0)
    assert took(of(1), few) == (pytest.approx(500 + 1000), "memory")
    assert took(of(10), few)[0] == pytest.approx(500 + 100)
    assert took(of(11), few)[0] == pytest.approx(500 + 2 * 100_000 / 11 / 100)  # one unit has two programs


def test_arithmetic_goes_by_the_busiest_unit_and_its_threads():
    full = of(40, warps=4)
    assert took(full, flops=4_000_000) == (pytest.approx(500 + 4000), "vector")
    assert took(of(10, warps=16), flops=4_000_000, unit="matrix") == (pytest.approx(500 + 4000), "matrix")
    assert took(of(10, warps=4), flops=4_000_000)[0] == pytest.approx(500 + 16000)  # a quarter of the threads
    assert took(of(11, warps=16), flops=4_000_000)[0] == pytest.approx(500 + 2 * 4_000_000 / 11 / 100)


def test_steps_of_products_wait_for_their_operands_or_share_the_unit():
    little = of(10, rounds=5, round=Round(100, 0, 0, resident=4, rate=1e11))
    assert took(replace(little, stages=2), unit="matrix") == (pytest.approx(500 + 5 * 300), "matrix")
    assert took(replace(little, stages=3), unit="matrix")[0] == pytest.approx(500 + 5 * 150)
    cold = took(replace(little, stages=2), Moved(1, 0, 0, 0), unit="matrix")[0]
    assert cold == pytest.approx(500 + 100 + 5 * 700, abs=0.1)
    much = of(20, rounds=5, stages=9, round=Round(100_000, 0, 0, resident=4, rate=1e11))
    assert took(much, unit="matrix")[0] == pytest.approx(500 + 5 * 2000)
    assert took(replace(much, grid=(50,)), unit="matrix")[0] == pytest.approx(500 + 2 * 5 * 4000)
    few = replace(much, grid=(10,), round=Round(100_000, 0, 0, 4, 1e11, threads=256))
    assert took(few, unit="matrix")[0] == pytest.approx(500 + 5 * 2000)  # half the threads, half the rate
    more = replace(much, round=Round(100_000, 0, 0, 4, 1e11, nanoseconds=20, between=50))
    assert took(more, unit="matrix")[0] == pytest.approx(500 + 5 * (2000 + 2 * 20) + 50)
    loading = replace(much, round=Round(100, 200_000, 80_000, 4, 1e11))  # 100 bytes per nanosecond, 800 written
    assert took(loading, unit="matrix")[0] == pytest.approx(500 + 5 * 4000 + 2 * 80_000 / 800)


def test_what_overlaps_takes_a_little_more_than_the_longest():
    equal = took(of(1, rounds=11), Moved(0, 0, 100_000, 0))[0]
    assert 500 + 1000 < equal < 500 + 1200


def test_vector_units_add_to_what_a_matrix_unit_does():
    full = of(40, round=Round(1000, 0, 0, resident=4, rate=1e11), stages=9)
    assert took(full, unit="matrix", beside=4_000_000)[0] == pytest.approx(
        took(full, unit="matrix")[0] + 4000, rel=2e-3
    )


def test_rounds_wait_for_each_other_and_programs_are_started_one_by_one():
    assert took(of(1, rounds=8)) == (pytest.approx(500 + 700), "launch")
    assert took((of(1, rounds=3), of(5, rounds=2)))[0] == pytest.approx(1000 + 200 + 100)
    assert took(of(9000)) == (pytest.approx(500 + 9000), "launch")


@given(
    st.integers(1, 10**5), st.integers(1, 32), st.integers(1, 50), st.integers(0, 10**12),
    st.tuples(*[st.integers(0, 10**10)] * 4),
)  # fmt: skip
def test_more_of_anything_takes_no_less(programs, warps, rounds, flops, moved):
    least = took(of(programs, warps=warps, rounds=rounds), Moved(*moved), flops)[0]
    assert least >= 500
    assert took(of(programs, warps=warps, rounds=rounds + 1), Moved(*moved), flops)[0] >= least
    assert took(of(programs, warps=warps, rounds=rounds), Moved(*moved), 2 * flops)[0] >= least
    assert took(of(programs, warps=warps, rounds=rounds), Moved(*(2 * n for n in moved)), flops)[0] >= least
    assert took((of(programs, warps=warps, rounds=rounds), of(1)), Moved(*moved), flops)[0] > least
