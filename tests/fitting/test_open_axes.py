"""What `fit` writes keeps every axis that the original leaves open, and computes the same at sizes nobody planned."""

import itertools
import json
import math
import re
import shlex

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import downset as ds
from downset.commands.options import parse_dims
from downset.commands.wording import command_named, worded
from downset.equivalence.prove import prove
from downset.errors import UsageError
from downset.fitting.planning import sizes_first
from downset.formats.onnx.open_axes import open_axes, other_shapes, resized
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import open_sizes
from downset.messages import Message, Setting
from downset.partial.rewrite import in_strips
from downset.partial.search import PartialLimits, partial_front
from downset.reports.fit_document import fit_document
from downset.reports.json_form import json_of
from downset.results.sessions import FILE_ORDER
from downset.runtimes import ort, targets
from tests.effort import cases
from tests.onnx_nodes import OnnxNodes

LEVELS = onnxruntime.GraphOptimizationLevel


class Net(OnnxNodes):
    """Nodes with seeded weights; inputs and outputs have symbols for open axes."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def weight(self, *shape):
        return self.constant((self.random.standard_normal(shape) / max(shape[0], 1) ** 0.5).astype(np.float32))

    def size(self, tensor, axis):
        return self.op("Gather", self.op("Shape", tensor), self.constant([axis]))

    def reshape(self, tensor, *sizes):
        parts = [each if isinstance(each, str) else self.constant([each]) for each in sizes]
        return self.op("Reshape", tensor, self.op("Concat", *parts, axis=0))

    def save(self, path, inputs, outputs):
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in group.items()]
            for group in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "open", *ends, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, str(path))
        return path


def image(path, seed):
    """Branches of an image of any size and batch: one at half the size, brought back to the size of the input."""
    net = Net(seed)
    stem = net.op("Relu", net.op("Conv", "x", net.weight(8, 3, 3, 3), pads=[1] * 4))
    small = net.op("Conv", stem, net.weight(8, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    sizes = net.op("Concat", net.size(small, 0), net.constant([8]), net.size(stem, 2), net.size(stem, 3), axis=0)
    back = net.op("Resize", net.op("Relu", small), "", "", sizes, mode="nearest")
    wide = [net.op("Relu", net.op("Conv", stem, net.weight(4, 8, 1, 1))) for _ in range(net.random.integers(1, 4))]
    joined = net.op("Concat", back, *wide, axis=1)
    last = net.op("Conv", joined, net.weight(2, 8 + 4 * len(wide), 3, 3), pads=[1] * 4)
    net.nodes.append(helper.make_node("Sigmoid", [last], ["y"], name="y"))
    sides = ["rows", "columns"]
    return net.save(path, {"x": ["batch", 3, *sides]}, {"y": ["batch", 2, *sides]}), {"x": (1, 3, 16, 20)}


def attention(net, query, key, value, width):
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
    scores = net.op("Softmax", net.op("Mul", scores, net.constant(np.float32(width**-0.5))), axis=-1)
    return net.op("MatMul", scores, value)


def gelu(net, tensor):
    """Five operators that ONNX Runtime makes one."""
    scaled = net.op("Div", tensor, net.constant(np.float32(2**0.5)))
    share = net.op("Add", net.op("Erf", scaled), net.constant(np.float32(1)))
    return net.op("Mul", net.op("Mul", tensor, share), net.constant(np.float32(0.5)))


def transformer(path, seed):
    """Two blocks over tokens, whose reshapes read the sizes of their inputs."""
    net, width = Net(seed), 16
    state = "x"
    for _ in range(2):
        flat = net.reshape(state, -1, width)
        parts = [net.op("MatMul", flat, net.weight(width, width)) for _ in range(3)]
        parts = [net.reshape(part, net.size(state, 0), net.size(state, 1), width) for part in parts]
        state = net.op("Add", state, attention(net, *parts, width))
        wide = gelu(net, net.op("MatMul", state, net.weight(width, 4 * width)))
        state = net.op("Add", state, net.op("MatMul", wide, net.weight(4 * width, width)))
    net.nodes.append(helper.make_node("Tanh", [state], ["y"], name="y"))
    return net.save(path, {"x": ["batch", "tokens", 16]}, {"y": ["batch", "tokens", 16]}), {"x": (1, 12, 16)}


def step(path, seed):
    """A step of a decoder: keys and values of the past, whose length is open, with those of one token behind them."""
    net, width = Net(seed), 8
    query, key, value = (net.op("MatMul", "x", net.weight(width, width)) for _ in range(3))
    net.nodes.append(helper.make_node("Concat", ["past_key", key], ["key"], name="key", axis=1))
    net.nodes.append(helper.make_node("Concat", ["past_value", value], ["value"], name="value", axis=1))
    made = net.op("Add", "x", attention(net, query, "key", "value", width))
    net.nodes.append(helper.make_node("MatMul", [made, net.weight(width, 5)], ["y"], name="y"))
    past = {f"past_{each}": ["batch", "past", width] for each in ("key", "value")}
    inputs = {"x": ["batch", 1, width], **past}
    outputs = {"y": ["batch", 1, 5], **{each: ["batch", "past + 1", width] for each in ("key", "value")}}
    shapes = {"x": (1, 1, width), "past_key": (1, 6, width), "past_value": (1, 6, width)}
    return net.save(path, inputs, outputs), shapes


def outputs(path, feeds, level):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.graph_optimization_level = 1, level
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def interface(path):
    graph = onnx.load(str(path), load_external_data=False).graph
    return [value.SerializeToString(deterministic=True) for value in (*graph.input, *graph.output)]


def by_tokens(path, seed):
    """Attention over tokens without a reshape that reads sizes."""
    net, width, state = Net(seed), 16, "x"
    for _ in range(2):
        parts = [net.op("MatMul", state, net.weight(width, width)) for _ in range(3)]
        state = net.op("Add", state, attention(net, *parts, width))
    net.nodes.append(helper.make_node("Tanh", [state], ["y"], name="y"))
    ends = [{name: ["batch", "tokens", width]} for name in "xy"]
    return net.save(path, *ends), {"x": (1, 96, width)}


@pytest.mark.parametrize("build", [by_tokens, transformer])
@pytest.mark.parametrize("seed", range(cases(3)))
def test_strips_of_open_tokens_compute_the_same_at_any_number_of_them(tmp_path, build, seed):
    """Also at one of which most strips have no row, and where the last strip has many more than the others."""
    path, shapes = build(tmp_path / "m.onnx", seed)
    shapes = {name: (1, 96, shape[2]) for name, shape in shapes.items()}
    fitted, random = tmp_path / "f.onnx", np.random.default_rng(seed)
    result = ds.fit(path, output=fitted, shapes=shapes, strips=6, max_recompute=1.0, time_limit_s=2)
    assert result.shipped == "strips", result.notes
    assert "batch = 1, tokens = 1" in result.outputs.other_sizes
    for tokens in (1, 2, *random.integers(3, 300, 4), 96):
        feeds = {"x": random.standard_normal((int(random.integers(1, 3)), tokens, 16)).astype(np.float32)}
        (ours,), (theirs,) = (outputs(one, feeds, LEVELS.ORT_DISABLE_ALL) for one in (fitted, path))
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Gather", "Slice"])
@pytest.mark.parametrize("place", [-1, -2, 0, 1])
def test_one_token_of_an_open_number_is_made_alone(tmp_path, kind, place):
    """As the last token's logits: by its place from either end, at any number of tokens that has it."""
    net = Net(0)
    wide = net.op("Relu", net.op("MatMul", "x", net.weight(8, 24)))
    wide = net.op("MatMul", wide, net.weight(24, 40))
    if kind == "Gather":
        net.nodes.append(helper.make_node("Gather", [wide, net.constant(np.int64(place))], ["y"], name="y", axis=1))
    else:
        bounds = [net.constant(np.array([one], np.int64)) for one in (place, place + 1 or 1 << 31, 1)]
        net.nodes.append(helper.make_node("Slice", [wide, *bounds], ["y"], name="y"))
    shape = ["batch", 40] if kind == "Gather" else ["batch", "taken", 40]
    path = net.save(tmp_path / "m.onnx", {"x": ["batch", "tokens", 8]}, {"y": shape})
    graph = ds.load(path, shapes={"x": (1, 16, 8)})
    least = partial_front(graph, memory="ort", limits=PartialLimits(time_limit_s=math.inf)).least
    assert [part.strips for part in least.segments] == [1] and least.price.extra_macs == -15 * (8 * 24 + 24 * 40)
    striped = in_strips(graph, least.segments)
    export_onnx(tmp_path / "f.onnx", striped, range(len(striped.ops)))
    assert prove(path, tmp_path / "f.onnx", shapes={"x": (1, 16, 8)}).reason == ""
    for tokens in (16, 17, 3, 2, 300):
        feeds = {"x": np.random.default_rng(tokens).standard_normal((2, tokens, 8)).astype(np.float32)}
        (ours,), (theirs,) = (outputs(one, feeds, LEVELS.ORT_DISABLE_ALL) for one in (tmp_path / "f.onnx", path))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_strips_of_an_image_of_open_rows_are_refused_where_a_strip_would_have_no_row(tmp_path):
    """ONNX Runtime computes no convolution of no rows: a fact about it, which this test would see change."""
    net = Net(0)
    wide = net.op("Relu", net.op("Conv", "x", net.weight(8, 3, 3, 3), pads=[1] * 4))
    net.nodes.append(helper.make_node("Conv", [wide, net.weight(3, 8, 3, 3)], ["y"], name="y", pads=[1] * 4))
    ends = [{name: ["batch", 3, "rows", 32]} for name in "xy"]
    path = net.save(tmp_path / "m.onnx", *ends)
    result = ds.fit(path, shapes={"x": (1, 3, 32, 32)}, strips=4, max_recompute=1.0, time_limit_s=2)
    assert result.shipped in ("original", "optimised", "order")
    assert any("rows = 16" in str(note) or "rows = 1" in str(note) for note in result.notes if "left out" in str(note))


@pytest.mark.parametrize("build", [image, transformer, step])
@pytest.mark.parametrize("seed", range(cases(15)))
def test_a_fitted_file_computes_the_same_at_any_size(tmp_path, build, seed):
    path, shapes = build(tmp_path / "m.onnx", seed)
    fitted, random = tmp_path / "f.onnx", np.random.default_rng(seed)
    result = ds.fit(path, output=fitted, shapes=shapes, time_limit_s=1)
    assert interface(fitted) == interface(path)
    assert result.shipped != "original" and not [note for note in result.notes if "left out" in note]
    assert not [note for note in result.notes if "did not follow the order" in note]  # sizes are read before all else
    assert len(result.outputs.other_sizes) == 2
    axes = open_axes(path, shapes)
    assert [axis.name for axis in result.open_axes] == [axis.name for axis in axes] and axes
    for _ in range(6):
        sizes = {axis.name: int(random.integers(1, 3 * axis.size + 3)) for axis in axes}
        feeds = {
            name: random.standard_normal(shape).astype(np.float32)
            for name, shape in resized(axes, shapes, sizes).items()
        }
        ours = outputs(fitted, feeds, LEVELS.ORT_DISABLE_ALL)
        exact = outputs(path, feeds, LEVELS.ORT_ENABLE_EXTENDED)
        for one, other in zip(ours, exact, strict=True):
            assert one.shape == other.shape
            np.testing.assert_array_equal(one, other)


def test_a_file_that_is_right_at_the_planned_sizes_alone_does_not_ship(tmp_path, monkeypatch):
    """ONNX Runtime folds sizes that are fixed while it optimises: such a file passes every run at these."""
    path, shapes = transformer(tmp_path / "m.onnx", 0)
    fold = ort.optimise_offline
    monkeypatch.setattr(targets.ort, "optimise_offline", lambda path, output: fold(path, output, shapes=shapes))
    result = ds.fit(path, output=tmp_path / "f.onnx", shapes=shapes, time_limit_s=1)
    assert result.shipped == "original" and interface(tmp_path / "f.onnx") == interface(path)
    assert [note for note in result.notes if "is left out: with batch = 1, tokens = 11" in note]


def test_bytes_for_each_step_of_an_axis_are_those_of_a_run_at_another_size(tmp_path):
    """Sums predict what a session has in use at sizes that the fit did not run."""
    path, shapes = image(tmp_path / "m.onnx", 1)
    result = ds.fit(path, output=tmp_path / "f.onnx", shapes=shapes, time_limit_s=1)
    assert [one.name for one in result.growth] == ["batch", "rows", "columns"]
    found = json_of(fit_document(result))
    assert found["open_axes"] == [{"name": axis.name, "size": axis.size} for axis in result.open_axes]
    for one, row in zip(result.growth, found["growth"], strict=True):
        assert row["bytes_each"] == (one.other_bytes - one.in_use_bytes) / (one.other_size - one.size) > 0
        beyond = one.other_size + 2 * (one.other_size - one.size)
        other = resized(result.open_axes, shapes, {one.name: beyond})
        (taken,) = ort.measure_sessions(tmp_path / "f.onnx", [result.session], shapes=other)
        expected = one.in_use_bytes + one.bytes_each * (beyond - one.size)
        assert abs(taken.peak_bytes - expected) < 0.1 * expected
    detail = fit_document(result).verdict.detail
    assert "at batch = 1, rows = 16, columns = 20" in detail and "for each rows" in detail


def test_what_is_proven_names_its_sizes(tmp_path):
    path, shapes = transformer(tmp_path / "m.onnx", 2)
    result = ds.fit(path, shapes=shapes, time_limit_s=1)
    headline = fit_document(result).verdict.headline
    assert ("(proven for batch = 1, tokens = 12)" in headline) == ("proven" in headline)
    fixed = onnx.load(str(path))
    for value in fixed.graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            dim.dim_value = extent
    onnx.save(fixed, str(tmp_path / "fixed.onnx"))
    closed = ds.fit(tmp_path / "fixed.onnx", time_limit_s=1)
    assert closed.open_axes == () and closed.growth == () and closed.outputs.other_sizes == ()


def test_rows_cut_at_the_planned_sizes_do_not_ship_where_rows_are_open(tmp_path):
    """They ship where the batch alone is open: any batch runs."""
    net = Net(0)
    first = net.op("Conv", "x", net.weight(8, 2, 3, 3), pads=[1] * 4)
    net.nodes.append(helper.make_node("Conv", [first, net.weight(2, 8, 3, 3)], ["y"], pads=[1] * 4, name="y"))
    shapes = {"x": (1, 2, 24, 24)}
    for rows, kept in (("rows", False), (24, True)):
        path = net.save(tmp_path / f"{rows}.onnx", {"x": ["n", 2, rows, 24]}, {"y": ["n", 2, rows, 24]})
        result = ds.fit(path, output=tmp_path / "f.onnx", shapes=shapes, max_recompute=1.0, time_limit_s=2)
        assert interface(tmp_path / "f.onnx") == interface(path)
        assert (result.shipped == "strips") is kept, result.notes
        refused = [note for note in result.notes if note.startswith("the strips") and "left out: with n = " in note]
        assert bool(refused) is not kept
        feeds = {"x": np.random.default_rng(0).standard_normal((3, 2, 24, 24)).astype(np.float32)}
        ours, theirs = (outputs(each, feeds, LEVELS.ORT_DISABLE_ALL)[0] for each in (tmp_path / "f.onnx", path))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_every_axis_is_made_smaller_and_larger(tmp_path):
    path, shapes = step(tmp_path / "m.onnx", 0)
    axes = open_axes(path, shapes)
    assert {axis.name: (axis.size, len(axis.places)) for axis in axes} == {"batch": (1, 3), "past": (6, 2)}
    for larger, tried in ((larger, list(other_shapes(axes, shapes, larger=larger))) for larger in (False, True)):
        moved = {name: {one[name][1] for one in tried} for name in ("past_key", "past_value")}
        assert moved["past_key"] == moved["past_value"] and len(moved["past_key"]) > 1
        assert all((size > 6) if larger else (1 <= size < 6) for size in moved["past_key"] - {6})
        assert all(one["x"][1:] == (1, 8) and min(itertools.chain(*one.values())) >= 1 for one in tried)
        assert all(one != shapes for one in tried)


@pytest.mark.parametrize("build", [image, transformer])
def test_onnx_runtime_runs_the_order_of_the_file_also_where_sizes_are_read(tmp_path, build):
    """It moves a Shape before all that could run as early, so a file with a Shape elsewhere does not run as written."""
    path, shapes = build(tmp_path / "m.onnx", 0)
    graph, random, moved = ds.load(path, shapes=shapes), np.random.default_rng(0), 0
    before = graph.predecessors()
    for number in range(4):
        steps: list[int] = []
        while len(steps) < len(graph.ops):
            ready = [at for at in range(len(graph.ops)) if at not in steps and all(one in steps for one in before[at])]
            steps.append(ready[random.integers(len(ready))])
        ran = []
        for order in (tuple(steps), sizes_first(graph, steps)):
            written = tmp_path / f"{number}.onnx"
            export_onnx(written, graph, order)
            (taken,) = ort.measure_sessions(written, [FILE_ORDER], shapes=shapes)
            ran.append(list(taken.executed) == [graph.ops[step].name for step in order])
        assert ran[1]
        moved += not ran[0]
    assert moved


def test_a_range_is_planned_for_its_largest_and_measured_within(tmp_path):
    """Every point of the curve is what a session has in use that is opened for it."""
    path, _ = transformer(tmp_path / "m.onnx", 3)
    result = ds.fit(path, output=tmp_path / "f.onnx", dims={"tokens": range(2, 33)}, time_limit_s=1)
    fixed = ds.fit(path, dims={"tokens": 32}, time_limit_s=1)
    assert result.peak.before == fixed.peak.before, "planned for the largest"
    (growth,) = result.growth
    assert (growth.name, growth.size, growth.other_size) == ("tokens", 32, 2)
    assert [size for size, _ in growth.curve] == [2, 9, 17, 24, 32]
    for size, nbytes in growth.curve:
        shapes = {"x": (1, size, result.graph.tensors[result.graph.inputs[0]].shape[2])}
        (taken,) = ort.measure_sessions(tmp_path / "f.onnx", [result.session], shapes=shapes)
        assert taken.peak_bytes == nbytes, size
    assert result.outputs.other_sizes == () or "tokens = 2" in result.outputs.other_sizes[0]
    assert "at tokens = 17" in fit_document(result).verdict.detail
    (row,) = json_of(fit_document(result))["growth"]
    assert [tuple(point) for point in row["curve"]] == list(growth.curve)


def test_a_step_of_a_fit_with_ranges_and_files_can_be_printed_and_typed(tmp_path, run):
    """It repeats the ranges, which no shape contradicts, and the names of files as texts."""
    path, _ = transformer(tmp_path / "m.onnx", 0)
    inputs = [tmp_path / "x.npy"]
    np.save(inputs[0], np.ones((1, 32, 16), np.float32))
    dims = {"batch": 1, "tokens": range(1, 33)}
    document = json_of(fit_document(ds.fit(path, dims=dims, inputs=inputs, time_limit_s=1)))
    settings = [setting for told in document["next_steps"] for setting in told["settings"]]
    assert {"name": "dims", "value": {"batch": 1, "tokens": "1..32"}} in settings
    assert {"name": "inputs", "value": [str(inputs[0])]} in settings and json.dumps(document)
    _, out, _ = run("fit", path, "--dim", "tokens=1..32", "--input", inputs[0], "--time-limit", "1s")
    typed = re.findall(r"downset (fit [^()]*)\)", out)
    assert typed and all("--dim tokens=1..32" in one for one in typed), out
    status, _, error = run(*shlex.split(typed[0]))
    assert status == 0, error


def test_a_file_that_is_wrong_at_the_least_size_of_a_range_does_not_ship(tmp_path, monkeypatch):
    path, shapes = transformer(tmp_path / "m.onnx", 0)
    fold = ort.optimise_offline
    monkeypatch.setattr(targets.ort, "optimise_offline", lambda path, output: fold(path, output, shapes=shapes))
    tokens = shapes["x"][1]
    result = ds.fit(path, dims={"tokens": range(tokens - 3, tokens + 1)}, time_limit_s=1)
    assert result.shipped == "original"
    assert [note for note in result.notes if f"with batch = 1, tokens = {tokens - 3}" in note]


@pytest.mark.parametrize("wrong", [range(4, 4), range(5, 6), range(4), range(8, 2), range(1, 9, 2)])
def test_a_range_that_is_none_is_one_line(wrong, tmp_path):
    path, _ = transformer(tmp_path / "m.onnx", 0)
    with pytest.raises(UsageError, match="a range goes from a size above 0 to a larger one"):
        ds.fit(path, dims={"tokens": wrong})
    with pytest.raises(UsageError, match="a range is that of one size"):
        ds.fit(path, dims={"*": range(1, 9)})
    for refuses in (ds.load, open_sizes):
        with pytest.raises(UsageError, match=r"only `downset\.fit` takes a range"):
            refuses(path, dims={"tokens": range(1, 9)})


@pytest.mark.parametrize("command", ["inspect", "order", "stage", "verify", "split", "fit"])
def test_every_other_command_says_that_only_fit_takes_ranges(command, tmp_path, run):
    path, _ = transformer(tmp_path / "m.onnx", 0)
    more = {"verify": [path], "split": ["--cluster", "rpi_8"], "fit": ["--time-limit", "1s"]}.get(command, [])
    status, _, error = run(command, path, *more, "--dim", "tokens=1..8")
    assert (status == 0) is (command == "fit")
    if command != "fit":
        assert status == 2
        assert error.count("\n") == 1 and "--dim tokens=1..8: only `downset fit` takes a range" in error


def test_a_session_refuses_sizes_beyond_the_planned_range(tmp_path):
    """In one line, and runs all within; C++ says that it does not check."""
    path, _ = transformer(tmp_path / "m.onnx", 3)
    program = tmp_path / "open.py"
    ranges = {"tokens": range(2, 17)}
    result = ds.fit(path, output=tmp_path / "f.onnx", session=program, dims=ranges, time_limit_s=1)
    width = result.graph.tensors[result.graph.inputs[0]].shape[2]
    names = {"__file__": str(program), "__name__": "opened"}
    exec(program.read_text(), names)
    session = names["open_session"]()
    for size in (1, 2, 9, 16, 17, 40):
        x = np.ones((1, size, width), np.float32)
        if 2 <= size <= 16:
            assert session.run(None, {"x": x})[0].shape[1] == size
        else:
            with pytest.raises(ValueError, match=f"^tokens is {size}: the file was planned for 2 to 16; [^\n]*$"):
                session.run(None, {"x": x})
    ds.fit(path, output=tmp_path / "g.onnx", session=tmp_path / "open.cc", dims=ranges, time_limit_s=1)
    assert "Missing here: a check that tokens is from 2 to 16" in (tmp_path / "open.cc").read_text()


def test_the_command_line_takes_and_types_ranges():
    assert parse_dims(["a=1..8", "b=3", "c=4..4"]) == {"a": range(1, 9), "b": 3, "c": 4}
    command = worded(Message("", Setting("dims", {"a": range(1, 9), "b": 3})), command_named("fit"))
    assert str(command).split() == ["--dim", "a=1..8", "--dim", "b=3"]
    for wrong in ("a=8..1", "a=1..", "a=..4", "a=1..2..3", "a=0..3", "a=1...3"):
        with pytest.raises(UsageError):
            parse_dims([wrong])
    with pytest.raises(UsageError, match=r"contradicts --dim a=1\.\.8"):
        parse_dims(["a=1..8", "a=1..9"])
