"""The mutation score of the structural proof: every kind of change is found, in every place, with no exception.

Mutants that compute the same by accident (an addition with its operands swapped) prove nothing: the file differs.
"""

import copy
import itertools

import numpy as np
import onnx
import pytest
from ai_edge_litert.tools import flatbuffer_utils
from onnx import TensorProto, helper

from downset.equivalence.prove import prove
from downset.errors import DownsetError, InvalidPlan, LoadError
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from downset.joint.order_and_arena import plan_together
from tests.effort import LONG
from tests.equivalence.mutants import ONNX, TFLITE, Mutant
from tests.equivalence.read_once import read_once
from tests.models import branchy_model, constant, installed_model
from tests.tflite_net import TfliteNet

STREAMING = installed_model("pymicro-wakeword", "okay_nabu.tflite")
"""Variables that keep their values, and a second graph that is called once."""


@pytest.fixture(autouse=True)
def _reads(monkeypatch):
    read_once(monkeypatch)


def small_tflite(path):
    net = TfliteNet(3, dtype="int8")
    x, y = net.input(2), net.input(2)
    left, right = net.conv(x, 3, 3, relu=True), net.depthwise(y, 2)
    joined = net.concat([left, right, net.conv(y, 2)])
    other = net.op("SUB", (net.conv(joined, 4), net.conv(joined, 4)), 4, "SubOptions")
    return net.save(path, [other, left])


def small_onnx(path):
    """A network with control flow that reads what is around it."""
    model = onnx.load(branchy_model(path))
    then = helper.make_graph(
        [
            helper.make_node("Mul", ["r", "k"], ["m"], name="mul"),
            helper.make_node("LeakyRelu", ["m"], ["t"], name="leaky", alpha=0.5),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
        [constant("k", np.float32([3]))],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Sub", ["r", "a"], ["e"], name="sub")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    model.graph.node.append(
        helper.make_node("If", ["chosen"], ["z"], name="if", then_branch=then, else_branch=otherwise)
    )
    model.graph.input.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, [1]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 8, 8, 8]))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path


def proven(one, other):
    """No proof is also what a file has that cannot be read any more."""
    try:
        return prove(one, other).proven
    except LoadError:
        return False


def survivors(path, mutants, folder):
    made, left = 0, []
    for mutant in mutants:
        made += 1
        try:
            changed = mutant.save(folder / f"mutant{path.suffix}")
        except Exception:  # what the schema cannot write is not a file
            continue
        if proven(path, changed) or proven(changed, path):
            left.append(mutant.what)
    return made, left


@pytest.mark.parametrize("kind", TFLITE)
def test_every_mutant_of_a_tflite_file_is_found(kind, tmp_path):
    path = small_tflite(tmp_path / "m.tflite")
    assert prove(path, path).proven
    made, left = survivors(path, TFLITE[kind](flatbuffer_utils.read_model(str(path))), tmp_path)
    assert made >= 3 and left == []


@pytest.mark.parametrize("kind", TFLITE)
def test_every_mutant_of_a_network_with_state_is_found(kind, tmp_path):
    count = sum(1 for _ in TFLITE[kind](flatbuffer_utils.read_model(str(STREAMING))))
    every = 9 if LONG else max(count // 4, 9)
    mutants = itertools.islice(TFLITE[kind](flatbuffer_utils.read_model(str(STREAMING))), 0, None, every)
    made, left = survivors(STREAMING, mutants, tmp_path)
    assert made >= 3 and left == []


@pytest.mark.parametrize("kind", ONNX)
def test_every_mutant_of_an_onnx_file_is_found(kind, tmp_path):
    path = small_onnx(tmp_path / "m.onnx")
    assert prove(path, path).proven
    made, left = survivors(path, ONNX[kind](onnx.load(str(path))), tmp_path)
    assert made >= 3 and left == []


def test_a_variable_read_behind_its_write_is_found(tmp_path):
    """No tensor says whether a variable is read before it is written again."""
    model = flatbuffer_utils.read_model(str(STREAMING))
    names = {number: name for name, number in vars(flatbuffer_utils.BuiltinOperator).items()}
    main = model.subgraphs[0]
    kinds = [names[model.operatorCodes[operator.opcodeIndex].builtinCode] for operator in main.operators]
    written = kinds.index("ASSIGN_VARIABLE")
    handle, value = main.operators[written].inputs
    once_more = copy.deepcopy(main.operators[kinds.index("READ_VARIABLE")])
    main.tensors.append(copy.deepcopy(main.tensors[value]))
    once_more.inputs = np.asarray([handle], np.int32)
    once_more.outputs = np.asarray([len(main.tensors) - 1], np.int32)
    operators = main.operators
    files = []
    for place in (written, written + 1, len(operators)):
        main.operators = [*operators[:place], once_more, *operators[place:]]
        files.append(Mutant("read", model).save(tmp_path / f"{place}.tflite"))
    before, behind, last = files
    assert not prove(before, behind).proven and "run in another order" in prove(before, behind).reason
    assert prove(behind, last).proven and prove(last, behind).proven


@pytest.mark.parametrize("shift", ["onto another", "off the grid", "fewer"])
def test_offsets_that_overwrite_what_is_needed_are_found(shift, tmp_path):
    path = small_tflite(tmp_path / "m.tflite")
    graph = load(path)
    together = plan_together(graph, memory="tflm", time_limit_s=1)
    offsets = dict(together.arena.tensor_offsets)
    export_tflite(tmp_path / "good.tflite", graph, together.order.steps, offsets=offsets)
    assert prove(path, tmp_path / "good.tflite").proven
    made = {tensor for op in graph.ops for tensor in op.outputs}
    found = 0
    for tensor in sorted(made & set(offsets)):
        reader = next((op for op in graph.ops if tensor in op.inputs), None)
        moved = dict(offsets)
        if shift == "onto another" and reader is not None:
            moved[reader.outputs[0]] = moved[tensor]  # a result over what it is computed from
        elif shift == "off the grid":
            moved[tensor] += 4
        else:
            continue
        export_tflite(tmp_path / "bad.tflite", graph, together.order.steps, offsets=moved)
        with pytest.raises(InvalidPlan, match=r"overlaps|multiple of 16"):
            prove(path, tmp_path / "bad.tflite")
        found += 1
    if shift == "fewer":
        model = flatbuffer_utils.read_model(str(tmp_path / "good.tflite"))
        buffer = model.buffers[model.metadata[-1].buffer]
        buffer.data = np.array(buffer.data[:-4])
        with pytest.raises(DownsetError, match="offsets for"):
            prove(path, Mutant("fewer", model).save(tmp_path / "bad.tflite"))
        found += 1
    assert found
