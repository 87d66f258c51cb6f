"""Random networks as ONNX Runtime has them: it accepts every operator, and what it makes says every shape.

Tensors are (batch, channels, length) or (batch, channels, rows, columns), small, and often one row high. Kinds, bounds,
pads and modes are drawn beyond what networks use: flips, pads wider than the window, windows that are rounded up.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

OPSET = 18


def _session(model):
    """Without optimisation: it folds a Pad by zeros into a MaxPool, whose own pads count for nothing."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _refusal(error: Exception) -> bool:
    """Whether ONNX Runtime raised it; its errors have no class in common."""
    return type(error).__module__.startswith("onnxruntime")


class Network:
    """A network that grows by one operator at a time, with the value of every tensor for one input."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.spatial = int(random.choice([1, 2, 2]))
        shape = (1, 2 * int(random.integers(1, 3)), *(self.extent() for _ in range(self.spatial)))
        self.values = {"x": random.standard_normal(shape).astype(np.float32)}
        self.nodes, self.constants = [], {}

    def extent(self) -> int:
        return int(self.random.choice([1, 2, 3, 5, 8, 12, 17]))

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(self.random.integers(low, high + 1))

    def choose(self, *options):
        return options[self.whole(0, len(options) - 1)]

    def constant(self, value) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape).astype(np.float32) / 2)

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, inputs: list[str], *, made: int = 1, **attrs) -> list[str] | None:
        """The names of the results; None where ONNX Runtime refuses the operator, or makes nothing or too much."""
        number = len(self.nodes)
        names = [f"t{number}_{place}" for place in range(made)]
        node = helper.make_node(kind, inputs, names, name=f"{kind}{number}", **attrs)
        read = [name for name in dict.fromkeys(inputs) if name in self.values]
        try:
            results = _session(self._model([node], read, names)).run(None, {name: self.values[name] for name in read})
        except Exception as error:
            if _refusal(error):
                return None
            raise
        if any(value.size == 0 or value.size > 20_000 or not np.isfinite(value).all() for value in results):
            return None
        self.nodes.append(node)
        self.values.update(zip(names, results, strict=True))
        return names

    def _model(self, nodes, inputs, outputs):
        def info(name):
            value = self.values.get(name)
            kind = onnx.TensorProto.FLOAT if value is None else helper.np_dtype_to_tensor_dtype(value.dtype)
            return helper.make_tensor_value_info(name, kind, None if value is None else value.shape)

        used = {name for node in nodes for name in node.input}
        initializers = [numpy_helper.from_array(v, name) for name, v in self.constants.items() if name in used]
        graph = helper.make_graph(nodes, "random", [info(n) for n in inputs], [info(n) for n in outputs], initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    def finished(self):
        """(the model, by name what ONNX Runtime makes of every tensor, the input `x` among them)."""
        read = {name for node in self.nodes for name in node.input}
        outputs = [name for node in self.nodes for name in node.output if name not in read]
        model = self._model(self.nodes, ["x"], outputs)
        made = _session(model).run(None, {"x": self.values["x"]})
        return model, self.values | dict(zip(outputs, made, strict=True))


def _window(net, x, *, convolves):
    count = net.spatial
    kernel = [net.whole(1, 4) for _ in range(count)]
    widest = [k + 2 if convolves and net.whole(0, 4) == 0 else k - 1 for k in kernel]
    attrs = {"strides": [net.choose(1, 1, 2, 3) for _ in range(count)]}
    if net.whole(0, 5) == 0:
        attrs["auto_pad"] = net.choose("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attrs["pads"] = [net.whole(0, most) for most in widest * 2]
    if net.whole(0, 2) == 0:
        attrs["dilations"] = [net.choose(1, 2, 3) for _ in range(count)]
    return kernel, attrs


def _convolution(net, x):
    channels = net.values[x].shape[1]
    kernel, attrs = _window(net, x, convolves=True)
    groups = net.choose(1, 1, channels)
    out = groups * net.whole(1, 2)
    inputs = [x, net.weights(out, channels // groups, *kernel)]
    return net.add("Conv", inputs + ([net.weights(out)] if net.whole(0, 1) else []), group=groups, **attrs)


def _transposed(net, x):
    channels = net.values[x].shape[1]
    kernel, attrs = _window(net, x, convolves=False)
    if net.whole(0, 3) == 0:
        attrs["output_padding"] = [net.whole(0, stride - 1) for stride in attrs["strides"]]
    groups = net.choose(1, 1, channels)
    out = net.whole(1, 3)
    inputs = [x, net.weights(channels, out, *kernel)]
    return net.add(
        "ConvTranspose", inputs + ([net.weights(out * groups)] if net.whole(0, 1) else []), group=groups, **attrs
    )


def _pool(net, x):
    kernel, attrs = _window(net, x, convolves=False)
    kind = net.choose("MaxPool", "AveragePool", "AveragePool", "LpPool")
    if kind == "AveragePool":
        attrs["count_include_pad"] = net.whole(0, 1)
        attrs.pop("dilations", None)
    return net.add(kind, [x], kernel_shape=kernel, ceil_mode=net.whole(0, 1), **attrs)


def _axis(net, x, least=0):
    rank = net.values[x].ndim
    axis = net.whole(least, rank - 1)
    return axis - net.choose(0, rank)


def _slice(net, x):
    starts, ends, axes, steps = [], [], [], []
    for axis in range(2, net.values[x].ndim):
        if net.whole(0, 2):
            rows = net.values[x].shape[axis]
            starts.append(net.choose(0, 0, 1, -1, rows // 2, -rows, -rows - 2, rows + 3))
            ends.append(net.choose(rows, rows - 1, -1, 2**40, -(2**40), 1))
            steps.append(net.choose(1, 1, 2, 3, -1, -2))
            axes.append(axis - net.choose(0, net.values[x].ndim))
    return net.add("Slice", [x, *(net.numbers(*part) for part in (starts, ends, axes, steps))]) if axes else None


def _flip(net, x):
    return net.add("Slice", [x, *(net.numbers(value) for value in (-1, -(2**40), _axis(net, x, 1), -1))])


def _pad(net, x):
    rank = net.values[x].ndim
    low = net.choose(0, 0, -1)
    sides = [0, 0] + [net.whole(low, 2) for _ in range(rank - 2)]
    more = [0, 0] + [net.whole(low, 2) for _ in range(rank - 2)]
    return net.add("Pad", [x, net.numbers(*sides, *more)], mode=net.choose("constant", "edge", "reflect"))


def _resize(net, x):
    shape = net.values[x].shape
    factors = [net.choose(1, 2, 2, 3, 0.5, 1.5, 0.34) for _ in shape[2:]]
    attrs = {
        "mode": net.choose("nearest", "linear", "linear", "cubic"),
        "coordinate_transformation_mode": net.choose("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
        "nearest_mode": net.choose("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    }
    if net.whole(0, 1):
        sizes = [*shape[:2], *(max(1, int(rows * factor)) for rows, factor in zip(shape[2:], factors, strict=True))]
        return net.add("Resize", [x, "", "", net.numbers(*sizes)], **attrs)
    return net.add("Resize", [x, "", net.constant(np.array([1, 1, *factors], np.float32))], **attrs)


def _constant_operand(net, x):
    shape = [extent if net.whole(0, 1) else 1 for extent in net.values[x].shape]
    other = net.weights(*shape[net.whole(0, len(shape)) :])
    return net.add(net.choose("Add", "Mul", "Sub", "Max", "PRelu"), [x, other])


def _two(net, x):
    y = net.choose(*(name for name, value in net.values.items() if value.ndim == net.values[x].ndim))
    if net.whole(0, 1):
        return net.add("Concat", [x, y], axis=_axis(net, x, 1))
    return net.add(net.choose("Add", "Mul", "Min"), [x, y])


def _split(net, x):
    axis = _axis(net, x, 1)
    rows = net.values[x].shape[axis]
    cut = net.whole(0, rows)
    return net.add("Split", [x, net.numbers(cut, rows - cut)], made=2, axis=axis)


def _reduction(net, x):
    axes = sorted({net.whole(1, net.values[x].ndim - 1) for _ in range(net.whole(1, 2))})
    if net.whole(0, 2) == 0:
        return net.add(net.choose("GlobalAveragePool", "GlobalMaxPool"), [x])
    return net.add(net.choose("ReduceMean", "ReduceMax"), [x, net.numbers(*axes)], keepdims=1)


def _normalisation(net, x):
    shape = net.values[x].shape
    kind = net.choose(
        "BatchNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "Softmax", "LogSoftmax"
    )
    values = [net.weights(shape[1]) for _ in range(3)]
    if kind == "BatchNormalization":
        return net.add(kind, [x, *values, net.constant(np.full(shape[1], 0.7, np.float32))])
    if kind == "InstanceNormalization":
        return net.add(kind, [x, *values[:2]])
    if kind == "LRN":
        return net.add(kind, [x], size=3)
    axis = _axis(net, x, 1)
    if kind == "LayerNormalization":
        return net.add(kind, [x, net.weights(*shape[axis % len(shape) :])], axis=axis)
    return net.add(kind, [x], axis=axis)


def _moved(net, x):
    shape = net.values[x].shape
    kind = net.choose("Transpose", "Gather", "Tile", "Expand", "DepthToSpace", "SpaceToDepth", "CumSum", "Reshape")
    if kind == "Transpose":
        order = [0, 1, *net.random.permutation(range(2, len(shape))).tolist()]
        return net.add(kind, [x], perm=order if net.whole(0, 1) else [0, *order[:0:-1]])
    if kind == "Gather":
        axis = _axis(net, x, 1)
        return net.add(kind, [x, net.numbers(*(net.whole(0, shape[axis] - 1) for _ in range(3)))], axis=axis)
    if kind == "Tile":
        return net.add(kind, [x, net.numbers(1, 1, *(net.whole(1, 2) for _ in shape[2:]))])
    if kind == "Expand":
        return net.add(kind, [x, net.numbers(*shape[:2], *(3 if rows == 1 else rows for rows in shape[2:]))])
    if kind == "CumSum":
        return net.add(kind, [x, net.constant(np.array(net.whole(1, len(shape) - 1)))])
    if kind == "Reshape":
        return net.add(kind, [x, net.numbers(1, shape[1], -1, *shape[2 : len(shape) - 1])])
    return net.add(kind, [x], blocksize=2)


def _pointwise(net, x):
    return net.add(net.choose("Relu", "Sigmoid", "Neg", "HardSwish", "Elu", "Floor"), [x])


def _product(net, x):
    return net.add("MatMul", [x, net.weights(net.values[x].shape[-1], net.whole(1, 6))])


_GROW = (
    [_convolution] * 6
    + [_transposed] * 2
    + [_pool] * 4
    + [_slice] * 2
    + [_pad] * 2
    + [_resize] * 2
    + [_two] * 3
    + [_constant_operand] * 2
    + [_flip, _split, _reduction, _normalisation, _normalisation, _moved, _moved, _pointwise]
    + [_product]
)


def random_network(seed: int, *, most: int = 7):
    """(model, by name the value of every tensor) of up to `most` operators.

    ONNX Runtime refuses some whole networks that it runs operator by operator, where it infers other shapes than it
    makes: then the next one is drawn."""
    random, found = np.random.default_rng(seed), None
    while found is None:
        found = _grown(Network(random), most)
    return found


def _grown(net, most):
    recent = ["x"]
    while not net.nodes or (len(net.nodes) < most and net.whole(0, most + 3)):
        made = _GROW[net.whole(0, len(_GROW) - 1)](net, net.choose(*recent[-3:]))
        if made is not None:
            recent += made
    try:
        return net.finished()
    except Exception as error:
        if _refusal(error):
            return None
        raise
