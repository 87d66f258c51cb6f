"""Very large networks: tables are shared, work is linear, quick placements hold, and what is too long is refused."""

import sys
from functools import partial
from inspect import signature
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.clusters.toml_file import parse_cluster
from downset.errors import UnsupportedError
from downset.graph.core import Graph, Op, Tensor
from downset.graph.cost import row_form
from downset.joint.check import verify
from downset.pipelines import buffers, memory
from downset.pipelines.memory import best_fit
from downset.pipelines.network import UnitChain, block_units, priced_chain, split_problem
from downset.pipelines.plan import plan_pipeline
from tests.cluster_toml import cluster_toml
from tests.effort import cases
from tests.spatial import spatial_graphs

CLUSTER = parse_cluster(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=5000, latency_ms=0.001))


def network(ops, tensors, shape=(1, 1, 16, 16)):
    """Tensor 0 is given, results are those that nobody reads."""
    nbytes = 4 * shape[2] * shape[3]
    described = tuple(Tensor(f"t{index}", shape, "float32", nbytes) for index in range(tensors))
    read = {tensor for op in ops for tensor in op.inputs}
    results = tuple(sorted({tensor for op in ops for tensor in op.outputs} - read))
    return Graph("large", described, tuple(ops), (0,), results).check()


def chain(count, **shape):
    return network([Op(f"o{at}", "Relu", (at,), (at + 1,)) for at in range(count)], count + 1, **shape)


def pools(count):
    """MaxPools with indices that nobody reads."""
    attrs = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    ops = [Op(f"o{at}", "MaxPool", (at,), (at + 1, count + 1 + at), attrs) for at in range(count)]
    return network(ops, 2 * count + 1)


def divided(count):
    """One operator of very many results."""
    return network([Op("o", "Split", (0,), tuple(range(1, count + 1)), {"axis": 1})], count + 1)


def calls(run):
    """How many Python functions and generators are entered."""
    count = 0

    def entered(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(entered)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", [chain, pools, divided])
def test_work_is_linear_in_operators_and_tensors(make):
    def planned(graph):
        units = block_units(graph)
        problem = split_problem(graph, units)
        assert row_form(graph) is row_form(graph)
        assert sum(map(len, problem.units)) == len(graph.ops)
        verify(graph, plan_pipeline(graph, CLUSTER, method="single", units=[range(len(graph.ops))]))

    with patch.object(buffers, "_MANY", 50):  # up to so many each pair is looked at
        planned(make(10))
        few, many = (calls(partial(planned, make(count))) for count in (100, 400))
    assert many < 4.5 * few


def test_operators_of_the_same_shapes_share_their_tables():
    problem = split_problem(chain(50), block_units(chain(50)))
    tables = {id(table) for op in problem.ops for table in (*op.first, *op.last)}
    assert len(tables) == 2


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(0, 9)), max_size=25))
@settings(max_examples=cases(300))
def test_a_quick_placement_keeps_buffers_apart(drawn):
    lives = [(start, start + steps, nbytes) for start, steps, nbytes in drawn]
    offsets = best_fit(lives)
    used = [
        {(step, byte) for step in range(start, stop) for byte in range(offset, offset + nbytes)}
        for offset, (start, stop, nbytes) in zip(offsets, lives, strict=True)
    ]
    assert sum(map(len, used)) == len(set().union(*used))
    top = max((offset + life[2] for offset, life in zip(offsets, lives, strict=True)), default=0)
    assert top <= sum(nbytes for _, _, nbytes in lives)


@given(spatial_graphs(most_ops=8))
@settings(max_examples=cases(20))
def test_strips_of_very_many_operators_hold_what_the_check_derives(graph):
    with patch.object(memory, "_MANY", 0):
        for comm in ("resources", "paper"):
            verify(graph, plan_pipeline(graph, CLUSTER, method="layerwise", comm=comm))


def test_a_chain_of_cuts_follows_from_the_network_alone():
    graph = chain(20)
    fine = UnitChain(tuple((op,) for op in range(20)), tuple(range(21)))
    assert priced_chain(graph, fine) is fine
    long = chain(20, shape=(1, 1, 1 << 20, 1))
    assert len(priced_chain(long, fine).units) == 5  # each pair of cuts has a table of prices for every row
    assert "seconds" not in signature(priced_chain).parameters


@pytest.mark.parametrize(
    ("count", "rows", "says"), [(1, (1 << 20) + 1, "is 1,048,577 rows"), (40, 1 << 20, "together")]
)
def test_tensors_that_are_too_long_to_be_counted_are_refused(count, rows, says):
    graph = chain(count, shape=(1, 1, rows, 1))
    with pytest.raises(UnsupportedError, match=says):
        split_problem(graph, block_units(graph))
