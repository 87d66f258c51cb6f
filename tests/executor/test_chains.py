"""Chains of stages as planners make them, groups of several units one after another among them, executed by both
engines with barriers and without: equal to ONNX Runtime's outputs."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.cuda import CudaEngine
from downset.executor.lane_program import lower
from downset.formats.reading import load
from downset.stages.planners import STAGERS
from downset.stages.prepared import VARIANTS, prepare
from downset.stages.unit_graph import group_units, search_blocks
from downset.tuning.timer import block_problem, merge_families, renamed
from tests.cuda_stand_in import standing_in
from tests.effort import cases
from tests.executor.test_stages import close, expected, outputs
from tests.networks import branchy, modules, random_network
from tests.spatial import execute, spatial_graphs
from tests.stages.test_stagers import arbitrary
from zoo import ZOO

ios = STAGERS["ios"]
lazy = STAGERS["lazy"]

PLANNERS = {"ios": ios, "lazy": lazy}
SEEDS = range(12)


def prices(seed):
    """At random, around what they are like on a device with room for three groups: merged, cheaper than any unit."""
    chance = arbitrary(seed)

    def price(stage):
        about = 0.5 if stage.merged else max(map(len, stage.groups)) * (1 + max(0, len(stage.groups) - 3) / 2)
        return about * (0.5 + chance(stage) * 1e9 / 65536)

    return price


def chain(graph, units, planner, seed, *, largest=12):
    families, found = merge_families(graph, units), []
    for block in search_blocks(units.predecessors, largest=largest):
        problem = block_problem(units, families, block)
        found += renamed(PLANNERS[planner](problem, prices(seed), max_ops=5, max_groups=4).stages, block)
    return tuple(found)


def side_by_side_in_a_row(stages):
    """Stages of several groups of which one has several units."""
    return sum(len(stage.groups) > 1 and max(map(len, stage.groups)) > 1 and not stage.merged for stage in stages)


def by_cuda(graph, units, stages, *, barriers, replays=2):
    """The outputs of replays in orders that the edges allow, on the stand-in."""
    values = seeded_inputs(graph)
    with pytest.MonkeyPatch.context() as patch, standing_in(patch):
        program = lower(units, stages, barriers=barriers)
        binder = Binder(graph, device="cuda")
        options = {"inputs": graph.inputs, "outputs": graph.outputs, "values": [np.zeros_like(v) for v in values]}
        engine = CudaEngine(binder, program, **options)
        for _ in range(replays):
            yield [value.numpy().copy() for value in engine([torch.from_numpy(value) for value in values])]


def check_both_engines(graph, units, stages, theirs, *, threads=(3,)):
    for barriers in (True, False):
        for count in threads:
            close(outputs(graph, units, stages, barriers=barriers, threads=count), theirs)
        for ours in by_cuda(graph, units, stages, barriers=barriers):
            close(ours, theirs)


def network(path, seed):
    make = (branchy, random_network, modules, modules)[seed % 4]
    return make(path, seed=seed)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_chains_of_planners_compute_the_same(tmp_path, planner, seed):
    path = network(tmp_path / "m.onnx", seed)
    graph = prepare(load(path))
    units = group_units(graph)
    stages = chain(graph, units, planner, seed)
    theirs = expected(path, graph, seeded_inputs(graph))
    check_both_engines(graph, units, stages, theirs, threads=(2, 4))


@settings(max_examples=cases(30))
@given(spatial_graphs(most_ops=10), st.sampled_from(sorted(PLANNERS)), st.integers(0, 99))
def test_chains_of_random_graphs_compute_the_same(graph, planner, seed):
    """In either layout, by the plain kernels one after another."""
    units = group_units(graph)
    stages = chain(graph, units, planner, seed)
    values = execute(graph, dict(zip(graph.inputs, seeded_inputs(graph), strict=True)))
    theirs = [values[tensor].numpy() for tensor in graph.outputs]
    for barriers in (True, False):
        found = [outputs(graph, units, stages, barriers=barriers, threads=3)]
        found += by_cuda(graph, units, stages, barriers=barriers)
        for ours in found:
            for mine, other in zip(ours, theirs, strict=True):
                scale = max(float(np.abs(other).max()), 1.0)
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("planner", PLANNERS)
def test_those_chains_have_what_is_to_be_tested(tmp_path, planner):
    in_a_row = merged = 0
    for seed in SEEDS:
        graph = prepare(load(network(tmp_path / "m.onnx", seed)))
        stages = chain(graph, group_units(graph), planner, seed)
        in_a_row += side_by_side_in_a_row(stages) > 0
        merged += any(stage.merged for stage in stages)
    assert in_a_row >= 7
    assert merged >= 5


@pytest.mark.parametrize(
    ("variant", "name", "options"),
    [
        ("", "inception_v3", {"image": 75}),
        ("separables merged", "darts_cell", {"image": 64, "channels": 8}),
        ("pools swapped", "inception_v3", {"image": 75}),
    ],
)
def test_a_chain_of_a_network_and_its_variants_computes_the_same(tmp_path, variant, name, options):
    path = tmp_path / f"{name}.onnx"
    onnx.save(ZOO[name](**options), str(path))
    graph = prepare(load(path))
    changed = VARIANTS[variant](graph)
    assert (changed is graph) == (not variant)
    units = group_units(changed)
    stages = chain(changed, units, "ios", 1)
    assert side_by_side_in_a_row(stages)
    assert any(stage.merged for stage in stages) == (name == "inception_v3")
    check_both_engines(changed, units, stages, expected(path, graph, seeded_inputs(graph)))
