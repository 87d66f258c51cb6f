"""Operators that share weights and differ in how they read: what is kept of one must never be run for the other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.cuda import CudaEngine
from downset.executor.device import open_device
from downset.executor.lane_program import lower
from downset.rewrites.merge.units import why_not_merged
from downset.stages.problem import Stage
from downset.stages.unit_graph import group_units
from tests.cuda_stand_in import standing_in
from tests.spatial import Builder, execute


def run_on(device, graph, stages):
    """The outputs of these stages by one engine, by one binder."""
    units, values = group_units(graph), seeded_inputs(graph)
    program = lower(units, stages, barriers=False, max_lanes=2)
    options = {"inputs": graph.inputs, "outputs": graph.outputs, "values": values}
    if device == "cpu":
        binder = Binder(graph)
        with open_device("cpu", threads=2).engine(binder, program, **options) as engine:
            return [result.numpy() for result in engine([binder.place(value) for value in values])]
    with pytest.MonkeyPatch.context() as patch, standing_in(patch):
        engine = CudaEngine(Binder(graph, device="cuda"), program, **options)
        return [result.numpy() for result in engine([torch.from_numpy(value) for value in values])]


def same_as_the_kernels(graph, ours):
    theirs = execute(graph, dict(zip(graph.inputs, seeded_inputs(graph), strict=True)))
    for tensor, mine in zip(graph.outputs, ours, strict=True):
        other = theirs[tensor].numpy()
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5 * max(float(np.abs(other).max()), 1.0))


@st.composite
def merges_that_share(draw):
    """Images of one size, each read by the same kernels with pads and dilations of its own; all that one image has
    merge."""
    build = Builder(False, draw(st.integers(0, 99)))
    extents = [draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(draw(st.integers(2, 3)))]
    weights = [build.weights(draw(st.integers(1, 3)), 2, *extent) for extent in extents]
    bias = draw(st.booleans())
    images, stages = [], []
    for _ in range(draw(st.integers(2, 3))):
        image = build.tensor((2, 7, 6))
        images.append(image)
        first = len(build.ops)
        for kernel, extent in zip(weights, extents, strict=True):
            dilations = [draw(st.integers(1, 2)) for _ in extent]
            room = [dilation * (taps - 1) for dilation, taps in zip(dilations, extent, strict=True)]
            before = [draw(st.integers(0, total)) for total in room]
            behind = [total - ahead for total, ahead in zip(room, before, strict=True)]
            made = build.tensors[kernel].shape[0]
            build.op(
                "Conv",
                [image, kernel, *([build.weights(made)] if bias else [])],
                (made, 7, 6),
                kernel_shape=list(extent),
                pads=[*before, *behind],
                dilations=dilations,
            )
        stages.append(Stage(tuple((unit,) for unit in range(first, len(build.ops))), merged=True))
    return build.graph(tuple(images)), tuple(stages)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@given(merges_that_share())
def test_merges_that_share_weights_keep_their_own_pads_and_dilations(device, drawn):
    graph, stages = drawn
    assert group_units(graph).units == tuple((op,) for op in range(len(graph.ops)))
    assert all(why_not_merged(graph, stage.groups) is None for stage in stages)
    same_as_the_kernels(graph, run_on(device, graph, stages))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("first", ["merged", "alone"])
def test_the_two_pads_that_share_a_kernel(device, first):
    """A kernel of 3x3 and one of 2x2, the second before and behind by turns: equal shapes, another joined kernel."""
    build = Builder(False, 0)
    square, even = build.weights(4, 3, 3, 3), build.weights(5, 3, 2, 2)
    images = [build.tensor((3, 8, 8)) for _ in range(2)]
    for image, pads in zip(images, ([1, 1, 0, 0], [0, 0, 1, 1]), strict=True):
        build.op("Conv", [image, square], (4, 8, 8), kernel_shape=[3, 3], pads=[1] * 4)
        build.op("Conv", [image, even], (5, 8, 8), kernel_shape=[2, 2], pads=pads)
    graph = build.graph(tuple(images))
    joined = [Stage(((at,), (at + 1,)), merged=True) for at in (0, 2)]
    stages = joined if first == "merged" else [Stage(((0,), (1,))), joined[1]]
    same_as_the_kernels(graph, run_on(device, graph, stages))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("depthwise_first", [True, False])
def test_channels_last_weights_shared_by_a_depthwise_and_a_plain_convolution(device, depthwise_first):
    """1HWC is one kernel for each channel, and one kernel over all channels."""
    build = Builder(True, 0)
    weights, image = build.weights(1, 3, 3, 4), build.tensor((4, 6, 6))
    for depthwise in (depthwise_first, not depthwise_first):
        attrs = {"group": 4, "depthwise": 1} if depthwise else {}
        build.op("Conv", [image, weights], (4 if depthwise else 1, 6, 6), kernel_shape=[3, 3], pads=[1] * 4, **attrs)
    graph = build.graph((image,))
    same_as_the_kernels(graph, run_on(device, graph, [Stage(((unit,),)) for unit in range(2)]))
