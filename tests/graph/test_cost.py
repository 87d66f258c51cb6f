"""MACs against the networks' own count, kept while they are written layer by layer; halos against worked examples."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.graph.core import Graph, Op, Tensor
from downset.graph.cost import macs, row_form, segment_macs, whole_macs
from downset.graph.row_form import equal_strips, needed
from downset.pipelines.network import block_units
from downset.pipelines.pieces import piece_problem
from tests.intervals import input_interval
from zoo import ZOO, counts, graph


@pytest.mark.parametrize("name", ["vgg16", "yolov2", "inception_v3", "mobilenet_v3_large", "squeezenet1_0", "resnet34"])
def test_macs_of_the_zoo(name):
    network = graph(name, weights=False)
    assert macs(network) == counts(ZOO[name](weights=False))["macs"]
    form = row_form(network)
    assert whole_macs(form, range(len(form.ops))) == macs(network)
    outputs = {tensor: (0, form.rows[tensor]) for tensor in form.outputs}
    assert segment_macs(form, range(len(form.ops)), outputs) == macs(network)


def _one(kind, rows, made, attrs=None, weights=()):
    tensors = [Tensor("x", (1, 2, rows, 5), "float32", rows * 40), Tensor("y", (1, 2, made, 5), "float32", made * 40)]
    inputs = [0]
    if weights:
        tensors.append(Tensor("w", weights, "float32", 0, "constant"))
        inputs.append(2)
    op = Op("op", kind, tuple(inputs), (1,), attrs or {})
    return op, Graph("one", tuple(tensors), (op,), (0,), (1,))


@pytest.mark.parametrize(
    ("kind", "rows", "made", "attrs", "weights", "wanted", "read"),
    [
        ("Conv", 10, 10, {"pads": [1, 0, 1, 0]}, (2, 2, 3, 1), (0, 2), (0, 3)),
        ("Conv", 10, 10, {"pads": [1, 0, 1, 0]}, (2, 2, 3, 1), (4, 6), (3, 7)),
        ("Conv", 10, 10, {"pads": [0, 3, 0, 3]}, (2, 2, 1, 7), (4, 6), (4, 6)),
        ("Conv", 10, 5, {"pads": [2, 0, 2, 0], "strides": [2, 1], "dilations": [2, 1]}, (2, 2, 3, 1), (1, 3), (0, 7)),
        ("Conv", 10, 5, {"auto_pad": "SAME_UPPER", "strides": [2, 1]}, (2, 2, 3, 1), (4, 5), (8, 10)),
        ("Conv", 10, 5, {"auto_pad": "SAME_LOWER", "strides": [2, 1]}, (2, 2, 3, 1), (4, 5), (7, 10)),
        ("MaxPool", 10, 5, {"kernel_shape": [3, 1], "strides": [2, 1], "ceil_mode": 1}, (), (4, 5), (8, 10)),
        ("SpaceToDepth", 10, 5, {"blocksize": 2}, (), (1, 3), (2, 6)),
        ("DepthToSpace", 5, 10, {"blocksize": 2}, (), (1, 3), (0, 2)),
        ("Relu", 10, 10, {}, (), (1, 3), (1, 3)),
        ("Resize", 5, 10, {"mode": "linear"}, (), (4, 5), (1, 3)),
        ("Resize", 5, 10, {"mode": "nearest"}, (), (3, 5), (1, 3)),
        ("GlobalAveragePool", 10, 1, {}, (), (0, 1), (0, 10)),
        ("Softmax", 10, 10, {"axis": 1}, (), (2, 3), (2, 3)),
        ("Softmax", 10, 10, {"axis": -2}, (), (2, 3), (0, 10)),
    ],
)
def test_halos(kind, rows, made, attrs, weights, wanted, read):
    op, network = _one(kind, rows, made, attrs, weights)
    assert input_interval(op, network, 0, wanted) == read


def test_two_rows_of_two_fused_convolutions():
    """Two 3x3 convolutions in a row widen a strip by two rows each side, clipped at the border."""
    network = graph("vgg16", weights=False, image=32, classifier=False)
    form = row_form(network)
    first = next(index for index, op in enumerate(network.ops) if op.kind == "MaxPool")
    result = network.ops[first].inputs[0]
    assert needed(form, range(first), {result: (10, 12)})[network.inputs[0]] == (8, 14)
    assert needed(form, range(first), {result: (0, 12)})[network.inputs[0]] == (0, 14)
    row = form.ops[0].macs_per_row, form.ops[2].macs_per_row
    assert segment_macs(form, range(first), {result: (10, 12)}) == 4 * row[0] + 2 * row[1]


def test_unknown_kind():
    _, network = _one("acme::Blur", 10, 10)
    with pytest.raises(UnsupportedError, match=r"'op' of kind acme::Blur has no known halo"):
        row_form(network)
    assert row_form(network, halos_required=False).ops[0].whole


@pytest.mark.parametrize("kind", ["Celu", "Mish", "Shrink", "Swish", "ThresholdedRelu"])
def test_activations_read_the_rows_that_they_make(kind):
    op, network = _one(kind, 10, 10)
    assert input_interval(op, network, 0, (3, 5)) == (3, 5)
    assert not row_form(network).ops[0].whole


def _chain(*kinds):
    """Operators on (2, 5) one after another, each with weights of its own."""
    tensors = [Tensor("x", (2, 5), "float32", 40)]
    ops = []
    for number, kind in enumerate(kinds):
        tensors.append(Tensor(f"w{number}", (5, 5), "float32", 0, "constant"))
        tensors.append(Tensor(f"y{number}", (2, 5), "float32", 40))
        inputs = (len(tensors) - 3 if number else 0, len(tensors) - 2)
        ops.append(Op(f"op{number}", kind, inputs if kind != "Relu" else inputs[:1], (len(tensors) - 1,)))
    return Graph("chain", tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))


@pytest.mark.parametrize("kind", ["Gemm", "MatMul", "com.microsoft::FusedGemm", "com.microsoft::FusedMatMul"])
def test_matrix_products_are_layers_of_a_chain_but_none_that_pico_counts(kind):
    network = _chain(kind, "Relu", kind)
    assert macs(network) == 2 * 2 * 5 * 5
    assert block_units(network) == ((0, 1), (2,))
    assert piece_problem(network).layers == (0,)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "com.microsoft::FusedConv"])
def test_convolutions_are_layers_by_either_count(kind):
    _, network = _one(kind, 10, 10, {}, (2, 2, 1, 1))
    assert macs(network) == 10 * 5 * 2 * 2
    assert piece_problem(network).layers == (1,)


def test_strips_cover_without_overlap():
    assert equal_strips(7, 3) == ((0, 2), (2, 4), (4, 7))
    assert equal_strips(2, 3) == ((0, 0), (0, 1), (1, 2))


def test_macs_that_do_not_divide_into_rows_are_rounded_up_by_less_than_one_a_row():
    """A transposed convolution multiplies every input element by its window: 32 rows of MACs for 63 rows of output."""
    op, network = _one("ConvTranspose", 32, 63, {"strides": [2, 1], "pads": [1, 0, 1, 0]}, (2, 2, 3, 1))
    (found,) = row_form(network).ops
    assert macs(network) == 32 * 5 * 2 * 2 * 3
    assert macs(network) % 63
    assert not found.whole
    assert 0 <= found.macs - macs(network) < 63
    assert [input_interval(op, network, 0, rows) for rows in ((0, 1), (1, 2), (2, 4), (62, 63))] == [
        (0, 1),
        (0, 2),
        (1, 3),
        (31, 32),
    ]


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_multiply_in_each_step(kind, gates, directions, tmp_path):
    """Against a count of the products that ONNX defines, one matrix by one vector a gate, step, sequence and
    direction."""
    steps, batch, width, hidden = 7, 2, 5, 3
    wanted = 0
    for _ in range(directions * gates * steps * batch):
        wanted += hidden * width + hidden * hidden
    shapes = {"w": (directions, gates * hidden, width), "r": (directions, gates * hidden, hidden)}
    weights = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items()]
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden, direction=direction)
    x = helper.make_tensor_value_info("x", 1, (steps, batch, width))
    y = helper.make_tensor_value_info("y", 1, (steps, directions, batch, hidden))
    model = helper.make_model(
        helper.make_graph([node], "net", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert macs(load(tmp_path / "m.onnx")) == wanted
