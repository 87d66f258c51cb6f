"""Networks with If and Loop: segments around these operators run in strips, and what they hold is proven the same."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from downset.equivalence.prove import prove
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.graph.cost import row_form
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import computed_whole
from tests.effort import cases
from tests.onnx_nodes import OnnxNodes
from tests.partial.test_tokens import check_equal, in_a_folder, outputs, striped

IMAGE = (1, 4, 9, 5)


def tensor(name, shape=IMAGE, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


class Net(OnnxNodes):
    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def conv(self, x):
        depth = 3 if x == "x" else 4
        weights = (self.random.standard_normal((4, depth, 3, 3)) / 5).astype(np.float32)
        return self.op("Sigmoid", self.op("Conv", x, self.constant(weights), pads=[1] * 4))

    def branch(self, x):
        """An If whose condition depends on the values: one branch reads the image, and the other a weight, too."""
        summed = self.op("ReduceSum", x, self.constant(np.array([0, 1, 2, 3], np.int64)), keepdims=0)
        condition = self.op("Greater", summed, self.constant(np.float32(90 * self.random.random() + 45)))
        factor = self.constant(self.random.standard_normal((4, 1, 1)).astype(np.float32))
        one = helper.make_graph([helper.make_node("Neg", [x], ["then"])], "one", [], [tensor("then")])
        two = [helper.make_node("Mul", [x, factor], ["scaled"]), helper.make_node("Add", ["scaled", "own"], ["else"])]
        own = numpy_helper.from_array(np.float32(0.5), "own")
        return self.op(
            "If", condition, then_branch=one, else_branch=helper.make_graph(two, "two", [], [tensor("else")], [own])
        )

    def loop(self, x):
        """A Loop of two turns over a value that it carries, with the image from outside."""
        nodes = [
            helper.make_node("Mul", ["carried", "half"], ["less"]),
            helper.make_node("Add", ["less", x], ["result"]),
            helper.make_node("Identity", ["goes"], ["on"]),
        ]
        ends = [tensor("turn", (), TensorProto.INT64), tensor("goes", (), TensorProto.BOOL), tensor("carried")]
        half = numpy_helper.from_array(np.float32(0.5), "half")
        body = helper.make_graph(nodes, "body", ends, [tensor("on", (), TensorProto.BOOL), tensor("result")], [half])
        return self.op("Loop", self.constant(np.int64(2)), self.constant(np.array(True)), x, body=body)

    def save(self, path, last):
        self.nodes.append(helper.make_node("Tanh", [last], ["y"], name="y"))
        graph = helper.make_graph(self.nodes, "held", [tensor("x", (1, 3, 9, 5))], [tensor("y")], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(path))


def network(path, seed, kinds):
    net = Net(seed)
    last = net.conv(net.conv("x"))
    for kind in kinds:
        last = net.conv(net.conv(getattr(net, kind)(last)))
    net.save(path, last)
    return path


@settings(in_a_folder, max_examples=cases(60))
@given(data=st.data())
def test_segments_around_if_and_loop_run_in_strips(tmp_path, data):
    kinds = data.draw(st.lists(st.sampled_from(["branch", "loop"]), min_size=1, max_size=3))
    original = network(tmp_path / "one.onnx", data.draw(st.integers(0, 9)), kinds)
    graph = load(original)
    whole = computed_whole(graph, row_form(graph, halos_required=False))
    assert {graph.ops[index].kind for index, why in whole.items() if "graphs of its own" in why} <= {"If", "Loop"}
    result = striped(data, tmp_path, graph, original)
    proof = prove(original, tmp_path / "strips.onnx")
    assert proof.proven, proof.reason
    assert [op.kind for op in result.ops if op.kind in ("If", "Loop")] == [
        {"branch": "If", "loop": "Loop"}[kind] for kind in kinds
    ]


def bodies(model):
    for node in model.graph.node:
        yield from (attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH)


def mutations(model):
    """Files of which one thing inside a graph that an operator holds is another."""
    for place, body in enumerate(bodies(model)):
        for number, node in enumerate(body.node):
            for at, name in enumerate(node.input):
                other = onnx.ModelProto()
                other.CopyFrom(model)
                changed = [*bodies(other)][place].node[number]
                for instead in ("x" if name != "x" else "c0", node.input[(at + 1) % len(node.input)]):
                    if instead != name and node.op_type not in ("Identity", "Add"):
                        changed.input[at] = instead
                        yield f"{body.name}: {node.op_type} reads {instead}", other
            if node.op_type in ("Neg", "Mul"):
                other = onnx.ModelProto()
                other.CopyFrom(model)
                [*bodies(other)][place].node[number].op_type = {"Neg": "Abs", "Mul": "Max"}[node.op_type]
                yield f"{body.name}: another kind", other
        for number, weight in enumerate(body.initializer):
            other = onnx.ModelProto()
            other.CopyFrom(model)
            value = numpy_helper.from_array(np.float32(0.25), weight.name)
            [*bodies(other)][place].initializer[number].CopyFrom(value)
            yield f"{body.name}: another {weight.name}", other


def test_another_graph_inside_is_not_proven(tmp_path):
    original = network(tmp_path / "one.onnx", 1, ["branch", "loop"])
    graph = load(original)
    first = next(index for index, op in enumerate(graph.ops) if op.kind == "ReduceSum")
    result = in_strips(graph, [InStrips(0, first, 3)])
    export_onnx(tmp_path / "strips.onnx", result, range(len(result.ops)))
    assert prove(original, tmp_path / "strips.onnx").proven
    tried = 0
    for what, other in mutations(onnx.load(tmp_path / "strips.onnx")):
        onnx.save(other, tmp_path / "other.onnx")
        assert not prove(original, tmp_path / "other.onnx").proven, what
        tried += 1
    assert tried >= 8


@pytest.mark.parametrize("kinds", [["branch"], ["loop"]])
def test_both_ways_are_taken_by_some_inputs(tmp_path, kinds):
    """The networks of the laws above compute something that depends on their graphs."""
    ways = {outputs(network(tmp_path / f"{seed}.onnx", seed, kinds))[0].tobytes() for seed in range(4)}
    assert len(ways) == 4
    check_equal(tmp_path / "0.onnx", tmp_path / "0.onnx")
