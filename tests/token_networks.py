"""Random small ONNX networks with attention and normalisations, in the spellings of both exporters of PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper


class OnnxNet:
    """Grows a model operator by operator; values are names, whose shapes are in `shape`."""

    def __init__(self, seed, version=17):
        self.random, self.version = np.random.default_rng(seed), version
        self.nodes, self.weights, self.inputs, self.shape = [], [], [], {}

    def start(self, *shape):
        name = f"in{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        self.shape[name] = shape
        return name

    def constant(self, value):
        value = np.asarray(value)
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        self.shape[name] = value.shape
        return name

    def drawn(self, *shape):
        return self.constant(self.random.standard_normal(shape).astype(np.float32) * 0.5)

    def op(self, kind, inputs, shape, *, domain="", **attrs):
        shapes = shape if isinstance(shape, list) else [shape]
        made = [f"v{len(self.nodes)}_{place}" for place in range(len(shapes))]
        self.shape.update(zip(made, shapes, strict=True))
        self.nodes.append(helper.make_node(kind, inputs, made, f"op{len(self.nodes)}", domain=domain, **attrs))
        return made[0] if len(made) == 1 else made

    def reshape(self, x, *shape):
        return self.op("Reshape", [x, self.constant(np.array(shape, np.int64))], shape)

    def transpose(self, x, *perm):
        return self.op("Transpose", [x], tuple(self.shape[x][one] for one in perm), perm=list(perm))

    def linear(self, x, width, *, bias=True):
        *front, depth = self.shape[x]
        made = self.op("MatMul", [x, self.drawn(depth, width)], (*front, width))
        return self.op("Add", [made, self.drawn(width)], (*front, width)) if bias else made

    def same(self, kind, *inputs, **attrs):
        return self.op(kind, list(inputs), self.shape[inputs[0]], **attrs)

    def model(self, *results):
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape[name]) for name in results]
        graph = helper.make_graph(self.nodes, "net", self.inputs, outputs, self.weights)
        versions = [helper.make_opsetid("", self.version), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=8)
        onnx.checker.check_model(model)
        return model


def _heads(draw, net, x, heads, depth):
    """(queries, keys, values), each 1 x heads x tokens x depth, in one of the spellings of split heads."""
    tokens, width = net.shape[x][1], heads * depth
    spelling = draw(st.sampled_from(["split", "gather", "apart"]))
    if spelling == "apart":
        parts = [net.linear(x, width, bias=draw(st.booleans())) for _ in range(3)]
        return [net.transpose(net.reshape(one, 1, tokens, heads, depth), 0, 2, 1, 3) for one in parts]
    five = net.reshape(net.linear(x, 3 * width), 1, tokens, 3, heads, depth)
    five = net.transpose(five, 2, 0, 3, 1, 4)
    one = (1, heads, tokens, depth)
    if spelling == "gather":
        return [net.op("Gather", [five, net.constant(np.int64(place))], one, axis=0) for place in range(3)]
    sizes = net.constant(np.ones(3, np.int64))
    parts = net.op("Split", [five, sizes], [(1, *one)] * 3, axis=0)
    return [net.op("Squeeze", [part, net.constant(np.array([0], np.int64))], one) for part in parts]


def _masked(draw, net, scores):
    """Scores with a mask: none, a constant or an input, by rows or broadcast, of full or of lower rank."""
    tokens = net.shape[scores][-1]
    kind = draw(st.sampled_from(["none", "constant", "keys", "input", "flat input", "Where"]))
    if kind == "none":
        return scores
    if kind == "Where":
        mask = net.constant(net.random.integers(0, 4, (1, 1, tokens, tokens)) > 0)
        return net.op("Where", [mask, scores, net.constant(np.float32(-1e4))], net.shape[scores])
    shape = {"constant": (1, 1, tokens, tokens), "keys": (1, 1, 1, tokens), "flat input": (tokens, tokens)}
    full = shape.get(kind, (1, 1, tokens, tokens))
    mask = net.start(*full) if "input" in kind else net.drawn(*full)
    return net.same("Add", scores, mask)


def _attention(draw, net, x, context):
    tokens, width = net.shape[x][1:]
    heads = draw(st.sampled_from([1, 2]))
    depth = width // heads
    if context is None:
        queries, keys, values = _heads(draw, net, x, heads, depth)
    else:
        queries, keys, values = (
            net.transpose(net.reshape(net.linear(one, width), 1, net.shape[one][1], heads, depth), 0, 2, 1, 3)
            for one in (x, context, context)
        )
    length = net.shape[keys][2]
    scale = net.constant(np.float32(depth**-0.5))
    if draw(st.booleans()):  # ONNX Runtime's fused form
        scores = net.op(
            "FusedMatMul", [queries, keys], (1, heads, tokens, length), domain="com.microsoft", transB=1, alpha=0.5
        )
    elif draw(st.booleans()):
        flat = net.transpose(net.reshape(keys, heads, length, depth), 0, 2, 1)
        turned = net.same("Mul", net.reshape(flat, 1, heads, depth, length), scale)
        scores = net.op("MatMul", [queries, turned], (1, heads, tokens, length))
    else:
        turned = net.transpose(keys, 0, 1, 3, 2)
        scores = net.op("MatMul", [net.same("Mul", queries, scale), turned], (1, heads, tokens, length))
    if context is None:
        scores = _masked(draw, net, scores)
    weights = net.same("Softmax", scores, axis=-1)
    if draw(st.booleans()):  # the columns of a product, as where images are not transposed to tokens
        turned = net.transpose(values, 0, 1, 3, 2), net.transpose(weights, 0, 1, 3, 2)
        mixed = net.op("MatMul", turned, (1, heads, depth, tokens))
        mixed = net.transpose(net.reshape(mixed, 1, width, tokens), 0, 2, 1)
        joined = net.reshape(mixed, 1, tokens, width)
    else:
        mixed = net.op("MatMul", [weights, values], (1, heads, tokens, depth))
        joined = net.reshape(net.transpose(mixed, 0, 2, 1, 3), 1, tokens, width)
    if draw(st.booleans()):  # a product of two dimensions, with its bias
        flat = net.reshape(joined, tokens, width)
        made = net.op("Gemm", [flat, net.drawn(width, width), net.drawn(width)], (tokens, width), transB=1)
        return net.reshape(made, 1, tokens, width)
    return net.linear(joined, width)


def _norm(net, x):
    width = net.shape[x][-1]
    return net.op("LayerNormalization", [x, net.drawn(width), net.drawn(width)], net.shape[x], axis=-1)


@st.composite
def token_networks(draw):
    """A model: an image or tokens, blocks of attention and products, and tokens, an image or a mean as its result."""
    net = OnnxNet(draw(st.integers(0, 999)), draw(st.sampled_from([17, 18])))
    width, rows, columns = 4, draw(st.integers(2, 4)), draw(st.integers(1, 3))
    tokens, image = rows * columns, draw(st.booleans())
    if image:
        first = net.start(1, 3, rows, columns)
        x = net.op("Conv", [first, net.drawn(width, 3, 3, 3)], (1, width, rows, columns), pads=[1] * 4)
        last = draw(st.booleans())
        if last:
            x = net.reshape(net.transpose(x, 0, 2, 3, 1), 1, tokens, width)
        else:
            x = net.transpose(net.reshape(x, 1, width, tokens), 0, 2, 1)
    else:
        x = net.start(1, tokens, width)
    for _ in range(draw(st.integers(1, 2))):
        crossed = net.start(1, 3, 5) if draw(st.booleans()) else None
        x = net.same("Add", x, _attention(draw, net, _norm(net, x), crossed))
        if draw(st.booleans()):
            inner = net.linear(_norm(net, x), 2 * width)
            x = net.same("Add", x, net.linear(net.same("Sigmoid", inner), width))
    if image and draw(st.booleans()):
        x = net.reshape(net.transpose(x, 0, 2, 1), 1, width, rows, columns)
        x = net.op("Conv", [x, net.drawn(2, width, 3, 3)], (1, 2, rows, columns), pads=[1] * 4)
    elif draw(st.booleans()):
        x = net.op("Softmax", [net.transpose(x, 0, 2, 1)], (1, width, tokens), axis=draw(st.sampled_from([1, 2])))
    elif draw(st.booleans()):
        x = _one_token(draw, net, net.same("Sigmoid", net.linear(x, 3 * width)))
    return net.model(x)


def _one_token(draw, net, x):
    """One token of all, by its place from either end: with its dimension or without."""
    _, tokens, width = net.shape[x]
    place = draw(st.integers(-tokens, tokens - 1))
    if draw(st.booleans()):
        bounds = (place, place + 1 or 1 << 31, 1)
        return net.op("Slice", [x, *(net.constant(np.array([one], np.int64)) for one in bounds)], (1, 1, width))
    index = draw(st.sampled_from([np.int64(place), np.array([place], np.int64)]))
    return net.op("Gather", [x, net.constant(index)], (1, *index.shape, width), axis=1)


@st.composite
def normalised_networks(draw):
    """A model of convolutions with instance and group normalisations, residuals, and pictures that grow."""
    net = OnnxNet(draw(st.integers(0, 999)), draw(st.sampled_from([17, 18])))
    rows, columns, channels = draw(st.integers(2, 5)), draw(st.integers(1, 4)), 4

    def norm(x):
        image = net.shape[x]
        if draw(st.integers(0, 3)) == 0:
            axis = draw(st.sampled_from([1, 2, -2]))
            further = [net.drawn(*image[axis:])] if draw(st.booleans()) else []
            return net.op("LayerNormalization", [x, net.drawn(*image[axis:]), *further], image, axis=axis, epsilon=1e-3)
        if draw(st.booleans()):
            return net.op("InstanceNormalization", [x, net.drawn(channels), net.drawn(channels)], image)
        groups = draw(st.sampled_from([1, 2, 4]))
        ones, zeros = (net.constant(np.full(groups, value, np.float32)) for value in (1, draw(st.sampled_from([0, 1]))))
        flat = net.reshape(x, 1, groups, image[1] * image[2] * image[3] // groups)
        flat = net.op("InstanceNormalization", [flat, ones, zeros], net.shape[flat], epsilon=1e-3)
        return net.same("Mul", net.reshape(flat, *image), net.drawn(channels, 1, 1))

    def conv(x):
        _, depth, height, width = net.shape[x]
        weights = net.drawn(channels, depth, 3, 3)
        return net.op("Conv", [x, weights, net.drawn(channels)], (1, channels, height, width), pads=[1] * 4)

    x = conv(net.start(1, 3, rows, columns))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["plain", "residual", "up"]))
        if kind == "up" and max(net.shape[x][2:]) < 6:
            scales = net.constant(np.array([1, 1, 2, 2], np.float32))
            _, _, height, width = net.shape[x]
            how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
            x = conv(net.op("Resize", [x, "", scales], (1, channels, 2 * height, 2 * width), **how))
        made = conv(net.same("Sigmoid", norm(x)))
        x = net.same("Add", x, made) if kind == "residual" else made
    x = norm(x) if draw(st.booleans()) else x
    return net.model(_mean(draw, net, x) if draw(st.booleans()) else x)


def _mean(draw, net, x):
    """A global mean of an image, in one of its spellings."""
    kind, keeps, channels = (draw(st.booleans()) for _ in range(3))
    if kind:
        return net.op("GlobalAveragePool", [x], (*net.shape[x][:2], 1, 1))
    axes, kept = ([1, 2, 3], (1,)) if channels else ([2, -1], net.shape[x][:2])
    shape = (*kept, *([1] * len(axes))) if keeps else kept
    if net.version < 18:
        return net.op("ReduceMean", [x], shape, axes=axes, keepdims=int(keeps))
    return net.op("ReduceMean", [x, net.constant(np.array(axes, np.int64))], shape, keepdims=int(keeps))
