"""What the structural proof must see through: any lawful order, other names, numbers, constants stored otherwise."""

import copy

import numpy as np
import onnx
import pytest
from ai_edge_litert.tools import flatbuffer_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.equivalence.prove import prove
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from tests.equivalence.mutants import Mutant
from tests.equivalence.test_mutations import STREAMING, small_onnx, small_tflite
from tests.models import installed_model
from tests.tflite_net import TfliteNet


def any_order(graph, random):
    """A random order that respects every edge."""
    made_by = {tensor: at for at, op in enumerate(graph.ops) for tensor in op.outputs}
    needed = [{made_by[t] for t in op.inputs if t in made_by} | set(op.after) for op in graph.ops]
    waits = [len(each) for each in needed]
    after = [[at for at, each in enumerate(needed) if earlier in each] for earlier in range(len(graph.ops))]
    ready = [at for at, count in enumerate(waits) if count == 0]
    steps = []
    while ready:
        steps.append(ready.pop(int(random.integers(len(ready)))))
        for later in after[steps[-1]]:
            waits[later] -= 1
            if waits[later] == 0:
                ready.append(later)
    return steps


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    return {
        "small.tflite": small_tflite(folder / "small.tflite"),
        "streaming.tflite": STREAMING,
        "small.onnx": small_onnx(folder / "small.onnx"),
        "shufflenet.onnx": installed_model("onnx", "light_shufflenet.onnx"),
    }


@pytest.mark.parametrize("name", ["small.tflite", "streaming.tflite", "small.onnx", "shufflenet.onnx"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6)
def test_any_order_is_the_same_network(name, files, tmp_path_factory, seed):
    path, random = files[name], np.random.default_rng(seed)
    graph = load(path)
    written = tmp_path_factory.mktemp("order") / name
    export = export_tflite if name.endswith("tflite") else export_onnx
    export(written, graph, any_order(graph, random))
    assert prove(path, written).proven and prove(written, path).proven


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_renumbered_and_renamed_tensors_are_the_same(files, tmp_path_factory, seed):
    random = np.random.default_rng(seed)
    model = flatbuffer_utils.read_model(str(files["small.tflite"]))
    main = model.subgraphs[0]
    places = random.permutation(len(main.tensors))
    main.tensors = [main.tensors[old] for old in places]
    new = {int(old): at for at, old in enumerate(places)}
    for at, tensor in enumerate(main.tensors):
        tensor.name = f"other {at}".encode()
    for operator in main.operators:
        operator.inputs = np.asarray([new[int(t)] for t in operator.inputs], np.int32)
        operator.outputs = np.asarray([new[int(t)] for t in operator.outputs], np.int32)
    main.inputs = np.asarray([new[int(t)] for t in main.inputs], np.int32)
    main.outputs = np.asarray([new[int(t)] for t in main.outputs], np.int32)
    codes = random.permutation(len(model.operatorCodes))
    model.operatorCodes = [model.operatorCodes[old] for old in codes]
    for operator in main.operators:
        operator.opcodeIndex = int(list(codes).index(operator.opcodeIndex))
    written = Mutant("renumbered", model).save(tmp_path_factory.mktemp("names") / "m.tflite")
    assert prove(files["small.tflite"], written).proven


def test_renamed_values_are_the_same_and_renamed_inputs_are_not(files, tmp_path):
    model = onnx.load(str(files["small.onnx"]))
    names = {value.name for value in (*model.graph.input, *model.graph.output)}
    inner = {name for node in model.graph.node for name in node.output} - names
    inner |= {weight.name for weight in model.graph.initializer}

    def rename(graph, old, new):
        for values in (graph.initializer, graph.input, graph.output):
            for value in values:
                value.name = new if value.name == old else value.name
        for node in graph.node:
            for held in (node.input, node.output):
                held[:] = [new if name == old else name for name in held]
            for attribute in node.attribute:
                rename(attribute.g, old, new)

    for at, name in enumerate(sorted(inner)):
        rename(model.graph, name, f"renamed {at}")
    for node in model.graph.node:
        node.name = f"other {node.name}"
    onnx.save(model, str(tmp_path / "r.onnx"))
    assert prove(files["small.onnx"], tmp_path / "r.onnx").proven
    rename(model.graph, "x", "image")
    onnx.save(model, str(tmp_path / "i.onnx"))
    assert "input" in prove(files["small.onnx"], tmp_path / "i.onnx").reason


def test_a_constant_stored_twice_is_the_same_and_a_result_computed_twice_is_not(tmp_path):
    def file(name, *, twice):
        net = TfliteNet(1)
        x = net.input(2)
        weights = net.weights((3, 1, 1, 2), 0)
        results = [net.conv(x, 3, weights=weights)]
        results.append(net.conv(x, 3, weights=weights) if twice else results[0])
        return net.save(tmp_path / name, [net.op("ADD", results, 3, "AddOptions")])

    once, twice = file("once.tflite", twice=False), file("twice.tflite", twice=True)
    assert not prove(once, twice).proven and not prove(twice, once).proven
    model = flatbuffer_utils.read_model(str(twice))
    main = model.subgraphs[0]
    stored = main.operators[1].inputs
    for place in (1, 2):
        main.tensors.append(copy.deepcopy(main.tensors[stored[place]]))
        model.buffers.append(copy.deepcopy(model.buffers[main.tensors[-1].buffer]))
        main.tensors[-1].buffer = len(model.buffers) - 1
        stored[place] = len(main.tensors) - 1
    assert prove(twice, Mutant("stored twice", model).save(tmp_path / "stored.tflite")).proven


def test_operators_that_no_output_needs_correspond_too(tmp_path):
    net = TfliteNet(2)
    x = net.input(2)
    y = net.conv(x, 2)
    dead = [net.conv(y, 2), net.conv(y, 2)]
    net.conv(dead[0], 1)
    path = net.save(tmp_path / "m.tflite", [net.conv(y, 3)])
    graph = load(path)
    export_tflite(tmp_path / "o.tflite", graph, any_order(graph, np.random.default_rng(3)))
    assert prove(path, tmp_path / "o.tflite").proven
    model = flatbuffer_utils.read_model(str(path))
    model.subgraphs[0].operators[3].inputs[0] = dead[1]
    assert not prove(path, Mutant("dead", model).save(tmp_path / "d.tflite")).proven
