"""The search by loads held to full enumeration, to its Python twin, to the schedules of its plans, and to its laws."""

from dataclasses import replace
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Link
from downset.pipelines import set_search
from downset.pipelines.accounting import Accounting
from downset.pipelines.judging import load_s
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import joined
from tests.effort import cases
from tests.oracles_loads import Loads
from tests.pipeline_generators import KINDS, faster, random_setting
from tests.pipelines.oracles.loads import least_load
from tests.pipelines.searches import by_loads

pytestmark = pytest.mark.native

ABOUT = 1 + 1e-7


def settings(kind, count, **sizes):
    for seed in range(count):
        random = Random(f"loads/{kind}/{seed}")
        problem, cluster, source, sink = random_setting(random, kind, **sizes)
        yield seed, random, problem, cluster, Accounting(source=source, sink=sink)


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_load_of_all_plans(kind):
    """Where pairs differ, or one device is source and sink, what the ends carry is known in part: a bound."""
    plans, met, count = 0, 0, cases(1000)
    for seed, _, problem, cluster, accounting in settings(kind, count, rows=6):
        least, enumerated = Loads(problem, cluster, accounting.source, accounting.sink).least()
        found = by_loads(problem, cluster, accounting)
        plans += enumerated
        assert found.bound_s <= least * ABOUT, seed
        ends = {accounting.source, accounting.sink} - {None}
        if found.finished:
            assert found.period_s == found.bound_s == pytest.approx(least, rel=1e-7), seed
            assert load_s(problem, cluster, found.stages, accounting) == pytest.approx(least, rel=1e-7), seed
        else:
            assert ends, seed
            assert cluster.network.links or accounting.source == accounting.sink, seed
        met += found.finished
    assert plans > 25 * count
    assert met > 0.9 * count


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_is_its_python_twin(kind):
    for seed, random, problem, cluster, accounting in settings(kind, cases(100), devices=4, rows=9, layers=4):
        start = random.randrange(problem.cuts)
        banned = (start, random.randint(start + 1, problem.cuts), 0)
        alike = {k for k, device in enumerate(cluster.devices) if device.speed == cluster.devices[0].speed}
        for forbidden in (frozenset(), frozenset((*banned[:2], k) for k in alike)):
            found = by_loads(problem, cluster, accounting, forbidden=forbidden, seconds=60.0)
            least = least_load(problem, cluster, accounting, forbidden)
            assert found.bound_s <= least * ABOUT, seed
            assert found.period_s == pytest.approx(least, rel=1e-7) or not found.finished, seed


@pytest.mark.parametrize("kind", KINDS)
def test_plans_are_scheduled_at_the_bound_of_the_search_and_no_method_is_below_it(kind):
    proven = total = 0
    for seed, _, problem, cluster, accounting in settings(kind, cases(75), devices=4, rows=8):
        names = [None if end is None else cluster.devices[end].name for end in (accounting.source, accounting.sink)]
        options = {"source": names[0], "sink": names[1]}
        plan = plan_pipeline(problem, cluster, **options)
        searched = by_loads(problem, cluster, accounting)
        assert plan.period_s <= searched.period_s * ABOUT or not plan.evidence.proven, seed
        if plan.evidence.proven:
            assert plan.evidence.bound == plan.period_s <= searched.period_s * ABOUT, seed
            assert plan.period_s >= searched.bound_s * (1 - 1e-7), seed
        elif plan.period_s >= searched.bound_s:
            assert plan.evidence.bound == pytest.approx(searched.bound_s, rel=1e-7), seed
        for method in PIPELINERS:
            other = plan_pipeline(problem, cluster, method=method, **options)
            assert plan.period_s <= other.period_s * (1 + 1e-9), (seed, method)
        total += 1
        proven += plan.evidence.proven
    assert proven >= 0.8 * total


def _occupied_for_no_time(network):
    none = {"occupied_bytes_per_s": 1e18, "occupied_latency_s": 0.0}
    return replace(network, links=tuple(replace(link, **none) for link in network.links), **none)


def better(random, problem, cluster, accounting):
    """(what, problem, cluster) with more of one resource."""
    network, devices = cluster.network, cluster.devices
    speed = random.choice([5.0, 20.0, 60.0])
    links = network.links
    if links:  # of the newcomer too
        occupied = (network.occupied_bytes_per_s, network.occupied_latency_s)
        links += tuple(
            Link((k, len(devices)), network.bytes_per_s, network.latency_s, *occupied) for k in range(len(devices))
        )
    yield "a device", problem, Cluster((*devices, Device("new", speed)), replace(network, links=links))
    yield "overlap", problem, replace(cluster, network=replace(network, overlap=True))
    yield (
        "full duplex",
        problem,
        Cluster(tuple(replace(device, duplex="full") for device in devices), replace(network, duplex="full")),
    )
    yield "rate", problem, replace(cluster, network=faster(network, 1.5))
    none = {"latency_s": 0.0, "occupied_latency_s": None}
    quick = tuple(replace(link, **none) for link in network.links)
    yield "no latency", problem, replace(cluster, network=replace(network, links=quick, **none))
    yield "occupied for no time", problem, replace(cluster, network=_occupied_for_no_time(network))
    yield "speed", problem, Cluster((replace(devices[0], mac_per_s=devices[0].mac_per_s), *devices[1:]), network)
    if network.kind == "shared":
        yield "links", problem, replace(cluster, network=replace(network, kind="links"))


@pytest.mark.parametrize("kind", KINDS)
def test_more_of_a_resource_never_lengthens_the_period(kind):
    for seed, random, problem, cluster, accounting in settings(kind, cases(150), devices=4, rows=9, layers=4):
        found = by_loads(problem, cluster, accounting)
        if not found.finished:
            continue
        for what, more, roomy in better(random, problem, cluster, accounting):
            assert by_loads(more, roomy, accounting).bound_s <= found.period_s * (1 + 1e-9), (seed, what)
        coarse = PricedChain(
            joined(problem.problem, sorted({0, problem.cuts, *random.sample(range(problem.cuts), problem.cuts // 2)}))
        )
        assert found.period_s <= by_loads(coarse, cluster, accounting).period_s * (1 + 1e-9), seed


@pytest.mark.parametrize("kind", KINDS)
def test_rounded_speeds_give_plans_and_bounds(monkeypatch, kind):
    """As if five multisets were many."""
    rounded = 0
    for seed, _, problem, cluster, accounting in settings(kind, 20, devices=5, rows=9):
        if seed % 4:  # devices that differ in more than speed are never taken as alike
            plain = tuple(replace(device, duplex=None, bytes_per_s=None, alpha_of={}) for device in cluster.devices)
            cluster, accounting = Cluster(plain, cluster.network), Accounting()
        whole = by_loads(problem, cluster, accounting)
        with monkeypatch.context() as few:
            few.setattr(set_search, "_MANY", 5)
            few.setattr(set_search, "_ROUNDED", (3, 5))
            few.setattr(set_search, "_TOO_MANY", 5 if seed % 2 else 1 << 16)
            found = by_loads(problem, cluster, accounting)
        assert found.bound_s <= whole.period_s * ABOUT, seed
        assert found.period_s >= whole.bound_s * (1 - 1e-7), seed
        if found.stages:
            assert load_s(problem, cluster, found.stages, accounting) == pytest.approx(found.period_s, rel=1e-9), seed
        if found.finished and whole.finished:
            assert found.period_s == pytest.approx(whole.period_s, rel=1e-7), seed
        rounded += found.rounded
    assert rounded
