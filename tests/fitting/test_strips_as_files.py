"""Files in strips as they are placed: more of anything that is allowed never gives a worse one, overlaps included."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.fitting.candidates import PlannedGraph, arena_as_placed
from downset.fitting.fit import fit
from downset.fitting.job import FitOptions, Job
from downset.fitting.strips import StripSearch, cheapest_within, files_of, search_strips
from downset.formats.reading import load
from downset.graph.core import Graph
from downset.joint.order_and_arena import plan_together
from downset.memory.models import MemoryName
from downset.memory.overlaps import KERNELS
from downset.partial.search import PartialLimits
from downset.runtimes.targets import TARGETS
from tests.effort import cases
from tests.fitting.test_fit_strips import Net, network

VWW = Path(__file__).resolve().parents[3] / "shared" / "models" / "vww_96_int8.tflite"


@st.composite
def networks(draw) -> Graph:
    """Early maps that are large, shortcuts, and a result that is small."""
    net = Net(draw(st.integers(0, 99)), dtype="int8")
    x = net.start(*draw(st.sampled_from([(16, 16), (15, 11), (24, 8)])), draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(2, 3))):
        x = net.conv(x, draw(st.integers(2, 12)), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
        if draw(st.booleans()):
            x = net.residual(x, net.conv(x, net.channels(x), 3))
    with tempfile.TemporaryDirectory() as folder:
        return load(net.save(Path(folder) / "m.tflite", [net.conv(x, 1, 1)]))


def searched(graph: Graph, work: int, share: float | None, memory: MemoryName = "tflm") -> tuple[Job, StripSearch]:
    target = replace(TARGETS["tflm"], memory=memory)
    job = Job(Path("m.tflite"), target, FitOptions("m.tflite", time_limit_s=math.inf, work_limit=work), Path())
    plan = PlannedGraph(graph, plan_together(graph, memory="tflm", work_limit=1000, time_limit_s=math.inf))
    return job, search_strips(job, plan, PartialLimits(share, work_limit=work, time_limit_s=math.inf))


def least_total(search: StripSearch) -> float:
    """Bytes of the arena and outside it, of the best file."""
    best = search.placing.least(search.in_strips, lambda arena, beside: arena + beside)
    return math.inf if best is None else search.placing.placed(best)[1].arena_bytes + search.placing.beside[best]


def pairs(values):
    return st.lists(values, min_size=2, max_size=2).map(sorted)


@given(networks(), pairs(st.integers(0, 150)), pairs(st.sampled_from([0.0, 0.03, 0.1, 0.3, 1.0])))
@settings(max_examples=cases(12))
def test_more_work_and_more_recomputing_never_give_a_worse_file(graph, works, shares):
    searches = [searched(graph, work, share)[1] for work, share in zip(works, shares, strict=True)]
    less, more = ({plan.segments for plan in search.in_strips} for search in searches)
    assert less <= more
    assert least_total(searches[1]) <= least_total(searches[0])


@given(networks(), pairs(st.integers(1, 150)), pairs(st.floats(0.3, 1.1)))
@settings(max_examples=cases(9))
def test_more_memory_and_more_work_never_give_a_dearer_file(graph, works, parts):
    """`cost`: extra arithmetic first. Where nothing fits, any file that does is no worse."""
    costs = []
    for work, part in zip(works, parts, strict=True):
        job, search = searched(graph, work, None)
        limit = int(part * max(plan.price.peak_bytes for plan in search.front.plans))
        found = next(iter(cheapest_within(job, [search], limit)), None)
        costs.append((math.inf,) if found is None else found[1].cost)
    assert costs[1] <= costs[0]


def test_the_cheapest_file_that_fits_is_found_although_its_price_is_higher(tmp_path):
    """Each plan's file is run in TFLite Micro. Within any limit no plan is cheaper than the first that is yielded, and
    what a file takes is known before it runs, up to alignments."""
    runtime = pytest.importorskip("downset.runtimes.tflm")
    path = VWW if VWW.exists() else network(tmp_path / "m.tflite")
    job = Job(path, TARGETS["tflm"], FitOptions(path, time_limit_s=math.inf, work_limit=300), tmp_path)
    graph = load(path)
    before = arena_as_placed(graph, range(len(graph.ops)), job.target, 60)
    beside = runtime.measure(path).total_bytes - before.arena_bytes
    plan = PlannedGraph(graph, plan_together(graph, memory="tflm", work_limit=1000, time_limit_s=math.inf))
    search = search_strips(job, plan, PartialLimits(None, work_limit=300, time_limit_s=math.inf))
    small = sorted(search.in_strips, key=lambda one: one.price.extra_operators)[:6]
    taken = {}
    for one in small:
        taken[one] = min(runtime.measure(file.path).total_bytes for file in files_of(job, search, one, "strips"))
        assert abs(search.needed_bytes(one) + beside - taken[one]) <= 64
        assert search.least_bytes(one) <= search.needed_bytes(one)
    for limit in sorted(taken.values()):
        first = next(iter(cheapest_within(job, [search], limit - beside)))[1]
        assert first.cost <= min(one.cost for one, nbytes in taken.items() if nbytes <= limit)


@given(networks(), st.integers(1, 100), st.sampled_from(KERNELS))
@settings(max_examples=cases(9))
def test_overlaps_never_give_a_worse_file(graph, work, kernels):
    apart, over = (searched(graph, work, None, memory)[1] for memory in ("tflm", f"tflm-{kernels}"))
    assert {plan.segments for plan in apart.in_strips} <= {plan.segments for plan in over.in_strips}
    assert least_total(over) <= least_total(apart)


def test_overlaps_never_give_a_worse_file_of_a_real_model(tmp_path):
    graph = load(VWW if VWW.exists() else network(tmp_path / "m.tflite"))
    apart, over = (searched(graph, 30, 0.0, memory)[1] for memory in ("tflm", "tflm-reference"))
    assert least_total(over) <= least_total(apart) < math.inf


def test_overlaps_never_give_a_worse_file_as_measured(tmp_path):
    pytest.importorskip("tflite_micro")
    path = network(tmp_path / "m.tflite")
    apart, over = (
        fit(path, max_recompute=0.1, work_limit=70, time_limit_s=math.inf, kernels=kernels)
        for kernels in (None, "reference")
    )
    assert over.measured.after <= apart.measured.after < apart.measured.before
