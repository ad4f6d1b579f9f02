import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backend.cpu.native_kernels import kernel

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.cpu.launch_table import HANDOFF_NS, cuts, host_kernel, launch_table, programs, workers_for
from nbxtensor.errors import ArgumentError

workers = st.integers(1, 9)


@given(st.integers(0, 1000), workers)
def test_cuts_are_contiguous_and_balanced(count, size):
    found = cuts(count, size)
    assert found[0] == 0
    assert found[-1] == count
    sizes = [b - a for a, b in itertools.pairwise(found)]
    assert len(sizes) == size
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("grid", "nanoseconds", "size", "expected"),
    [
        ((4, 1, 1), 0.0, 4, 4),  # not known: split
        ((4, 1, 1), 1.0, 4, 1),
        ((4, 1, 1), 1e9, 4, 4),
        ((1, 1, 1), 1e9, 4, 1),
        ((0, 5, 5), 1e9, 4, 1),
        ((4, 1, 1), 1e9, 1, 1),
        ((1, 2, 1), 2 * HANDOFF_NS, 2, 2),
        ((1, 2, 1), 1.9 * HANDOFF_NS, 2, 1),
    ],
)
def test_launches_are_split_where_that_saves_time(grid, nanoseconds, size, expected):
    assert workers_for(Bound(kernel("nothing"), grid, (), nanoseconds), size) == expected


launches = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0, 1e9])), max_size=6)


@given(launches, workers)
def test_a_table_says_what_each_worker_runs_and_where_it_waits(given_launches, size):
    note = kernel("note")
    bounds = [Bound(note, (n, 1, 1), (1000 + i,), ns) for i, (n, ns) in enumerate(given_launches)]
    data, split = launch_table(bounds, size)
    counts = [workers_for(bound, size) for bound in bounds]
    assert split == any(count > 1 for count in counts)
    records, stride, stated, _ = struct.unpack_from("<4q", data)
    assert (records, stated) == (len(bounds), size)
    for i, bound in enumerate(bounds):
        code, offset, gx, gy, barrier, *edges = struct.unpack_from(f"<Q{5 + size}q", data, 32 + stride * i)
        assert (code, gx, gy) == (note.address, bound.grid[0], 1)
        assert struct.unpack_from("<Q", data, offset) == (1000 + i,)
        ranges = list(itertools.pairwise(edges))
        covered = [p for a, b in ranges for p in range(a, b)]
        assert covered == list(range(programs(bound)))
        if counts[i] == 1:
            assert ranges[0] == (0, programs(bound))
        # What a record wrote may be read by any worker of the next: they meet unless one worker runs both.
        following = counts[i + 1] if i + 1 < len(bounds) else 1
        assert barrier == (i + 1 < len(bounds) and (counts[i] > 1 or following > 1))


def test_a_negative_grid_is_refused():
    with pytest.raises(ArgumentError, match=r"note: a grid counts programs. Got \(-1, 1, 1\)"):
        launch_table([Bound(kernel("note"), (-1, 1, 1), (0,))], 2)


def test_a_kernel_of_another_backend_is_refused():
    class Other:
        compiled = kernel("note").compiled

    with pytest.raises(ArgumentError, match=r"note: a launch on the CPU runs a kernel of the CPU backend. Got Other"):
        host_kernel(Bound(Other(), (1, 1, 1), (0,)))
