"""ONNX's own test suite: each of its models is loaded and planned, or refused for the reason that a list gives.

What the reader says of a value is held against the value that ONNX's reference implementation computes.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from downset.arenas.plan import plan_arena
from downset.errors import LoadError
from downset.formats.onnx.read import load_onnx
from downset.joint.check import verify
from downset.orders.plan import plan_order
from tests.effort import LONG

REFUSED = json.loads((Path(__file__).parents[1] / "golden" / "onnx_models_refused.json").read_text())
LISTED = {name: entry for entry in REFUSED["node"] for name in entry["models"]}
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FILES = sorted([*DATA.glob("light/*.onnx"), *DATA.glob("*/*/model.onnx")])


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # its inputs overflow on purpose
        return load_model_tests(kind="node")


def sizes_left_open(case):
    """Of the inputs whose sizes the model leaves open: those of the input that the test feeds."""
    fed = zip(case.model.graph.input, case.data_sets[0][0], strict=True)
    return {value.name: np.shape(array) for value, array in fed if leaves_open(value)}


def leaves_open(value):
    dims = value.type.tensor_type.shape.dim
    return value.type.HasField("tensor_type") and not all(dim.HasField("dim_value") for dim in dims)


def planned(path, shapes):
    graph = load_onnx(path, shapes=shapes)
    order = plan_order(graph, method="greedy", memory="ort")
    verify(graph, order, plan_arena(graph, order.steps, method="greedy_by_size", memory="ort"))
    return graph


def reference_values(case):
    """By name: each value that the reference implementation makes on the test's inputs; none where it cannot run."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name)
    del model.graph.output[:]
    for name in names:
        model.graph.output.add().name = name
    feeds = zip((value.name for value in model.graph.input), case.data_sets[0][0], strict=True)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(zip(names, ReferenceEvaluator(model).run(list(names), dict(feeds)), strict=True))
    except Exception:  # what it does not implement differs by version
        return {}


def test_every_node_model_is_planned_or_refused_for_a_listed_reason(cases, tmp_path):
    assert len(cases) >= 1884  # of onnx 1.23
    refused = {}
    tensors = run = 0
    part = [case for place, case in enumerate(cases) if LONG or case.name in LISTED or place % 6 == 0]
    for case in part:
        path = tmp_path / "model.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            graph = planned(path, sizes_left_open(case))
        except LoadError as error:
            refused[case.name] = str(error)
            continue
        expected = dict(zip((value.name for value in case.model.graph.output), case.data_sets[0][1], strict=True))
        values = reference_values(case)
        run += bool(values)
        for tensor in graph.tensors:
            value = expected.get(tensor.name, values.get(tensor.name))
            if isinstance(value, np.ndarray) and tensor.dtype != "opaque":
                tensors += 1
                assert tensor.shape == value.shape, f"{case.name}: {tensor.name}"
    assert set(refused) == set(LISTED)
    for name, message in refused.items():
        assert f"made by '{LISTED[name]['operator']}_" in message
        assert "known only at run time" in message
    assert len(LISTED) <= 60
    assert run > 0.85 * (len(part) - len(LISTED))
    assert tensors > 6 * len(part)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem if path.parent.name == "light" else path.parent.name)
def test_every_model_file_that_onnx_ships_is_planned_or_refused_for_a_listed_reason(path):
    name = path.stem if path.parent.name == "light" else path.parent.name
    entry = next((item for item in REFUSED["files"] if name in item["models"]), None)
    if entry is None:
        planned(path, {})
    else:
        with pytest.raises(LoadError, match=entry["message"]):
            planned(path, {})


def test_the_suite_is_found():
    assert len(FILES) >= 149
    assert sum(path.parent.name == "light" for path in FILES) == 9
