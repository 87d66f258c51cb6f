"""Operators that do not fit their kind are opaque: planned, never executed; what fits keeps its kind."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.graph.core import ABSENT, Graph, Op, Tensor, tensor_bytes
from downset.graph.cost import row_form
from downset.graph.kinds import KINDS
from downset.graph.lawful_kinds import with_lawful_kinds
from downset.kernels.table import check_kernels, compute
from downset.reports.inspection import inspect
from tests.effort import cases
from tests.models import branchy_model

IMAGE = (1, 4, 8, 8)
SHAPES = [(), (3,), IMAGE, (4, 4, 3, 3), (1, 3, 8), (2, 5), (0, 3, 8, 8), (1, 8, 8, 3), (1, 1, 1, 1, 1)]
ATTRIBUTES = {
    "kernel_shape": [[3, 3], [3], [], [0, 0]],
    "strides": [[1, 1], [2], [0, 0]],
    "pads": [[0, 0, 0, 0], [1, 1], [1]],
    "dilations": [[1, 1], [1], [0, 0]],
    "group": [1, 0, -1],
    "axis": [0, 1, -1, 7, "x"],
    "axes": [[0], [], [9]],
    "auto_pad": ["SAME_UPPER", "VALID", "odd"],
    "blocksize": [2, 0, -1],
    "layout": ["NHWC"],
    "starts": [[0], []],
    "scales": [[1, 1, 2, 2], [1]],
    "block_size": [1],
    "transA": [1],
    "output_shape": [[4, 4], []],
}


def graph_of(kind, inputs, outputs, attributes, constants=()):
    """One operator and a Relu behind it; `inputs`, `outputs`: shapes, None where absent; `constants`: positions."""
    tensors, values = [], {}

    def add(shape, role="activation"):
        tensors.append(Tensor(f"t{len(tensors)}", shape, "float32", tensor_bytes(shape, "float32"), role))
        return len(tensors) - 1

    given = add(IMAGE)
    reads = []
    for position, shape in enumerate(inputs):
        constant = position in constants
        reads.append(ABSENT if shape is None else add(shape, "constant" if constant else "activation"))
        if constant and shape is not None:
            values[reads[-1]] = lambda shape=shape: np.ones(shape, np.float32)
    made = tuple(ABSENT if shape is None else add(shape) for shape in outputs)
    last = next((tensor for tensor in made if tensor != ABSENT), given)
    end = add(tensors[last].shape)
    ops = (Op("op", kind, tuple(reads), made, attributes), Op("end", "Relu", (last,), (end,)))
    free = [t for t in reads if t != ABSENT and t not in values]
    return Graph("g", tuple(tensors), ops, (given, *free), (end,), values).check()


@settings(max_examples=cases(4000))
@given(
    kind=st.sampled_from(sorted(name for name, row in KINDS.items() if row.rows != "unknown")),
    inputs=st.lists(st.sampled_from([*SHAPES, None]), max_size=6),
    outputs=st.lists(st.sampled_from([*SHAPES, None]), max_size=2),
    attributes=st.fixed_dictionaries({}, optional={name: st.sampled_from(of) for name, of in ATTRIBUTES.items()}),
    constants=st.sets(st.integers(1, 5)),
)
def test_nothing_that_reads_kinds_trips(kind, inputs, outputs, attributes, constants):
    """Every kind with inputs, results and attributes of any number and rank: rows, costs and reports are made of it,
    or it is refused as unsupported."""
    graph = with_lawful_kinds(graph_of(kind, inputs, outputs, attributes, constants))
    inspect(graph)
    for axis in (0, 1):
        form = row_form(graph, axis=axis, halos_required=False)
        assert len(form.ops) == 2


CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
WEIGHTS = (4, 4, 3, 3)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"),
    [
        ("Conv", [IMAGE], CONV),
        ("Conv", [IMAGE, None], CONV),
        ("Conv", [IMAGE, (4, 4, 3)], CONV),
        ("Conv", [IMAGE, (4, 3, 3, 3)], CONV),
        ("Conv", [IMAGE, (5, 4, 3, 3)], CONV),
        ("Conv", [IMAGE, WEIGHTS], {**CONV, "group": 0}),
        ("Conv", [IMAGE, WEIGHTS], {**CONV, "strides": [1]}),
        ("Conv", [IMAGE, WEIGHTS], {**CONV, "dilations": [0, 1]}),
        ("Conv", [IMAGE, WEIGHTS], {**CONV, "pads": [1]}),
        ("MaxPool", [IMAGE], {}),
        ("MaxPool", [(4, 8, 8)], {"kernel_shape": [3, 3]}),
        ("Gemm", [(2, 5), (5,)], {}),
        ("Add", [IMAGE], {}),
        ("Where", [IMAGE, IMAGE], {}),
        ("BatchNormalization", [IMAGE, (4,), (4,), (4,)], {}),
        ("Softmax", [IMAGE], {"axis": 4}),
        ("SpaceToDepth", [IMAGE], {"blocksize": 0}),
    ],
)
def test_what_does_not_fit_is_opaque(kind, inputs, attributes):
    graph = with_lawful_kinds(graph_of(kind, inputs, [IMAGE], attributes))
    assert [op.kind for op in graph.ops] == [f"malformed::{kind}", "Relu"]
    with pytest.raises(UnsupportedError, match="no known halo"):
        row_form(graph)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"),
    [
        ("Conv", [IMAGE, WEIGHTS], CONV),
        ("Conv", [IMAGE, WEIGHTS, None], {}),
        ("Conv", [IMAGE, (4, 1, 3, 3)], {**CONV, "group": 4}),
        ("Conv", [(1, 8, 8, 4), (4, 3, 3, 4)], {**CONV, "layout": "NHWC"}),
        ("MaxPool", [IMAGE], {"kernel_shape": [1, 1]}),
        ("Softmax", [IMAGE], {"axis": -4}),
        ("Clip", [IMAGE, None, ()], {}),
    ],
)
def test_what_fits_keeps_its_kind(kind, inputs, attributes):
    result = (1, 8, 8, 4) if "layout" in attributes else IMAGE
    graph = graph_of(kind, inputs, [result], attributes)
    assert with_lawful_kinds(graph) is graph


def test_a_file_with_weights_of_another_rank_is_planned_and_not_run(tmp_path):
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    odd = next(node for node in model.graph.node if node.op_type == "Conv")
    value = numpy_helper.to_array(weights[odd.input[1]])
    weights[odd.input[1]].CopyFrom(numpy_helper.from_array(value.reshape(value.shape[0], -1), odd.input[1]))
    (tmp_path / "odd.onnx").write_bytes(model.SerializeToString())
    graph = load(tmp_path / "odd.onnx")
    assert "malformed::Conv" in {op.kind for op in graph.ops}
    inspect(graph)
    assert any(op.whole for op in row_form(graph, halos_required=False).ops)
    with pytest.raises(UnsupportedError, match=r"no kernel for operator .* of kind malformed::Conv"):
        check_kernels(graph)


MISFITS = [
    ("Expand", [np.zeros((1, 3)), np.array([1, 4])], {}, (1, 4)),
    ("Concat", [np.zeros((1, 3)), None], {"axis": 0}, (1, 6)),
    ("Concat", [np.zeros((1, 3)), np.zeros(())], {"axis": 0}, (1, 6)),
    ("Clip", [np.zeros((1, 3)), np.zeros(2)], {}, (1, 3)),
    ("Pad", [np.zeros((1, 3))], {}, (1, 3)),
    ("Transpose", [np.zeros((1, 3))], {"perm": [0, 9]}, (1, 3)),
    ("PRelu", [np.zeros((1, 3)), np.zeros(2)], {}, (1, 3)),
]


@pytest.mark.parametrize(("kind", "values", "attributes", "shape"), MISFITS)
def test_what_a_kernel_cannot_compute_is_named(kind, values, attributes, shape):
    torch = pytest.importorskip("torch")
    inputs = [None if value is None else torch.from_numpy(value) for value in values]
    op = Op("here", kind, tuple(range(len(inputs))), (9,), attributes)
    with pytest.raises(UnsupportedError, match=rf"operator 'here' \({kind}\) cannot be computed: ") as caught:
        compute(op, inputs, [shape])
    assert "\n" not in str(caught.value)


def test_a_want_of_memory_is_no_misfit(monkeypatch):
    def starved(op, inputs, shapes):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    monkeypatch.setattr("downset.kernels.table.KERNELS", {"Relu": starved})
    with pytest.raises(RuntimeError, match="allocate"):
        compute(Op("r", "Relu", (0,), (1,)), [None], [(1,)])
