"""Random lawful ONNX networks: opsets 7 to 23, control flow, functions, quantisation, sequences, strings, optional
inputs and outputs, sizes that are computed, nodes without names. The same seed gives the same network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSETS = range(7, 24)
FLOAT, INT, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]


@dataclass
class Network:
    """A network as it grows. `values`: floats that a node may read."""

    random: np.random.Generator
    opset: int
    values: list[Value] = field(default_factory=list)
    nodes: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    inputs: list = field(default_factory=list)
    extra_outputs: list = field(default_factory=list)
    functions: list = field(default_factory=list)
    count: int = 0

    def name(self, stem="v"):
        self.count += 1
        odd = self.random.random() < 0.05
        return f"{stem}/{self.count}:ñ" if odd else f"{stem}{self.count}"

    def pick(self, ranks=(1, 2, 3, 4)):
        """A value of one of these ranks, late ones more often; None where there is none."""
        found = [value for value in self.values if len(value.shape) in ranks]
        return found[-1 - int(len(found) * self.random.random() ** 2)] if found else None

    def choose(self, *options):
        return options[int(self.random.integers(len(options)))]

    def weight(self, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array), self.name("w")))
        return self.weights[-1].name

    def ints(self, *numbers):
        """A constant of integers: an initializer or a node."""
        if self.random.random() < 0.7:
            return self.weight(np.asarray(numbers, np.int64))
        name = self.name("c")
        if self.opset >= 12 and self.random.random() < 0.5:
            self.nodes.append(helper.make_node("Constant", [], [name], value_ints=list(numbers)))
        else:
            tensor = numpy_helper.from_array(np.asarray(numbers, np.int64))
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def floats(self, *shape):
        return self.weight((self.random.standard_normal(shape) * 0.3).astype(np.float32))

    def node(self, kind, inputs, outputs=1, **attributes):
        """Append a node; the names of its results. Some nodes have no name."""
        named = {"name": self.name("n")} if self.random.random() < 0.8 else {}
        made = [self.name() for _ in range(outputs)] if isinstance(outputs, int) else outputs
        self.nodes.append(helper.make_node(kind, list(inputs), made, **named, **attributes))
        return made

    def add(self, shape, kind, inputs, **attributes):
        (name,) = self.node(kind, inputs, **attributes)
        self.values.append(Value(name, tuple(int(extent) for extent in shape)))

    def axes_of(self, since, axes):
        """(inputs, attributes) that give axes: an input since some version, an attribute before."""
        return ([self.ints(*axes)], {}) if self.opset >= since else ([], {"axes": list(axes)})

    def feed(self, kind, shape):
        name = self.name("in")
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name


def elementwise(net):
    x = net.pick()
    kinds = ["Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Softplus", "Elu", "LeakyRelu", "HardSigmoid", "Identity"]
    kinds += ["Erf", "Sign"] * (net.opset >= 9) + ["HardSwish"] * (net.opset >= 14) + ["Gelu"] * (net.opset >= 20)
    net.add(x.shape, net.choose(*kinds), [x.name])


def clip(net):
    """Bounds are attributes before version 11, and optional inputs since: one may be absent."""
    x = net.pick()
    if net.opset < 11:
        net.add(x.shape, "Clip", [x.name], min=-1.0, max=1.0)
        return
    bound = net.weight(np.asarray(0.5, np.float32))
    net.add(x.shape, "Clip", net.choose([x.name], [x.name, bound], [x.name, "", bound], [x.name, bound, ""]))


def binary(net):
    x = net.pick()
    other = [value for value in net.values if value.shape == x.shape]
    scalar = net.weight(np.asarray(0.7, np.float32))
    y = net.choose(*[value.name for value in other], scalar)
    kinds = ["Add", "Sub", "Mul"] + ["Max", "Min"] * (net.opset >= 8)  # these did not broadcast before
    net.add(x.shape, net.choose(*kinds), [x.name, y])


def convolution(net):
    x = net.pick((4,))
    if x is None or min(x.shape[2:]) < 3:
        return
    batch, channels, height, width = x.shape
    group = channels if net.random.random() < 0.3 else 1
    out = channels if group > 1 else int(net.random.integers(1, 9))
    stride, pad = net.choose(1, 2), net.choose(0, 1)
    inputs = [x.name, net.floats(out, channels // group, 3, 3)]
    inputs += net.choose([], [net.floats(out)])
    shape = (batch, out, (height + 2 * pad - 3) // stride + 1, (width + 2 * pad - 3) // stride + 1)
    net.add(shape, "Conv", inputs, strides=[stride] * 2, pads=[pad] * 4, group=group)


def transposed(net):
    x = net.pick((4,))
    if x is None or max(x.shape) > 24:
        return
    out = int(net.random.integers(1, 5))
    shape = (x.shape[0], out, 2 * x.shape[2] - 1, 2 * x.shape[3] - 1)
    net.add(shape, "ConvTranspose", [x.name, net.floats(x.shape[1], out, 3, 3)], strides=[2, 2], pads=[1] * 4)


def pool(net):
    x = net.pick((4,))
    if x is None or min(x.shape[2:]) < 2:
        return
    shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
    net.add(shape, net.choose("MaxPool", "AveragePool"), [x.name], kernel_shape=[2, 2], strides=[2, 2])


def normalise(net):
    x = net.pick((3, 4))
    if x is None:
        return
    channels = x.shape[1]
    if net.opset >= 17 and net.random.random() < 0.5:
        net.add(x.shape, "LayerNormalization", [x.name, net.floats(x.shape[-1])])
        return
    values = [net.floats(channels), net.floats(channels), net.floats(channels)]
    variance = net.weight(np.full(channels, 0.5, np.float32))
    net.add(x.shape, "BatchNormalization", [x.name, *values, variance])


def softmax(net):
    x = net.pick()
    net.add(x.shape, net.choose("Softmax", "LogSoftmax"), [x.name], axis=int(net.random.integers(len(x.shape))))


def product(net):
    x = net.pick((2, 3, 4))
    if x is None:
        return
    columns = int(net.random.integers(1, 9))
    if len(x.shape) == 2 and net.random.random() < 0.5:
        bias = [net.floats(columns)] if net.opset < 11 or net.random.random() < 0.5 else []
        net.add((x.shape[0], columns), "Gemm", [x.name, net.floats(columns, x.shape[1]), *bias], transB=1)
    else:
        net.add((*x.shape[:-1], columns), "MatMul", [x.name, net.floats(x.shape[-1], columns)])


def reduction(net):
    x = net.pick()
    axis, keep = int(net.random.integers(len(x.shape))), net.choose(0, 1)
    if len(x.shape) == 1:
        keep = 1
    kind = net.choose("ReduceSum", "ReduceMean", "ReduceMax")
    inputs, attributes = net.axes_of(13 if kind == "ReduceSum" else 18, [axis])
    shape = [1 if at == axis else extent for at, extent in enumerate(x.shape) if keep or at != axis]
    net.add(shape, kind, [x.name, *inputs], keepdims=keep, **attributes)


def concatenation(net):
    x = net.pick()
    axis = int(net.random.integers(len(x.shape)))
    alike = [
        value
        for value in net.values
        if len(value.shape) == len(x.shape)
        and value.shape[:axis] == x.shape[:axis]
        and value.shape[axis + 1 :] == x.shape[axis + 1 :]
    ]
    parts = [x, *(net.choose(*alike) for _ in range(int(net.random.integers(1, 4))))]
    extent = sum(part.shape[axis] for part in parts)
    if extent <= 64:
        shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
        net.add(shape, "Concat", [part.name for part in parts], axis=axis)


def split(net):
    x = net.pick()
    axis = int(net.random.integers(len(x.shape)))
    if x.shape[axis] < 2:
        return
    sizes = [1, x.shape[axis] - 1]
    inputs, attributes = ([net.ints(*sizes)], {}) if net.opset >= 13 else ([], {"split": sizes})
    names = net.node("Split", [x.name, *inputs], 2, axis=axis, **attributes)
    for name, extent in zip(names, sizes, strict=True):
        net.values.append(Value(name, (*x.shape[:axis], extent, *x.shape[axis + 1 :])))


def cut(net):
    x = net.pick()
    axis = int(net.random.integers(len(x.shape)))
    extent = x.shape[axis]
    start = int(net.random.integers(extent))
    shape = (*x.shape[:axis], extent - start, *x.shape[axis + 1 :])
    if net.opset < 10:
        net.add(shape, "Slice", [x.name], starts=[start], ends=[extent], axes=[axis])
    elif net.random.random() < 0.3:  # from the end to the start
        ends, steps = net.ints(-(1 << 31)), net.ints(-1)
        net.add(x.shape, "Slice", [x.name, net.ints(-1), ends, net.ints(axis), steps])
    else:
        net.add(shape, "Slice", [x.name, net.ints(start), net.ints(1 << 31), net.ints(axis)])


def transpose(net):
    x = net.pick()
    order = net.random.permutation(len(x.shape)).tolist()
    net.add([x.shape[axis] for axis in order], "Transpose", [x.name], perm=order)


def reshape(net):
    x = net.pick()
    net.add(
        (x.shape[0], int(np.prod(x.shape[1:]))),
        "Reshape",
        [x.name, net.ints(0 if len(x.shape) > 1 else 1, -1)] if len(x.shape) > 1 else [x.name, net.ints(x.shape[0], 1)],
    )


def computed_reshape(net):
    """As exporters flatten: the batch from Shape and Gather, the rest computed."""
    x = net.pick((2, 3, 4))
    if x is None:
        return
    (shape,) = net.node("Shape", [x.name])
    (batch,) = net.node("Gather", [shape, net.weight(np.asarray(0, np.int64))], axis=0)
    inputs, attributes = net.axes_of(13, [0])
    (row,) = net.node("Unsqueeze", [batch, *inputs], **attributes)
    (target,) = net.node("Concat", [row, net.ints(-1)], axis=0)
    net.add((x.shape[0], int(np.prod(x.shape[1:]))), "Reshape", [x.name, target])


def computed_split(net):
    """Half of the channels, their number computed by a division."""
    x = net.pick((3, 4))
    if x is None or net.opset < 10 or x.shape[1] < 2:
        return
    (shape,) = net.node("Shape", [x.name])
    (channels,) = net.node("Gather", [shape, net.ints(1)], axis=0)
    (half,) = net.node("Div", [channels, net.ints(2)])
    net.add((x.shape[0], x.shape[1] // 2, *x.shape[2:]), "Slice", [x.name, net.ints(0), half, net.ints(1)])


def expand(net):
    """To a size that ConstantOfShape, Range and Shape make known."""
    x = net.pick((2, 3))
    if x is None or net.opset < 11:
        return
    (shape,) = net.node("Shape", [x.name])
    (longer,) = net.node("Concat", [net.ints(2), shape], axis=0)
    if np.prod(x.shape) < 2000:
        net.add((2, *x.shape), "Expand", [x.name, longer])


def squeeze(net):
    x = net.pick((1, 2, 3))
    if x is None:
        return
    inputs, attributes = net.axes_of(13, [1])
    (wide,) = net.node("Unsqueeze", [x.name, *inputs], **attributes)
    net.values.append(Value(wide, (x.shape[0], 1, *x.shape[1:])))


def pad(net):
    x = net.pick((4,))
    if x is None:
        return
    pads = [0, 0, 1, 0, 0, 0, 0, 2]
    shape = (*x.shape[:2], x.shape[2] + 1, x.shape[3] + 2)
    if net.opset < 11:
        net.add(shape, "Pad", [x.name], pads=pads)
    else:
        value = net.choose([], [""], [net.weight(np.asarray(1.5, np.float32))])
        net.add(shape, "Pad", [x.name, net.ints(*pads), *value])


def resize(net):
    """The regions are an optional input that is absent; scales or sizes."""
    x = net.pick((4,))
    if x is None or net.opset < 11 or max(x.shape) > 24:
        return
    shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
    regions = "" if net.opset >= 13 else net.weight(np.zeros(0, np.float32))
    empty = "" if net.opset >= 13 else net.weight(np.zeros(0, np.float32))
    scales = net.weight(np.asarray([1, 1, 2, 2], np.float32))
    sized = [regions, empty, net.ints(*shape)]
    net.add(shape, "Resize", [x.name, *net.choose([regions, scales], sized)], mode="nearest")


def recurrent(net):
    """Sequence lengths, and some of the results, are absent."""
    x = net.pick((3,))
    if x is None:
        return
    steps, batch, width = x.shape
    hidden, kind = 3, net.choose("LSTM", "GRU")
    gates = {"LSTM": 4, "GRU": 3}[kind]
    inputs = [x.name, net.floats(1, gates * hidden, width), net.floats(1, gates * hidden, hidden)]
    inputs += net.choose([], ["", "", net.floats(1, batch, hidden)])
    every, last = net.name(), net.name()
    net.node(kind, inputs, net.choose([every, last], [every], ["", last]), hidden_size=hidden)
    if every in net.nodes[-1].output:
        net.values.append(Value(every, (steps, 1, batch, hidden)))
    if last in net.nodes[-1].output:
        net.values.append(Value(last, (1, batch, hidden)))


def top(net):
    x = net.pick((2, 3))
    if x is None or net.opset < 10:
        return
    name, indices = net.node("TopK", [x.name, net.ints(1)], 2, axis=-1)
    net.values.append(Value(name, (*x.shape[:-1], 1)))
    net.extra_outputs.append((indices, INT, (*x.shape[:-1], 1)))


def where(net):
    x = net.pick()
    if net.opset < 9:
        return
    (positive,) = net.node("Greater", [x.name, net.weight(np.asarray(0, np.float32))])
    net.add(x.shape, "Where", [positive, x.name, net.weight(np.asarray(-1, np.float32))])


def dropout(net):
    """Its mask is an optional result."""
    x = net.pick()
    name, mask = net.name(), net.name()
    net.node("Dropout", [x.name], net.choose([name], [name, mask]))
    net.values.append(Value(name, x.shape))


def quantised(net):
    x = net.pick()
    if net.opset < 10:
        return
    scale = net.weight(np.asarray(0.05, np.float32))
    zero = net.choose([net.weight(np.asarray(128, np.uint8))], [net.weight(np.asarray(3, np.int8))], [])
    (small,) = net.node("QuantizeLinear", [x.name, scale, *zero])
    net.add(x.shape, "DequantizeLinear", [small, scale, *zero])


def sequence(net):
    x = net.pick()
    if net.opset < 11:
        return
    (made,) = net.node("SequenceConstruct", [x.name, x.name])
    if net.random.random() < 0.5:
        net.add(x.shape, "SequenceAt", [made, net.weight(np.asarray(1, np.int64))])
    else:
        net.add((2 * x.shape[0], *x.shape[1:]), "ConcatFromSequence", [made], axis=0)


def optional(net):
    x = net.pick()
    if net.opset < 15:
        return
    (boxed,) = net.node("Optional", [x.name])
    net.add(x.shape, "OptionalGetElement", [boxed])


def text(net):
    """Strings that are computed in addition to the numbers."""
    if net.opset < 10:
        return
    made = net.feed(STRING, [2])
    if net.opset >= 20:
        (made,) = net.node("StringConcat", [made, made])
    (made,) = net.node("Identity", [made])
    net.extra_outputs.append((made, STRING, (2,)))


def open_shape(shape):
    return [None] * len(shape)


def _branch(net, name, x, kinds):
    nodes, last = [], x.name
    for kind in kinds:
        made = net.name(name)
        nodes.append(helper.make_node(kind, [last], [made]))
        last = made
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(last, FLOAT, open_shape(x.shape))])


def choice(net):
    """An If whose branches read from outside; a branch of no nodes hands an outer value on since version 11."""
    x = net.pick()
    known = net.weight(np.asarray(net.random.random() < 0.5))
    condition = net.choose(known, net.feed(BOOL, []))
    one = _branch(net, "then", x, ["Relu", "Neg"])
    other = _branch(net, "else", x, net.choose(["Abs"], ["Sigmoid", "Tanh"], ["Identity"]))
    net.add(x.shape, "If", [condition], then_branch=one, else_branch=other)


def turns(net):
    """A Loop of a known number of turns that carries a value and collects another."""
    x = net.pick((1, 2))
    if x is None or net.opset < 11:
        return
    counter, go, goes, carried, made, row = (net.name("loop") for _ in range(6))
    body = helper.make_graph(
        [
            helper.make_node("Identity", [go], [goes]),
            helper.make_node("Add", [carried, x.name], [made]),
            helper.make_node("Tanh", [made], [row]),
        ],
        "body",
        [
            helper.make_tensor_value_info(counter, INT, []),
            helper.make_tensor_value_info(go, BOOL, []),
            helper.make_tensor_value_info(carried, FLOAT, net.choose(open_shape(x.shape), x.shape)),
        ],
        [
            helper.make_tensor_value_info(goes, BOOL, []),
            helper.make_tensor_value_info(made, FLOAT, net.choose(open_shape(x.shape), x.shape)),
            helper.make_tensor_value_info(row, FLOAT, open_shape(x.shape)),
        ],
    )
    times = net.weight(np.asarray(3, np.int64))
    last, rows = net.node("Loop", [times, net.weight(np.asarray(True)), x.name], 2, body=body)
    net.values += [Value(last, x.shape), Value(rows, (3, *x.shape))]


def scan(net):
    x = net.pick((2, 3))
    if x is None or net.opset < 9:
        return
    held, row, made, out = (net.name("scan") for _ in range(4))
    inner = x.shape[1:]
    body = helper.make_graph(
        [helper.make_node("Add", [held, row], [made]), helper.make_node("Relu", [made], [out])],
        "body",
        [helper.make_tensor_value_info(name, FLOAT, inner) for name in (held, row)],
        [helper.make_tensor_value_info(name, FLOAT, open_shape(inner)) for name in (made, out)],
    )
    start = net.floats(*inner)
    last, rows = net.node("Scan", [start, x.name], 2, body=body, num_scan_inputs=1)
    net.values += [Value(last, inner), Value(rows, x.shape)]


def function(net):
    """A call of a function that the model defines, with an attribute that a node of its body takes."""
    x = net.pick()
    if net.opset < 15:
        return
    name = f"scaled{len(net.functions)}"
    slope = helper.make_node("LeakyRelu", ["x"], ["r"])
    slope.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    body = [slope, helper.make_node("Add", ["r", "x"], ["y"])]
    opsets = [helper.make_opsetid("", net.opset)]
    net.functions.append(helper.make_function("made", name, ["x"], ["y"], body, opsets, ["slope"]))
    net.add(x.shape, name, [x.name], domain="made", slope=0.25)


STEPS = (
    elementwise,
    clip,
    binary,
    convolution,
    transposed,
    pool,
    normalise,
    softmax,
    product,
    reduction,
    concatenation,
    split,
    cut,
    transpose,
    reshape,
    computed_reshape,
    computed_split,
    expand,
    squeeze,
    pad,
    resize,
    recurrent,
    top,
    where,
    dropout,
    quantised,
    sequence,
    optional,
    text,
    choice,
    turns,
    scan,
    function,
    convolution,
    concatenation,
)


def random_network(seed: int, steps: int = 16) -> ModelProto:
    """A valid model of about as many nodes as steps; results that nothing reads are its outputs."""
    random = np.random.default_rng(seed)
    net = Network(random, int(random.choice(OPSETS)))
    shapes = [(1, 4, 8, 8), (2, 3, 9, 7), (3, 5), (4, 2, 6), (2, 8)]
    for shape in [shapes[0], shapes[int(random.integers(1, len(shapes)))]]:
        net.values.append(Value(net.feed(FLOAT, shape), shape))
    for _ in range(steps):
        net.choose(*STEPS)(net)
    read = {name for node in net.nodes for name in node.input}
    made = {name for node in net.nodes for name in node.output}
    ends = [value for value in net.values if value.name in made and value.name not in read] or net.values[-1:]
    declared = random.random() < 0.5
    outputs = [helper.make_tensor_value_info(v.name, FLOAT, v.shape if declared else open_shape(v.shape)) for v in ends]
    outputs += [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in net.extra_outputs]
    legacy = net.opset < 9
    if legacy:  # the format demanded it before its version 4
        net.inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in net.weights]
    graph = helper.make_graph(net.nodes, f"random{seed}", net.inputs, outputs, net.weights)
    opsets = [helper.make_opsetid("", net.opset), *([helper.make_opsetid("made", 1)] if net.functions else [])]
    version = 3 if legacy else 8 if net.opset < 21 else 10
    return helper.make_model(graph, opset_imports=opsets, ir_version=version, functions=net.functions)
