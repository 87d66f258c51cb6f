"""The real arena: right numbers under every right plan, wrong ones under a wrong plan."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from downset.arenas.plan import plan_arena
from downset.arenas.planners import ARENAS
from downset.errors import UnsupportedError, UsageError
from downset.executor.arena import run_in_arena, seeded_inputs
from downset.formats.reading import load
from downset.orders.plan import plan_order
from downset.orders.planners import ORDERS
from downset.results.plans import Evidence
from downset.runtimes import litert, ort
from downset.runtimes.inputs import random_array
from tests.models import branchy_model, installed_model


def onnx_inputs(graph):
    """The inputs that `downset.runtimes.ort` draws: seeded by name."""
    found = []
    for index in graph.inputs:
        tensor = graph.tensors[index]
        position = zlib.crc32(tensor.name.encode())
        found.append(random_array(tensor.shape, tensor.dtype, seed=0, position=position))
    return found


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("memory", ["live", "tflm", "ort", "torch", "paper"])
def test_the_high_water_mark_is_the_planned_arena_and_the_numbers_are_right(tmp_path, method, memory):
    path = branchy_model(tmp_path / "m.onnx")
    graph = load(path)
    order = plan_order(graph, method=method, memory=memory)
    expected = ort.run(path)
    for placement in ARENAS:
        arena = plan_arena(graph, order, method=placement)
        ran = run_in_arena(graph, order, arena, onnx_inputs(graph))
        assert ran.high_water_bytes == arena.arena_bytes >= order.peak_bytes
        for ours, theirs in zip(ran.outputs, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_two_tensors_in_one_place_give_wrong_numbers(tmp_path):
    path = branchy_model(tmp_path / "m.onnx")
    graph = load(path)
    order = plan_order(graph, method="file", memory="live")
    arena = plan_arena(graph, order)
    expected = ort.run(path)
    wrong = 0
    for one in range(len(arena.records)):
        for other in range(len(arena.records)):
            a, b = arena.records[one], arena.records[other]
            if one == other or a.start >= b.stop or b.start >= a.stop or b.stop - b.start < 2:
                continue
            offsets = {
                tensor: arena.offsets[other]
                if offset == arena.offsets[one] and graph.tensors[tensor].name == a.id
                else offset
                for tensor, offset in arena.tensor_offsets.items()
            }
            larger = replace(arena, tensor_offsets=offsets, evidence=Evidence("broken", 10**6, 0, False))
            ran = run_in_arena(graph, order, larger, onnx_inputs(graph))
            same = all(np.allclose(x, y, atol=1e-5) for x, y in zip(ran.outputs, expected, strict=True))
            wrong += not same
    assert wrong >= 10


def test_reading_past_a_lifetime_reads_poison(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    order = plan_order(graph, method="file", memory="live")
    arena = plan_arena(graph, order, method="naive")
    short = tuple(replace(r, stop=r.start + 1) if r.id == "r" else r for r in arena.records)
    ran = run_in_arena(graph, order, replace(arena, records=short), onnx_inputs(graph))
    assert np.isnan(ran.outputs[0]).any()


@pytest.mark.parametrize("name", ["embedding_model.tflite", "hey_rhasspy.tflite"])
def test_real_tflite_models_run_as_in_litert(name):
    path = installed_model("pyopen-wakeword", name)
    graph = load(path)
    order = plan_order(graph, memory="tflm")
    arena = plan_arena(graph, order)
    ran = run_in_arena(graph, order, arena, seeded_inputs(graph))
    assert ran.high_water_bytes == arena.arena_bytes
    for ours, theirs in zip(ran.outputs, litert.run(path), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_cannot_run_says_which_operator_and_how_many():
    quantised = load(installed_model("pymicro-wakeword", "alexa.tflite"))
    order = plan_order(quantised, memory="tflm")
    with pytest.raises(UnsupportedError, match=r"VAR_HANDLE \(6.*READ_VARIABLE \(6\)"):
        run_in_arena(quantised, order, plan_arena(quantised, order), seeded_inputs(quantised))


def test_inputs_that_do_not_fit_are_refused(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    order = plan_order(graph, memory="live")
    arena = plan_arena(graph, order)
    with pytest.raises(UsageError, match="1 inputs, but 0 were given"):
        run_in_arena(graph, order, arena, [])
    with pytest.raises(UsageError, match="'x' has shape"):
        run_in_arena(graph, order, arena, [np.zeros((1, 3, 4, 4), np.float32)])
