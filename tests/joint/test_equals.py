"""Orders whose arenas are equal: for a runtime that follows no offsets the one that fits into the smallest region."""

import math
from dataclasses import replace
from random import Random

import onnx
import pytest
from hypothesis import given

from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.joint.best_fit import REGIONS, fits_region
from downset.joint.check import verify
from downset.joint.order_and_arena import plan_together
from downset.memory.bounds import offsets_bound
from downset.memory.liveness import lifetimes
from downset.memory.models import memory_model
from downset.memory.records import Record
from tests.effort import cases
from tests.joint.test_work_limit import network
from tests.strategies import graphs
from zoo import ZOO

LIVE = memory_model("live")
BEST_FIT = replace(LIVE, name="live, in the smallest gap", best_fit=True)


def fits_byte_by_byte(records, region_bytes):
    """The runtime's rule on a list of bytes, each with the step at which it becomes free."""
    free_at = [0] * region_bytes
    for record in sorted(records, key=lambda record: record.start):
        if record.nbytes == 0:
            continue
        gaps, begin = [], None
        for byte in range(region_bytes + 1):
            free = byte < region_bytes and free_at[byte] <= record.start
            if free and begin is None:
                begin = byte
            if not free and begin is not None:
                gaps.append((byte - begin, begin))
                begin = None
        gaps = [gap for gap in gaps if gap[0] >= record.nbytes]
        if not gaps:
            return False
        _, begin = min(gaps)
        free_at[begin : begin + record.nbytes] = [record.stop] * record.nbytes
    return True


def test_a_region_has_room_as_byte_by_byte():
    """In regions of about the peak, where the choice of a gap matters."""
    outcomes = set()
    for seed in range(cases(2000)):
        random = Random(seed)
        records = []
        for _ in range(12):
            start = random.randint(0, 8)
            records.append(Record("r", start, start + random.randint(1, 5), random.randint(0, 9)))
        region_bytes = int(offsets_bound(records) * random.uniform(1.0, 1.3))
        outcomes.add(fits_byte_by_byte(records, region_bytes))
        assert fits_region(records, region_bytes) == fits_byte_by_byte(records, region_bytes), seed
    assert outcomes == {True, False}


def planned(graph, memory, count=64):
    return plan_together(graph, memory=memory, time_limit_s=math.inf, work_limit=20_000, count=count)


def region(graph, found):
    """The position of the region's size, by the oracle."""
    records, arena = lifetimes(graph, found.order.steps, LIVE).records, found.arena.arena_bytes
    return next((k for k, factor in enumerate(REGIONS) if fits_byte_by_byte(records, int(factor * arena))), 4)


@given(graph=graphs(most_ops=9))
def test_equals_change_neither_the_arena_nor_what_is_proven(graph):
    plain, found = planned(graph, LIVE, count=4), planned(graph, BEST_FIT, count=4)
    verify(graph, found.order, found.arena, memory=BEST_FIT)
    assert found.arena.arena_bytes <= plain.arena.arena_bytes
    assert found.arena.evidence.bound == plain.arena.evidence.bound
    assert found.arena.evidence.proven >= plain.arena.evidence.proven


def test_the_region_is_never_larger_and_often_smaller():
    smaller = 0
    for seed in range(cases(60)):
        graph = network(seed)
        plain, found = planned(graph, LIVE), planned(graph, BEST_FIT)
        if found.arena.arena_bytes == plain.arena.arena_bytes:
            assert region(graph, found) <= region(graph, plain), seed
            smaller += region(graph, found) < region(graph, plain)
    assert smaller > cases(60) // 12


def test_onnx_runtime_holds_less(tmp_path):
    """Measured: SwiftNet's cell A, whose order of least peak leaves holes in the runtime's arena."""
    ort = pytest.importorskip("downset.runtimes.ort")
    pytest.importorskip("onnxruntime")
    onnx.save(ZOO["swiftnet_cell_a"](), str(tmp_path / "cell.onnx"))
    graph, model, held = load(tmp_path / "cell.onnx"), memory_model("ort"), []
    for memory in (replace(model, name="ort by arena alone", best_fit=False), model):
        found = planned(graph, memory)
        export_onnx(tmp_path / "m.onnx", graph, found.order.steps)
        held.append((found.arena.arena_bytes, ort.least_region(tmp_path / "m.onnx")[1].held_bytes))
    (arena_bytes, plain_bytes), (same_bytes, held_bytes) = held
    assert arena_bytes == same_bytes <= held_bytes < plain_bytes
