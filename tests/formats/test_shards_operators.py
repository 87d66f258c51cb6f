"""Operators whose strips need care, or that no strip can compute: every plan's shards, through ONNX Runtime, make what
the whole model makes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.formats.shards.write import ShardBlock, export_shards, write_shards
from downset.graph.cost import row_form
from downset.pipelines.plan import plan_pipeline
from tests.effort import untimed
from tests.formats.test_shards import QUICK, _run, _session, runtime
from tests.models import constant

RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = 19, 17
node = helper.make_node


def weights(name, *shape):
    return constant(name, RANDOM.standard_normal(shape).astype(np.float32))


def floats(name, *values):
    return constant(name, np.array(values, np.float32))


def whole_numbers(name, *values):
    return constant(name, np.array(values, np.int64))


def write(path, nodes, constants, *, outputs=("y",), opset=17):
    """A convolution that makes `a`, the nodes, a convolution of `b`; `y` may be made by a node instead."""
    made = {name for one in nodes for name in one.output}
    nodes = [node("Conv", ["x", "first"], ["a"], name="first", pads=[1, 1, 1, 1]), *nodes]
    constants = [weights("first", 4, 4, 3, 3), *constants]
    if "y" not in made:
        nodes.append(node("Conv", ["b", "last"], ["y"], name="last", pads=[1, 1, 1, 1]))
        constants.append(weights("last", 4, 4, 3, 3))
    for number, one in enumerate(nodes):
        one.name = one.name or f"{one.op_type.lower()}{number}"
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, ROWS, COLUMNS])]
    kinds = {"indices": TensorProto.INT64, "mask": TensorProto.BOOL}
    returned = [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, returned, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), str(path))
    return load(path)


def plain_blocks(graph, axis):
    """A stage for the first operator, one for the others, each in three strips of unequal height (or width)."""
    form, count = row_form(graph, axis=axis, halos_required=False), len(graph.ops)
    halves = [tuple(range(count - 1)), (count - 1,)] if count > 1 else [(0,)]
    blocks = []
    for number, ops in enumerate(halves):
        later = {t for op in range(ops[-1] + 1, count) for t in graph.ops[op].inputs} | set(graph.outputs)
        rows = max(form.rows[t] for op in ops for t in graph.ops[op].outputs if t in later)
        cuts = [0, rows // 6, rows // 2, rows]
        strips = tuple((f"d{place}", cuts[place], cuts[place + 1]) for place in range(3))
        blocks.append(ShardBlock(number, 0, ops, rows, strips, axis))
    return blocks


def compare(folder, graph):
    """Strips of rows and of columns as they are given, and the plans of two methods."""
    value = RANDOM.standard_normal(graph.tensors[graph.inputs[0]].shape).astype(np.float32)
    expected = _session(folder / "whole.onnx").run(None, {"x": value})
    for way in ("rows", "columns", "exact", "coedge"):
        if way in ("rows", "columns"):
            write_shards(folder / way, graph, plain_blocks(graph, ("rows", "columns").index(way)))
        else:
            export_shards(folder / way, graph, plan_pipeline(graph, QUICK, method=way, **untimed(100_000)))
        with np.errstate(invalid="ignore"):  # not a number stands for what no shard made
            found, listed = _run(folder / way, graph, [value])
        assert len({shard["device"] for shard in listed}) > 1, "nothing was cut"
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def binary(kind, *shape, first=False, before=()):
    """An operator of `a` and a constant of this shape."""
    return [*before, node(kind, ["c", "a"] if first else ["a", "c"], ["b"])], [weights("c", *shape)]


POINTWISE = {
    "rows": binary("Add", 1, 4, ROWS, 1),
    "rows and columns": binary("Mul", 1, 1, ROWS, COLUMNS),
    "rank 3": binary("Sub", 4, ROWS, COLUMNS, first=True),
    "rank 3, channels spread": binary("Div", 1, ROWS, 1),
    "rank 2": binary("Add", ROWS, COLUMNS),
    "rank 2, columns spread": binary("Max", ROWS, 1, first=True),
    "columns alone": binary("Add", COLUMNS),
    "remainder": ([node("Mod", ["a", "c"], ["b"], fmod=1)], [weights("c", ROWS, 1)]),
    "prelu": binary("PRelu", 4, ROWS, 1),
    "where": (
        [node("Where", ["c", "a", "d"], ["b"])],
        [constant("c", np.arange(ROWS).reshape(ROWS, 1) % 3 == 0), weights("d", 1, 1, ROWS, COLUMNS)],
    ),
    "three": ([node("Mean", ["a", "c", "d"], ["b"])], [weights("c", ROWS, 1), weights("d", 1, 4, 1, COLUMNS)]),
    "read twice": ([node("Add", ["a", "c"], ["q"]), node("Mul", ["q", "c"], ["b"])], [weights("c", ROWS, COLUMNS)]),
    "computed": ([node("Neg", ["k"], ["c"]), node("Add", ["a", "c"], ["b"])], [weights("k", 1, 1, ROWS, COLUMNS)]),
    "rows only in the constant": (
        [node("ReduceMean", ["a"], ["q"], axes=[2]), node("Add", ["q", "c"], ["b"])],
        [weights("c", 1, 1, ROWS, 1)],
    ),
    "concatenated": (
        [node("Concat", ["c", "a"], ["q"], axis=1), node("Conv", ["q", "w"], ["y"], pads=[1, 1, 1, 1])],
        [weights("c", 1, 2, ROWS, COLUMNS), weights("w", 4, 6, 3, 3)],
    ),
    "quantized by row": (
        [node("QuantizeLinear", ["a", "s"], ["q"], axis=2), node("DequantizeLinear", ["q", "s"], ["b"], axis=-2)],
        [constant("s", RANDOM.uniform(0.05, 0.2, ROWS).astype(np.float32))],
    ),
    "rank 3 that is computed": (
        [node("ReduceMean", ["a"], ["q"], axes=[0], keepdims=0), node("Mul", ["q", "a"], ["b"])],
        [],
    ),
    "rank 2 that is computed": (
        [node("ReduceMax", ["a"], ["q"], axes=[0, 1], keepdims=0), node("Add", ["a", "q"], ["b"])],
        [],
    ),
}


@pytest.mark.parametrize("case", POINTWISE)
def test_constants_with_rows_are_cut_to_the_strip(case, tmp_path):
    nodes, constants = POINTWISE[case]
    compare(tmp_path, write(tmp_path / "whole.onnx", nodes, constants))


@pytest.mark.parametrize(
    ("start", "end", "axis", "step"),
    [
        (-100, 11, 2, 1),
        (-100, -3, -2, 2),
        (-ROWS - 1, ROWS, 2, 1),
        (-ROWS, 100, 2, 3),
        (3, 9**9, -2, 2),
        (-7, 100, 2, 1),
        (100, -(9**9), 2, -2),
        (-1, -100, 2, -1),
        (-2, 3, -2, -3),
        (-100, 12, -1, 1),
    ],
)
def test_slices_with_bounds_outside_the_tensor(start, end, axis, step, tmp_path):
    bounds = [whole_numbers(name, value) for name, value in zip("seup", (start, end, axis, step), strict=True)]
    compare(tmp_path, write(tmp_path / "whole.onnx", [node("Slice", ["a", *"seup"], ["b"])], bounds))


def one(kind, *constants, outputs=("b",), returned=("y",), opset=17, names=None, **attrs):
    """An operator of `a` and constants of its own."""
    given = ["a", *(names or [item.name for item in constants])]
    return [node(kind, given, list(outputs), **attrs)], list(constants), {"outputs": returned, "opset": opset}


STATISTICS = [weights(name, 4) for name in ("scale", "bias", "mean")]
VARIANCE = floats("variance", 0.5, 0.6, 0.7, 0.8)
POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
WHOLE = {
    "max pool's indices": one("MaxPool", outputs=("b", "indices"), returned=("y", "indices"), **POOL),
    "top k of rows": one("TopK", whole_numbers("k", 9), outputs=("b", "i"), axis=2),
    "top k of channels": one(
        "TopK", whole_numbers("k", 4), outputs=("b", "indices"), returned=("y", "indices"), axis=1
    ),
    "cumulative sum": one("CumSum", constant("k", np.array(2))),
    "regions of interest": one(
        "RoiAlign",
        constant("r", np.array([[1, 1, 12, 12]], np.float32)),
        whole_numbers("i", 0),
        output_height=9,
        output_width=8,
    ),
    "grid sample": one("GridSample", constant("g", RANDOM.uniform(-1, 1, (1, 12, 11, 2)).astype(np.float32))),
    "gather": one("Gather", whole_numbers("i", 3, 1, 18, 7, 7, 0, 2, 5), axis=2),
    "transpose": one("Transpose", perm=[0, 1, 3, 2]),
    "reshape": one("Reshape", whole_numbers("s", 1, 4, COLUMNS, ROWS)),
    "einsum": one("Einsum", equation="nchw->ncwh"),
    "triangle": one("Trilu"),
    "transposed convolution of a stated size": one(
        "ConvTranspose", weights("w", 4, 4, 3, 3), output_shape=[37, 34], strides=[2, 2]
    ),
    "transposed convolution of equal size": one(
        "ConvTranspose", weights("w", 4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]
    ),
    "instance norm": one("InstanceNormalization", *STATISTICS[:2]),
    "layer norm over rows": one("LayerNormalization", weights("w", ROWS, COLUMNS), axis=2),
    "softmax over rows": one("Softmax", axis=2),
    "batch norm in training": one(
        "BatchNormalization", *STATISTICS, VARIANCE, outputs=("b", "m", "v"), training_mode=1, returned=("y", "m", "v")
    ),
    "flattening softmax of old": one("Softmax", axis=2, opset=12),
    "flattening softmax of old by default": one("LogSoftmax", opset=9),
    "crop and resize": one(
        "Resize",
        floats("r", 0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9),
        whole_numbers("s", 1, 4, ROWS, COLUMNS),
        names=["r", "", "s"],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    "resize by 1.5": one("Resize", floats("s", 1, 1, 1.5, 2), names=["", "s"]),
    "resize by little": one("Resize", floats("s", 1, 1, 1.04, 1), names=["", "s"], mode="linear"),
    "resize that keeps the corners": one(
        "Resize",
        floats("s", 1, 1, 2, 2),
        names=["", "s"],
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    "resize of a kept shape": one(
        "Resize",
        whole_numbers("s", 38, 40),
        names=["", "", "s"],
        mode="linear",
        opset=18,
        axes=[2, 3],
        keep_aspect_ratio_policy="not_larger",
    ),
    "blocks of rows quantized together": (
        [
            node("QuantizeLinear", ["a", "s"], ["q"], axis=2, block_size=10, output_dtype=3),
            node("DequantizeLinear", ["q", "s"], ["b"], axis=2, block_size=10),
        ],
        [constant("s", RANDOM.uniform(0.05, 0.2, (1, 4, 2, COLUMNS)).astype(np.float32))],
        {"opset": 21},
    ),
    "drawn with a seed": (
        [node("RandomUniform", [], ["r"], shape=[1, 4, ROWS, COLUMNS], seed=3.0), node("Add", ["a", "r"], ["b"])],
        [],
        {},
    ),
    "weights that are computed": (
        [node("Slice", ["a", "s", "e", "u"], ["w"]), node("Conv", ["a", "w"], ["y"])],
        [whole_numbers("s", 3, 3), whole_numbers("e", 6, 6), whole_numbers("u", 2, 3)],
        {},
    ),
}
CUT = {
    "celu": one("Celu", alpha=0.5),
    "mish": one("Mish", opset=18),
    "shrink": one("Shrink", bias=0.1, lambd=0.3),
    "thresholded relu": one("ThresholdedRelu", alpha=0.2),
    "arc tangent": one("Atan"),
    "norm pool": one("LpPool", p=2, **POOL),
    "max pool without": one("MaxPool", **POOL),
    "max pool, indices unread": one("MaxPool", outputs=("b", "i"), **POOL),
    "largest channel": (
        [node("ReduceMax", ["a"], ["q"], axes=[1, -1]), node("Mul", ["a", "q"], ["b"])],
        [],
        {},
    ),
    "depth to space": (
        [node("DepthToSpace", ["a"], ["q"], blocksize=2, mode="CRD"), node("Conv", ["q", "w"], ["y"])],
        [weights("w", 2, 1, 3, 3)],
        {},
    ),
    "local response": one("LRN", size=3),
    "transposed convolution": one("ConvTranspose", weights("w", 4, 4, 3, 3), pads=[1, 1, 1, 1]),
    "transposed convolution by two": one("ConvTranspose", weights("w", 4, 4, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    "transposed convolution with rows behind": one(
        "ConvTranspose",
        weights("w", 4, 4, 3, 4),
        floats("c", 1, 2, 3, 4),
        pads=[0, 1, 2, 1],
        strides=[3, 2],
        output_padding=[2, 1],
    ),
    "transposed convolution, dilated": one(
        "ConvTranspose", weights("w", 4, 4, 3, 2), pads=[3, 1, 0, 1], strides=[2, 1], dilations=[2, 3]
    ),
    "transposed convolution with gaps": one(
        "ConvTranspose", weights("w", 4, 4, 1, 2), floats("c", 1, 2, 3, 4), strides=[3, 4], output_padding=[2, 1]
    ),
    "transposed convolution in groups": one(
        "ConvTranspose", weights("w", 4, 2, 5, 5), pads=[2, 2, 1, 1], strides=[2, 2], group=2
    ),
    "layer norm over columns": one("LayerNormalization", weights("w", COLUMNS), axis=-1),
    "batch norm": one("BatchNormalization", *STATISTICS, VARIANCE),
    "dropout": one("Dropout", outputs=("b", "mask"), returned=("y", "mask")),
    "softmax over columns": one("Softmax", axis=3, opset=12),
    "resize of two axes": one("Resize", floats("s", 2, 2), names=["", "s"], mode="linear", opset=18, axes=[2, 3]),
    "resize of two axes to sizes": one(
        "Resize", whole_numbers("s", 34, 38), names=["", "", "s"], mode="linear", opset=18, axes=[3, 2]
    ),
    "resize of columns": one("Resize", floats("s", 2), names=["", "s"], opset=18, axes=[3]),
    "resize before opset 11": one("Resize", floats("s", 1, 1, 4, 1), mode="linear", opset=10),
    "nearest resize before opset 11": one("Resize", floats("s", 1, 1, 3, 2), opset=10),
    "blocks of channels quantized together": (
        [
            node("QuantizeLinear", ["a", "s"], ["q"], axis=1, block_size=2, output_dtype=3),
            node("DequantizeLinear", ["q", "s"], ["b"], axis=1, block_size=2),
        ],
        [constant("s", RANDOM.uniform(0.05, 0.2, (1, 2, ROWS, COLUMNS)).astype(np.float32))],
        {"opset": 21},
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_operators_that_mix_rows_are_computed_whole(case, tmp_path):
    nodes, constants, how = WHOLE[case]
    graph = write(tmp_path / "whole.onnx", nodes, constants, **how)
    form = row_form(graph, halos_required=False)
    assert any(op.whole for op in form.ops)
    compare(tmp_path, graph)


@pytest.mark.parametrize("case", CUT)
def test_operators_that_can_be_cut_are(case, tmp_path):
    nodes, constants, how = CUT[case]
    graph = write(tmp_path / "whole.onnx", nodes, constants, **how)
    assert not any(op.whole for op in row_form(graph).ops)
    compare(tmp_path, graph)


def test_constants_of_rank_0_stay_so(tmp_path):
    nodes = [node("Clip", ["a", "least"], ["q"]), node("Gather", ["q", "third"], ["r"], axis=1)]
    nodes.append(node("Add", ["a", "r"], ["b"]))
    constants = [constant("least", np.float32(-0.5)), constant("third", np.array(2))]
    compare(tmp_path, write(tmp_path / "whole.onnx", nodes, constants))


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN])
def test_element_types_that_numpy_lacks_cross_shards(kind, tmp_path):
    nodes = [node("Cast", ["a"], ["q"], to=kind), node("Cast", ["q"], ["b"], to=TensorProto.FLOAT)]
    graph = write(tmp_path / "whole.onnx", nodes, [], opset=19)
    ops = [(0, 1), (2, 3)]
    blocks = [ShardBlock(at, 0, ops[at], ROWS, (("d0", 0, 7), ("d1", 7, ROWS))) for at in range(2)]
    shards = write_shards(tmp_path / "shards", graph, blocks)
    value = RANDOM.standard_normal((1, 4, ROWS, COLUMNS)).astype(np.float32)
    made = [
        _session(tmp_path / "shards" / shards[at].file).run_with_ort_values(
            None, {"x": runtime.OrtValue.ortvalue_from_numpy(value[:, :, rows])}
        )[0]
        for at, rows in enumerate((slice(0, 8), slice(6, ROWS)))
    ]
    assert [part.element_type() for part in made] == [kind] * 2
    assert [part.shape()[2] for part in made] == [7, ROWS - 7]


def test_sequences_do_not_cross_shards(tmp_path):
    nodes = [node("SequenceConstruct", ["a", "a"], ["q"]), node("SequenceAt", ["q", "k"], ["b"])]
    graph = write(tmp_path / "whole.onnx", nodes, [constant("k", np.array(1))])
    parted = [ShardBlock(0, 0, (0, 1), ROWS, (("d0", 0, ROWS),)), ShardBlock(1, 0, (2, 3), ROWS, (("d1", 0, ROWS),))]
    with pytest.raises(UnsupportedError, match="'q' is not a plain tensor"):
        write_shards(tmp_path / "shards", graph, parted)


def test_control_flow_is_refused(tmp_path):
    value = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1, 4, ROWS, COLUMNS])
    branches = [helper.make_graph([node(kind, ["a"], ["o"])], kind, [], [value]) for kind in ("Relu", "Neg")]
    choice = node("If", ["c"], ["b"], name="choice", then_branch=branches[0], else_branch=branches[1])
    graph = write(tmp_path / "whole.onnx", [choice], [constant("c", np.array(True))])
    with pytest.raises(UnsupportedError, match="'choice' of kind If holds a network of its own"):
        export_shards(tmp_path / "shards", graph, plan_pipeline(graph, QUICK, method="single"))


def test_devices_do_not_draw_at_random_each_for_themselves(tmp_path):
    nodes = [node("RandomNormalLike", ["a"], ["r"], name="noise"), node("Add", ["a", "r"], ["b"])]
    graph = write(tmp_path / "whole.onnx", nodes, [])
    with pytest.raises(UnsupportedError, match="'noise' of kind RandomNormalLike draws random numbers"):
        write_shards(tmp_path / "shards", graph, plain_blocks(graph, 0))
    (shard,) = export_shards(tmp_path / "one", graph, plan_pipeline(graph, QUICK, method="single"))
    assert shard.outputs == {"y": (0, ROWS)}
