"""Random convolutional graphs with weights, both layouts, and a plain executor of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.kernels.table import KERNELS


class Builder:
    """Grows a graph operator by operator; shapes are (channels, rows, columns)."""

    def __init__(self, last: bool, seed: int) -> None:
        self.last, self.random = last, np.random.default_rng(seed)
        self.tensors, self.ops, self.constants, self.sizes = [], [], {}, {}

    def full(self, shape):
        return (1, *shape[1:], shape[0]) if self.last else (1, *shape)

    def tensor(self, shape):
        full = self.full(shape)
        self.tensors.append(Tensor(f"t{len(self.tensors)}", full, "float32", int(np.prod(full)) * 4))
        self.sizes[len(self.tensors) - 1] = shape
        return len(self.tensors) - 1

    def constant(self, value):
        value = np.asarray(value)
        self.tensors.append(Tensor(f"c{len(self.tensors)}", value.shape, str(value.dtype), value.nbytes, "constant"))
        self.constants[len(self.tensors) - 1] = lambda: value
        return len(self.tensors) - 1

    def op(self, kind, inputs, shape, **attrs):
        if self.last:
            attrs["layout"] = "NHWC"
        made = self.tensor(shape)
        self.ops.append(Op(f"op{len(self.ops)}", kind, tuple(inputs), (made,), attrs))
        return made

    def weights(self, *shape):
        return self.constant(self.random.standard_normal(shape).astype(np.float32))

    def graph(self, inputs):
        read = {tensor for op in self.ops for tensor in op.inputs}
        outputs = [op.outputs[0] for op in self.ops if op.outputs[0] not in read]
        return Graph("random", tuple(self.tensors), tuple(self.ops), inputs, tuple(outputs), self.constants).check()


def in_int8(graph):
    """The same network with elements of one byte, for kernels that are written for these."""
    tensors = tuple(
        replace(tensor, dtype="int8", nbytes=tensor.nbytes // 4) if tensor.dtype == "float32" else tensor
        for tensor in graph.tensors
    )
    return replace(graph, tensors=tensors)


def _window(draw, size, pool):
    """(kernel, strides, dilations, pads, output size), or None where the window does not fit."""
    kernel = [draw(st.integers(1, 3)) for _ in size]
    strides = [draw(st.integers(1, 2)) for _ in size]
    dilations = [1 if pool else draw(st.integers(1, 2)) for _ in size]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [draw(st.integers(0, (k - 1) // (2 if pool else 1))) for k in (*reach, *reach)]
    ceil = pool and draw(st.booleans())
    made = []
    for axis, rows in enumerate(size):
        room = rows + pads[axis] + pads[axis + 2] - reach[axis]
        if room < 0:
            return None
        count = (-(-room // strides[axis]) if ceil else room // strides[axis]) + 1
        if ceil and (count - 1) * strides[axis] >= rows + pads[axis]:
            count -= 1  # the last window must begin inside
        made.append(count)
    return {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads, "ceil": ceil}, tuple(made)


def _grow(draw, build, x, others):
    """One more operator behind x, drawn; None where the drawn one does not fit."""
    channels, *size = build.sizes[x]
    kind = draw(st.sampled_from(KINDS))
    same = [t for t in others if build.sizes[t][1:] == tuple(size)]
    if kind in ("Conv", "MaxPool", "AveragePool"):
        found = _window(draw, size, kind != "Conv")
        if found is None:
            return None
        geometry, made = found
        attrs = {key: geometry[key] for key in ("strides", "pads")}
        if kind != "Conv":
            include = {"count_include_pad": int(draw(st.booleans()))} if kind == "AveragePool" else {}
            kernel, ceil = geometry["kernel"], int(geometry["ceil"])
            return build.op(kind, [x], (channels, *made), kernel_shape=kernel, ceil_mode=ceil, **attrs, **include)
        attrs["dilations"] = geometry["dilations"]
        if draw(st.booleans()):  # depthwise
            kernel = geometry["kernel"]
            shape = (1, *kernel, channels) if build.last else (channels, 1, *kernel)
            extra = {"depthwise": 1} if build.last else {}
            weights = build.weights(*shape)
            return build.op("Conv", [x, weights], (channels, *made), group=channels, **attrs, **extra)
        out = draw(st.integers(1, 3))
        kernel = geometry["kernel"]
        weights = build.weights(*((out, *kernel, channels) if build.last else (out, channels, *kernel)))
        return build.op("Conv", [x, weights, build.weights(out)], (out, *made), group=1, **attrs)
    if kind == "SamePadded" and min(size) > 2:
        mode = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
        weights = build.weights(*((2, 3, 2, channels) if build.last else (2, channels, 3, 2)))
        made = tuple(-(-rows // 2) for rows in size)
        return build.op("Conv", [x, weights], (2, *made), auto_pad=mode, strides=[2, 2])
    if kind == "Relu":
        return build.op(kind, [x], build.sizes[x])
    if kind == "Concat":
        parts = [x, draw(st.sampled_from(same))]
        total = sum(build.sizes[t][0] for t in parts)
        return build.op(kind, parts, (total, *size), axis=3 if build.last else 1)
    if kind == "Add":
        partners = [t for t in same if build.sizes[t][0] == channels]
        return build.op(kind, [x, draw(st.sampled_from(partners))], build.sizes[x])
    if kind == "Excite":
        scale = build.op("Sigmoid", [_mean(build, x)], (channels, 1, 1))
        return build.op("Mul", [x, scale], build.sizes[x])
    if kind == "BatchNormalization":
        values = [build.weights(channels) for _ in range(3)]
        return build.op(kind, [x, *values, build.constant(np.full(channels, 0.7, np.float32))], build.sizes[x])
    if kind == "Resize" and size[0] * size[1] < 120:
        factor = draw(st.integers(2, 3))
        made = (channels, size[0] * factor, size[1] * factor)
        transform = draw(st.sampled_from(["asymmetric", "half_pixel"]))
        mode = draw(st.sampled_from(["nearest", "linear"]))
        inputs = [x, ABSENT, ABSENT, build.constant(np.array(build.full(made), np.int64))]
        if not build.last and draw(st.booleans()):
            inputs = [x, ABSENT, build.constant(np.array([1, 1, factor, factor], np.float32))]
        return build.op(kind, inputs, made, mode=mode, coordinate_transformation_mode=transform)
    if kind == "SpaceToDepth" and not any(rows % 2 for rows in size):
        return build.op(kind, [x], (channels * 4, size[0] // 2, size[1] // 2), blocksize=2)
    if kind == "DepthToSpace" and channels % 4 == 0:
        return build.op(kind, [x], (channels // 4, size[0] * 2, size[1] * 2), blocksize=2)
    if kind == "Pad":
        sides = [[draw(st.integers(0, 2)) for _ in range(2)] for _ in size]
        full = [[0, 0], *sides, [0, 0]] if build.last else [[0, 0], [0, 0], *sides]
        value = np.array(full, np.int64)
        made = (channels, *[rows + sum(pair) for rows, pair in zip(size, sides, strict=True)])
        pads = build.constant(value if build.last else value.T.reshape(-1))
        return build.op(kind, [x, pads], made, mode=draw(st.sampled_from(["constant", "edge"])))
    if kind == "Slice" and min(size) > 4:
        axis, step = (1 if build.last else 2), draw(st.integers(1, 2))
        start = draw(st.sampled_from([0, 1, 2, -2, 1 - size[0], -size[0], -3 - size[0]]))
        made = (channels, len(range(size[0])[start : size[0] - 1 : step]), size[1])
        parts = [build.constant(np.array([value], np.int64)) for value in (start, size[0] - 1, axis, step)]
        return build.op(kind, [x, *parts], made)
    if kind == "Constant":  # with rows, columns, both or none, and as many leading dimensions as it wants
        full = [extent if draw(st.booleans()) else 1 for extent in build.full(build.sizes[x])]
        value = build.weights(*full[draw(st.integers(0, 3)) :])
        parts = [value, x] if draw(st.booleans()) else [x, value]
        return build.op(draw(st.sampled_from(["Add", "Mul"])), parts, build.sizes[x])
    if kind == "Softmax":
        return build.op(kind, [x], build.sizes[x], axis=draw(st.integers(1, 3)))
    return None


def _mean(build, x):
    axes = build.constant(np.array([1, 2] if build.last else [2, 3], np.int64))
    return build.op("ReduceMean", [x, axes], (build.sizes[x][0], 1, 1), keepdims=1)


KINDS = [
    "Conv",
    "Conv",
    "Conv",
    "MaxPool",
    "AveragePool",
    "SamePadded",
    "Relu",
    "Concat",
    "Add",
    "Excite",
    "Resize",
    "BatchNormalization",
    "SpaceToDepth",
    "DepthToSpace",
    "Pad",
    "Slice",
    "Softmax",
    "Constant",
]


@st.composite
def spatial_graphs(draw, most_ops=7, layouts=(False, True)):
    build = Builder(draw(st.sampled_from(layouts)), draw(st.integers(0, 99)))
    first = build.tensor((draw(st.integers(1, 4)), draw(st.integers(4, 12)), draw(st.integers(3, 6))))
    available = [first]
    for _ in range(draw(st.integers(1, most_ops))):
        made = _grow(draw, build, draw(st.sampled_from(available[-3:])), available)
        if made is not None:
            available.append(made)
    if len(available) == 1:
        build.op("Relu", [first], build.sizes[first])
    return build.graph((first,))


def execute(graph, given):
    """All tensors of a run, by index."""
    values = {tensor: torch.from_numpy(value) for tensor, value in given.items()}
    for tensor, read in graph.constants.items():
        values[tensor] = torch.from_numpy(np.array(read()))
    values[ABSENT] = None
    for op in graph.ops:
        shapes = [graph.tensors[tensor].shape for tensor in op.outputs]
        with torch.no_grad():
            results = KERNELS[op.kind](op, [values[tensor] for tensor in op.inputs], shapes)
        for tensor, result in zip(op.outputs, results, strict=True):
            assert tuple(result.shape) == graph.tensors[tensor].shape, (op, result.shape)
            values[tensor] = result
    return values
