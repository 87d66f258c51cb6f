"""Convolutions by the device's library: channels-last ones, unequal pads and fused clamps too, packed once for each
number of threads, equal to the plain kernels; and when cuDNN's fused convolution is taken."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.convolutions import ConvolutionGeometry, Convolutions, geometry_of
from downset.executor.device import open_device
from downset.executor.lane_program import lower
from downset.formats.reading import load
from downset.runtimes import litert
from downset.stages.greedy import greedy
from downset.stages.prepared import prepare
from downset.stages.problem import StageProblem
from downset.stages.unit_graph import group_units
from tests.models import installed_model
from tests.spatial import Builder, execute, spatial_graphs


def through_the_engine(graph, values, threads, finite=True):
    """(outputs, the binder) of a schedule with everything that is ready side by side."""
    units = group_units(graph)
    device, binder = open_device("cpu", threads=threads), Binder(graph, finite=finite)
    program = lower(units, greedy(StageProblem(units.predecessors), lambda _: 0.0).stages, barriers=False, max_lanes=2)
    options = {"inputs": graph.inputs, "outputs": graph.outputs, "values": values}
    with device.engine(binder, program, **options) as engine:
        return [result.numpy() for result in engine([binder.place(value) for value in values])], binder


def weighted(graph):
    return [op for op in graph.ops if op.kind == "Conv" and op.inputs[1] in graph.constants]


@given(spatial_graphs(), st.integers(1, 2))
def test_every_layout_is_packed_and_computes_the_same(graph, threads):
    values = seeded_inputs(graph)
    ours, binder = through_the_engine(graph, values, threads)
    theirs = execute(graph, dict(zip(graph.inputs, values, strict=True)))
    for tensor, mine in zip(graph.outputs, ours, strict=True):
        other = theirs[tensor].numpy()
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4 * max(float(np.abs(other).max()), 1.0))
    packed = {key[0] for key in binder.convolutions._packed}
    assert packed == {op.inputs[1] for op in weighted(graph)}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("columns", "kernel", "stride", "pads"),
    [
        (3, (3, 3), 2, [0, 0, 0, 0]),
        (5, (4, 5), 3, [0, 0, 0, 0]),
        (2, (4, 4), 3, [2, 1, 2, 1]),
        (2, (3, 3), 2, [1, 1, 0, 0]),
    ],
)
def test_an_image_of_one_channel_that_becomes_a_single_column(columns, kernel, stride, pads, threads):
    """oneDNN reads the wrong columns there."""
    build = Builder(False, 3)
    image = build.tensor((1, 6, columns))
    rows = 6 + pads[0] + pads[2] - kernel[0] + 1
    attrs = {"kernel_shape": list(kernel), "strides": [1, stride], "pads": pads, "activation": "Relu"}
    build.op("Conv", [image, build.weights(2, 1, *kernel), build.weights(2)], (2, rows, 1), **attrs)
    graph = build.graph((image,))
    values = seeded_inputs(graph)
    (mine,), _ = through_the_engine(graph, values, threads)
    other = execute(graph, dict(zip(graph.inputs, values, strict=True)))[graph.outputs[0]].numpy()
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("activation", [None, "Relu", "Relu6", "ReluN1To1"])
@pytest.mark.parametrize("depthwise", [False, True])
def test_channels_last_weights_and_activations(activation, depthwise, finite):
    """As .tflite files have them: weights OHWI, or 1HWC for depthwise ones, with uneven pads at stride 2."""
    build = Builder(True, 3)
    image = build.tensor((4, 8, 7))
    weights = build.weights(1, 3, 3, 8) if depthwise else build.weights(5, 3, 3, 4)
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 1], "group": 4 if depthwise else 1}
    if depthwise:
        attrs["depthwise"] = 1
    if activation:
        attrs["activation"] = activation
    made = (8 if depthwise else 5, 4, 4)
    build.op("Conv", [image, weights, build.weights(made[0])], made, **attrs)
    graph = build.graph((image,))
    values = [2 * value for value in seeded_inputs(graph)]
    if not finite:
        values[0].reshape(-1)[50] = np.nan
    (ours,), binder = through_the_engine(graph, values, 1, finite)
    theirs = execute(graph, {image: values[0]})[graph.outputs[0]].numpy()
    assert np.isnan(theirs).any() != finite
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert len(binder.convolutions._packed) == 1
    if activation in ("Relu6", "ReluN1To1"):
        assert np.nanmax(ours) == {"Relu6": 6.0, "ReluN1To1": 1.0}[activation]


def test_channels_last_separable_convolutions_are_one_unit():
    build = Builder(True, 1)
    image = build.tensor((4, 6, 6))
    active = build.op("Relu", [image], (4, 6, 6))
    attrs = {"kernel_shape": [3, 3], "pads": [1] * 4, "group": 4, "depthwise": 1}
    deep = build.op("Conv", [active, build.weights(1, 3, 3, 4)], (4, 6, 6), **attrs)
    point = build.op("Conv", [deep, build.weights(7, 1, 1, 4)], (7, 6, 6), kernel_shape=[1, 1])
    build.op("Conv", [point, build.weights(2, 3, 3, 7)], (2, 4, 4), kernel_shape=[3, 3])
    graph = build.graph((image,))
    assert group_units(graph).units == ((0, 1, 2), (3,))
    values = seeded_inputs(graph)
    (ours,), _ = through_the_engine(graph, values, 2)
    theirs = execute(graph, {image: values[0]})[graph.outputs[0]].numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * float(np.abs(theirs).max()))


def test_weights_are_packed_once_for_each_number_of_threads():
    build = Builder(True, 0)
    image = build.tensor((4, 6, 6))
    made = build.op("Conv", [image, build.weights(4, 1, 1, 4)], (4, 6, 6), kernel_shape=[1, 1])
    build.op("Relu", [made], (4, 6, 6))
    binder = Binder(build.graph((image,)))
    for threads in (1, 2, 1, 2):
        binder.bind([0], threads=threads)
    assert sorted(key[-2] for key in binder.convolutions._packed) == [1, 2]


def test_what_the_table_must_do():
    build = Builder(False, 0)
    image = build.tensor((4, 6, 6))
    build.op("Conv", [image, build.weights(4, 4, 1, 1)], (4, 6, 6), kernel_shape=[1, 1], activation="Tanh")
    graph = build.graph((image,))
    assert geometry_of(graph.ops[0], (1, 4, 6, 6), (1, 1)) is None
    assert geometry_of(graph.ops[0], (1, 4, 6), (1,)) is None
    (ours,), binder = through_the_engine(graph, seeded_inputs(graph), 1)
    assert not binder.convolutions._packed
    assert float(np.abs(ours).max()) <= 1.0


def test_a_real_channels_last_network_computes_what_litert_does():
    path = installed_model("pyopen-wakeword", "embedding_model.tflite")
    graph = prepare(load(path))
    ours, binder = through_the_engine(graph, seeded_inputs(graph), 2)
    assert {key[0] for key in binder.convolutions._packed} == {op.inputs[1] for op in weighted(graph)}
    for mine, other in zip(ours, litert.run(path), strict=True):
        assert float(np.abs(mine - other).max()) <= 1e-4 * float(np.abs(other).max())


# cuDNN's fused convolution, stood in for on the CPU.


def fused_by(monkeypatch, stand_in):
    monkeypatch.setattr(torch, "cudnn_convolution_relu", stand_in)
    before = torch.backends.cudnn.enabled
    weights, bias = torch.randn(5, 3, 3, 3), torch.randn(5)
    geometry = ConvolutionGeometry((1, 3, 8, 8), (1, 1, 1, 1), (2, 2), (1, 1), 1, (0.0, float("inf")))
    bound = Convolutions("stand-in")
    run = bound.bind(("w",), weights, bias, geometry, threads=1)
    image = torch.randn(1, 3, 8, 8)
    (result,) = run([image])
    assert torch.backends.cudnn.enabled == before
    expected = torch.nn.functional.conv2d(image, weights, bias, 2, 1).relu()
    assert torch.allclose(result, expected, atol=1e-5)
    return bound


def test_the_fused_convolution_is_taken_where_it_works(monkeypatch):
    seen = []

    def fused(image, weights, bias, stride, padding, dilation, groups):
        seen.append(image.is_contiguous(memory_format=torch.channels_last))
        assert (tuple(stride), tuple(padding), tuple(dilation), groups) == ((2, 2), (1, 1), (1, 1), 1)
        return torch.nn.functional.conv2d(image, weights, bias, stride, padding, dilation, groups).relu_()

    fused_by(monkeypatch, fused)
    assert seen == [True, True]  # tried once, run once


@pytest.mark.parametrize("fault", ["no engine", "not a number", "no bias"])
def test_the_fused_convolution_is_left_where_it_does_not(monkeypatch, fault):
    seen = []

    def faulty(image, weights, bias, stride, padding, dilation, groups):
        seen.append(fault)
        if fault == "no engine":
            raise RuntimeError("FIND was unable to find an engine to execute this computation")
        kept = None if fault == "no bias" else bias
        made = torch.nn.functional.conv2d(image, weights, kept, stride, padding, dilation, groups).relu_()
        return made * float("nan") if fault == "not a number" else made

    bound = fused_by(monkeypatch, faulty)
    assert len(seen) == 1
    assert list(bound._fusing.values()) == [False]
