"""Results over inputs: the loops of each library, written out and run on bytes, say what may overlap; TFLite Micro runs
the widest overlaps that the table allows."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.arenas.check import verify_arena
from downset.arenas.check_overlaps import reads_before_it_writes
from downset.arenas.plan import plan_arena
from downset.errors import InvalidPlan
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from downset.graph.core import Graph, Op, Tensor
from downset.memory.liveness import lifetimes, live_bytes, order_problem, peak_bytes, transient_bytes
from downset.memory.overlaps import KERNELS, TABLE, geometry, lag_bytes, least_lag, walk_of
from downset.memory.records import align_up
from downset.orders.plan import plan_order


def windows(window, place, axis):
    """Positions inside the input under one place of the window."""
    begin = place * window.strides[axis] - window.pads[axis]
    taps = (begin + tap * window.dilations[axis] for tap in range(window.kernel[axis]))
    return [at for at in taps if 0 <= at < window.read[axis + 1]]


def positions(window):
    for batch in range(window.written[0]):
        for y in range(window.written[1]):
            for x in range(window.written[2]):
                yield batch, y, x


def touched(window, batch, y, x, channels):
    _, rows, columns, depth = window.read
    for row in windows(window, y, 0):
        for column in windows(window, x, 1):
            for channel in channels:
                yield "read", ((batch * rows + row) * columns + column) * depth + channel


def at(window, batch, y, x, channel):
    _, rows, columns, channels = window.written
    return "write", ((batch * rows + y) * columns + x) * channels + channel


def conv_reference(window):
    """reference/integer_ops/conv.h: ConvPerChannel."""
    for place in positions(window):
        for channel in range(window.written[3]):
            yield from touched(window, *place, range(window.read[3]))
            yield at(window, *place, channel)


def by_channel_reference(window):
    """integer_ops/depthwise_conv.h: DepthwiseConvPerChannel; pooling.h: AveragePool and MaxPool (one channel each)."""
    times = window.written[3] // window.read[3]
    for place in positions(window):
        for channel in range(window.read[3]):
            for multiple in range(times):
                yield from touched(window, *place, [channel])
                yield at(window, *place, channel * times + multiple)


def max_pool_cmsis(window):
    """arm_max_pool_s8: the first pixel is copied to the output (memcpy, here from its end), the others are compared
    with it there."""
    for batch, y, x in positions(window):
        for number, (row, column) in enumerate(product(windows(window, y, 0), windows(window, x, 1))):
            for channel in range(window.read[3])[:: 1 if number else -1]:
                pixel = (batch * window.read[1] + row) * window.read[2] + column
                yield "read", pixel * window.read[3] + channel
                yield at(window, batch, y, x, channel)


def buffered(count):
    """arm_convolve_s8: so many windows are copied to a buffer, then as many positions are written."""

    def run(window):
        waiting = []
        for place in positions(window):
            yield from touched(window, *place, range(window.read[3]))
            waiting.append(place)
            if len(waiting) == count:
                yield from (at(window, *one, channel) for one in waiting for channel in range(window.written[3]))
                waiting = []
        yield from (at(window, *one, channel) for one in waiting for channel in range(window.written[3]))

    return run


def blocks_of_channels(count):
    """arm_depthwise_conv_3x3_s8 (4 channels) and arm_avgpool_s8 (16 with MVE, all with DSP)."""

    def run(window):
        for place in positions(window):
            for first in range(0, window.written[3], count):
                block = range(first, min(first + count, window.written[3]))
                yield from touched(window, *place, block)
                yield from (at(window, *place, channel) for channel in block)

    return run


def matrix_mve(window):
    """arm_nn_mat_mult_nt_t_s8 with ARM_MATH_MVEI: four pixels, then one by one."""
    places = list(positions(window))
    whole = len(places) // 4 * 4
    blocks = [places[start : start + 4] for start in range(0, whole, 4)] + [[place] for place in places[whole:]]
    for block in blocks:
        for channel in range(window.written[3]):
            for place in block:
                yield from touched(window, *place, range(window.read[3]))
            for place in block:
                yield at(window, *place, channel)


def matrix_dsp(window):
    """arm_nn_mat_mult_nt_t_s8 with ARM_MATH_DSP: two channels outside, two pixels inside."""
    places = list(positions(window))
    for first in range(0, window.written[3], 2):
        for start in range(0, len(places), 2):
            block = places[start : start + 2]
            for place in block:
                yield from touched(window, *place, range(window.read[3]))
            for place in block:
                yield from (at(window, *place, channel) for channel in range(first, min(first + 2, window.written[3])))


LOOPS = {
    ("reference", "pointwise"): [conv_reference],
    ("reference", "convolution"): [conv_reference],
    ("reference", "depthwise"): [by_channel_reference],
    ("reference", "average pool"): [by_channel_reference],
    ("reference", "max pool"): [by_channel_reference],
    ("cmsis-nn-dsp", "convolution"): [buffered(2)],
    ("cmsis-nn-dsp", "depthwise"): [blocks_of_channels(4), buffered(1)],
    ("cmsis-nn-dsp", "average pool"): [buffered(1), by_channel_reference],
    ("cmsis-nn-dsp", "max pool"): [max_pool_cmsis],
    ("cmsis-nn-mve", "pointwise"): [matrix_mve],
    ("cmsis-nn-mve", "convolution"): [buffered(4)],
    ("cmsis-nn-mve", "depthwise"): [buffered(4)],
    ("cmsis-nn-mve", "average pool"): [blocks_of_channels(16)],
    ("cmsis-nn-mve", "max pool"): [max_pool_cmsis],
}
TIGHT = (conv_reference, by_channel_reference, matrix_mve)
"""The loops whose least lag the table states exactly; the others may do with less."""


def unsafe(loops, window):
    """All distances, from the output's begin up to the input's, at which a byte is read that was overwritten."""
    found, done = set(), []
    for kind, byte in loops(window):
        if kind == "write":
            done.append(byte)
        else:
            found |= {written - byte for written in done}
    return found


@st.composite
def operators(draw):
    """(graph of one operator, its operation)."""
    operation = draw(st.sampled_from(sorted(TABLE["reference"])))
    batch, rows, columns = (draw(st.integers(1, most)) for most in (2, 4, 4))
    depth, channels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, strides, dilations, pads = draw(pair), draw(pair), (1, 1), (0, 0)
    if operation == "pointwise":
        kernel = strides = (1, 1)
    else:
        pads = tuple(draw(st.integers(0, reach - 1)) for reach in kernel)
        if operation in ("convolution", "depthwise"):
            dilations = draw(st.sampled_from([(1, 1), (1, 1), (2, 2)]))
    made = []
    for axis, size in enumerate((rows, columns)):
        made.append((size + 2 * pads[axis] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1)
    if min(made) < 1:
        kernel, strides, dilations, pads, made = (1, 1), (1, 1), (1, 1), (0, 0), [rows, columns]
        operation = "pointwise" if operation == "convolution" else operation
    if operation == "depthwise":
        channels = depth * draw(st.integers(1, 2))
    elif operation.endswith("pool"):
        channels = depth
    if operation == "convolution" and kernel == strides == (1, 1) and pads == (0, 0):
        operation = "pointwise"
    return one_operator(
        operation, (batch, rows, columns, depth), (batch, *made, channels), kernel, strides, dilations, pads
    )


def one_operator(operation, read, made, kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0), dtype="int8"):
    kind = {"average pool": "AveragePool", "max pool": "MaxPool"}.get(operation, "Conv")
    attrs = {"layout": "NHWC", "kernel_shape": list(kernel), "strides": list(strides), "pads": [*pads, *pads]}
    attrs |= {"dilations": list(dilations), "group": 1} if kind == "Conv" else {}
    attrs |= {"depthwise": 1, "group": read[3]} if operation == "depthwise" else {}
    size = {"int8": 1, "float32": 4}[dtype]
    tensors = (Tensor("x", read, dtype, size * int(np.prod(read))), Tensor("y", made, dtype, size * int(np.prod(made))))
    return Graph("one", tensors, (Op("op", kind, (0,), (1,), attrs),), (0,), (1,)).check(), operation


@settings(max_examples=40, deadline=None)
@given(operators(), st.sampled_from(KERNELS))
def test_the_table_says_what_the_loops_allow(made, kernels):
    """Every distance from the lag on is safe; the lag is least for the loops that are written out exactly; the check of
    plans, which derives no lag, allows no distance that is unsafe, and all others of these loops."""
    graph, operation = made
    (op,) = graph.ops
    walk, window = walk_of(graph, op, kernels), geometry(graph, op)
    if walk is None:
        return
    lag = lag_bytes(window, walk, 1)
    for loops in LOOPS[kernels, operation]:
        bad = unsafe(loops, window)
        assert max(bad, default=-1) < lag
        if loops in TIGHT:
            assert lag == max(0, max(bad, default=-1) + 1)
        begin = graph.tensors[0].nbytes
        for distance in range(-begin, graph.tensors[1].nbytes + 1):
            allowed = reads_before_it_writes(graph, op, kernels, begin + distance, begin)
            assert not allowed or distance not in bad
            assert allowed or loops not in TIGHT or distance in bad


def test_pointwise_convolutions_of_cmsis_nn_never_overlap_with_dsp():
    """Over channels outside and pixels inside: nothing but the last pixels could be shared."""
    graph, _ = one_operator("pointwise", (1, 4, 4, 8), (1, 4, 4, 8))
    window = geometry(graph, graph.ops[0])
    assert least_lag(graph, graph.ops[0], "cmsis-nn-dsp") is None
    assert max(unsafe(matrix_dsp, window)) + 1 > graph.tensors[1].nbytes - 8
    assert least_lag(graph, graph.ops[0], "reference") == 7


@pytest.mark.parametrize(
    ("change", "kernels"),
    [
        ({"dtype": "float32"}, "cmsis-nn-mve"),
        ({"dilations": (2, 2)}, "cmsis-nn-dsp"),
        ({"kernel": (1, 3)}, "cmsis-nn-dsp"),
    ],
)
def test_what_cmsis_nn_runs_by_another_function_never_overlaps(change, kernels):
    operation = "depthwise" if "dilations" in change else "convolution"
    made = {"kernel": (3, 3), "pads": (1, 1)} | change
    graph, _ = one_operator(operation, (1, 6, 6, 4), (1, 6, 6, 4), **made)
    assert least_lag(graph, graph.ops[0], kernels) is None
    assert least_lag(graph, graph.ops[0], "reference") is not None


@pytest.mark.parametrize("unstated", ["kernel_shape", "pads"])
def test_a_window_that_attributes_do_not_state_never_overlaps(unstated):
    graph, _ = one_operator("convolution", (1, 4, 3, 2), (1, 2, 2, 2), kernel=(3, 2), strides=(2, 2), pads=(1, 1))
    op = graph.ops[0]
    attrs = {name: value for name, value in op.attrs.items() if name != unstated} | {"auto_pad": "SAME_LOWER"}
    assert least_lag(graph, op, "reference") is not None
    assert least_lag(graph, replace(op, attrs=attrs), "reference") is None


def test_elements_of_four_bytes_lag_four_times_as_far():
    small, _ = one_operator("depthwise", (1, 5, 5, 3), (1, 5, 5, 3), (3, 3), pads=(1, 1))
    large, _ = one_operator("depthwise", (1, 5, 5, 3), (1, 5, 5, 3), (3, 3), pads=(1, 1), dtype="float32")
    assert least_lag(large, large.ops[0], "reference") == 4 * least_lag(small, small.ops[0], "reference")


@st.composite
def networks(draw):
    """Chains with a branch, of kinds that may overlap, work in place, or do neither."""
    tensors, ops = [image(0, draw(st.integers(1, 6)), draw(st.integers(1, 24)))], []
    for index in range(draw(st.integers(1, 7))):
        read = draw(st.integers(max(0, len(tensors) - 3), len(tensors) - 1))
        shape = tensors[read].shape
        kind = draw(st.sampled_from(["pointwise", "pointwise", "depthwise", "Relu", "Opaque"]))
        attrs, channels = {}, shape[3]
        if kind in ("pointwise", "depthwise"):
            channels = draw(st.integers(1, 24)) if kind == "pointwise" else channels
            reach = 1 if kind == "pointwise" else 3
            attrs = {"layout": "NHWC", "kernel_shape": [reach] * 2, "pads": [reach // 2] * 4, "group": 1}
            attrs |= {"depthwise": 1, "group": channels} if kind == "depthwise" else {}
        name = "Conv" if attrs else kind
        ops.append(Op(f"op{index}", name, (read,), (len(tensors),), attrs))
        tensors.append(image(len(tensors), shape[1], channels))
    outputs = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=2, unique=True))
    return Graph("chain", tuple(tensors), tuple(ops), (0,), tuple(outputs)).check()


def image(number, size, channels):
    return Tensor(f"t{number}", (1, size, size, channels), "int8", size * size * channels)


@settings(max_examples=25, deadline=None)
@given(networks(), st.sampled_from(["tflm-reference", "tflm-cmsis-nn-dsp", "tflm-cmsis-nn-mve"]))
def test_plans_that_overlap_are_valid_and_never_above_those_that_do_not(graph, memory):
    """Live bytes are those without overlaps; the peak is what an arena needs at least, and the plan passes the check
    that carries every loop out; no placement is below its bound."""
    order = plan_order(graph, memory=memory, time_limit_s=1)
    plain = plan_order(graph, memory="tflm", time_limit_s=1)
    assert order.peak_bytes <= plain.peak_bytes
    problem = order_problem(graph, memory)
    done = 0
    transients = [problem.floor_bytes]
    for operator in order.steps:
        transients.append(transient_bytes(problem, done, operator))
        done |= 1 << operator
        assert live_bytes(problem, done) == live_bytes(order_problem(graph, "tflm"), done)
    assert max(transients) == order.peak_bytes == peak_bytes(problem, order.steps)
    arena = plan_arena(graph, order, method="exact", time_limit_s=1, work_limit=200)
    apart = plan_arena(graph, order.steps, method="best", memory="tflm")
    assert order.peak_bytes <= arena.evidence.bound <= arena.arena_bytes <= apart.arena_bytes
    verify_arena(graph, order.steps, arena)


def test_a_lag_that_is_too_small_is_caught():
    """One alignment less than the lag, in the offsets of the plan: both checks name the operator's tensors."""
    graph, _ = one_operator("depthwise", (1, 8, 8, 16), (1, 8, 8, 16), (3, 3), pads=(1, 1))
    arena = plan_arena(graph, (0,), method="best", memory="tflm-reference")
    assert arena.arena_bytes == 1024 + align_up(least_lag(graph, graph.ops[0], "reference"), 16)
    assert lifetimes(graph, (0,), "tflm-reference").overlaps == arena.overlaps != ()
    read, written = arena.tensor_offsets[0], arena.tensor_offsets[1]
    assert read > written
    moved = {0: read - 16, 1: written}
    offsets = tuple(moved[tensor] for tensor in (0, 1))
    wrong = replace(arena, offsets=offsets, tensor_offsets=moved)
    with pytest.raises(InvalidPlan, match="over its own input"):
        verify_arena(graph, (0,), wrong)
    with pytest.raises(InvalidPlan, match="other lifetimes"):
        verify_arena(graph, (0,), replace(arena, memory="tflm"))


def test_tflite_micro_runs_the_widest_overlaps(tmp_path):
    """Random operators of every kind in one int8 file: each result lies over its input by the least lag. The outputs
    are those of the file without offsets, bit for bit; one alignment less changes them."""
    pytest.importorskip("tflite_micro")
    pytest.importorskip("ai_edge_litert")
    from downset.runtimes.tflm import measure
    from tests.tflite_net import TfliteNet

    random = np.random.default_rng(3)
    net = TfliteNet(5, dtype="int8")
    names = ["CONV_2D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D", "AVERAGE_POOL_2D", "POINTWISE"] * 5
    outputs = [window_operator(net, name, random) for name in names]
    graph = load(net.save(tmp_path / "plain.tflite", outputs))
    steps = tuple(range(len(graph.ops)))

    def offsets(less):
        found, begin = {}, 0
        for op in graph.ops:
            read, written = op.inputs[0], op.outputs[0]
            lag = align_up(least_lag(graph, op, "reference"), 16)
            found[written], found[read] = begin, begin + max(0, lag - less)
            sizes = (found[tensor] + graph.tensors[tensor].nbytes for tensor in (read, written))
            begin = align_up(max(sizes), 16)
        return found

    for less in (0, 16):
        export_tflite(tmp_path / f"{less}.tflite", graph, steps, offsets=offsets(less), kernels="reference")
    plain, wide, wrong = (measure(tmp_path / f"{name}.tflite", steps=1).outputs for name in ("plain", 0, 16))
    assert all(np.array_equal(one, other) for one, other in zip(plain, wide, strict=True))
    assert any(not np.array_equal(one, other) for one, other in zip(plain, wrong, strict=True))
    assert sum(one.size > 1 and len(np.unique(one)) > 2 for one in plain) > 15


def window_operator(net, name, random):
    """An input of a random size and an operator on it, in the net; the tensor that it makes."""
    rows, columns, depth = (int(random.integers(low, 12)) for low in (3, 3, 1))
    stride = int(random.integers(1, 3))
    kernel = int(random.integers(1, 4))
    channels = int(random.integers(1, 20))
    if name == "POINTWISE":
        name, kernel, stride = "CONV_2D", 1, 1
    same = int(random.integers(0, 2))
    read = net.tensor((1, rows, columns, depth))
    net.main.inputs.append(read)
    if name.endswith("POOL_2D"):
        channels = depth
        settings = {"filterWidth": kernel, "filterHeight": kernel}
        made = net.op(
            name, (read,), channels, "Pool2DOptions", strideW=stride, strideH=stride, padding=1 - same, **settings
        )
    elif name == "CONV_2D":
        weights = net.weights((channels, kernel, kernel, depth), 0)
        made = net.op(
            name, (read, *weights), channels, "Conv2DOptions", strideW=stride, strideH=stride, padding=1 - same
        )
    else:
        times = int(random.integers(1, 3))
        channels = depth * times
        weights = net.weights((1, kernel, kernel, channels), 3)
        made = net.op(
            name,
            (read, *weights),
            channels,
            "DepthwiseConv2DOptions",
            strideW=stride,
            strideH=stride,
            padding=1 - same,
            depthMultiplier=times,
        )
    size = [-(-extent // stride) if same else (extent - kernel) // stride + 1 for extent in (rows, columns)]
    net.main.tensors[made].shape = np.asarray([1, *size, channels], np.int32)
    return made
