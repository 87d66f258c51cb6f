"""Differences that equal outputs do not rule out: in branches that no run took, and constants that no output shows."""

import json

import numpy as np
import onnx
import pytest
from ai_edge_litert.tools import flatbuffer_utils
from onnx import TensorProto, helper

from downset.equivalence.unshown import unshown_differences
from downset.formats.reading import load
from downset.runtimes.compare import compare
from downset.runtimes.feeds import made_feeds
from tests.equivalence.mutants import TFLITE
from tests.equivalence.test_mutations import STREAMING
from tests.models import constant

WEIGHT = np.arange(1, 5, dtype=np.float32)


def saved(path, nodes, weights, inputs=(), outputs=(("y", [1, 4]),)):
    given = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]), *given], made, weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path


def branching(path, weight=WEIGHT, above=None, then=("Sin",)):
    """x times the weights and further operators where the sum of x is above a number (or by an input); else -x."""
    steps = [helper.make_node("Mul", ["x", "w"], ["t0"], name="mul")]
    steps += [helper.make_node(kind, [f"t{at}"], [f"t{at + 1}"], name=f"{kind}{at}") for at, kind in enumerate(then)]
    shown = helper.make_tensor_value_info(f"t{len(then)}", TensorProto.FLOAT, [1, 4])
    branch = helper.make_graph(steps, "then", [], [shown], [constant("w", weight)])
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"], name="neg")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [1, 4])],
    )
    nodes = [helper.make_node("If", ["chosen"], ["y"], name="if", then_branch=branch, else_branch=otherwise)]
    if above is None:
        return saved(path, nodes, [], [("chosen", TensorProto.BOOL, [])])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "above"], ["chosen"]),
        *nodes,
    ]
    return saved(path, nodes, [constant("above", np.float32(above))])


@pytest.mark.parametrize("seed", [0, 16, 17, 39])  # of these, all but the first draw False three times
def test_made_inputs_take_both_branches_of_a_boolean_input(tmp_path, fails, seed):
    one, other = branching(tmp_path / "a.onnx"), branching(tmp_path / "b.onnx", weight=2 * WEIGHT)
    fails(4, "verify", one, other, "--seed", seed, says="the constant 'w' has other values")


def test_a_constant_in_a_branch_that_usual_inputs_do_not_take_is_found(tmp_path, run, fails):
    one = branching(tmp_path / "a.onnx", above=1e6)
    other = branching(tmp_path / "b.onnx", weight=2 * WEIGHT, above=1e6)
    found = compare(one, other)
    assert found.equal and found.reached and found.verdict() == "differ"
    fails(4, "verify", one, other, says="the constant 'w' has other values")
    status, out, _ = run("verify", one, other, "--json")
    assert status == 4 and json.loads(out)["equal"] and json.loads(out)["reached_difference"]
    fails(4, "verify", one, other, "--tolerance", "100", says="outputs differ by up to")
    assert run("verify", one, one, "--json")[0] == 0


@pytest.mark.parametrize("then", [("Cos",), ("Sin", "Abs"), ()])
def test_other_operators_in_a_branch_that_usual_inputs_do_not_take_are_found(tmp_path, fails, then):
    one, other = branching(tmp_path / "a.onnx", above=1e6), branching(tmp_path / "b.onnx", above=1e6, then=then)
    fails(4, "verify", one, other, says="outputs differ by up to")
    fails(4, "verify", other, one, says="outputs differ by up to")


def test_a_branch_that_one_file_has_alone_is_not_known_to_be_the_same(tmp_path, fails):
    """Its other branch is what the other file computes always."""
    one = branching(tmp_path / "a.onnx", above=1e30)
    nodes = [helper.make_node("Identity", ["n"], ["y"], name="same"), helper.make_node("Neg", ["x"], ["n"], name="neg")]
    other = saved(tmp_path / "b.onnx", nodes[::-1], [])
    for files in ((one, other), (other, one)):
        fails(6, "verify", *files, "--accept-runs", says="no run may have taken")


@pytest.mark.parametrize("above", [None, 0.5])
def test_branches_that_are_written_otherwise_are_compared_by_runs_that_take_them(tmp_path, run, fails, above):
    one = branching(tmp_path / "a.onnx", above=above)
    other = branching(tmp_path / "b.onnx", above=above, then=("Neg", "Neg", "Sin"))
    files = []
    for chosen in (True, False):
        x = np.full((1, 4), 1.0 if chosen else -1.0, np.float32)
        np.savez(tmp_path / f"{chosen}.npz", x=x, **({"chosen": np.asarray(chosen)} if above is None else {}))
        files += ["--input", tmp_path / f"{chosen}.npz"]
    for given in (files, files[:2], ()):
        fails(6, "verify", one, other, *given, says="all that was tried in ort agrees")
        status, out, _ = run("verify", one, other, *given, "--accept-runs")
        assert status == 0 and "equal bit for bit" in out
        assert out.count("If 'if' made to take its branch for") == 2


def test_branches_inside_branches_are_taken(tmp_path):
    def nested(path, kinds):
        """A branch around the network of `branching`."""
        inner = onnx.load(str(branching(path, then=kinds)))
        body = helper.make_graph(
            inner.graph.node, "outer", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])]
        )
        last = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["n"])],
            "no",
            [],
            [helper.make_tensor_value_info("n", TensorProto.FLOAT, [1, 4])],
        )
        node = helper.make_node("If", ["chosen"], ["z"], name="outer", then_branch=body, else_branch=last)
        return saved(path, [node], [], [("chosen", TensorProto.BOOL, [])], (("z", [1, 4]),))

    one, other = nested(tmp_path / "a.onnx", ("Sin",)), nested(tmp_path / "b.onnx", ("Neg", "Neg", "Sin"))
    found = compare(one, other)
    assert found.verdict() == "not proven" and found.telling
    assert sum("made to take its branch" in tried for tried in found.tried) == 4
    changed = nested(tmp_path / "c.onnx", ("Neg", "Neg", "Cos"))
    assert compare(one, changed).verdict() == "differ"


def test_constants_of_a_branch_may_differ_by_rounding(tmp_path, run):
    one = branching(tmp_path / "a.onnx", above=1e6)
    other = branching(tmp_path / "b.onnx", weight=WEIGHT * np.float32(1 + 1e-6), above=1e6)
    assert run("verify", one, other)[0] == 6
    assert run("verify", one, other, "--accept-runs")[0] == 0


def masked(path, *, weight=WEIGHT, sizes=(1, 4), alpha=0.5, scale=None):
    """Weights, a number among settings and a constant of a node whose results are multiplied by zero, in addition to
    x."""
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], WEIGHT if scale is None else scale)
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
        helper.make_node("LeakyRelu", ["a"], ["b"], name="leaky", alpha=alpha),
        helper.make_node("Constant", [], ["k"], name="scales", value=scales),
        helper.make_node("Mul", ["b", "k"], ["c"], name="scaled"),
        helper.make_node("Mul", ["c", "zero"], ["d"], name="masked"),
        helper.make_node("Add", ["x", "d"], ["e"], name="sum"),
        helper.make_node("Reshape", ["e", "sizes"], ["y"], name="reshape"),
    ]
    weights = [constant("w", weight), constant("zero", np.zeros(4, np.float32)), constant("sizes", np.asarray(sizes))]
    return saved(path, nodes, weights)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"weight": 2 * WEIGHT}, "the constant 'w' of Mul 'mul' has other values"),
        ({"alpha": 0.25}, "LeakyRelu 'leaky' has another alpha"),
        ({"scale": 2 * WEIGHT}, "Constant 'scales' has another value"),
    ],
)
def test_constants_that_no_output_shows_are_not_known(tmp_path, fails, changed, said):
    one, other = masked(tmp_path / "a.onnx"), masked(tmp_path / "b.onnx", **changed)
    names = ["a", "b", "c"]  # tensors inside show such a difference; these are named otherwise here
    model = onnx.load(str(other))
    for node in model.graph.node:
        for held in (node.input, node.output):
            held[:] = [f"other {name}" if name in names else name for name in held]
    onnx.save(model, str(other))
    fails(6, "verify", one, other, "--accept-runs", says=said)


@pytest.mark.parametrize("changed", [{"sizes": (0, -1)}, {"weight": WEIGHT * np.float32(1 + 1e-6)}])
def test_sizes_that_are_said_otherwise_and_rounding_are_no_difference(tmp_path, run, changed):
    one, other = masked(tmp_path / "a.onnx"), masked(tmp_path / "b.onnx", **changed)
    status, out, _ = run("verify", one, other, "--accept-runs")
    assert status == 0 and "not proven" in out


def test_operands_that_are_swapped_have_the_same_constants(tmp_path, run):
    def added(path, order):
        nodes = [helper.make_node("Mul", ["x", f"w{at}"], [f"m{at}"], name=f"mul{at}") for at in (0, 1)]
        nodes.append(helper.make_node("Add", [f"m{at}" for at in order], ["y"], name="sum"))
        return saved(path, nodes, [constant("w0", WEIGHT), constant("w1", 3 * WEIGHT)])

    files = added(tmp_path / "a.onnx", (0, 1)), added(tmp_path / "b.onnx", (1, 0))
    status, out, _ = run("verify", *files, "--accept-runs")
    assert status == 0 and "not proven" in out


def test_other_graphs_of_tflite_files_are_found(tmp_path):
    """Graphs that operators call by number: here one that runs once."""
    model = flatbuffer_utils.read_model(str(STREAMING))
    called = {tensor.buffer for tensor in model.subgraphs[1].tensors} - {t.buffer for t in model.subgraphs[0].tensors}
    mutants = {mutant.what: mutant for mutant in TFLITE["constants"](model)}
    found = [
        mutants[f"byte 0 of buffer {buffer}"] for buffer in sorted(called) if f"byte 0 of buffer {buffer}" in mutants
    ]
    assert found
    for mutant in found:
        assert unshown_differences(STREAMING, mutant.save(tmp_path / "m.tflite")).graphs
    assert not unshown_differences(STREAMING, STREAMING).graphs


def rated(path, *, reads=(), kind=TensorProto.INT64):
    """A network of two branches for rates of 16000 and others, whose rate other operators may read."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [op], name=op)],
            op,
            [],
            [helper.make_tensor_value_info(op, TensorProto.FLOAT, [1, 4])],
        )
        for op in ("Neg", "Abs")
    ]
    nodes = [
        helper.make_node("Equal", ["rate", "expected"], ["same"]),
        helper.make_node("If", ["same"], ["b"], name="if", then_branch=branches[0], else_branch=branches[1]),
        *reads,
        helper.make_node("Identity", ["b"], ["y"]),
    ]
    integer = np.int64 if kind == TensorProto.INT64 else np.int32
    return saved(path, nodes, [constant("expected", integer(16000))], [("rate", kind, [])])


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_a_number_that_is_only_compared_takes_the_constant(tmp_path, kind):
    graph = load(rated(tmp_path / "m.onnx", kind=kind))
    rates = [int(run["rate"]) for run in made_feeds(graph, seed=0)]
    assert rates[0] in (0, 1) and rates[1:] == [16000, 16001]
    assert all(int(run["rate"]) in (0, 1) for run in made_feeds(graph, seed=0, choice="low"))
    assert [int(run["rate"]) for run in made_feeds(graph, seed=0, choice="high")] == [16000] * 3


@pytest.mark.parametrize("seed", range(4))
def test_a_number_that_is_an_index_stays_small(tmp_path, seed):
    index = helper.make_node("Gather", ["x", "rate"], ["g"], axis=1)
    path = rated(tmp_path / "m.onnx", reads=[index])
    rates = [int(run["rate"]) for run in made_feeds(load(path), seed=seed)]
    assert set(rates) == {0, 1}
    assert compare(path, path, seed=seed).equal


def test_every_boolean_takes_both_values(tmp_path):
    node = helper.make_node("Where", ["mask", "x", "zero"], ["y"])
    path = saved(
        tmp_path / "m.onnx", [node], [constant("zero", np.zeros(4, np.float32))], [("mask", TensorProto.BOOL, [1, 4])]
    )
    masks = [run["mask"] for run in made_feeds(load(path), seed=3)]
    assert (masks[0] != masks[1]).all() and masks[0].dtype == masks[1].dtype == bool


@pytest.mark.parametrize("runs", ["then", "else"])
@pytest.mark.parametrize("rate", [True, False])
def test_choices_that_a_network_does_not_run_with_are_left_out(tmp_path, runs, rate):
    """One of two branches is for a larger x, as of a rate that goes with another length."""
    branches = {}
    for name in ("then", "else"):
        node = helper.make_node("Gather", ["x", f"{name} places"], [name], axis=1)
        shown = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        places = constant(f"{name} places", np.asarray([0, 1, 2, 3 if name == runs else 9]))
        branches[name] = helper.make_graph([node], name, [], [shown], [places])
    chosen = "same" if rate else "chosen"
    node = helper.make_node("If", [chosen], ["y"], then_branch=branches["then"], else_branch=branches["else"])
    compared = helper.make_node("Equal", ["chosen", "expected"], ["same"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]),
        helper.make_tensor_value_info("chosen", TensorProto.INT64 if rate else TensorProto.BOOL, []),
    ]
    weights = [constant("expected", np.int64(16000))] if rate else []
    graph = helper.make_graph([compared, node] if rate else [node], "g", given, [made], weights)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    found = compare(path, path)
    assert found.equal and found.runs >= 3, "drawn, and over ranges"
    value = np.asarray(16000 if rate else True) if runs == "else" else np.asarray(0 if rate else False)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4), np.float32), chosen=value)
    assert "ONNX Runtime cannot run it" in compare(path, path, inputs=[tmp_path / "x.npz"]).note
