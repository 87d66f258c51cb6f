"""Merged operators compute what the separate ones did: on random shapes, kernels, pads, strides and dilations, with
the kernel table on whole numbers (to the bit) and with ONNX Runtime."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.errors import UsageError
from downset.graph.core import ABSENT, Graph, Op, Tensor, tensor_bytes
from downset.kernels.table import KERNELS
from downset.rewrites.merge.convolutions import merge_convs, mergeable, merged_macs
from tests.effort import cases

WHOLE = 4  # weights and inputs are whole numbers of this size: sums of them are exact in float32


class Build:
    """A float network of convolutions in one, two or three dimensions with seeded whole weights."""

    def __init__(self, seed, shape, dtype="float32"):
        self.random = np.random.default_rng(seed)
        self.dtype = dtype
        self.tensors, self.ops, self.constants = [], [], {}
        self.x = self.tensor(shape)

    def tensor(self, shape, value=None, dtype=None):
        dtype = dtype or self.dtype
        shape = tuple(int(extent) for extent in shape)
        role = "activation" if value is None else "constant"
        self.tensors.append(Tensor(f"t{len(self.tensors)}", shape, dtype, tensor_bytes(shape, dtype), role))
        if value is not None:
            array = np.asarray(value, dtype)
            self.constants[len(self.tensors) - 1] = lambda: array
        return len(self.tensors) - 1

    def weights(self, *shape):
        return self.tensor(shape, self.random.integers(-WHOLE, WHOLE, shape, endpoint=True))

    def op(self, kind, inputs, shape, **attrs):
        made = self.tensor(shape)
        self.ops.append(Op(f"{kind}{len(self.ops)}", kind, tuple(inputs), (made,), attrs))
        return made

    def conv(self, source, out, kernel, pads=None, strides=None, dilations=None, group=1, bias=True, **attrs):
        """pads: all begins, then all ends; None: what attrs say of auto_pad."""
        rank = len(kernel)
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        batch, channels, *size = self.tensors[source].shape
        if pads is None and attrs.get("auto_pad", "VALID") != "VALID":
            shape = [-(-extent // stride) for extent, stride in zip(size, strides, strict=True)]
        else:
            around = pads or [0] * (2 * rank)
            shape = [
                (size[a] + around[a] + around[a + rank] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1
                for a in range(rank)
            ]
        inputs = [source, self.weights(out, channels // group, *kernel), *([self.weights(out)] if bias else [])]
        given = attrs | ({} if pads is None else {"pads": list(pads)})
        return self.op(
            "Conv",
            inputs,
            (batch, out, *shape),
            kernel_shape=list(kernel),
            strides=list(strides),
            dilations=list(dilations),
            group=group,
            **given,
        )

    def same(self, kind, source, **attrs):
        return self.op(kind, [source], self.tensors[source].shape, **attrs)

    def concat(self, parts, **attrs):
        shape = list(self.tensors[parts[0]].shape)
        shape[1] = sum(self.tensors[part].shape[1] for part in parts)
        return self.op("Concat", parts, shape, axis=attrs.pop("axis", 1), **attrs)

    def graph(self, *outputs, inputs=None):
        graph = Graph("net", tuple(self.tensors), tuple(self.ops), tuple(inputs or [self.x]), outputs, self.constants)
        return graph.check()


def given_inputs(graph, seed=0):
    random = np.random.default_rng(seed)
    shapes = [graph.tensors[tensor] for tensor in graph.inputs]
    return [random.integers(-WHOLE, WHOLE, t.shape, endpoint=True).astype(t.dtype) for t in shapes]


def evaluate(graph, inputs):
    """With the kernel table, operator by operator; the shapes that the graph states are held against the results."""
    import torch

    values = {tensor: torch.from_numpy(value) for tensor, value in zip(graph.inputs, inputs, strict=True)}
    values |= {tensor: torch.from_numpy(np.array(read())) for tensor, read in graph.constants.items()}
    with torch.no_grad():
        for op in graph.ops:
            shapes = [graph.tensors[tensor].shape for tensor in op.outputs]
            results = KERNELS[op.kind](op, [None if t == ABSENT else values[t] for t in op.inputs], shapes)
            for tensor, shape, result in zip(op.outputs, shapes, results, strict=True):
                assert tuple(result.shape) == shape, f"{op.name}: {tuple(result.shape)} for {shape}"
                values[tensor] = result
    return [values[tensor].numpy() for tensor in graph.outputs]


def in_onnx_runtime(graph, inputs):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    types = {"float32": onnx.TensorProto.FLOAT, "float64": onnx.TensorProto.DOUBLE}
    name = [f"v{index}" for index in range(len(graph.tensors))]
    nodes = [
        onnx.helper.make_node(
            op.kind,
            ["" if t == ABSENT else name[t] for t in op.inputs],
            [name[t] for t in op.outputs],
            name=op.name,
            **op.attrs,
        )
        for op in graph.ops
    ]
    values = [
        [
            onnx.helper.make_tensor_value_info(name[t], types[graph.tensors[t].dtype], graph.tensors[t].shape)
            for t in side
        ]
        for side in (graph.inputs, graph.outputs)
    ]
    weights = [onnx.numpy_helper.from_array(np.asarray(read()), name[t]) for t, read in graph.constants.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "net", *values, weights),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.checker.check_model(model, full_check=True)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {name[t]: value for t, value in zip(graph.inputs, inputs, strict=True)})


def convolutions(graph):
    return [index for index, op in enumerate(graph.ops) if op.kind == "Conv"]


def assert_same(merged, graph, inputs=None, run=evaluate):
    inputs = inputs or given_inputs(graph)
    for ours, before in zip(run(merged, inputs), run(graph, inputs), strict=True):
        np.testing.assert_array_equal(ours, before)


@st.composite
def one_axis(draw, size, stride, result):
    """(taps, dilation, before, after) of any convolution with that many results: even kernels, unequal pads."""
    shapes = [(taps, dilation) for taps in (1, 2, 3, 4) for dilation in (1, 2, 3)]
    # of the largest kernel there are always enough: sizes are small
    few = [(t, d) for t, d in shapes if result * stride + (t - 1) * d >= size]
    taps, dilation = draw(st.sampled_from([*[shape for shape in few if shape[1] == 1], *few]))
    needed = (result - 1) * stride + (taps - 1) * dilation + 1 - size
    pads = draw(st.integers(max(needed, 0), needed + stride - 1))
    before = draw(st.integers(0, pads))
    return taps, dilation, before, pads - before


@st.composite
def branches(draw, rank=None, dtype="float32"):
    """Convolutions on one input, each with any window that gives the common output size; activations behind some;
    a concatenation of results, of some of them, twice or in another sequence; results that are outputs."""
    rank = rank or draw(st.sampled_from([1, 2, 2, 2, 3]))
    size = [draw(st.integers(2, 6)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    results = [draw(st.integers(max(1, size[a] // strides[a] - 1), size[a] // strides[a] + 2)) for a in range(rank)]
    build = Build(draw(st.integers(0, 99)), (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size), dtype)
    ends, convs = [], []
    for _ in range(draw(st.integers(2, 4))):
        axes = [draw(one_axis(size[a], strides[a], results[a])) for a in range(rank)]
        taps, dilations, before, after = zip(*axes, strict=True)
        bias, out = draw(st.booleans()), draw(st.integers(1, 3))
        convs.append(len(build.ops))
        end = build.conv(build.x, out, taps, (*before, *after), strides, dilations, bias=bias)
        activation = draw(st.sampled_from(["Relu", "Relu", "LeakyRelu", None]))
        if activation:
            end = build.same(activation, end, **({"alpha": 0.5} if activation == "LeakyRelu" else {}))
        ends.append(end)
    outputs = [end for end in ends if draw(st.integers(0, 2)) == 0]
    if draw(st.booleans()):
        parts = draw(st.sampled_from([ends, ends, ends[::-1], ends[:-1] or ends, [*ends, ends[0]]]))
        outputs.append(build.concat(parts, axis=draw(st.sampled_from([1, 1 - len(size) - 2]))))
        if draw(st.integers(0, 3)) == 0:
            outputs.append(build.concat(ends))
    read = {tensor for op in build.ops for tensor in op.inputs}
    outputs += [end for end in ends if end not in read]  # what nobody needs would be dropped
    return build.graph(*dict.fromkeys(outputs)), draw(st.permutations(convs))


@given(drawn=branches())
@settings(max_examples=cases(150))
def test_merged_convolutions_compute_the_same_to_the_bit(drawn):
    graph, ops = drawn
    assert mergeable(graph, ops) is None
    merged = merge_convs(graph, ops)
    assert len(convolutions(merged)) == 1
    assert_same(merged, graph)


@given(drawn=branches(), data=st.data())
@settings(max_examples=cases(50))
def test_merging_some_leaves_the_others(drawn, data):
    graph, ops = drawn
    some = data.draw(st.lists(st.sampled_from(ops), min_size=2, unique=True))
    merged = merge_convs(graph, some)
    assert len(convolutions(merged)) == len(ops) - len(some) + 1
    assert_same(merged, graph)
    # once more: what is merged can be merged again
    if len(some) < len(ops):
        assert_same(merge_convs(merged, convolutions(merged)), graph)


@given(drawn=branches(rank=2), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_onnx_runtime_computes_the_same(drawn, seed):
    graph, ops = drawn
    assert_same(merge_convs(graph, ops), graph, given_inputs(graph, seed), in_onnx_runtime)


@given(drawn=branches(rank=2, dtype="float64"), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_on_any_numbers_only_rounding_differs(drawn, seed):
    graph, ops = drawn
    inputs = [np.random.default_rng(seed).standard_normal(graph.tensors[t].shape) for t in graph.inputs]
    for ours, before in zip(evaluate(merge_convs(graph, ops), inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(ours, before, rtol=1e-12, atol=1e-11)


def merged_op(graph):
    (index,) = convolutions(graph)
    return graph.ops[index]


def test_kernels_lie_where_their_pads_put_them():
    """A 1x1 merged with a 3x3 without padding on a smaller image: centring it, as IOS does, would shift what it
    reads."""
    build = Build(0, (1, 2, 5, 5))
    plain = build.conv(build.x, 2, (2, 2), (0, 0, 0, 0))
    ahead = build.conv(build.x, 3, (4, 4), (1, 1, 1, 1))
    graph = build.graph(plain, ahead)
    merged = merge_convs(graph, (0, 1))
    op = merged_op(merged)
    assert op.attrs["kernel_shape"] == [4, 4] and op.attrs["pads"] == [1, 1, 1, 1]
    weights = merged.constant(op.inputs[1])
    given = graph.constant(graph.ops[0].inputs[1])
    np.testing.assert_array_equal(weights[:2, :, 1:3, 1:3], given)
    assert_same(merged, graph)
    # The same with an even kernel padded on one side: here the centre is the wrong place.
    build = Build(0, (1, 2, 5, 5))
    ends = [build.conv(build.x, 2, (2, 2), (0, 0, 1, 1)), build.conv(build.x, 3, (3, 3), (1, 1, 1, 1))]
    ends.append(build.conv(build.x, 3, (1, 4), (0, 2, 0, 1)))
    graph = build.graph(*ends)
    merged = merge_convs(graph, (0, 1, 2))
    assert merged_op(merged).attrs["kernel_shape"] == [3, 4]
    assert_same(merged, graph)
    centred = _with_weights(merged, [graph.constant(op.inputs[1]) for op in graph.ops])
    with pytest.raises(AssertionError):
        assert_same(centred, graph)


def _with_weights(merged, parts):
    """The merged network with kernels centred instead."""
    tensor = merged_op(merged).inputs[1]
    whole = np.zeros(merged.tensors[tensor].shape, np.float32)
    start = 0
    for part in parts:
        at = [(whole.shape[axis] - part.shape[axis]) // 2 for axis in (2, 3)]
        rows, columns = (slice(at[i], at[i] + part.shape[i + 2]) for i in (0, 1))
        whole[start : start + len(part), :, rows, columns] = part
        start += len(part)
    return replace(merged, constants={**merged.constants, tensor: lambda: whole})


def test_the_last_inception_block_becomes_one_three_by_three():
    build = Build(0, (1, 4, 8, 8))
    wide = build.same("Relu", build.conv(build.x, 3, (1, 3), (0, 1, 0, 1)))
    high = build.same("Relu", build.conv(build.x, 3, (3, 1), (1, 0, 1, 0)))
    joined = build.concat([wide, high])
    graph = build.graph(build.conv(joined, 2, (1, 1)))
    merged = merge_convs(graph, (0, 2))
    assert [op.kind for op in merged.ops] == ["Conv", "Relu", "Conv"]  # no Split, no Concat
    assert merged.ops[0].attrs["kernel_shape"] == [3, 3] and merged.ops[0].attrs["pads"] == [1, 1, 1, 1]
    macs = 8 * 8 * 4 * 3 * 3
    assert merged_macs(graph, (0, 2)) == (2 * macs, 2 * 3 * macs)
    assert_same(merged, graph)


def test_dilated_kernels_merge_on_their_common_lattice():
    """DeepLab's: a 1x1 and three 3x3 of rates 6, 12 and 18 are one 7x7 of rate 6."""
    build = Build(0, (1, 2, 20, 20))
    ends = [build.conv(build.x, 2, (1, 1))]
    ends += [build.conv(build.x, 2, (3, 3), [rate] * 4, dilations=[rate] * 2) for rate in (6, 12, 18)]
    graph = build.graph(*ends)
    merged = merge_convs(graph, range(4))
    op = merged_op(merged)
    assert (op.attrs["kernel_shape"], op.attrs["dilations"], op.attrs["pads"]) == ([7, 7], [6, 6], [18] * 4)
    assert_same(merged, graph)


def test_activations_of_two_kinds_and_automatic_pads():
    build = Build(0, (1, 2, 5, 5))
    options = {"strides": [2, 2], "dilations": [1, 1]}
    ends = [
        build.same("Relu", build.conv(build.x, 2, (2, 2), auto_pad="SAME_UPPER", **options)),
        build.conv(build.x, 1, (4, 4), auto_pad="SAME_LOWER", **options),
        build.same("Relu", build.conv(build.x, 3, (3, 2), auto_pad="SAME_LOWER", **options)),
        build.same("Sigmoid", build.conv(build.x, 1, (1, 1), auto_pad="VALID", **options)),
    ]
    graph = build.graph(build.concat([ends[0], ends[2], ends[1]]), ends[3], ends[1])
    merged = merge_convs(graph, convolutions(graph))
    assert sum(op.kind == "Relu" for op in merged.ops) == 1
    assert_same(merged, graph)


REFUSALS = {
    "strides": ("different strides", lambda b: b.conv(b.x, 1, (2, 1), strides=[2, 1])),
    "size": ("different height or width", lambda b: b.conv(b.x, 1, (2, 1))),
    "activation": ("different activations", lambda b: b.conv(b.x, 1, (1, 1), activation="Relu")),
    "groups": ("has 2 groups", lambda b: b.conv(b.x, 2, (1, 1), group=2)),
    "input": ("read different inputs", lambda b: b.conv(b.same("Relu", b.x), 1, (1, 1))),
    "layout": ("is channels-last", lambda b: b.conv(b.x, 1, (1, 1), layout="NHWC")),
    "kind": ("is a Relu", lambda b: b.same("Relu", b.x)),
    "pads": ("has negative pads", lambda b: b.conv(b.x, 1, (1, 1), (-1, 0, 0, 0))),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_reason(name):
    reason, other = REFUSALS[name]
    build = Build(0, (1, 2, 4, 4))
    first = build.conv(build.x, 2, (1, 1))
    second = other(build)
    graph = build.graph(first, second)
    ops = (0, len(graph.ops) - 1)
    assert reason in mergeable(graph, ops)
    with pytest.raises(UsageError, match=reason):
        merge_convs(graph, ops)


def test_what_is_not_known_or_not_float_is_refused():
    build = Build(0, (1, 2, 4, 4))
    graph = build.graph(build.conv(build.x, 2, (1, 1)), build.conv(build.x, 2, (1, 1)))
    assert mergeable(graph, (0, 1)) is None
    assert "at least two different" in mergeable(graph, (0, 0))
    assert "at least two different" in mergeable(graph, (0,))
    weights = graph.ops[1].inputs[1]
    unknown = replace(graph, constants={k: v for k, v in graph.constants.items() if k != weights})
    assert "not known" in mergeable(unknown, (0, 1))
    quantised = replace(graph, tensors=tuple(replace(t, dtype="int8") for t in graph.tensors))
    assert "floats" in mergeable(quantised, (0, 1))
    waiting = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], after=(0,))))
    assert "side effects" in mergeable(waiting, (0, 1))
    wrong = list(graph.tensors)
    for op in graph.ops:
        wrong[op.outputs[0]] = replace(wrong[op.outputs[0]], shape=(1, 2, 3, 4))
    assert "not what its pads" in mergeable(replace(graph, tensors=tuple(wrong)), (0, 1))
