"""Who is in use at the peak, against a count of every moment."""

from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs

from nbxtensor.planning.peak import in_use, peak
from nbxtensor.planning.plan import plan


@given(graphs())
def test_the_peak_is_the_first_fullest_moment(graph):
    made = plan(graph, ops.TARGET)
    found = peak(made)
    end = max((x.upper for x in made.lifetimes), default=0)
    counted = [sum(x.nbytes for x in made.lifetimes if x.lower <= t < x.upper) for t in range(end)]
    if found is None:
        assert not made.lifetimes
        return
    assert (found.moment, found.nbytes) == (counted.index(max(counted)), max(counted))
    assert found.nbytes == made.lower_bound
    ids = [x.id for x in made.lifetimes if x.lower <= found.moment < x.upper]
    assert sorted(x.id for x in found.live) == sorted(ids)
    assert all(made.offsets[x.id] == x.offset for x in found.live)
    before = [sum(step.moments for step in made.steps[:n]) for n in range(len(made.steps) + 1)]
    if found.node is not None:
        assert before[found.node] <= found.moment < before[found.node + 1]
        assert made.graph.nodes[found.node].op.name == found.op
    changes = in_use(made.lifetimes)
    assert [changes[max(t for t in changes if t <= at)] for at in range(end)] == counted


def test_nothing_is_in_use_in_an_empty_plan():
    assert peak(plan(Builder().graph(), ops.TARGET)) is None
