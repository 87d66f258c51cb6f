"""Constants that take the place of computed sizes: the same outputs in ONNX Runtime at every size that was open before,
and no size that was open is fixed."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import downset as ds
from downset.equivalence.prove import prove
from downset.formats.onnx.open_axes import open_shapes
from downset.formats.onnx.write import export_onnx
from downset.rewrites.folding import folded
from tests.effort import cases, untimed
from tests.onnx_nodes import OnnxNodes


class Net(OnnxNodes):
    """A network of random operators whose sizes are computed as exporters do, with an open batch and perhaps more."""

    def __init__(self, draw, sizes):
        super().__init__()
        self.draw = draw
        self.sizes = {"x": list(sizes)}
        """By tensor: numbers, and names of open sizes."""
        self.inferred = True
        """Whether ONNX infers the sizes behind every reshape; where it does not, some stay computed."""

    def integers(self, *values):
        return self.constant(np.array(values, np.int64))

    def size(self, tensor, axis):
        """One size of a tensor, as a vector, in one of the spellings."""
        way = self.draw(st.sampled_from(("slice", "gather", "scalar", "cast", "arithmetic", "product")))
        self.inferred &= way not in ("arithmetic", "product")
        shape = self.op("Shape", tensor)
        if way == "slice":
            return self.op("Slice", shape, self.integers(axis), self.integers(axis + 1), self.integers(0))
        if way == "gather":
            return self.op("Gather", shape, self.integers(axis))
        one = self.op("Gather", shape, self.constant(np.int64(axis)))
        if way == "cast":
            one = self.op("Cast", self.op("Cast", one, to=TensorProto.INT32), to=TensorProto.INT64)
        if way == "arithmetic":
            two = self.constant(np.int64(2))
            one = self.op("Div", self.op("Mul", self.op("Add", one, self.constant(np.int64(0))), two), two)
        if way == "product":
            return self.op("ReduceProd", self.op("Unsqueeze", one, self.integers(0)), keepdims=1)
        return self.op("Unsqueeze", one, self.integers(0))

    def reshape(self, tensor):
        """A group of channels, or all of them, in a dimension of its own and back: sizes are computed or stated."""
        _, channels, *rest = self.sizes[tensor]
        groups = self.draw(st.sampled_from([one for one in (1, 2, 4) if channels % one == 0]))
        parts = [self.size(tensor, 0), self.integers(groups, channels // groups)]
        parts += [self.size(tensor, axis) for axis in range(2, 2 + len(rest))]
        apart = self.op("Reshape", tensor, self.op("Concat", *parts, axis=0))
        turned = self.op("Relu", apart)
        if self.draw(st.booleans()):
            return self.op("Reshape", turned, self.op("Shape", tensor))
        whole = [self.size(tensor, axis) for axis in range(2 + len(rest))]
        return self.op("Reshape", turned, self.op("Concat", *whole, axis=0))

    def spread(self, tensor):
        """A range over the last size, or zeros of a computed size, added to every row."""
        last = len(self.sizes[tensor]) - 1
        if self.draw(st.booleans()):
            zeros = self.op("ConstantOfShape", self.size(tensor, last))
            return self.op("Add", tensor, zeros)
        size = self.op("Squeeze", self.size(tensor, last), self.integers(0))
        places = self.op("Range", self.constant(np.int64(0)), size, self.constant(np.int64(1)))
        return self.op("Add", tensor, self.op("Cast", places, to=TensorProto.FLOAT))

    def keep(self, tensor):
        channels = self.sizes[tensor][1]
        factor = np.random.default_rng(len(self.nodes)).standard_normal((channels, 1, 1)).astype(np.float32)
        return self.op("Mul", tensor, self.constant(factor))

    def grow(self, tensor):
        made = getattr(self, self.draw(st.sampled_from(("reshape", "spread", "keep"))))(tensor)
        self.sizes[made] = self.sizes[tensor]
        return made

    def save(self, path, last):
        self.nodes.append(helper.make_node("Sigmoid", [last], ["y"], name="y"))
        ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, self.sizes["x"])] for name in ("x", "y")]
        graph = helper.make_graph(self.nodes, "sizes", [ends[0][0]], [ends[1][0]], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, str(path))


@st.composite
def networks(draw):
    sizes = ["batch", draw(st.sampled_from((4, 8))), draw(st.sampled_from((6, "rows"))), 5]
    net = Net(draw, sizes)
    last = "x"
    for _ in range(draw(st.integers(1, 4))):
        last = net.grow(last)
    return net, last


def outputs(path, *feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return [session.run(None, {"x": feed})[0].tobytes() for feed in feeds]


def feeds_of(sizes):
    random = np.random.default_rng(3)
    for batch, rows in ((1, 6), (3, 6), (2, 9), (1, 1)):
        shape = [{"batch": batch, "rows": rows}.get(one, one) for one in sizes]
        yield random.standard_normal(shape).astype(np.float32)


@settings(max_examples=cases(60), deadline=None)
@given(drawn=networks())
def test_folded_files_compute_the_same_at_every_open_size(tmp_path_factory, drawn):
    net, last = drawn
    folder = tmp_path_factory.mktemp("folding")
    path, written = folder / "a.onnx", folder / "b.onnx"
    net.save(path, last)
    shapes = {"x": tuple({"batch": 1, "rows": 6}.get(one, one) for one in net.sizes["x"])}
    graph = ds.load(path, shapes=shapes)
    less = folded(graph, open_shapes(path))
    if less is graph:
        return
    export_onnx(written, less, range(len(less.ops)))
    feeds = [*feeds_of(net.sizes["x"])]
    assert outputs(path, *feeds) == outputs(written, *feeds)
    proof = prove(path, written, shapes=shapes)
    assert proof.proven, proof.reason
    assert proof.exact
    left = {op.kind for op in less.ops}
    settled = net.inferred and net.sizes["x"][2] != "rows"
    assert not settled or not left & {"Range", "Slice", "Gather", "Concat", "ConstantOfShape"}


@pytest.fixture
def group_norm(tmp_path):
    """A group normalisation as PyTorch exports it: back by the shape of what it normalises, of which the batch is
    open."""
    net = Net(None, ["batch", 8, 6, 5])
    shape = net.op("Shape", "x")
    grouped = net.op("Reshape", "x", net.integers(0, 2, -1))
    ones, zeros = net.constant(np.ones(2, np.float32)), net.constant(np.zeros(2, np.float32))
    normal = net.op("InstanceNormalization", grouped, ones, zeros)
    back = net.op("Reshape", normal, shape)
    rows = net.op("Cast", net.op("Gather", shape, net.integers(2)), to=TensorProto.FLOAT)
    net.save(tmp_path / "a.onnx", net.op("Mul", back, rows))
    return tmp_path / "a.onnx"


def test_an_open_batch_stays_open_and_no_operator_is_left(group_norm, tmp_path):
    graph = ds.load(group_norm)
    less = folded(graph, open_shapes(group_norm))
    assert [op.kind for op in less.ops] == ["Reshape", "InstanceNormalization", "Reshape", "Mul", "Sigmoid"]
    (shape,) = [less.constant(op.inputs[1]) for op in less.ops[2:3]]
    assert shape.tolist() in ([0, 8, 6, 5], [-1, 8, 6, 5])


@pytest.mark.parametrize("change", ["a size", "a number"])
def test_a_wrong_constant_is_not_proven(group_norm, tmp_path, change):
    graph, written = ds.load(group_norm), tmp_path / "b.onnx"
    less = folded(graph, open_shapes(group_norm))
    export_onnx(written, less, range(len(less.ops)))
    assert prove(group_norm, written).proven
    model = onnx.load(str(written))
    reads = {node.op_type: node.input[1] for node in model.graph.node if len(node.input) > 1}
    weight = next(
        one for one in model.graph.initializer if one.name == reads["Mul" if change == "a number" else "Reshape"]
    )
    value = numpy_helper.to_array(weight).copy()
    value.reshape(-1)[-1] += 1
    weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    onnx.save(model, str(written))
    assert not prove(group_norm, written).proven


def test_a_fixed_batch_in_place_of_an_open_one_is_not_the_same_file(group_norm, tmp_path):
    """What would fold an open size: the plan's sizes taken for those of the file."""
    graph = ds.load(group_norm)
    planned = {tensor.name: tensor.shape for tensor in graph.tensors}
    written = tmp_path / "b.onnx"
    less = folded(graph, planned)
    export_onnx(written, less, range(len(less.ops)))
    two = np.ones((2, 8, 6, 5), np.float32)
    outputs(group_norm, two)
    with pytest.raises(Exception, match="Reshape"):
        outputs(written, two)


def test_fit_ships_strips_that_keep_the_batch_open(tmp_path):
    """Between two convolutions a reshape to computed sizes and back: no rows are known of what reads computed sizes."""
    net, random = Net(None, ["batch", 4, 64, 16]), np.random.default_rng(1)
    wide, narrow = ((random.standard_normal(shape) / 6).astype(np.float32) for shape in ((32, 4, 3, 3), (4, 32, 3, 3)))
    first = net.op("Conv", "x", net.constant(wide), pads=[1] * 4)
    shape = net.op("Shape", first)
    sizes = [net.op("Gather", shape, net.integers(axis)) for axis in (0, 2, 3)]
    apart = net.op("Concat", sizes[0], net.integers(8, 4), *sizes[1:], axis=0)
    turned = net.op("Relu", net.op("Transpose", net.op("Reshape", first, apart), perm=[0, 2, 1, 3, 4]))
    net.save(tmp_path / "a.onnx", net.op("Conv", net.op("Reshape", turned, shape), net.constant(narrow), pads=[1] * 4))
    written = tmp_path / "b.onnx"
    result = ds.fit(tmp_path / "a.onnx", output=written, strips=8, **untimed(3_000))
    assert any(rewrite.kind == "row-wise" for rewrite in result.rewrites), [str(note) for note in result.notes]
    assert result.outputs.proof.proven
    assert any("compute sizes (folded)" in str(note) for note in result.notes)
    assert result.outputs.other_sizes == ("batch = 2",)
    three = random.standard_normal((3, 4, 64, 16)).astype(np.float32)
    (one,), (other,) = (
        onnxruntime.InferenceSession(str(path)).run(None, {"x": three}) for path in (tmp_path / "a.onnx", written)
    )
    np.testing.assert_allclose(other, one, atol=1e-5)
