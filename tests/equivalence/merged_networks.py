"""Networks with branches that merge, as .onnx files: random ones, and one that has every kind of merge."""

import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.rewrites.test_rewrite_onnx import Net


class MergeNet(Net):
    """`opset`: of the file. `constants`: weights are the results of Constant nodes, as some exporters write them.
    `batch`: the first size of the input, a name for an open one."""

    def __init__(self, seed=0, *, opset=17, constants=False, batch=1):
        super().__init__(seed)
        self.opset, self.constants, self.batch = opset, constants, batch
        self.sizes = {}

    def input(self, channels, size):
        name = super().input(channels)
        self.sizes[name] = size
        return name

    def window(self, x, out, kernel, pads, *, strides=(1, 1), dilations=(1, 1), group=1, bias=True):
        """A convolution with any window."""
        inside = self.channels[x]
        inputs = [x, self.constant(out, inside // group, *kernel), *([self.constant(out)] if bias else [])]
        attrs = {"kernel_shape": kernel, "pads": pads, "strides": strides, "dilations": dilations, "group": group}
        made = self.node("Conv", inputs, out, **attrs)
        self.sizes[made] = tuple(
            (self.sizes[x][axis] + pads[axis] + pads[axis + 2] - dilations[axis] * (kernel[axis] - 1) - 1)
            // strides[axis]
            + 1
            for axis in range(2)
        )
        return made

    def same(self, kind, x, *more, **attrs):
        made = self.node(kind, [x, *more], self.channels[x], **attrs)
        self.sizes[made] = self.sizes[x]
        return made

    def average(self, x, *, include, kernel=3):
        pad = kernel // 2
        return self.same("AveragePool", x, kernel_shape=[kernel] * 2, pads=[pad] * 4, count_include_pad=include)

    def separable(self, x, out, kernel=3, *, activation=False):
        x = self.same("Relu", x) if activation else x
        inside = self.channels[x]
        y = self.window(x, inside, [kernel] * 2, [kernel // 2] * 4, group=inside, bias=bool(self.random.integers(2)))
        return self.window(y, out, [1, 1], [0] * 4)

    def concat(self, parts, axis=1):
        made = super().concat(parts, axis)
        self.sizes[made] = self.sizes[parts[0]]
        return made

    def save(self, path, outputs):
        value = helper.make_tensor_value_info
        inputs = [value(name, TensorProto.FLOAT, [self.batch, n, *self.sizes[name]]) for name, n in self.inputs]
        results = [
            value(name, TensorProto.FLOAT, [self.batch, self.channels[name], *self.sizes[name]]) for name in outputs
        ]
        made = [helper.make_node("Constant", [], [each.name], value=each) for each in self.weights]
        constants, weights = (made, []) if self.constants else ([], self.weights)
        graph = helper.make_graph([*constants, *self.nodes], "net", inputs, results, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, str(path))
        return path


@st.composite
def merging_networks(draw):
    """(network, outputs): branches on one input and on several, some of which merge."""
    net = MergeNet(
        draw(st.integers(0, 99)),
        opset=draw(st.sampled_from([7, 11, 13, 17])),
        constants=draw(st.booleans()),
        batch=draw(st.sampled_from([1, 2, "batch"])),
    )
    size = (draw(st.integers(3, 6)), draw(st.integers(3, 6)))
    x = net.input(draw(st.integers(1, 3)), size)
    strides = draw(st.sampled_from([(1, 1), (1, 1), (2, 1)]))
    branches = []
    for _ in range(draw(st.integers(2, 4))):
        kernel = [draw(st.integers(1, 3)) for _ in range(2)]
        total = [kernel[axis] - 1 for axis in range(2)]
        before = [draw(st.integers(0, total[axis])) for axis in range(2)]
        pads = [*before, *(total[axis] - before[axis] for axis in range(2))]
        y = net.window(x, draw(st.integers(1, 3)), kernel, pads, strides=strides, bias=draw(st.booleans()))
        branches.append(net.same("Relu", y) if draw(st.booleans()) else y)
    if strides == (1, 1) and draw(st.booleans()):
        pool = net.average(x, include=draw(st.integers(0, 1)))
        y = net.window(pool, draw(st.integers(1, 3)), [1, 1], [0] * 4, bias=draw(st.booleans()))
        branches.insert(draw(st.integers(0, len(branches))), net.same("Relu", y) if draw(st.booleans()) else y)
    joined = draw(st.permutations(branches))[: draw(st.integers(1, len(branches)))]
    ends = [net.concat(joined), *(branch for branch in branches if branch not in joined or draw(st.booleans()))]
    if draw(st.booleans()):
        activation, out = draw(st.booleans()), draw(st.integers(1, 2))
        sources = [net.window(ends[0], 2, [1, 1], [0] * 4) for _ in range(draw(st.integers(2, 3)))]
        kernels = [draw(st.sampled_from([1, 3])) for _ in sources]
        made = [net.separable(y, out, k, activation=activation) for y, k in zip(sources, kernels, strict=True)]
        ends = [*ends[1:], *(made if draw(st.booleans()) else [net.concat(made)])]
    return net, list(dict.fromkeys(ends))


def every_merge(path, **options):
    """A file with each kind of merge: padded kernels in the sequence of a concatenation, equal ones that are split, a
    pool that counts its pads and one that does not, and separable convolutions on different inputs."""
    net = MergeNet(3, **options)
    x = net.input(3, (6, 5))
    stacked = [net.window(x, out, [k, k], [k // 2] * 4) for out, k in ((2, 1), (3, 3))]
    joined = net.concat([net.same("Relu", y) for y in stacked])
    plain = [net.window(joined, 2, [1, 1], [0] * 4, bias=bias) for bias in (True, False)]
    pools = [net.window(net.average(joined, include=include), 2, [1, 1], [0] * 4) for include in (0, 1)]
    separables = [net.separable(y, 2, activation=True) for y in plain]
    return net.save(path, [net.concat(separables), net.concat([plain[0], pools[1]]), pools[0]])


def weights_of(model):
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def with_weights(model, name, value):
    """A copy of a model in which this initializer has this value."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    (place,) = [place for place, each in enumerate(changed.graph.initializer) if each.name == name]
    changed.graph.initializer[place].CopyFrom(numpy_helper.from_array(value, name))
    return changed
