"""Stages of whole layers between any two downsets: against every plan there is, by prices of the tests' own; and what
plans on the chains that they give must keep."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from downset.budget import Budget
from downset.clusters.model import Cluster, Device, Network
from downset.clusters.toml_file import load_cluster
from downset.distributed.simulator import simulate
from downset.lattice import bits, count_downsets, downsets
from downset.pipelines import plan as planning
from downset.pipelines.chains import further_chains
from downset.pipelines.device_order import fastest_first
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.whole_layers import contracted, unit_predecessors, whole_layers
from tests.effort import LONG, cases, untimed
from tests.pipeline_generators import random_cluster, random_graph
from zoo import graph as zoo

ALIKE = ("links", "overlapping links", "shared", "shared without overlap")
"""Networks whose pairs of devices are alike, so that the search is exact."""


def every_chain(predecessors):
    """All ways to part the units into stages, each stage after those that it waits for."""
    whole = (1 << len(predecessors)) - 1
    all_downsets = list(downsets(predecessors))

    def longer(chain):
        if chain[-1] == whole:
            yield chain
        for one in all_downsets:
            if one != chain[-1] and not chain[-1] & ~one:
                yield from longer([*chain, one])

    yield from longer([0])


def period(problem, cluster, chain, devices):
    """The largest load: work where it is done, and every tensor from hand to hand, from its maker past its readers."""
    stage_of = {u: k for k, (low, high) in enumerate(itertools.pairwise(chain)) for u in bits(high & ~low)}
    last, network = len(chain) - 2, cluster.occupied.network
    work, sent, taken, medium = [0.0] * (last + 1), [0.0] * (last + 1), [0.0] * (last + 1), 0.0
    makers, readers = {}, {}
    for unit, ops in enumerate(problem.units):
        for op in ops:
            described, device = problem.ops[op], cluster.devices[devices[stage_of[unit]]]
            rows = problem.tensors[described.outputs[0]].rows
            makers |= dict.fromkeys(described.outputs, stage_of[unit])
            for tensor in described.inputs:
                readers.setdefault(tensor, set()).add(stage_of[unit])
            if described.macs_per_row:
                alpha = device.alpha_of.get(described.kind, device.alpha)
                work[stage_of[unit]] += rows * described.macs_per_row * alpha / device.mac_per_s
            else:
                moved = sum(problem.tensors[t].nbytes for t in [*described.inputs, *described.outputs])
                work[stage_of[unit]] += moved / device.moved_per_s
    for tensor, described in enumerate(problem.tensors):
        seconds = network.latency_s + described.nbytes / network.bytes_per_s
        here = makers.get(tensor, 0)
        wanted = readers.get(tensor, set()) | ({last} if tensor in problem.kept else set())
        for stage in sorted(wanted):
            if stage > here and described.nbytes:
                sent[here] += seconds
                taken[stage] += seconds
                medium += seconds
                here = stage
    loads = []
    for k, device in enumerate(devices):
        if not network.overlap:
            loads.append(work[k] + sent[k] + taken[k])
        elif network.kind == "shared":
            loads.append(work[k])
        else:
            both = max(sent[k], taken[k]) if cluster.duplex(device) == "full" else sent[k] + taken[k]
            loads.append(max(work[k], both))
    return max([*loads, medium if network.kind == "shared" else 0.0])


@pytest.mark.parametrize("kind", ALIKE)
def test_no_chain_of_downsets_on_any_devices_has_a_shorter_period(kind):
    several, instances = 0, cases(125)
    for seed in range(instances):
        random = Random(f"whole/{kind}/{seed}")
        problem = random_graph(random, units=5, rows=6).problem
        cluster = fastest_first(random_cluster(random, kind, devices=3))
        cluster = replace(cluster, network=replace(cluster.network, duplex=random.choice(["half", "full"])))
        count = len(cluster.devices)
        found = whole_layers(problem, cluster, clock=Budget(60).start())
        least = min(
            period(problem, cluster, chain, devices)
            for chain in every_chain(unit_predecessors(problem))
            for devices in itertools.permutations(range(count), len(chain) - 1)
        )
        assert found.exact
        assert found.period_s == pytest.approx(least, rel=1e-4 if cluster.network.kind == "shared" else 1e-9)
        chain = [0]
        for stage in found.stages:
            chain.append(chain[-1] | sum(1 << unit for unit in stage))
        assert period(problem, cluster, chain, found.devices) <= found.period_s * (1 + 1e-9)
        several += len(found.stages) > 1
    assert several > instances / 10


def test_contracted_vertices_have_few_downsets_and_each_is_one_of_the_units():
    for seed in range(cases(25)):
        random = Random(f"contracted/{seed}")
        count = random.randint(1, 9)
        before = [sum(1 << u for u in range(v) if random.random() < 0.3) for v in range(count)]
        work = [random.randint(0, 9) for _ in range(count)]
        all_downsets = set(downsets(before))
        for limit in (2, 5, 20, 1000):
            groups = contracted(before, work, limit, Budget(60).start())
            assert sorted(v for group in groups for v in bits(group)) == list(range(count))
            place = {v: k for k, group in enumerate(groups) for v in bits(group)}
            outer = [0] * len(groups)
            for v in range(count):
                for u in bits(before[v]):
                    outer[place[v]] |= (1 << place[u]) & ~(1 << place[v])
            assert all(mask < 1 << k for k, mask in enumerate(outer))  # in order, so without cycles
            assert count_downsets(outer) <= limit
            for one in downsets(outer):
                assert sum(groups[k] for k in bits(one)) in all_downsets
            if len(all_downsets) <= limit:
                assert len(groups) == count


def test_more_devices_never_lengthen_the_period():
    for seed in range(cases(20)):
        random = Random(f"more/{seed}")
        problem = random_graph(random, units=6, rows=6).problem
        cluster = fastest_first(random_cluster(random, random.choice(ALIKE), devices=4))
        periods = [
            whole_layers(problem, replace(cluster, devices=cluster.devices[:count]), clock=Budget(60).start()).period_s
            for count in range(1, len(cluster.devices) + 1)
        ]
        assert all(more <= fewer * (1 + 1e-4) for fewer, more in itertools.pairwise(periods))


def skips():
    return zoo("unet", weights=False, image=16, channels=8, levels=2)


FAST = Cluster(tuple(Device(f"d{k}", 1e9 - 1e8 * k) for k in range(3)), Network("links", 4e8))


def test_a_longer_limit_on_chains_tries_every_chain_of_a_shorter_one():
    graph, before = skips(), set()
    for most in range(15, 34):
        chains = further_chains(graph, FAST, clock=Budget(60).start(), rows=True, most=most)
        cuts = {tuple(chain.units) for chain in chains}
        assert cuts >= before
        before = cuts
    assert len(before) > 1


def test_longer_chains_never_lengthen_the_period(monkeypatch):
    graph, periods = skips(), []
    for most in range(15, 34) if LONG else (15, 16, 32):
        monkeypatch.setattr(planning, "further_chains", partial(further_chains, most=most))
        periods.append(plan_pipeline(graph, FAST, topology="direct", **untimed(400_000)).period_s)
    assert all(longer <= shorter * (1 + 1e-9) for shorter, longer in itertools.pairwise(periods))


def test_plans_hand_several_tensors_over_each_cut_and_past_stages_and_run_as_they_say():
    plan = plan_pipeline(skips(), FAST, topology="direct", **untimed(400_000))
    assert len(plan.stages) > 1
    messages = [task for task in plan.tasks if task.transfer is not None]
    assert any(len({rows.tensor for rows in task.transfer.rows}) > 1 for task in messages)
    simulated = simulate(plan, frames=300)
    assert simulated.sustained_period_s == pytest.approx(plan.period_s, rel=0.01)


def test_the_best_whole_layers_are_a_start_of_the_plan():
    """No plan with direct hand-over is worse than the stages of whole layers that it begins with."""
    graph, cluster = zoo("unet", weights=False, image=32, channels=16, levels=3), fastest_first(load_cluster("rpi_8"))
    cluster = replace(cluster, network=replace(cluster.network, bytes_per_s=1e8))
    known = next(iter(further_chains(graph, cluster, clock=Budget(60).start(), rows=True)))
    (drafts,) = known.beginnings
    assert len(drafts) > 2
    plan = plan_pipeline(graph, cluster, topology="direct", **untimed(400_000))
    stages = plan_pipeline(known, cluster, topology="direct", method=partial(_fixed, drafts))
    assert plan.period_s <= stages.period_s * (1 + 1e-9)


def _fixed(drafts, problem, cluster, **_):
    from downset.pipelines.drafts import FoundPipeline

    return FoundPipeline(drafts, 0.0)
