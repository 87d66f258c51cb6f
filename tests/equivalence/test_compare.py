"""Runs that mean something: several inputs, tensors inside, and the word where outputs show nothing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from ai_edge_litert.tools import flatbuffer_utils
from onnx import TensorProto, helper

from downset.equivalence.prove import prove
from downset.fitting.fit import fit
from downset.formats.onnx.metadata import write_metadata
from downset.formats.reading import load
from downset.reports.comparisons import comparison_data
from downset.reports.fit_document import fit_document
from downset.results.comparisons import BY_RUNTIME, Proof
from downset.results.sessions import FITTED
from downset.runtimes.compare import compare, compare_outputs
from downset.runtimes.differences import compare_arrays
from downset.runtimes.feeds import RUNS, made_feeds
from downset.runtimes.inputs import random_array
from downset.runtimes.rounding import over_ranges
from tests.equivalence.mutants import Mutant
from tests.models import constant, installed_model
from tests.networks import branchy
from tests.tflite_net import TfliteNet

SWIFTNET = Path(__file__).resolve().parents[3] / "shared" / "models" / "swiftnet_hpd_vwwc224_uint8.tflite"


def constant_answers(path):
    """Convolutions whose result is multiplied by a scale so small that every answer is the zero point."""
    net = TfliteNet(4, dtype="int8")
    y = net.conv(net.conv(net.input(2), 4, 3, relu=True), 4)
    last = net.op("CONV_2D", (y, *net.weights((3, 1, 1, 4), 0)), 3, "Conv2DOptions", strideW=1, strideH=1)
    net.main.tensors[last].quantization.scale = np.asarray([1e4], np.float32)
    return net.save(path, [last])


def overwritten(path, changed, count):
    """Random bytes for the weights of the first `count` convolutions."""
    model = flatbuffer_utils.read_model(str(path))
    random, left = np.random.default_rng(1), count
    conv = flatbuffer_utils.BuiltinOperator.CONV_2D
    for operator in model.subgraphs[0].operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) == conv and left:
            buffer = model.buffers[model.subgraphs[0].tensors[operator.inputs[1]].buffer]
            buffer.data = random.integers(0, 256, len(buffer.data), dtype=np.uint8)
            left -= 1
    assert left == 0
    return Mutant("weights", model).save(changed)


def test_overwritten_weights_are_found_where_outputs_show_nothing(tmp_path, run, fails):
    path = constant_answers(tmp_path / "m.tflite")
    other = overwritten(path, tmp_path / "w.tflite", 2)
    found = compare(path, other)
    assert found.equal and found.varies is False and not found.proven
    assert "has other values" in found.proof.reason
    assert "differs by up to" in found.inside_note
    fails(4, "verify", path, other, says="the outputs agree, but inside")
    status, out, _ = run("verify", path, path)
    assert status == 0
    assert "proven the same network" in out
    assert "the outputs are the same for every input tried" in out
    assert "downset verify with --input compares on your own data" in out  # fit, which prints it too, has no --input
    # TFLite Micro shows no tensors inside: with no proof and no outputs that answer, the comparison says nothing.
    fails(6, "verify", path, other, "--runtime", "tflm", "--accept-runs", says="the runs do not show a difference")


def test_swiftnet_with_weights_overwritten_is_found(tmp_path, fails):
    """Its answer to any random input is [1, 255]."""
    path = SWIFTNET if SWIFTNET.exists() else constant_answers(tmp_path / "m.tflite")
    other = overwritten(path, tmp_path / "w.tflite", 19 if SWIFTNET.exists() else 3)
    assert not prove(path, other).proven
    fails(4, "verify", path, other, says="has other values")


def test_a_fit_that_is_neither_proven_nor_shown_by_runs_is_not_shipped(tmp_path, monkeypatch):
    from downset.fitting import proving

    net = TfliteNet(5, dtype="int8", size=8)
    x = net.input(2)
    wide = [net.conv(x, 16) for _ in range(3)]  # one after another would need less
    y = net.concat([net.conv(each, 2) for each in wide])
    last = net.op("CONV_2D", (y, *net.weights((3, 1, 1, 6), 0)), 3, "Conv2DOptions", strideW=1, strideH=1)
    net.main.tensors[last].quantization.scale = np.asarray([1e4], np.float32)
    path = net.save(tmp_path / "m.tflite", [last])
    found = fit(path, time_limit_s=20)
    assert found.shipped != "original" and found.outputs.proven and not found.outputs.telling
    monkeypatch.setattr(proving, "prove", lambda *_, **__: Proof(False, reason="so it is said"))
    refused = fit(path, time_limit_s=20)
    assert refused.shipped == "original"
    told = "not proven the same (so it is said), and the outputs are the same for every input tried"
    assert [note for note in refused.notes if told in note]


def chain(path, kinds):
    """x * 0, and then operators that keep zero: outputs never change."""
    nodes = [helper.make_node("Mul", ["x", "zero"], ["t0"], name="mul")]
    nodes += [helper.make_node(kind, [f"t{at}"], [f"t{at + 1}"], name=f"{kind}{at}") for at, kind in enumerate(kinds)]
    nodes[-1].output[0] = "y"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, [constant("zero", np.zeros(1, np.float32))])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_nothing_is_known_where_neither_files_nor_runs_tell(tmp_path, fails):
    one, other = chain(tmp_path / "a.onnx", ["Abs", "Sin"]), chain(tmp_path / "b.onnx", ["Abs", "Tan"])
    fails(6, "verify", one, other, says="not proven the same")


def test_own_data_is_run_and_named_data_is_checked(tmp_path, run, fails):
    path = branchy(tmp_path / "m.onnx")
    image = np.full((1, 6, 9, 9), 0.25, np.float32)
    np.save(tmp_path / "x.npy", image)
    np.savez(tmp_path / "x.npz", x=image + 1)
    np.savez(tmp_path / "wrong.npz", image=image)
    np.save(tmp_path / "small.npy", image[:, :, 1:])
    status, out, _ = run("verify", path, path, "--input", tmp_path / "x.npy", "--input", tmp_path / "x.npz", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["inputs_tried"] == 2 and found["outputs_vary"] and found["tensors_inside"] > 5
    fails(2, "verify", path, path, "--input", tmp_path / "wrong.npz", says="the inputs are x")
    fails(2, "verify", path, path, "--input", tmp_path / "small.npy", says="the network takes float32[1, 6, 9, 9]")
    fails(5, "verify", path, path, "--input", tmp_path / "none.npy", says="cannot read")


def _largest_difference(original, fitted, *, in_order):
    """By sessions of our own: the original by default, the fitted file in its own order or optimised again."""

    def session(path, level):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = level
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    levels = onnxruntime.GraphOptimizationLevel
    theirs, made = session(original, levels.ORT_ENABLE_ALL), made_feeds(load(original), seed=0)
    ours = session(fitted, levels.ORT_DISABLE_ALL if in_order else levels.ORT_ENABLE_ALL)
    return max(
        float(np.abs(one.astype(float) - other.astype(float)).max())
        for feeds in (*made, *over_ranges(made))
        for one, other in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True)
    )


def test_verify_and_fit_say_the_same_of_what_onnx_runtime_rounds(tmp_path, run, fails):
    """Whichever session was faster here, and is therefore named in the file."""
    path, fitted = branchy(tmp_path / "m.onnx"), tmp_path / "f.onnx"
    result = fit(path, output=fitted, time_limit_s=20, rewrite="off")
    assert result.shipped != "original"
    found = compare(path, fitted)
    in_order = result.session.follows_file
    worst = _largest_difference(path, fitted, in_order=in_order)
    assert result.outputs.max_abs_error == found.max_abs_error == worst
    assert found.proof.proven and found.proof.optimised and found.rounds_alike
    assert f"not proven the same network: {BY_RUNTIME}" in fit_document(result).verdict.detail
    fails(6, "verify", path, fitted, says=BY_RUNTIME)
    status, out, _ = run("verify", path, fitted, "--accept-runs")
    assert status == 0 and BY_RUNTIME in out
    if worst:
        assert f"largest difference {worst:.2g}" in out


def test_a_fitted_file_is_compared_in_the_session_that_it_names(tmp_path):
    """Of networks of which the sessions round some alike on one processor, others on another."""
    told_apart = 0
    for seed in range(8):
        path, fitted = branchy(tmp_path / "m.onnx", seed=seed), tmp_path / "f.onnx"
        fit(path, output=fitted, time_limit_s=2, rewrite="off")
        errors = {}
        for settings in FITTED:
            write_metadata(fitted, tmp_path / "named.onnx", {"session": settings.name})
            errors[settings.name] = compare(path, tmp_path / "named.onnx").max_abs_error
            expected = _largest_difference(path, fitted, in_order=settings.follows_file)
            assert errors[settings.name] == expected
        told_apart += len(set(errors.values())) > 1
        if told_apart:
            break
    assert told_apart, "the sessions round all of these networks alike here: the test shows nothing"


def test_a_difference_beyond_rounding_is_one(tmp_path, fails):
    path = branchy(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]) * np.float32(1.01)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, model.graph.initializer[0].name))
    onnx.save(model, str(tmp_path / "o.onnx"))
    assert not compare(path, tmp_path / "o.onnx").rounds_alike
    fails(4, "verify", path, tmp_path / "o.onnx", says="differ in ort")


def test_tensors_inside_are_compared_in_litert_and_state_over_steps(tmp_path):
    streaming = installed_model("pymicro-wakeword", "okay_nabu.tflite")
    found = compare_outputs(streaming, streaming, runtime="litert")
    assert found.equal and found.runs == RUNS and found.inside > 20
    assert compare_outputs(streaming, streaming, runtime="tflm").inside == 0


def test_offsets_that_were_not_tried_are_not_said_to_be_wrong(tmp_path, monkeypatch):
    """None without a run in TFLite Micro, where nothing asks for one; True and False are what such a run says."""
    net, output = TfliteNet(0, dtype="int8", size=16), tmp_path / "f.tflite"
    path = net.save(tmp_path / "m.tflite", [net.conv(net.depthwise(net.conv(net.input(8), 16)), 4)])
    assert fit(path, output=output, kernels="reference", time_limit_s=20).shipped.endswith("+offsets")
    assert comparison_data(compare(path, path))["equal_with_offsets"] is None
    assert comparison_data(compare(path, output, runtime="litert"))["equal_with_offsets"] is None
    assert comparison_data(compare(path, output))["equal_with_offsets"] is True

    def wrong_in_tflm(*files, runtime, **options):
        found = compare_outputs(*files, runtime=runtime, **options)
        return replace(found, equal=False, max_abs_error=9.0) if runtime == "tflm" else found

    monkeypatch.setattr("downset.runtimes.compare.compare_outputs", wrong_in_tflm)
    found = comparison_data(compare(path, output))
    assert (found["equal"], found["equal_with_offsets"]) == (False, False)


def test_inputs_are_of_natural_range_and_repeatable():
    graph = load(installed_model("pymicro-wakeword", "okay_nabu.tflite"))
    (name,) = (graph.tensors[tensor].name for tensor in graph.inputs)
    feeds, again, other = (made_feeds(graph, seed=seed) for seed in (0, 0, 1))
    shape = graph.tensors[graph.inputs[0]].shape
    np.testing.assert_array_equal(feeds[0][name], random_array(shape, "int8", seed=0, position=0))
    for one, same in zip(feeds, again, strict=True):
        np.testing.assert_array_equal(one[name], same[name])
    assert all(run[name].dtype == np.int8 for run in feeds)
    assert any((one[name] != two[name]).any() for one, two in zip(feeds, other, strict=True))
    steps = np.abs(np.diff(feeds[1][name].astype(float), axis=-1)).mean()
    assert steps < np.abs(np.diff(feeds[0][name].astype(float), axis=-1)).mean() / 2


def test_rounding_is_allowed_of_floats_alone():
    """Also where other outputs are integers, however large; these must be equal."""
    floats, integers = np.asarray([1.0, 2.0], np.float32), np.asarray([10**6, 3])
    rounded = floats + np.float32(1e-6)
    assert compare_arrays([floats, integers], [rounded, integers]).rounds_alike
    assert not compare_arrays([floats, integers], [rounded, integers + 1]).rounds_alike
    assert not compare_arrays([floats, integers], [floats + np.float32(0.01), integers]).rounds_alike
    assert not compare_arrays([integers], [integers + 1]).rounds_alike
    assert compare_arrays([floats], [rounded]).rounds_alike


def test_text_that_a_network_computes_is_compared(tmp_path):
    texts = TensorProto.STRING
    for name, operator in (("as_it_is", "Identity"), ("negated", "Neg")):
        nodes = [helper.make_node(operator, ["x"], ["v"]), helper.make_node("Cast", ["v"], ["s"], to=texts)]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
        graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("s", texts, [4])])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(tmp_path / f"{name}.onnx"))
    assert compare(tmp_path / "as_it_is.onnx", tmp_path / "as_it_is.onnx").equal is True
    assert compare(tmp_path / "as_it_is.onnx", tmp_path / "negated.onnx").equal is False
