"""What CMSIS-NN's kernels take, against CMSIS-NN's own functions, which ExecuTorch's wheel brings for Python."""

import importlib.util
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from downset.arenas.gaps import height
from downset.arenas.plan import plan_arena
from downset.arenas.scratch import place_scratch
from downset.fitting.fit import fit
from downset.formats.kernel_scratch import kernel_scratch
from downset.formats.tflite.read import load_tflite
from downset.formats.tflite.write import export_tflite
from downset.graph.core import Graph, Op, Tensor
from downset.memory.kernel_libraries import kernel_library
from downset.memory.kernel_needs import KernelNeeds, kernel_needs, request_of
from downset.memory.liveness import lifetimes
from downset.memory.models import memory_model
from downset.runtimes import tflm
from tests.installed_apart import executorch_folder
from tests.tflite_net import TfliteNet

BACKENDS = {"cmsis-nn-dsp": "DSP", "cmsis-nn-mve": "MVE"}
TYPES = {("int8", "int8"): "A8W8", ("int8", "int4"): "A8W4", ("int16", "int8"): "A16W8"}
CASES = 400
ACTIVATION = {"input_offset": 0, "output_offset": 0, "activation_min": -128, "activation_max": 127}


@cache
def cmsis_nn():
    """The module inside the wheel. It is loaded alone: ExecuTorch is not imported."""
    folder = executorch_folder("1.5.1")
    if folder is None:
        pytest.skip("no package index here has ExecuTorch 1.5.1 for this platform")
    (path,) = (folder / "executorch" / "backends" / "cortex_m" / "library" / "_cmsis_nn").glob("cmsis_nn*.so")
    spec = importlib.util.spec_from_file_location("cmsis_nn", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def single(kind, shapes, dtypes, made, attrs, *, variable=(), scales=1):
    """A network of one operator; its inputs but the first are constants unless `variable` names their places."""
    tensors = [
        Tensor(
            f"t{place}",
            shape,
            dtype,
            max(1, int(np.prod(shape))),
            role(place, variable),
            {"scale": [0.5] * scales, "zero_point": [0] * scales, "axis": 0},
        )
        for place, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    tensors.append(Tensor("made", made, dtypes[0], int(np.prod(made)), "output"))
    op = Op("op", kind, tuple(range(len(shapes))), (len(shapes),), attrs)
    inputs = tuple(place for place, tensor in enumerate(tensors) if tensor.role == "input")
    return Graph("g", tuple(tensors), (op,), inputs, (len(shapes),))


def role(place, variable):
    return "input" if place == 0 or place in variable else "constant"


def asked(graph, kernels):
    return request_of(graph, graph.ops[0], kernel_library(kernels))


def window(extent, *, same, kernel, stride, dilation):
    """(positions, pad before the first) of one axis, as TFLite defines SAME and VALID."""
    covered = (kernel - 1) * dilation + 1
    if not same:
        return (extent - covered) // stride + 1, 0
    made = -(-extent // stride)
    return made, max((made - 1) * stride + covered - extent, 0) // 2


def convolution(random, *, one_row):
    """Random sizes: (image, kernel, strides, dilations, positions, pads before)."""
    kernel = [1 if one_row else int(random.integers(1, 6)), int(random.integers(1, 8))]
    kernel = [1, 1] if random.random() < 0.15 else kernel
    strides = random.integers(1, 4, 2).tolist()
    dilations = random.integers(1, 3, 2).tolist() if random.random() < 0.2 else [1, 1]
    image = [1 if one_row else int(random.integers(12, 20)), int(random.integers(15, 30))]
    same = random.random() < 0.5
    axes = [
        window(image[axis], same=same, kernel=kernel[axis], stride=strides[axis], dilation=dilations[axis])
        for axis in (0, 1)
    ]
    made, pads = zip(*axes, strict=True)
    return image, kernel, strides, dilations, list(made), list(pads)


def attributes(kernel, strides, dilations, pads, **more):
    stated = {"layout": "NHWC", "kernel_shape": kernel, "strides": strides, "dilations": dilations}
    return {**stated, "pads": [*pads, *pads], **more}


@pytest.mark.parametrize("kernels", BACKENDS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("one_row", [False, True])
def test_convolutions(kernels, types, one_row):
    library, random, found = cmsis_nn(), np.random.default_rng(1), set()
    for _ in range(CASES):
        image, kernel, strides, dilations, made, pads = convolution(random, one_row=one_row)
        group, each, out = (int(value) for value in random.integers(1, [4, 9, 9]))
        group = 1 if random.random() < 0.6 else group
        read, weights = (1, *image, group * each), (group * out, *kernel, each)
        result = (1, *made, group * out)
        graph = single(
            "Conv", (read, weights), types, result, attributes(kernel, strides, dilations, pads, group=group)
        )
        # TFLite Micro asks for weights of four bits what it asks for weights of eight.
        data_type = getattr(library.DataType, "A16W8" if types[0] == "int16" else "A8W8")
        theirs = library.convolve_wrapper_buffer_size(
            getattr(library.Backend, BACKENDS[kernels]),
            data_type,
            input_nhwc=read,
            filter_nhwc=weights,
            output_nhwc=result,
            padding_hw=pads,
            stride_hw=strides,
            dilation_hw=dilations,
            **ACTIVATION,
        )
        ours = sum(asked(graph, kernels).buffers)
        pointwise = kernel == [1, 1] and strides == dilations == [1, 1] and group == 1 and types[0] == "int8"
        if pointwise and kernels == "cmsis-nn-dsp" and not any(pads):
            assert (ours, theirs) == (4 * each, 0)  # Arm's compiler builds a kernel that needs it; this host's does not
        else:
            assert ours == theirs, (read, weights, result, pads, strides, dilations)
        found.add(theirs)
    assert len(found) > 10


@pytest.mark.parametrize("kernels", BACKENDS)
@pytest.mark.parametrize("types", TYPES)
def test_depthwise_convolutions(kernels, types):
    library, random, found = cmsis_nn(), np.random.default_rng(2), set()
    for _ in range(CASES):
        image, kernel, strides, dilations, made, pads = convolution(random, one_row=random.random() < 0.2)
        kernel = kernel if random.random() < 0.7 else [min(3, side) for side in kernel]
        batch, multiplier = (int(value) for value in random.integers(1, [3, 4]))
        channels = int(random.integers(1, 200)) if random.random() < 0.6 else 1
        read, weights = (batch, *image, channels), (1, *kernel, multiplier * channels)
        result = (batch, *made, multiplier * channels)
        graph = single(
            "Conv",
            (read, weights),
            types,
            result,
            attributes(kernel, strides, dilations, pads, group=channels, depthwise=1),
        )
        ours = sum(asked(graph, kernels).buffers)

        def theirs(strides, case=(read, weights, result, pads, dilations, multiplier)):
            read, weights, result, pads, dilations, multiplier = case
            return library.depthwise_conv_wrapper_buffer_size(
                getattr(library.Backend, BACKENDS[kernels]),
                getattr(library.DataType, TYPES[types]),
                input_nhwc=read,
                filter_nhwc=weights,
                output_nhwc=result,
                padding_hw=pads,
                stride_hw=strides,
                dilation_hw=dilations,
                ch_mult=multiplier,
                **ACTIVATION,
            )

        if types[0] == "int16":
            assert ours == 0  # TFLite Micro asks for none, and runs the kernel that needs none
        elif channels == 1 and kernels == "cmsis-nn-mve":
            # TFLite Micro states no stride here: with 4 it may run as a window of one row, with 1 as any other.
            assert max(theirs(strides), theirs([1, 1])) <= ours <= max(theirs([1, step]) for step in range(1, 9))
        else:
            assert ours == theirs(strides)
        found.add(ours)
    assert len(found) > (0 if types[0] == "int16" else 10)


@pytest.mark.parametrize("kernels", BACKENDS)
def test_transposed_convolutions(kernels):
    library, random, found = cmsis_nn(), np.random.default_rng(3), set()
    backend = getattr(library.Backend, BACKENDS[kernels])
    for _ in range(CASES):
        kernel, strides = random.integers(1, 6, 2).tolist(), random.integers(1, 4, 2).tolist()
        image, (channels, out) = random.integers(1, 20, 2).tolist(), random.integers(1, 40, 2).tolist()
        read, weights = (1, *image, channels), (out, *kernel, channels)
        result = (1, image[0] * strides[0], image[1] * strides[1], out)
        graph = single(
            "tflite::TRANSPOSE_CONV",
            ((4,), weights, read),
            ("int8", "int8", "int8"),
            result,
            {"strides": strides},
            variable=(2,),
        )
        stated = {"input_nhwc": read, "filter_nhwc": weights, "padding_hw": (0, 0), "stride_hw": strides}
        stated |= {"dilation_hw": (1, 1), "padding_offsets_hw": (0, 0), **ACTIVATION}
        scratch = library.transpose_conv_buffer_size(backend, library.DataType.A8W8, output_nhwc=result, **stated)
        turned = library.transpose_conv_reverse_conv_buffer_size(backend, library.DataType.A8W8, **stated)
        assert asked(graph, kernels).buffers == ((scratch, turned) if turned else (scratch,))
        found.add(turned > 0)
    assert found == {True, False}


@pytest.mark.parametrize("kernels", BACKENDS)
def test_matrices_pools_and_svdf(kernels):
    library, random = cmsis_nn(), np.random.default_rng(4)
    backend, data_type = getattr(library.Backend, BACKENDS[kernels]), library.DataType.A8W8
    for _ in range(CASES):
        rows, depth, units = random.integers(1, 50, 3).tolist()
        sums = library.fully_connected_buffer_size(backend, data_type, filter_nhwc=(depth, 1, 1, units))
        dense = ((rows, depth), (units, depth), (units,)), ("int8", "int8", "int32"), (rows, units), {"transB": 1}
        fixed, computed = asked(single("Gemm", *dense), kernels), asked(single("Gemm", *dense, variable=(1,)), kernels)
        assert (sum(fixed.kept), sum(fixed.buffers)) == (sums, 0)
        assert (sum(computed.kept), sum(computed.buffers)) == (0, sums)
        product = single("MatMul", ((rows, depth), (depth, units)), ("int8", "int8"), (rows, units), {})
        assert sum(asked(product, kernels).buffers) == sums
        pool = single("AveragePool", ((1, rows, rows, depth),), ("int8",), (1, 1, 1, depth), {"layout": "NHWC"})
        theirs = library.avgpool_buffer_size(backend, data_type, dim_dst_width=1, ch_src=depth)
        assert sum(asked(pool, kernels).buffers) == theirs
        shapes = (1, depth), (2 * units, depth), (2 * units, rows), (units,), (1, 2 * units * rows)
        svdf = single("tflite::SVDF", shapes, ("int8", "int8", "int16", "int32", "int16"), (1, units), {})
        theirs = library.svdf_buffer_size(backend, data_type, filter_nhwc=(2 * units, depth, 1, 1))
        assert sum(asked(svdf, kernels).kept) == theirs


def test_a_transposed_convolution_of_a_file(tmp_path):
    """Strides come from the file. By hand: (15 steps of 3 + 4 columns) x 16 channels x 4 rows, in int32."""
    net = TfliteNet(size=16, dtype="int8")
    shape = net.tensor((4,), "int32", [1, 48, 48, 16])
    weights = net.tensor((16, 4, 4, 32), value=np.ones((16, 4, 4, 32)), scale=[0.5] * 16)
    made = net.op("TRANSPOSE_CONV", (shape, weights, net.input(32)), 16, "TransposeConvOptions", strideW=3, strideH=3)
    net.main.tensors[made].shape = np.asarray([1, 48, 48, 16], np.int32)
    graph = load_tflite(net.save(tmp_path / "m.tflite", [made]))
    assert [kernel_needs(graph, kernels).scratch_bytes for kernels in BACKENDS] == [12544, 12544]


def test_a_product_over_four_axes_keeps_its_parameters_by_channel():
    """By hand: it runs as a pointwise convolution, with a multiplier and a shift for each unit; and for DSP its row."""
    shapes, types = ((1, 6, 8), (12, 8), (12,)), ("int8", "int8", "int32")
    one, many = (single("Gemm", shapes, types, (1, 6, 12), {}, scales=scales) for scales in (1, 12))
    assert [asked(one, kernels).buffers for kernels in BACKENDS] == [(96, 32), (96,)]
    assert [asked(many, kernels).buffers for kernels in BACKENDS] == [(32,), ()]


def head_with(monkeypatch, graph, buffers, offsets=None):
    """The head of the file's order where operators ask for these buffers, as a library's kernels would."""
    with monkeypatch.context() as patch:
        patch.setattr("downset.memory.storages.kernel_needs", lambda graph, library: KernelNeeds(buffers))
        living = lifetimes(graph, range(len(graph.ops)), replace(memory_model("tflm"), name="given", scratch="given"))
    return height(living.records, place_scratch(living, offsets).solution)


@pytest.mark.parametrize(("bottom", "wide"), [(4, 6), (1, 9), (8, 3)])
def test_scratch_among_the_tensors_of_a_file_without_offsets(tmp_path, monkeypatch, bottom, wide):
    """As TFLite Micro places it: its own kernel of a transposed convolution asks for an int32 for each result, so that
    this wheel's head shows where such a buffer and the tensors lie."""
    net = TfliteNet(3, size=8, dtype="int8")
    x = net.conv(net.input(3), bottom)
    shape = net.tensor((4,), "int32", [1, 8, 8, wide])
    weights = net.tensor((wide, 3, 3, bottom), value=np.ones((wide, 3, 3, bottom)), scale=[0.5] * wide)
    turned = net.op("TRANSPOSE_CONV", (shape, weights, x), wide, "TransposeConvOptions", strideW=1, strideH=1)
    path = net.save(tmp_path / "m.tflite", [net.concat([net.conv(turned, 5), net.conv(x, 7)])])
    graph = load_tflite(path)
    (asking,) = [index for index, op in enumerate(graph.ops) if op.kind == "tflite::TRANSPOSE_CONV"]
    head_bytes = head_with(monkeypatch, graph, {asking: (4 * 64 * wide,)})
    assert head_bytes == tflm.measure(path).head_bytes
    assert head_bytes > head_with(monkeypatch, graph, {})


@pytest.mark.parametrize("wide", [2, 6, 12])
def test_scratch_among_the_tensors_of_a_file_with_offsets(tmp_path, monkeypatch, wide):
    """As TFLite Micro places it: in the gaps that the file's offsets leave, else above."""
    net = TfliteNet(5, size=8, dtype="int8")
    x = net.conv(net.input(3), 4)
    shape = net.tensor((4,), "int32", [1, 8, 8, wide])
    weights = net.tensor((wide, 3, 3, 4), value=np.ones((wide, 3, 3, 4)), scale=[0.5] * wide)
    turned = net.op("TRANSPOSE_CONV", (shape, weights, x), wide, "TransposeConvOptions", strideW=1, strideH=1)
    path = net.save(tmp_path / "m.tflite", [net.concat([net.conv(net.conv(turned, 40), 3), net.conv(x, 7)])])
    graph = load_tflite(path)
    (asking,) = [index for index, op in enumerate(graph.ops) if op.kind == "tflite::TRANSPOSE_CONV"]
    steps, buffers = range(len(graph.ops)), {asking: (4 * 64 * wide,)}
    arena = plan_arena(graph, steps, method="best", memory="tflm")
    export_tflite(tmp_path / "placed.tflite", graph, steps, offsets=arena.tensor_offsets)
    offsets = dict(zip((record.id for record in arena.records), arena.offsets, strict=True))
    head_bytes = head_with(monkeypatch, graph, buffers, offsets)
    assert head_bytes == tflm.measure(tmp_path / "placed.tflite").head_bytes
    assert head_bytes < arena.arena_bytes + 4 * 64 * wide or wide == 12, "a part of it lies in a gap"


def test_scratch_that_moves_the_tensors_of_a_file_without_offsets_counts(tmp_path, monkeypatch):
    """With offsets it lies in gaps or above the tensors; without, this network's arena grows by more than its bytes."""
    random, net = np.random.default_rng(10), TfliteNet(10, size=4, dtype="int8")
    made = [net.input(int(random.integers(1, 8)))]
    for _ in range(int(random.integers(3, 7))):
        read = made[int(random.integers(0, len(made)))]
        made.append(net.conv(read, int(random.integers(1, 12)), 3 if random.random() < 0.6 else 1))
    path = net.save(tmp_path / "m.tflite", [net.concat(made[-2:])])
    graph = load_tflite(path)
    result = fit(path, kernels="cmsis-nn-dsp", rewrite="off", time_limit_s=1)  # what nothing reads stays
    needs = kernel_needs(graph, "cmsis-nn-dsp")
    alone, with_scratch = (head_with(monkeypatch, graph, given) for given in ({}, needs.buffers))
    assert with_scratch > alone + needs.scratch_bytes
    above = {}
    for shipped in ("original", "order+offsets"):
        arena = replace(result.arena, after=alone)
        placed = replace(result, shipped=shipped, graph=graph, arena=arena, measured=None)
        above[shipped] = kernel_scratch(placed, "cmsis-nn-dsp").above_bytes
    assert above["original"] == with_scratch - alone
    assert 0 < above["order+offsets"] <= needs.scratch_bytes


def test_floats_run_in_the_reference_kernels_and_other_types_are_not_known():
    attrs = attributes([3, 3], [1, 1], [1, 1], [1, 1], group=1)
    for dtype, known in (("float32", True), ("uint8", False), ("int8", True)):
        graph = single("Conv", ((1, 8, 8, 4), (4, 3, 3, 4)), (dtype, dtype), (1, 8, 8, 4), attrs)
        needs = kernel_needs(graph, "cmsis-nn-mve")
        assert needs.unknown == (() if known else ("Conv 'op'",))
        assert (needs.scratch_bytes > 0) == (dtype == "int8")
        assert kernel_needs(graph, "reference").most_bytes == kernel_needs(graph, None).most_bytes == 0
    bare = single("tflite::CONV_2D", ((1, 8, 8, 4), (4, 3, 3, 4)), ("int8", "int8"), (1, 8, 8, 4), {})
    assert kernel_needs(bare, "cmsis-nn-dsp", ["ADD", "CONV_2D"]).unknown == ("CONV_2D 'op'", "CONV_2D in a body")


@pytest.mark.parametrize(("bits", "bias"), [("int8", 4), ("int16", 8)])
def test_a_recurrent_operator_keeps_eight_vectors_and_its_record(bits, bias):
    """By hand, from the Prepare function: three of the reference kernel's buffers serve as scratch."""
    shapes = [(1, 10, 6)] + [(20, 6)] * 17 + [(1, 20), (1, 20)] + [(20,)] * 4
    types = [bits] + ["int8"] * 17 + [bits, "int16"] + ["int16"] * 4
    graph = single("tflite::UNIDIRECTIONAL_SEQUENCE_LSTM", shapes, types, (1, 10, 20), {})
    for kernels in BACKENDS:
        assert kernel_needs(graph, kernels).most_bytes == 320 + 8 * 20 * bias
    assert kernel_needs(graph, "cmsis-nn-mve").scratch_bytes == 0
