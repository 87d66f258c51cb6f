"""A value of another type than a path is refused in one line, by its parameter; a graph says why it is not pickled."""

import copy
import pickle

import pytest
import torch

import downset as ds
from downset.errors import UsageError
from tests.models import branchy_model

WRONG = pytest.mark.parametrize("wrong", [None, 5, 2.5, b"net.onnx", ["net.onnx"]])


@WRONG
def test_what_is_no_path_is_named(wrong, tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    order = ds.plan_order(graph)
    calls = {
        "path": (
            lambda: ds.load(wrong),
            lambda: ds.read_records(wrong),
            lambda: ds.read_plan(wrong),
            lambda: ds.write_plan(wrong, order),
            lambda: ds.load_cluster(wrong),
            lambda: ds.export(wrong, graph, order),
        ),
        "model": (lambda: ds.fit(wrong),),
    }
    if wrong is not None:
        calls["output"] = (lambda: ds.fit(tmp_path / "net.onnx", output=wrong),)
        calls["session"] = (lambda: ds.fit(tmp_path / "net.onnx", output=tmp_path / "o.onnx", session=wrong),)
    for name, refused in calls.items():
        for call in refused:
            with pytest.raises(UsageError, match=f"^{name} must be the path of a file.*; given ") as raised:
                call()
            assert "\n" not in str(raised.value)


def test_a_graph_with_weights_is_not_pickled_and_copies_of_it_are_itself(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    assert graph.constants
    with pytest.raises(UsageError, match=r"cannot be pickled.*load the file"):
        pickle.dumps(graph)
    assert copy.copy(graph) is copy.deepcopy(graph) is graph
    (tmp_path / "plain.json").write_text(
        '{"tensors": [{"size": 4}, {"size": 4}], "ops": [{"ins": [0], "outs": [1]}], "inputs": [0], "outputs": [1]}'
    )
    plain = ds.load(tmp_path / "plain.json")
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_a_network_in_pytorch_is_told_how_to_become_a_file():
    module = torch.nn.Linear(2, 2)
    program = torch.export.export(module, (torch.ones(1, 2),))
    readers = ds.load, ds.inspect, ds.plan_order
    for given, saved, calls in (
        (module, r"torch\.export\.export\(model, example_inputs\)", (*readers, ds.fit)),
        (program, "program", readers),
    ):
        for call in calls:
            with pytest.raises(
                UsageError, match=rf"; write a file with torch\.export\.save\({saved}, '.+'\)$"
            ) as raised:
                call(given)
            assert "\n" not in str(raised.value)
