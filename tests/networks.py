"""Small networks that run in PyTorch and in ONNX Runtime, for tests of executors."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["branches", "branchy", "modules", "random_network", "view_beside"]


class _Builder:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def op(self, kind, inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{name}", **attributes))
        return name

    def conv(self, source, inside, outside, kernel, *, stride=1, group=1, pads=None, dilation=1, relu=False):
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        fan = inside // group * height * width
        weights = self.random.standard_normal((outside, inside // group, height, width), dtype=np.float32)
        pads = pads or [(height - 1) * dilation // 2, (width - 1) * dilation // 2] * 2
        inputs = [source, self.constant(weights / np.float32(fan**0.5))]
        inputs.append(self.constant(self.random.standard_normal(outside, dtype=np.float32)))
        made = self.op(
            "Conv",
            inputs,
            kernel_shape=[height, width],
            strides=[stride] * 2,
            group=group,
            pads=pads,
            dilations=[dilation] * 2,
        )
        return self.op("Relu", [made]) if relu else made

    def normalise(self, source, channels):
        values = [self.random.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(4)]
        return self.op("BatchNormalization", [source, *[self.constant(value) for value in values]])

    def model(self, result, channels, size):
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size])
        results = [result] if isinstance(result, str) else result
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
        graph = helper.make_graph(self.nodes, "network", [given], made, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def branchy(path, *, seed=0, channels=6, size=9):
    """Branches of unequal kernels, a pool, batch normalisation, separable convolutions, sums, a concatenation."""
    net = _Builder(seed)
    stem = net.op("Relu", [net.normalise(net.conv("x", channels, 8, 3), 8)])
    parts = [
        net.conv(stem, 8, 6, 1, relu=True),
        net.conv(stem, 8, 5, 3, relu=True),
        net.conv(stem, 8, 4, (1, 3), relu=True),
        net.conv(net.op("MaxPool", [stem], kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4), 8, 4, 1, relu=True),
    ]
    joined = net.op("Concat", parts, axis=1)
    left = net.conv(net.conv(net.op("Relu", [joined]), 19, 19, 5, group=19), 19, 8, 1)
    right = net.conv(net.conv(net.op("Relu", [joined]), 19, 19, 3, group=19), 19, 8, 1)
    total = net.op("Add", [net.op("Add", [left, right]), net.conv(joined, 19, 8, 3, dilation=2)])
    result = net.op("GlobalAveragePool", [net.conv(total, 8, 10, 2, stride=2, pads=[0, 1, 1, 0], relu=True)])
    onnx.save(net.model(result, channels, size), str(path))
    return path


def branches(path, *, seed=0):
    """Convolutions of unequal kernels, each with its ReLU, side by side on one image of 4 channels, 9 by 9."""
    net = _Builder(seed)
    parts = [net.conv("x", 4, channels, kernel, relu=True) for channels, kernel in ((3, 1), (5, 3), (2, (1, 3)))]
    onnx.save(net.model(net.op("Concat", parts, axis=1), 4, 9), str(path))
    return path


def random_network(path, *, seed, operators=12, views=False):
    """A random graph of image operators that keep the size and have 4 channels. With `views` some are transposed, which
    makes a tensor over the bytes of another; and what nobody reads is an output as it is."""
    net = _Builder(seed)
    values = ["x"]
    unread = {"x"}
    for _ in range(operators):
        source = values[int(net.random.integers(max(0, len(values) - 4), len(values)))]
        kind = int(net.random.integers(0, 9 if views else 6))
        if kind > 5:
            made = net.op("Transpose", [source], perm=[0, 1, 3, 2])
        elif kind == 0:
            made = net.conv(source, 4, 4, int(net.random.choice([1, 3, 5])), relu=bool(net.random.integers(0, 2)))
        elif kind == 1:
            made = net.conv(net.conv(net.op("Relu", [source]), 4, 4, 3, group=4), 4, 4, 1)
        elif kind == 2:
            made = net.op("AveragePool", [source], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        elif kind == 3:
            made = net.normalise(net.conv(source, 4, 4, 3), 4)
        elif kind == 4:
            made = net.op("Sigmoid", [source])
        else:
            other = values[int(net.random.integers(0, len(values)))]
            unread.discard(other)
            made = net.op("Add", [source, other])
        unread.discard(source)
        values.append(made)
        unread.add(made)
    ends = sorted(unread, key=values.index)
    if views:
        onnx.save(net.model(ends, 4, 7), str(path))
        return path
    result = net.op("Concat", ends, axis=1) if len(ends) > 1 else ends[0]
    onnx.save(net.model(result, 4, 7), str(path))
    return path


def view_beside(path):
    """Two chains; the second begins with a view of what the first lane made, and the first goes on without either:
    operators are conv, one, view, two, read, end, three."""
    net = _Builder(0)
    made, one = net.conv("x", 4, 4, 3), net.op("Sigmoid", ["x"])
    view, two = net.op("Transpose", [made], perm=[0, 1, 3, 2]), net.op("Sigmoid", [one])
    end = net.op("Sigmoid", [net.op("Sigmoid", [view])])
    onnx.save(net.model([end, net.op("Sigmoid", [two])], 4, 7), str(path))
    return path


def modules(path, *, seed, depth=2):
    """Modules as Inception has them: branches of one to three convolutions, several with their first on the module's
    own input, of unequal kernels, pads before and behind, and dilations; a pool before some; joined or summed."""
    net = _Builder(seed)
    value = net.op("Relu", [net.conv("x", 4, 4, 3)])
    for _ in range(depth):
        ends = []
        for _ in range(int(net.random.integers(3, 5))):
            end = value
            if net.random.random() < 0.25:
                kind = str(net.random.choice(["MaxPool", "AveragePool"]))
                end = net.op(kind, [end], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
            for _ in range(int(net.random.integers(1, 4))):
                kernel = tuple(int(taps) for taps in net.random.integers(1, 4, 2))
                dilation = int(net.random.integers(1, 3))
                room = [(taps - 1) * dilation for taps in kernel]
                before = [int(net.random.integers(0, total + 1)) for total in room]
                pads = [*before, *(total - ahead for total, ahead in zip(room, before, strict=True))]
                end = net.conv(end, 4, 4, kernel, pads=pads, dilation=dilation, relu=net.random.random() < 0.6)
            ends.append(end)
        if net.random.random() < 0.5:
            value = net.conv(net.op("Concat", ends, axis=1), 4 * len(ends), 4, 1)
        else:
            value = net.op("Sum", ends)
    onnx.save(net.model(value, 4, 7), str(path))
    return path
