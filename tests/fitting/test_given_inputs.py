"""A model that runs with some values of an input alone is measured on the user's data (`inputs`)."""

import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from downset.fitting.fit import fit
from downset.runtimes.inputs import given_arrays, given_inputs, given_or_random, run_inputs


def rated(path):
    """y = table[rate - 16000] + x: other rates are outside of the table, as made-up ones are."""
    table = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    nodes = [
        helper.make_node("Sub", ["rate", "least"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["row"]),
        helper.make_node("Add", ["row", "x"], ["y"]),
    ]
    inputs = [("x", TensorProto.FLOAT, [1, 1024]), ("rate", TensorProto.INT64, [1])]
    inputs, outputs = (
        [helper.make_tensor_value_info(*one) for one in each]
        for each in (inputs, [("y", TensorProto.FLOAT, [1, 1024])])
    )
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([16000]), "least")]
    graph = helper.make_graph(nodes, "rated", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_model_that_runs_with_the_users_values_alone_is_measured_on_them(tmp_path):
    model, data, program = tmp_path / "rated.onnx", tmp_path / "data.npz", tmp_path / "open.py"
    rated(model)
    assert "cannot run it" in str(fit(model, time_limit_s=1.0).not_measured)
    np.savez(data, x=np.ones((1, 1024), np.float32), rate=np.array([16003]))
    result = fit(model, time_limit_s=1.0, inputs=[data], output=tmp_path / "fitted.onnx", session=program)
    assert not result.not_measured
    assert result.process is not None and result.process.shipped.growth.peak_bytes > 0
    assert not any("did not run" in str(note) for note in result.notes)
    printed = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True).stdout
    assert "held_bytes" in printed


def test_arrays_of_other_sizes_and_types_are_not_given(tmp_path):
    arrays = {"file": np.arange(3), "x": np.ones((2, 2), np.float32)}
    with given_inputs(tmp_path / "given.npz", arrays):
        asked = run_inputs({"x": (2, 2)}, 0)["inputs"]
    given = given_arrays(asked)
    assert given.keys() == arrays.keys() and given_arrays(run_inputs(None, 0)["inputs"]) == {}
    options = {"seed": 0, "position": 1}
    assert (given_or_random(given["x"], [2, 2], "float32", **options) == arrays["x"]).all()
    for shape, dtype in (([2, 3], "float32"), ([2, 2], "int64")):
        made = given_or_random(given["x"], shape, dtype, **options)
        assert made.shape == tuple(shape) and str(made.dtype) == dtype
