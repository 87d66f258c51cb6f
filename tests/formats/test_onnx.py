"""Reading, reordering and running .onnx files, held against ONNX Runtime itself."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.arenas.plan import plan_arena
from downset.errors import LoadError, UsageError
from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.formats.writing import export
from downset.graph.core import ABSENT
from downset.orders.plan import plan_order
from downset.results.sessions import DEFAULT
from downset.runtimes import ort
from tests.models import branchy_model, constant, installed_model


def save(path, nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(nodes, "made", inputs, outputs, list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), str(path))
    return path


def floats(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def test_shapes_roles_and_attributes_come_out(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    by_name = {tensor.name: tensor for tensor in graph.tensors}
    assert by_name["wide"].shape == (1, 32, 8, 8)
    assert by_name["wide"].nbytes == 4 * 32 * 64
    assert by_name["w1"].role == "constant"
    assert [graph.tensors[t].name for t in graph.outputs] == ["flat", "joined"]
    conv = next(op for op in graph.ops if op.name == "narrow")
    assert (conv.kind, conv.attrs["group"], conv.attrs["pads"]) == ("Conv", 4, [1, 1, 1, 1])
    (weights,) = (t for t, tensor in enumerate(graph.tensors) if tensor.name == "b0")
    assert graph.constant(weights).tolist() == [1.0] * 8


def test_weights_listed_as_inputs_are_no_inputs(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx", weights_as_inputs=True))
    assert [graph.tensors[t].name for t in graph.inputs] == ["x"]


def test_an_open_batch_is_1_and_shapes_fix_it(tmp_path):
    path = branchy_model(tmp_path / "m.onnx", open_batch=True)
    graph = load(path)
    assert "the batch is 1: " in graph.source.note
    assert {tensor.shape[0] for tensor in graph.tensors if tensor.role == "activation"} == {1}
    graph = load(path, shapes={"x": (2, 3, 8, 8)})
    assert {tensor.shape[0] for tensor in graph.tensors if tensor.role == "activation"} == {2}
    with pytest.raises(LoadError, match=r"inputs of .* are x"):
        load(path, shapes={"z": (1,)})
    with pytest.raises(LoadError, match="2 dimensions"):
        load(path, shapes={"x": (1, 3)})


def test_corners_of_the_format(tmp_path):
    """An absent optional input, an unread optional output, an input passed straight through, zero size, a constant."""
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Clip", ["x", "", "two"], ["y"]),
        helper.make_node("Dropout", ["y"], ["z", "mask"]),
        helper.make_node("Concat", ["z", "empty"], ["out"], axis=0),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [floats("x", [3]), floats("empty", [0])],
        [floats("out", [3]), floats("x", [3])],
    )
    graph = load(path)
    clip = next(op for op in graph.ops if op.kind == "Clip")
    assert clip.inputs[1] == ABSENT
    roles = {tensor.name: tensor.role for tensor in graph.tensors}
    assert roles["two"] == "constant"
    assert graph.outputs[1] == graph.inputs[0]
    order = plan_order(graph, memory="live")
    assert order.evidence.proven
    # x is an output and an input: 12 bytes that never leave; clip, dropout and concat each add 12 (mask: 3 at most)
    assert 36 <= order.peak_bytes <= 39


def test_subgraphs_are_opaque_and_what_they_capture_is_read(tmp_path):
    inner = helper.make_graph([helper.make_node("Add", ["a", "a"], ["s"])], "then", [], [floats("s", [4])])
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["t"])], "else", [], [floats("t", [4])])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=inner, else_branch=other),
    ]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = load(save(tmp_path / "m.onnx", nodes, [floats("x", [4]), condition], [floats("y", [4])]))
    assert graph.predecessors() == ((), (0,))


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu", "FusedConv", "FusedGemm", "Gelu", "QuickGelu"])
def test_shapes_of_contributed_kinds_are_inferred(tmp_path, kind):
    """The file states none; the standard operator of the same shape stands for the one that ONNX does not know."""
    shape, weights = {"FusedConv": ([1, 3, 5, 4], [2, 3, 2, 2]), "FusedGemm": ([5, 3], [2, 3])}.get(kind, ([5, 3], [3]))
    attrs = {"FusedConv": {"activation": "Relu"}, "FusedGemm": {"activation": "Relu", "transB": 1}}.get(kind, {})
    weighted = ["w"] if "Fused" in kind or kind == "BiasGelu" else []
    nodes = [helper.make_node(kind, ["x", *weighted], ["y"], domain="com.microsoft", **attrs)]
    nodes.append(helper.make_node("Identity", ["y"], ["z"]))
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    made = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    constants = [constant("w", np.ones(weights, np.float32))]
    graph = helper.make_graph(nodes, "g", given, made, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    assert loaded.ops[0].kind == f"com.microsoft::{kind}"
    result = loaded.tensors[loaded.ops[0].outputs[0]].shape
    assert result == {"FusedConv": (1, 2, 4, 3), "FusedGemm": (5, 2)}.get(kind, (5, 3))


def test_external_weights_are_read_only_when_asked_for(tmp_path):
    model = onnx.load(str(branchy_model(tmp_path / "whole.onnx")))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    values = [load(tmp_path / "whole.onnx"), load(tmp_path / "m.onnx")]
    index = next(t for t, tensor in enumerate(values[0].tensors) if tensor.name == "w1")
    assert np.array_equal(values[0].constant(index), values[1].constant(index))
    (tmp_path / "w.bin").unlink()
    assert plan_order(load(tmp_path / "m.onnx")).evidence.proven


@pytest.mark.parametrize("target", ["ort", "torch"])
def test_fit_brings_external_weights_along(tmp_path, target):
    model = onnx.load(str(branchy_model(tmp_path / "whole.onnx")))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    fit(tmp_path / "m.onnx", output=tmp_path / "out" / "f.onnx", target=target, time_limit_s=2)
    for one, other in zip(ort.run(tmp_path / "whole.onnx"), ort.run(tmp_path / "out" / "f.onnx"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])], "'b'"),
        ([helper.make_node("Relu", ["ghost"], ["b"])], "ghost"),
        ([helper.make_node("Relu", ["x"], ["b"]), helper.make_node("Neg", ["x"], ["b"])], "'b'"),
        ([helper.make_node("Relu", ["x"], ["b"]), helper.make_node("Neg", ["b"], ["x"])], "'x'"),
        ([helper.make_node("Relu", ["x"], ["c"])], "'b'"),
        ([helper.make_node("Mystery", ["x"], ["m"]), helper.make_node("Relu", ["m"], ["b"])], "Mystery|'m'"),
    ],
    ids=["cycle", "dangling", "two producers", "input made again", "output nobody makes", "unknown operator"],
)
def test_broken_graphs_are_one_line(tmp_path, nodes, message):
    path = save(tmp_path / "m.onnx", nodes, [floats("x", [4])], [floats("b", [4])])
    with pytest.raises(LoadError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("extents", [[-5], [1 << 40, 1 << 20]])
def test_impossible_dimensions_are_refused(tmp_path, extents):
    node = helper.make_node("Relu", ["x"], ["y"])
    path = save(tmp_path / "m.onnx", [node], [floats("x", extents)], [floats("y", extents)])
    with pytest.raises(LoadError):
        load(path)


def test_onnx_runtime_follows_the_exported_order(tmp_path):
    source = branchy_model(tmp_path / "m.onnx")
    ort.optimise_offline(source, tmp_path / "o.onnx")
    graph = load(tmp_path / "o.onnx")
    for method in ("kahn", "dfs", "greedy", "optimal"):
        order = plan_order(graph, method=method, memory="ort")
        export(tmp_path / "r.onnx", graph, order)
        onnx.checker.check_model(str(tmp_path / "o.onnx"))
        taken = ort.measure_peak(tmp_path / "r.onnx")
        assert list(taken.executed) == [graph.ops[v].name for v in order.steps]
        for one, other in zip(ort.run(tmp_path / "o.onnx"), ort.run(tmp_path / "r.onnx"), strict=True):
            assert np.array_equal(one, other)


def test_a_body_may_hand_on_a_value_from_outside(tmp_path):
    """The outer value is an input of the If; what a later node of the body makes is not."""
    late = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Abs", ["n"], ["y_then"])]
    then_branch = helper.make_graph(late, "then", [], [floats("y_then", [4])])
    else_branch = helper.make_graph([], "else", [], [floats("x", [4])])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then_branch, else_branch=else_branch)]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = load(save(tmp_path / "if.onnx", nodes, [condition, floats("x", [4])], [floats("y", [4])]))
    assert [graph.tensors[tensor].name for tensor in graph.ops[0].inputs] == ["c", "x"]


@pytest.mark.parametrize(
    ("samples", "name"), [(256, "silero_vad.onnx"), (576, "silero_vad.onnx"), (576, "op18_ifless.onnx")]
)
def test_a_network_of_two_branches_loads_where_what_is_fed_chooses(samples, name):
    """silero_vad.onnx holds a network for 16 kHz and one for 8 kHz, and only the first runs on 576 samples."""
    shapes = {"input": (1, samples), "state": (2, 1, 128)}
    graph = load(installed_model("silero-vad", name), shapes=shapes)
    assert [graph.tensors[tensor].shape for tensor in graph.outputs] == [(1, 1), (2, 1, 128)]


def loop_over(path, *, turns, body_adds_a_row):
    """A Loop whose carried value keeps its size, or grows by a row each turn; `turns`: None for as many as are fed."""
    counted = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    go_on = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "went")]
    kind, inputs = ("Concat", ["v", "row"]) if body_adds_a_row else ("Add", ["v", "row"])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["went"]),
            helper.make_node(kind, inputs, ["w"], **({"axis": 0} if body_adds_a_row else {})),
            helper.make_node("Identity", ["row"], ["each"]),
        ],
        "body",
        [counted, go_on[0], floats("v", None)],
        [go_on[1], floats("w", None), floats("each", None)],
    )
    nodes = [helper.make_node("Loop", ["n", "yes", "x"], ["y", "rows"], body=body)]
    constants = [constant("yes", np.asarray(True)), constant("row", np.ones((1, 3), np.float32))]
    inputs = [floats("x", [2, 3])]
    if turns is None:
        inputs.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    else:
        constants.append(constant("n", np.asarray(turns, np.int64)))
    return save(path, nodes, inputs, [floats("y", None), floats("rows", None)], constants)


def test_the_sizes_of_a_loop_follow_from_its_body(tmp_path):
    path = loop_over(tmp_path / "loop.onnx", turns=5, body_adds_a_row=False)
    graph = load(path)
    assert [graph.tensors[tensor].shape for tensor in graph.outputs] == [(2, 3), (5, 1, 3)]
    assert [value.shape for value in ort.run(path)] == [(2, 3), (5, 1, 3)]
    path = loop_over(tmp_path / "grows.onnx", turns=5, body_adds_a_row=True)  # only runs tell what it grows to
    graph = load(path)
    assert [graph.tensors[tensor].shape for tensor in graph.outputs] == [(7, 3), (5, 1, 3)]
    assert [value.shape for value in ort.run(path)] == [(7, 3), (5, 1, 3)]
    with pytest.raises(LoadError, match="known only at run time"):
        load(loop_over(tmp_path / "open.onnx", turns=None, body_adds_a_row=False))


@pytest.mark.parametrize("package", ["made", "swift-f0", "silero-vad"])
def test_the_memory_model_is_what_onnx_runtime_measures(tmp_path, package):
    """To the byte, in any order: live bytes when a kernel ends. In use at a time are these and a kernel's workspace."""
    if package == "made":
        ort.optimise_offline(branchy_model(tmp_path / "m.onnx"), tmp_path / "o.onnx")
    elif package == "swift-f0":
        path = installed_model(package, "model.onnx")
        ort.optimise_offline(path, tmp_path / "o.onnx", shapes={"audio": (1, 16000)})
    else:
        path = installed_model(package, "silero_vad_half.onnx")
        ort.optimise_offline(path, tmp_path / "o.onnx", shapes={"input": (1, 576), "state": (2, 1, 128)})
    graph = load(tmp_path / "o.onnx")
    for method in ("file", "kahn", "dfs", "greedy"):
        order = plan_order(graph, method=method, memory="ort")
        export(tmp_path / "r.onnx", graph, order)
        taken = ort.measure_peak(tmp_path / "r.onnx")
        assert taken.live_bytes == order.peak_bytes
        assert taken.run_bytes >= taken.live_bytes
        assert taken.held_bytes >= taken.peak_bytes


def test_less_than_by_default_and_a_region_that_holds_it_all(tmp_path):
    ort.optimise_offline(branchy_model(tmp_path / "m.onnx"), tmp_path / "o.onnx")
    usual = ort.measure_peak(tmp_path / "o.onnx", settings=DEFAULT)
    ours = ort.measure_peak(tmp_path / "o.onnx")
    assert ours.peak_bytes <= usual.peak_bytes
    settings, least = ort.least_region(tmp_path / "o.onnx")
    assert ours.peak_bytes <= least.held_bytes <= ours.held_bytes
    assert ort.measure_peak(tmp_path / "o.onnx", settings=settings).held_bytes == least.held_bytes


def test_export_never_writes_over_what_it_reads(tmp_path):
    path = branchy_model(tmp_path / "m.onnx")
    graph = load(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is the file being read"):
        export(path, graph, plan_order(graph))
    with pytest.raises(UsageError, match="does not exist"):
        export(tmp_path / "no" / "where.onnx", graph, plan_order(graph))
    with pytest.raises(UsageError, match="cannot export"):
        export(tmp_path / "m.txt", graph, plan_order(graph))
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def test_plain_weights_stay_out_of_the_arena(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    order = plan_order(graph, memory="live")
    arena = plan_arena(graph, order)
    names = {graph.tensors[t].name for t in arena.tensor_offsets}
    assert names == {tensor.name for tensor in graph.tensors if tensor.role == "activation"}
    assert constant("c", np.zeros(1)).name == "c"
