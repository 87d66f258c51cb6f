"""More of a resource never makes the plan of `exact` worse: whole plans, judged by their schedules, for every limit."""

from dataclasses import replace
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Link
from downset.distributed.simulator import simulate
from downset.errors import InfeasibleError, LimitReached
from downset.pipelines.floors import total_bound_s
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.prices import PricedChain
from tests.effort import LONG
from tests.pipeline_generators import KINDS, random_chain, random_cluster, random_graph, random_setting

pytestmark = pytest.mark.native

COUNT = 80 if LONG else 6


def instances(kind, law):
    for seed in range(4, 4 + COUNT):
        random = Random(f"{law}/{kind}/{seed}")
        problem = random_chain(random, layers=4, rows=9) if seed % 2 else random_graph(random, units=4, rows=8)
        yield seed, random, problem, random_cluster(random, kind)


def period_s(problem, cluster, **limits):
    """Infinite where no plan was found within the limits."""
    try:
        return plan_pipeline(problem, cluster, **limits).period_s
    except (InfeasibleError, LimitReached):
        return float("inf")


def grows(periods):
    """The first value at which more of a resource made the plan worse."""
    return next((k for k in range(1, len(periods)) if periods[k] > periods[k - 1] * (1 + 1e-9)), None)


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_device(kind):
    fewer = 0
    for seed, random, problem, cluster in instances(kind, "device"):
        periods = [period_s(problem, cluster)]
        for _ in range(2):
            network, count = cluster.network, len(cluster.devices)
            links = network.links  # to the newcomer too
            if links:
                links += tuple(Link((k, count), network.bytes_per_s, network.latency_s) for k in range(count))
            extra = Device(f"extra{count}", random.choice([1.0, 15.0, 60.0]))
            cluster = Cluster((*cluster.devices, extra), replace(network, links=links))
            periods.append(period_s(problem, cluster))
        assert grows(periods) is None, (seed, periods)
        fewer += periods[-1] < periods[0]
    assert fewer


def test_a_larger_window():
    shorter = 0
    for kind in KINDS:
        for seed, _, problem, cluster in instances(kind, "window"):
            periods = [period_s(problem, cluster, window=window) for window in (1, 2, 3, 5, None)]
            assert grows(periods) is None, (kind, seed, periods)
            shorter += periods[-1] < periods[0]
    assert shorter > 3


FACTORS = (0.1, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.3) if LONG else (0.1, 0.45, 0.8, 1.3)
"""Limits of latency as parts of what the plan without a limit has."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_latency(kind):
    """Every plan within a limit is one that the simulator's lone frame keeps to."""
    shorter = refused = 0
    for seed, _, problem, cluster in instances(kind, "latency"):
        free = plan_pipeline(problem, cluster)
        periods = []
        for factor in FACTORS:
            limit = free.latency_s * factor
            try:
                plan = plan_pipeline(problem, cluster, max_latency_s=limit)
            except (InfeasibleError, LimitReached):
                periods.append(float("inf"))
                refused += 1
                continue
            periods.append(plan.period_s)
            alone = simulate(plan, frames=3, arrival_s=max(plan.latency_s, 1e-6) * 1000).latency_s[-1]
            assert alone == pytest.approx(plan.latency_s, rel=1e-9), seed
            assert alone <= limit * (1 + 1e-9), seed
        assert grows(periods) is None, (seed, periods)
        assert periods[-1] == pytest.approx(free.period_s, rel=1e-9), seed
        shorter += len(set(periods) - {float("inf")}) > 1
    assert refused > COUNT
    assert shorter


@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_of_any_method_is_below_the_floor(kind):
    """Tiles too, which strides and windows let pass over columns."""
    close = 0
    for seed in range(COUNT):
        random = Random(f"floor/{kind}/{seed}")
        problem, cluster, source, sink = random_setting(random, kind, rows=8)
        if seed % 3 == 0:
            problem = PricedChain(replace(problem.problem, across=problem.problem))
        ends = {"source": source, "sink": sink} if seed % 2 else {}
        names = {end: None if at is None else cluster.devices[at].name for end, at in ends.items()}
        for comm in ("resources", "paper"):
            floor = total_bound_s(problem, cluster, comm=comm)
            for method in PIPELINERS:
                plan = plan_pipeline(
                    problem, cluster, method=method, comm=comm, **(names if comm == "resources" else {})
                )
                assert plan.period_s >= floor * (1 - 1e-9), (seed, method)
                assert plan.latency_s >= floor * (1 - 1e-9), (seed, method)
                assert plan.floor_s == pytest.approx(floor)
                close += plan.period_s < floor * 1.2
    assert close
