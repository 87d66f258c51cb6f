"""Branches as streams of ONNX Runtime: each node once, behind what it reads; a file only where it is faster."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner

import downset as ds
from downset.commands.group import downset as command
from downset.results.sessions import SessionSettings
from downset.runtimes import ort
from downset.tuning.ort_streams import OPTION, StreamsTimed, stream_names, time_streams
from tests.fuzz.campaign import GRAPH
from tests.networks import branchy


@pytest.fixture
def model(tmp_path):
    return branchy(tmp_path / "m.onnx")


def clock(monkeypatch, streams_s):
    """ONNX Runtime's sessions take so many seconds with streams and one without. Lists the sessions of each timing."""
    seen = []

    def seconds(sessions, *, rounds, shapes, seed, latency):
        assert latency
        seen.append([settings for _, settings in sessions])
        table = np.full((rounds[0], len(sessions)), streams_s)
        table[:, 0] = 1.0
        return table

    monkeypatch.setattr(ort, "session_seconds", seconds)
    return seen


def test_streams_hold_every_node_once_behind_what_it_reads(model, tmp_path):
    ort.optimise_as(model, tmp_path / "optimised.onnx", SessionSettings("plain", {}))
    nodes = onnx.load(str(tmp_path / "optimised.onnx")).graph.node
    lanes = stream_names(nodes, 2)
    assert len(lanes) == 2
    assert sorted(name for lane in lanes for name in lane) == sorted(node.name for node in nodes)
    made_by = {tensor: node.name for node in nodes for tensor in node.output}
    for node in nodes:
        (lane,) = (lane for lane in lanes if node.name in lane)
        before = {made_by[tensor] for tensor in node.input if tensor in made_by} & set(lane)
        assert before <= set(lane[: lane.index(node.name)])


def test_what_a_body_reads_comes_before_its_node():
    body = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["late"], ["inner"])], "body", [], [])
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["late"], name="late"),
        onnx.helper.make_node("Abs", ["x"], ["side"], name="side"),
        onnx.helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body),
    ]
    (lane,) = (lane for lane in stream_names(nodes, 2) if "if" in lane)
    assert lane == ("late", "if")  # without the body's read it would run at the same time as the two others


def test_a_node_without_a_name_of_its_own_is_no_entry():
    nodes = [onnx.helper.make_node("Relu", ["x"], [name], name="same") for name in "ab"]
    with pytest.raises(ds.UnsupportedError, match="lists of names"):
        stream_names(nodes, 2)


def test_the_file_is_written_where_streams_are_faster_and_the_users_session_takes_it(model, tmp_path, monkeypatch):
    seen = clock(monkeypatch, 0.5)
    out = tmp_path / "streams.json"
    said = stage(model, "--ort-streams", out)
    assert "faster in 15 of 15" in said
    assert [len(sessions) for sessions in seen] == [3, 2]  # the faster of two is timed again
    assert seen[1][0].options == {"intra_op_num_threads": 2}  # against ONNX Runtime's default
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    assert "execution_mode=ORT_PARALLEL, intra_op_num_threads=1, inter_op_num_threads=3" in said
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 3
    options.add_session_config_entry(OPTION, str(out))
    assert OPTION in said
    x = np.random.default_rng(0).standard_normal((1, 6, 9, 9), np.float32)
    plain = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (ours,) = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(ours, plain.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
    content = json.loads(out.read_text())
    content["streams"][0][0] = "no such node"
    out.write_text(json.dumps(content))
    with pytest.raises(Exception, match="node"):  # so it is read
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def stage(model, *options):
    wanted = ("--threads", "2", "--budget-timings", "1", "--no-profiles", "-q")
    done = CliRunner().invoke(command, ["stage", str(model), *wanted, *map(str, options)])
    assert done.exit_code == 0, done.output
    return done.output


def test_nothing_is_written_where_streams_are_not_faster(model, tmp_path, monkeypatch):
    clock(monkeypatch, 1.1)
    out = tmp_path / "streams.json"
    (note,) = [line for line in json.loads(stage(model, "--ort-streams", out, "--json"))["notes"] if "streams" in line]
    assert "faster in 0 of 15" in note
    assert note.endswith("nothing was written") and "quiet machine" not in note
    assert not out.exists()


def test_what_is_not_written_is_named_with_the_reason(model, tmp_path, monkeypatch):
    clock(monkeypatch, 1.1)
    out = tmp_path / "streams.json"
    options = ("--threads", "2", "--budget-timings", "1", "--no-profiles", "--ort-streams", str(out))
    said = CliRunner().invoke(command, ["stage", str(model), *options]).output
    assert f"not written: {out} (streams were slower in each of 15 rounds)" in said and f"written: {out} (s" not in (
        said.replace("not written", "")
    )
    clock(monkeypatch, 0.5)
    said = CliRunner().invoke(command, ["stage", str(model), *options]).output
    assert f"written: {out} (streams for ONNX Runtime)" in said and "not written" not in said


@pytest.mark.parametrize(
    ("seconds", "difference", "kept", "says"),
    [
        ([(1.0, 0.9)] * 12 + [(1.0, 1.1)] * 3, 0.0, True, "faster in 12 of 15"),
        ([(1.0, 0.9)] * 11 + [(1.0, 1.1)] * 4, 0.0, False, "streams were not faster beyond the spread, so"),
        ([(1.0, 0.5), (2.0, 0.5), (1.0, 0.5)] * 5, 0.0, False, "vary too much"),
        ([(1.0, 9.0), (2.0, 9.0), (1.0, 9.0)] * 5, 0.0, False, "streams were slower in each of 15 rounds, so nothing"),
        ([(1.0, 0.5)] * 15, 0.1, False, "outputs differ"),
        ([(1.0, 0.5)] * 15, float("nan"), False, "outputs differ"),
    ],
)
def test_the_rule(seconds, difference, kept, says):
    timed = StreamsTimed((("a",), ("b",)), {}, tuple(seconds), difference)
    assert timed.kept is kept
    assert says in str(timed)


def test_streams_of_a_gpu_hold_nodes_of_one_device_each(model, tmp_path, monkeypatch):
    """A stand-in for ONNX Runtime with a GPU: it says where nodes run, and the file divides them by device."""
    seen = clock(monkeypatch, 0.5)
    ort.optimise_as(model, tmp_path / "optimised.onnx", SessionSettings("plain", {}))
    nodes = onnx.load(str(tmp_path / "optimised.onnx")).graph.node
    names = [node.name for node in nodes]
    on_cpu = names[len(names) // 2]
    placed = {"copy_in": "CUDAExecutionProvider"} | {
        name: "CPUExecutionProvider" if name == on_cpu else "CUDAExecutionProvider" for name in names
    }
    monkeypatch.setattr(ort, "placed_nodes", lambda *_, **__: placed)
    # Names that optimisation makes differ from load to load.
    monkeypatch.setattr(ort, "optimise_as", lambda _, out, __: shutil.copy(tmp_path / "optimised.onnx", out))
    monkeypatch.setattr(ort, "outputs_apart", lambda _, settings, **__: [0.0] * len(settings))
    timed = time_streams(model, threads=2, device="cuda")
    content = json.loads(timed.content())
    assert sorted(name for stream in content["streams"] for name in stream) == sorted(placed)
    assert content["devices"].count("1") > 1 and content["devices"].count("0") == 1
    for stream, device in zip(content["streams"], content["devices"], strict=True):
        assert {placed[name] for name in stream} == {
            "CUDAExecutionProvider" if device == "1" else "CPUExecutionProvider"
        }
        order = [name for lane in stream_names(nodes, 8) for name in lane if name in stream]
        assert len(stream) == 1 or list(stream) == order  # each stream keeps the order of its lane
    assert all("CUDAExecutionProvider" in settings.providers for sessions in seen for settings in sessions)
    assert timed.kept and "1.14" in str(timed) and onnxruntime.__version__ in str(timed)


def test_a_missing_gpu_provider_is_one_line(model):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has a GPU")
    with pytest.raises(ds.UnsupportedError, match="has no CUDAExecutionProvider"):
        time_streams(model, threads=2, device="cuda")


def test_a_chain_has_no_streams(tmp_path):
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xz"]
    nodes = [onnx.helper.make_node("Sin", ["x"], ["y"], name="a"), onnx.helper.make_node("Cos", ["y"], ["z"], name="b")]
    chain = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "chain", value[:1], value[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(chain, str(tmp_path / "chain.onnx"))
    timed = time_streams(tmp_path / "chain.onnx", threads=2)
    assert not timed.kept
    assert "no branches" in str(timed)


def test_mistakes_are_said_before_anything_is_measured(model, tmp_path):
    def refused(*options, says):
        done = CliRunner().invoke(command, ["stage", *map(str, options)])
        assert isinstance(done.exception, ds.UsageError)
        assert says in str(done.exception)

    out = tmp_path / "s.json"
    refused(model, "--ort-streams", model, says="being read")
    refused(model, "--ort-streams", tmp_path / "no" / "s.json", says="output directory")
    refused(model, "--ort-streams", out, "--batch", "2", says="--batch")
    refused(model, "--ort-streams", out, "-o", out, says="both name")
    (tmp_path / "g.json").write_text(json.dumps(GRAPH))
    refused(tmp_path / "g.json", "--ort-streams", out, says=".onnx")


def test_a_network_without_stages_gets_its_streams(tmp_path, monkeypatch):
    """Streams are nodes of ONNX Runtime, which need no kernel of ours."""
    nodes = [
        onnx.helper.make_node("Celu", ["x"], ["a"], name="a"),
        onnx.helper.make_node("Det", ["x"], ["d"], name="d"),
    ]
    nodes += [onnx.helper.make_node("Add", ["a", "d"], ["y"], name="y")]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 3]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path, out = tmp_path / "m.onnx", tmp_path / "streams.json"
    onnx.save(model, str(path))
    clock(monkeypatch, 0.5)
    command_of = ("stage", str(path), "--threads", "2", "--no-profiles")
    done = CliRunner().invoke(command, [*command_of, "--ort-streams", str(out)])
    assert done.exit_code == 0, done.output
    assert "note: no stages are planned: no kernel for operator" in done.output
    assert f"written: {out} (streams for ONNX Runtime)" in done.output
    assert sorted(name for stream in json.loads(out.read_text())["streams"] for name in stream) == ["a", "d", "y"]
    done = CliRunner().invoke(command, [*command_of, "--ort-streams", str(out), "-o", str(tmp_path / "p.json")])
    assert isinstance(done.exception, ds.UnsupportedError)
    assert not (tmp_path / "p.json").exists()
