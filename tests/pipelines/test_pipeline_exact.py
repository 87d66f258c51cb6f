"""Exact pipelines held to full enumeration of cuts, device assignments and integer rows, and to plain Python."""

import math
from itertools import pairwise
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.pipelines import set_search
from downset.pipelines.device_order import canonical
from downset.pipelines.paper_timing import period_and_latency, stages_of
from downset.pipelines.segment_prices import quantities
from tests.oracles_pipeline import least_period
from tests.pipeline_generators import KINDS, random_chain, random_cluster, random_graph
from tests.pipelines.oracles.rounds import least_rounds
from tests.pipelines.searches import by_rounds

pytestmark = pytest.mark.native

COUNT = 500


def searched(problem, cluster, *, comm, limit=None, several=False, forbidden=frozenset()):
    options = {"max_latency_s": limit, "several": several, "forbidden": forbidden}
    return by_rounds(problem, cluster, comm, seconds=30.0, **options).period_s


def instance(kind, seed):
    random = Random(f"{kind}/{seed}")
    problem = random_chain(random, rows=5) if seed % 2 else random_graph(random, units=2, rows=4)
    return random, problem, random_cluster(random, kind), random.choice(["paper", "resources"])


@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_the_least_of_all_plans(kind):
    for seed in range(COUNT):
        random, problem, cluster, comm = instance(kind, seed)
        period, latency = least_period(problem, cluster, comm=comm)
        assert searched(problem, cluster, comm=comm) == pytest.approx(period, rel=1e-7), seed
        if seed % 5 == 0:
            limit = latency * random.choice([1.0, 1.1, 1.5]) * (1 + 1e-9)
            limited, _ = least_period(problem, cluster, comm=comm, max_latency_s=limit)
            # On a shared network a stage offers its least communication and its least sum, and nothing in between.
            found = searched(problem, cluster, comm=comm, limit=limit)
            assert limited * (1 - 1e-7) <= found, seed
            if not kind.startswith("shared"):
                assert found == pytest.approx(limited, rel=1e-7), seed


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_is_its_python_twin(kind):
    for seed in range(1000, 1025):
        random, problem, cluster, comm = instance(kind, seed)
        several = kind in ("links", "pairs")
        device = random.randrange(len(cluster.devices))
        start = random.randrange(problem.cuts)
        forbidden = frozenset({(start, random.randint(start + 1, problem.cuts), device)})
        if not kind.endswith("pairs"):  # alike devices are forbidden alike
            twins = [k for k, d in enumerate(cluster.devices) if d.speed == cluster.devices[device].speed]
            forbidden = frozenset((a, b, k) for a, b, _ in forbidden for k in twins)
        for banned in (frozenset(), forbidden):
            found = searched(problem, cluster, comm=comm, several=several, forbidden=banned)
            least = least_rounds(problem, cluster, comm=comm, several_blocks=several, forbidden=banned)
            assert found == pytest.approx(least, rel=1e-7), seed


@pytest.mark.parametrize("kind", KINDS)
def test_minimal_sets_find_what_labels_of_all_sets_find(kind):
    """A latency limit that never binds asks for labels of period and latency."""
    for seed in range(2000, 2060):
        random = Random(f"{kind}/{seed}")
        problem = random_chain(random, layers=7, rows=12)
        cluster = random_cluster(random, kind, devices=7)
        comm, several = random.choice(["paper", "resources"]), kind in ("links", "pairs")
        minimal = searched(problem, cluster, comm=comm, several=several)
        labelled = searched(problem, cluster, comm=comm, several=several, limit=1e30)
        assert minimal <= labelled * (1 + 1e-7), seed
        assert minimal == pytest.approx(labelled, rel=1e-7) or kind.startswith("shared"), seed


@pytest.mark.parametrize("kind", KINDS)
def test_stages_of_several_blocks(kind):
    """On links without overlap the search is whole, elsewhere to a thousandth where choices are few; the Python twin
    always is."""
    instances = found_least = bound_least = gained = 0
    whole = kind in ("links", "pairs")
    for seed in range(3000, 3060):
        random = Random(f"{kind}/{seed}")
        problem = random_chain(random, layers=4, rows=9) if seed % 4 else random_graph(random, units=3, rows=6)
        cluster, comm = random_cluster(random, kind), random.choice(["paper", "resources"])
        found = by_rounds(problem, cluster, comm, seconds=30.0)
        least = least_rounds(problem, cluster, comm=comm)
        assert found.finished and found.bound_s <= least * (1 + 1e-7) <= found.period_s * (1 + 2e-7), seed
        stages = stages_of(problem, cluster, found.stages, comm=comm)
        assert period_and_latency(cluster, stages)[0] == pytest.approx(found.period_s, rel=1e-9), seed
        instances += 1
        found_least += found.period_s <= least * (1 + 1e-7)
        bound_least += found.bound_s >= least * (1 - (1e-7 if whole else 2e-3))
        gained += found.period_s < searched(problem, cluster, comm=comm) * (1 - 1e-7)
    assert found_least >= (instances if whole else 0.95 * instances)
    assert bound_least >= (instances if whole else 0.95 * instances)
    assert gained or kind in ("links", "pairs", "shared without overlap")


@pytest.mark.parametrize("whole", [True, False], ids=["then searched whole", "too many for that"])
def test_rounded_speeds_give_plans_and_bounds(monkeypatch, whole):
    """As if five multisets were many: devices taken as alike, as slow as the slowest and as fast as the fastest."""
    monkeypatch.setattr(set_search, "_MANY", 5)
    monkeypatch.setattr(set_search, "_ROUNDED", (3, 5))
    monkeypatch.setattr(set_search, "_TOO_MANY", 1 << 16 if whole else 6)  # five alike have six
    searched_whole = rounded = 0
    for kind in KINDS:
        for seed in range(4000, 4024):
            random = Random(f"{kind}/{seed}")
            problem, cluster = random_chain(random, layers=5, rows=9), random_cluster(random, kind, devices=5)
            comm, banned = (
                random.choice(["paper", "resources"]),
                frozenset({(0, 1, 0)} if random.random() < 0.3 else ()),
            )
            with monkeypatch.context() as few:
                few.setattr(set_search, "_MANY", 1 << 16)
                least = searched(problem, cluster, comm=comm, forbidden=banned)
            found = by_rounds(problem, cluster, comm, several=False, forbidden=banned)
            assert found.bound_s <= least * (1 + 1e-9), seed
            if canonical(cluster).sets() <= 5 or least == math.inf:
                continue
            if banned and not found.stages:  # what one device may not run, those taken as alike may not
                continue
            assert least * (1 - 1e-9) <= found.period_s < math.inf, seed
            stages = stages_of(problem, cluster, found.stages, comm=comm)
            assert period_and_latency(cluster, stages)[0] == pytest.approx(found.period_s, rel=1e-9)
            assert not any((0, 1, d) in banned for s in stages if s.blocks[0].stop == 1 for d in s.devices), seed
            if found.finished:
                assert found.period_s == pytest.approx(least, rel=1e-7), seed
            searched_whole += found.finished
            rounded += not found.finished
    assert searched_whole > 10
    assert rounded > (0 if whole else 10)


def test_more_devices_than_can_be_searched_give_a_plan_and_a_bound():
    random = Random(7)
    problem = random_chain(random, layers=8, rows=40)
    cluster = Cluster(tuple(Device(f"d{k:02}", 10.0 + k) for k in range(40)), Network("links", 50.0))
    found = by_rounds(problem, cluster, seconds=2.0)
    assert 0 < found.bound_s <= found.period_s < math.inf
    single = problem.least_macs_before()[-1] / 49.0
    assert found.period_s < single


def test_prices_are_what_the_rows_need():
    """Tables against a walk over the rows of every strip."""
    for seed in range(120):
        random = Random(seed)
        problem = random_graph(random, units=4, rows=9)
        start = random.randrange(problem.cuts)
        stop = random.randint(start + 1, problem.cuts)
        segment = problem.segment(start, stop)
        made = {t for unit in problem.units[start:stop] for op in unit for t in problem.ops[op].outputs}
        for lo in range(segment.rows):
            for hi in range(lo + 1, segment.rows + 1):
                rows = problem.needs(start, stop, lo, hi, halo=False)
                macs = given = moved = 0
                for op in (problem.ops[op] for unit in problem.units[start:stop] for op in unit):
                    low, high = rows.get(op.outputs[0], (0, 0))
                    macs += op.macs_per_row * (high - low)
                    if low == high or op.macs_per_row:
                        continue
                    moved += sum((high - low) * problem.tensors[tensor].row_bytes for tensor in op.outputs)
                    for tensor, first, last in zip(op.inputs, op.first, op.last, strict=True):
                        moved += int(last[high] - first[low]) * problem.tensors[tensor].row_bytes
                for tensor, (low, high) in rows.items():
                    given += (high - low) * problem.tensors[tensor].row_bytes if tensor not in made else 0
                found = quantities(segment, lo, hi)
                assert (*found[:2], found[3]) == (macs, given, moved), (seed, lo, hi)
        parts = sorted({0, random.randint(0, segment.rows), segment.rows})
        out = sum(quantities(segment, a, b)[2] for a, b in pairwise(parts))
        later = {t for unit in problem.units[stop:] for op in unit for t in problem.ops[op].inputs} | problem.kept
        read = {t for unit in problem.units[start:stop] for op in unit for t in problem.ops[op].inputs}
        assert out == sum(problem.tensors[t].nbytes for t in made if t in later or t not in read)
