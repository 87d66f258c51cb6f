"""Each baseline follows its own paper's rule: grids, dynamic programmes, neighbours' halos."""

from itertools import combinations, product
from random import Random

import pytest

from downset.budget import Budget
from downset.clusters.model import Cluster, Device, Network
from downset.errors import LimitReached
from downset.methods import Method
from downset.pipelines import incumbents
from downset.pipelines.accounting import Accounting
from downset.pipelines.coedge import coedge
from downset.pipelines.drafts import Split, StageDraft, Tile
from downset.pipelines.early_fused import early_fused, grid_of
from downset.pipelines.incumbents import ExactRequest, Incumbents
from downset.pipelines.layerwise import layerwise
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.paper_timing import period_and_latency, stage_of, stages_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import chain_problem
from downset.pipelines.single import single
from downset.pipelines.strips import equal_rows, proportional_rows, tiles
from tests.pipeline_generators import random_chain
from zoo import graph

CLUSTER = Cluster(tuple(Device(f"d{k}", speed) for k, speed in enumerate((10.0, 30.0, 20.0))), Network("links", 20.0))


def chains(count, *, rows=24):
    for seed in range(count):
        yield random_chain(Random(f"baseline/{seed}"), layers=4, rows=rows)


def seconds(problem, drafts, *, comm="paper"):
    return period_and_latency(CLUSTER, stages_of(problem, CLUSTER, drafts, comm=comm))[0]


def test_layerwise_splits_every_layer_by_speed_and_gathers_it():
    problem = PricedChain(chain_problem([(10, 3, 1, 4)] * 3, rows=24, row_bytes=4))
    (stage,) = stages_of(problem, CLUSTER, layerwise(problem, CLUSTER).stages, comm="resources")
    assert [(block.start, block.stop) for block in stage.blocks] == [(0, 1), (1, 2), (2, 3)]
    for block in stage.blocks:
        assert [(strip.device, strip.start, strip.stop) for strip in block.strips] == [
            (1, 0, 12),
            (2, 12, 20),
            (0, 20, 24),
        ]
        assert {(t.source, t.target) for t in block.before} == {(1, 0), (1, 2)}  # the fastest scatters all it needs
        assert sum(t.nbytes for t in block.after) == 12 * 4  # and gathers what the others made


def test_early_fused_is_a_grid_of_equal_tiles_then_one_device():
    assert [grid_of(count) for count in (1, 2, 4, 6, 8, 7)] == [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (7, 1)]
    network = graph("vgg16", weights=False, classifier=False, image=64)
    problem = PricedChain(split_problem(network, block_units(network)))
    cluster = Cluster(tuple(Device(f"d{k}", 1e9) for k in range(8)), Network("links", 1e7))
    first, rest = early_fused(problem, cluster, fused=4).stages[0].splits
    assert (first.start, first.stop, rest.start, rest.stop) == (0, 4, 4, problem.cuts)
    assert {(tile.start, tile.stop, tile.columns) for tile in first.tiles} == {
        (8 * row, 8 * row + 8, (16 * column, 16 * column + 16)) for row in range(4) for column in range(2)
    }
    assert len(rest.tiles) == 1
    chosen = early_fused(problem, cluster, accounting=Accounting("paper")).stages
    of_all = [
        early_fused(problem, cluster, accounting=Accounting("paper"), fused=count).stages
        for count in range(1, problem.cuts + 1)
    ]
    periods = [period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))[0] for drafts in of_all]
    assert period_and_latency(cluster, stages_of(problem, cluster, chosen, comm="paper"))[0] == min(periods)


def test_nobody_is_asked_when_there_is_a_plan_and_no_time(monkeypatch):
    asked = []

    def slow(problem, cluster):
        asked.append(problem)
        return single(problem, cluster)

    (problem,) = chains(1)
    best = Incumbents(ExactRequest(problem, CLUSTER, Accounting()), Budget(100.0).start())
    best.ask([Method(slow), Method(single)])
    assert asked and not best.late
    monkeypatch.setattr(incumbents, "_LEAST_S", 0.0)
    for known in (False, True):
        asked.clear()
        best = Incumbents(ExactRequest(problem, CLUSTER, Accounting()), Budget(0.0).start())
        best.ask([Method(single), Method(slow)] if known else [Method(slow)])
        assert (bool(asked), best.late) == (not known, known)
        assert best.drafts
    with pytest.raises(LimitReached):
        optimal_fused(problem, CLUSTER, deadline=Budget(0.0).start())
    assert early_fused(problem, CLUSTER, deadline=Budget(0.0).start()).stages


def test_optimal_fused_is_the_best_of_all_ways_to_fuse():
    leader = 1
    for problem in chains(40):
        best = float("inf")
        for number in range(problem.cuts):
            for inner in combinations(range(1, problem.cuts), number):
                cuts = [0, *inner, problem.cuts]
                for alone in product((False, True), repeat=len(cuts) - 1):
                    splits = []
                    for start, stop, by_itself in zip(cuts[:-1], cuts[1:], alone, strict=True):
                        rows = problem.segment(start, stop).rows
                        parts = (Tile(leader, 0, rows),) if by_itself else tiles(range(3), equal_rows(rows, 3))
                        splits.append(Split(start, stop, parts))
                    best = min(best, seconds(problem, (StageDraft(leader, tuple(splits)),)))
        assert seconds(problem, optimal_fused(problem, CLUSTER).stages) == pytest.approx(best, rel=1e-9)


def test_coedge_fetches_halos_from_neighbours_and_is_the_best_of_all_numbers_of_devices():
    order = [1, 2, 0]
    speeds = [CLUSTER.devices[device].speed for device in order]
    for problem in chains(40):
        best = float("inf")
        for counts in product((1, 2, 3), repeat=problem.cuts):
            splits = []
            for unit, count in enumerate(counts):
                bounds = proportional_rows(problem.segment(unit, unit + 1).rows, speeds[:count])
                splits.append(Split(unit, unit + 1, tiles(order[:count], bounds), halo=True))
            if any(len(split.tiles) < count for split, count in zip(splits, counts, strict=True)):
                continue
            stage = stage_of(problem, CLUSTER, StageDraft(order[0], tuple(splits)), comm="paper")
            if all(neighbours(block, counts, unit) for unit, block in enumerate(stage.blocks)):
                best = min(best, stage.compute_s + stage.transfer_s)
        found = stage_of(problem, CLUSTER, coedge(problem, CLUSTER).stages[0], comm="paper")
        assert found.compute_s + found.transfer_s == pytest.approx(best, rel=1e-9)
        used = [len(block.strips) for block in found.blocks]
        assert all(neighbours(block, used, unit) for unit, block in enumerate(found.blocks))


def neighbours(block, counts, unit):
    """Whether devices fetch from the strips above and below theirs only, where as many work as before."""
    if unit == 0 or counts[unit] != counts[unit - 1]:
        return True
    place = {1: 0, 2: 1, 0: 2}
    return all(abs(place[transfer.source] - place[transfer.target]) == 1 for transfer in block.before)
