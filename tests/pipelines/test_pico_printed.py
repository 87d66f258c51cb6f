"""`pico` against Algorithms 2 and 3 of the paper, written down line by line as they are printed."""

import math
from functools import partial
from itertools import combinations
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.clusters.toml_file import load_cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import Split, StageDraft
from downset.pipelines.network import block_units, split_problem
from downset.pipelines.paper_timing import period_and_latency, stage_of, stages_of
from downset.pipelines.pico import pico
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import price
from downset.pipelines.strips import equal_rows, tiles
from tests.pipeline_generators import random_chain, random_graph
from zoo import graph


def printed(problem, cluster, t_lim=math.inf):
    """[(first piece, last piece, set of devices)], pieces from 1: DP(1, L, D, T_lim) and BuildStrategy, T_lim less the
    last stage's time for each candidate by itself; then Algorithm 3, its stage of most average requirement."""
    count = len(cluster.devices)
    mean = sum(device.mac_per_s / device.alpha for device in cluster.devices) / count
    equal = Cluster(tuple(Device(f"{k}", mean) for k in range(count)), cluster.network)
    period, latency, built, before = {}, {}, {}, {}

    def seconds(i, j, p):  # eq. 11; the leader is the device whose strip has most bytes, eq. 10 leaves it out
        segment = problem.segment(i - 1, j)
        rows = equal_rows(segment.rows, p)
        sizes = [sum(price(segment, rows[k], rows[k + 1])[1:]) for k in range(p)]
        leader = sizes.index(max(sizes))
        stage = StageDraft(leader, (Split(i - 1, j, tiles(range(p), rows)),))
        return stage_of(problem, equal, stage, comm="paper").seconds

    def search(i, j, p, left):
        if (i, j, p) in period:
            return period[i, j, p], latency[i, j, p]
        period[i, j, p] = latency[i, j, p] = seconds(i, j, p)
        built[i, j, p] = (i, j, p)
        if p == 1 or j == i:
            return period[i, j, p], latency[i, j, p]
        for s in range(i, j):
            for m in range(1, p):
                last = seconds(s + 1, j, m)
                if left - last < 0:
                    continue
                search(i, s, p - m, left - last)
                if left - last < latency[i, s, p - m]:
                    continue
                longest = max(period[i, s, p - m], last)
                if longest < period[i, j, p]:
                    period[i, j, p] = longest
                    latency[i, j, p] = latency[i, s, p - m] + last
                    before[i, j, p] = (i, s, p - m)
                    built[i, j, p] = (s + 1, j, m)
        return period[i, j, p], latency[i, j, p]

    search(1, problem.cuts, count, t_lim)
    stages, key = [], (1, problem.cuts, count)
    while key is not None:
        stages.insert(0, built[key])
        key = before.get(key)
    asked = []
    for i, j, p in stages:
        segment = problem.segment(i - 1, j)
        rows = equal_rows(segment.rows, p)
        asked.append(sum(price(segment, rows[k], rows[k + 1])[0] for k in range(p)) / p)
    given = [set() for _ in stages]
    speeds = [device.mac_per_s / device.alpha for device in cluster.devices]
    for device in sorted(range(count), key=lambda device: -speeds[device]):
        open_stages = [place for place, (_, _, p) in enumerate(stages) if len(given[place]) < p]
        given[max(open_stages, key=lambda place: asked[place])].add(device)
    return [(i, j, devices) for (i, j, _), devices in zip(stages, given, strict=True)]


def of(found):
    return [(s.splits[0].start + 1, s.splits[0].stop, {tile.device for tile in s.splits[0].tiles}) for s in found]


@pytest.mark.parametrize("seed", range(25))
def test_pico_is_the_printed_algorithm(seed):
    random = Random(f"printed/{seed}")
    problem = random_chain(random, rows=16) if seed % 2 else random_graph(random, units=5, rows=16)
    devices = tuple(Device(f"d{k}", random.choice([10.0, 20.0, 30.0, 50.0])) for k in range(random.randint(1, 5)))
    cluster = Cluster(devices, Network("links", random.choice([1.0, 20.0, 1e6])))
    stages = stages_of(problem, cluster, pico(problem, cluster, accounting=Accounting("paper")).stages, comm="paper")
    latency = period_and_latency(cluster, stages)[1]
    for limit in (None, latency * 0.9, latency * 0.6):
        expected = printed(problem, cluster, math.inf if limit is None else limit)
        found = of(pico(problem, cluster, accounting=Accounting("paper", max_latency_s=limit)).stages)
        for (i, j, devices_), (first, last, wanted) in zip(found, expected, strict=True):
            assert (i, j) == (first, last)
            assert devices_ <= wanted  # a device whose strip has no row is left out


def test_ties_decide_what_vgg16_gets():
    """Average devices have 0.4868 s in many ways; what Algorithm 3 makes of the first depends on the loops' order."""
    network = graph("vgg16", weights=False, classifier=False)
    problem, cluster = PricedChain(split_problem(network, block_units(network))), load_cluster("pico_4mac")
    assert of(pico(problem, cluster, accounting=Accounting("paper")).stages) == printed(problem, cluster)
    periods = [
        plan_pipeline(problem, cluster, method=partial(pico, ties=ties), comm="paper").period_s
        for ties in ("printed", "last devices first")
    ]
    assert periods == pytest.approx([0.43352064, 0.462422016], rel=1e-9)


def test_theorem_4():
    """On equal devices with equal strips no division of units and devices among stages is faster, all devices used."""
    for seed in range(40):
        random = Random(f"theorem/{seed}")
        problem = random_chain(random, layers=4, rows=24)
        count = random.randint(1, 4)
        cluster = Cluster(tuple(Device(f"d{k}", 20.0) for k in range(count)), Network("links", 30.0))
        best = math.inf
        for stages in range(1, min(count, problem.cuts) + 1):
            for inner in combinations(range(1, problem.cuts), stages - 1):
                for shares in combinations(range(1, count), stages - 1):
                    cuts, given = [0, *inner, problem.cuts], [0, *shares, count]
                    drafts = tuple(
                        equal_stage(problem, cuts[k], cuts[k + 1], range(given[k], given[k + 1])) for k in range(stages)
                    )
                    period, _ = period_and_latency(cluster, stages_of(problem, cluster, drafts, comm="paper"))
                    best = min(best, period)
        shape = [(i, j, len(devices)) for i, j, devices in printed(problem, cluster)]
        used, drafts = 0, []
        for i, j, number in shape:
            drafts.append(equal_stage(problem, i - 1, j, range(used, used + number)))
            used += number
        period, _ = period_and_latency(cluster, stages_of(problem, cluster, tuple(drafts), comm="paper"))
        assert period == pytest.approx(best, rel=1e-9)


def equal_stage(problem, start, stop, devices):
    segment = problem.segment(start, stop)
    parts = tiles(devices, equal_rows(segment.rows, len(devices)))
    leader = max(parts, key=lambda tile: sum(price(segment, tile.start, tile.stop)[1:])).device
    return StageDraft(leader, (Split(start, stop, parts),))
