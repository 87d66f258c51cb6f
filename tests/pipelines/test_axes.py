"""The axis that is cut: a network and the same network turned have the same plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.clusters.model import Cluster, Device, Network
from downset.errors import InvalidPlan
from downset.graph.cost import longest_axis
from downset.pipelines.check import verify_pipeline
from downset.pipelines.network import pipeline_units, split_problem
from downset.pipelines.plan import plan_pipeline
from tests.effort import cases, untimed
from tests.spatial import Builder

FOUR = Cluster(tuple(Device(f"d{number}", 1e8) for number in range(4)), Network("links", 1e8))


def _network(extents, layers):
    """A chain of convolutions (kernel, stride, pad along each axis), and a pool at its end."""
    build = Builder(last=False, seed=0)
    given = x = build.tensor((4, *extents))
    sizes = list(extents)
    for geometry in layers:
        kernel, stride, pad = (list(part) for part in zip(*geometry, strict=True))
        sizes = [(s + 2 * p - k) // step + 1 for s, k, step, p in zip(sizes, kernel, stride, pad, strict=True)]
        weights = build.weights(4, 4, *kernel)
        x = build.op("Conv", [x, weights], (4, *sizes), strides=stride, pads=pad * 2, dilations=[1] * len(kernel))
    build.op("GlobalAveragePool", [x], (4, *[1] * len(sizes)))
    return build.graph((given,))


LAYERS = st.lists(
    st.lists(st.sampled_from([(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2)]), min_size=2, max_size=2),
    min_size=1,
    max_size=3,
)


@given(st.integers(6, 24), st.integers(6, 24), LAYERS, st.sampled_from(["exact", "pico", "coedge", "early_fused"]))
@settings(max_examples=cases(40))
def test_a_network_and_itself_turned_have_the_same_plans(rows, columns, layers, method):
    upright = _network((rows, columns), layers)
    turned = _network((columns, rows), [geometry[::-1] for geometry in layers])
    axes = longest_axis(upright), longest_axis(turned)
    one, other = (plan_pipeline(graph, FOUR, method=method, **untimed(500_000)) for graph in (upright, turned))
    verify_pipeline(upright, one)
    verify_pipeline(turned, other)
    if axes[0] == axes[1]:  # neither is longer
        assert axes == (0, 0)
    else:
        assert one.period_s == pytest.approx(other.period_s, rel=1e-9)
        assert one.evidence.proven == other.evidence.proven


@pytest.mark.parametrize(("extents", "axis"), [((240, 1), 0), ((1, 240), 1), ((240,), 0), ((120, 121), 1), ((9, 9), 0)])
def test_the_longest_axis_is_cut(extents, axis):
    layers = [[(3, 1, 1) if size > 1 else (1, 1, 0) for size in extents]] * 3
    graph = _network(extents, layers)
    problem = split_problem(graph, pipeline_units(graph))
    assert (longest_axis(graph), problem.axis) == (axis, axis)
    assert problem.tensors[graph.inputs[0]].rows == max(extents)


@pytest.mark.parametrize("method", ["exact", "pico", "coedge", "early_fused", "layerwise", "optimal_fused"])
def test_all_devices_work_on_a_long_network(method):
    """4,000 samples lie in one row, in one column, or in a tensor of rank 3: all the same."""
    periods = set()
    for extents in ((1, 4000), (4000, 1), (4000,)):
        graph = _network(extents, [[(9, 1, 4) if size > 1 else (1, 1, 0) for size in extents]] * 4)
        plan = plan_pipeline(graph, FOUR, method=method)
        verify_pipeline(graph, plan)
        assert len({s.device for stage in plan.stages for block in stage.blocks for s in block.strips}) == 4
        periods.add(plan.period_s)
    assert len(periods) == 1


def test_an_axis_that_is_another_is_refused():
    graph = _network((6, 24), [[(3, 1, 1), (5, 1, 2)]] * 2)
    plan = plan_pipeline(graph, FOUR, method="pico")
    for axis, message in ((0, "states|cut|rows"), (2, "axis 2, which is neither 0 nor 1")):
        stages = tuple(
            replace(stage, blocks=tuple(replace(block, axis=axis) for block in stage.blocks)) for stage in plan.stages
        )
        with pytest.raises(InvalidPlan, match=message):
            verify_pipeline(graph, replace(plan, stages=stages))
