"""`downset stage`, `run` and `profiles` as a user meets them."""

import json
import re

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

from downset.commands.group import downset as command
from downset.errors import DownsetError, InvalidPlan, UnsupportedError
from downset.executor.device import open_device
from downset.executor.stage_engine import check_plan
from downset.formats.plan_json import decode_plan
from downset.formats.reading import load
from downset.runtimes import ort
from downset.stages.prepared import prepare
from tests.cli.test_cli import SCHEMAS
from tests.command import completed, output_of
from tests.networks import branchy, random_network


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A model, a plan for it, and the cache that its making filled."""
    folder = tmp_path_factory.mktemp("staged")
    model = branchy(folder / "m.onnx")
    env = {"DOWNSET_CACHE": str(folder / "cache")}
    options = ("--threads", "2", "--budget-timings", "20", "--runs", "15")
    done = completed("stage", model, *options, "-o", folder / "plan.json", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return model, folder / "plan.json", env, json.loads(done.stdout)


def test_stage_prints_its_schema_and_keeps_its_timings(staged, monkeypatch):
    model, plan, env, printed = staged
    monkeypatch.setenv("DOWNSET_CACHE", env["DOWNSET_CACHE"])
    jsonschema.validate(printed, json.loads((SCHEMAS / "stage.json").read_text()))
    assert json.loads(plan.read_text())["kind"] == "stages"
    assert printed["timings_used"] > 0
    listed = json.loads(output_of("profiles", "list", "--json"))
    assert sum(row["timings"] for row in listed["profiles"]) == kept(printed)
    options = ("--threads", "2", "--budget-timings", "20", "--runs", "15", "--json")
    again = json.loads(output_of("stage", model, *options))
    if kept(printed):
        assert again["timings_used"] <= 20  # units are not timed again, whatever else is looked at
    listed = json.loads(output_of("profiles", "list", "--json"))
    forgotten = any("were removed" in note for note in again["notes"])
    assert forgotten or sum(row["timings"] for row in listed["profiles"]) == kept(printed) + kept(again)


def kept(printed):
    """How many timings a run keeps: none where it says that the machine was not quiet."""
    loud = any("not kept" in note or "were not kept" in note for note in printed["notes"])
    return 0 if loud else printed["timings_used"]


def test_other_runtimes_are_timed_in_the_same_rounds(staged):
    *_, printed = staged
    assert [row["name"] for row in printed["peers"]] == ["downset", "PyTorch", "ONNX Runtime"]
    assert all(0 < row["p10_s"] <= row["p50_s"] <= row["p90_s"] for row in printed["peers"])


def test_stage_prints_a_table(staged, monkeypatch):
    model, _, env, printed = staged
    monkeypatch.setenv("DOWNSET_CACHE", env["DOWNSET_CACHE"])
    screen = output_of("stage", model, "--threads", "2", "--budget-timings", "1", "--runs", "15")
    for word in (
        "sequential",
        "p50",
        "speed-up",
        "bound:",
        "runtimes, in rounds with rests between them",
        "ONNX Runtime",
        "PyTorch",
    ):
        assert word in screen
    (taken,) = re.findall(r"│ (\w[\w, ]*?) \* +│", screen)  # the row with the star is what the first line says
    assert screen.startswith("One after another is kept: " if taken == "sequential" else f"{taken} chosen: ")
    assert printed["chosen"] in [candidate["name"] for candidate in printed["candidates"]]


def test_run_by_the_plan_and_check(staged, tmp_path):
    model, plan, *_ = staged
    value = np.random.default_rng(0).standard_normal((1, 6, 9, 9), dtype=np.float32)
    np.save(tmp_path / "x.npy", value)
    options = ("--input", tmp_path / "x.npy", "--check", "--json", "--runs", "2", "--output", tmp_path / "y.npz")
    printed = json.loads(output_of("run", model, "--plan", plan, *options))
    jsonschema.validate(printed, json.loads((SCHEMAS / "run.json").read_text()))
    assert printed["max_relative_error"] < 1e-4
    (name,) = np.load(tmp_path / "y.npz").files
    assert np.load(tmp_path / "y.npz")[name].shape == (1, 10, 1, 1)


def test_a_batch_of_its_own(staged, tmp_path, monkeypatch):
    model, _, env, _ = staged
    monkeypatch.setenv("DOWNSET_CACHE", env["DOWNSET_CACHE"])
    options = ("--threads", "2", "--budget-timings", "5", "--runs", "15")
    output_of("stage", model, "--batch", "3", *options, "-o", tmp_path / "p3.json")
    output_of("run", model, "--plan", tmp_path / "p3.json", "--check")


def test_a_batch_fixes_a_first_axis_that_is_open(staged, tmp_path, fails):
    model, *_ = staged
    whole = onnx.load(str(model))
    whole.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    for value in (*whole.graph.value_info, *whole.graph.output):
        value.type.tensor_type.ClearField("shape")
    onnx.save(whole, str(tmp_path / "open.onnx"))
    options = ("--threads", "2", "--budget-timings", "1", "--no-profiles", "--json")
    printed = json.loads(
        output_of("stage", tmp_path / "open.onnx", *options, "--batch", "3", "-o", tmp_path / "p.json")
    )
    assert printed["batch"] == 3 and not any("ONNX Runtime was not timed" in note for note in printed["notes"])
    for sizes in ((), ("--shape", "x=3,6,9,9")):  # the plan states the batch
        output_of("run", tmp_path / "open.onnx", "--plan", tmp_path / "p.json", *sizes, "--check")
    fails(4, "run", tmp_path / "open.onnx", "--plan", tmp_path / "p.json", "--shape", "x=2,6,9,9", says="batch 3")
    # What --shape gives stands, and other open axes are still asked for.
    printed = json.loads(output_of("stage", tmp_path / "open.onnx", *options, "--shape", "x=2,6,9,9", "--batch", "3"))
    assert printed["batch"] == 3
    whole.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(whole, str(tmp_path / "open.onnx"))
    fails(5, "stage", tmp_path / "open.onnx", *options[:-1], "--batch", "3", says="height")
    fails(5, "stage", tmp_path / "none.onnx", "--batch", "3", says="none.onnx")


def test_a_candidate_is_asked_for_by_its_name(staged, tmp_path, monkeypatch, fails):
    model, *_ = staged
    monkeypatch.setattr("downset.tuning.tune.time_peers", lambda *_, **__: ({}, []))
    options = ("--threads", "2", "--budget-timings", "1", "--no-profiles", "--candidate", "greedy")
    screen = output_of("stage", model, *options, "-o", tmp_path / "g.json", "--report", tmp_path / "g.html")
    assert screen.startswith("greedy taken, as asked for: ") and "\nit was asked for, and was " in screen
    assert decode_plan((tmp_path / "g.json").read_bytes()).evidence.method == "greedy"
    assert "greedy taken, as asked for" in (tmp_path / "g.html").read_text()
    output_of("run", model, "--plan", tmp_path / "g.json", "--check")
    fails(2, "stage", tmp_path / "none.onnx", "--candidate", "greed", says="did you mean 'greedy'?")


def test_mistakes_are_one_line(staged, tmp_path, fails):
    model, plan, *_ = staged
    other = random_network(tmp_path / "other.onnx", seed=1)
    fails(4, "run", other, "--plan", plan, says="model")
    fails(5, "run", model, "--plan", tmp_path / "none.json", says="none.json")
    (tmp_path / "order.json").write_text('{"kind": "order", "schema": 1, "steps": [], "memory": "live"}')
    fails(5, "run", model, "--plan", tmp_path / "order.json")
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY nonsense")
    fails(5, "run", model, "--plan", plan, "--input", tmp_path / "bad.npy", says="bad.npy")
    np.save(tmp_path / "wrong.npy", np.zeros((2, 2), np.float32))
    fails(2, "run", model, "--plan", plan, "--input", tmp_path / "wrong.npy", says="[1, 6, 9, 9]")
    fails(2, "stage", model, "--max-ops", "0", says="--max-ops")
    fails(2, "stage", model, "--batch", "0", says="batch")
    fails(2, "stage", model, "--runs", "14", says="--runs")
    fails(5, "stage", tmp_path / "none.onnx", says="none.onnx")
    # What is wrong with the output is said before anything is loaded, let alone measured.
    fails(2, "stage", tmp_path / "none.onnx", "-o", tmp_path / "no" / "p.json", says="output directory")
    fails(2, "stage", model, "-o", model, says="being read")
    fails(2, "run", tmp_path / "none.onnx", "--plan", plan, "--output", tmp_path / "no" / "o.npz", says="directory")
    if not torch.cuda.is_available():
        fails(5, "stage", model, "--device", "cuda", says="no CUDA device")
    assert not list(tmp_path.glob("*.part"))


def refused(status, *arguments, says):
    """As `fails`, in this process. The message."""
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])
    mistake = isinstance(done.exception, DownsetError)
    assert (done.exception.exit_code if mistake else done.exit_code) == status
    assert mistake or isinstance(done.exception, SystemExit)
    message = str(done.exception) if mistake else done.output
    assert says in message
    return message


def test_what_is_read_is_never_written_over(staged, tmp_path):
    model, plan, *_ = staged
    mine, kept = tmp_path / "m.onnx", tmp_path / "plan.json"
    mine.write_bytes(model.read_bytes())
    kept.write_bytes(plan.read_bytes())
    np.save(tmp_path / "x.npy", np.zeros((1, 6, 9, 9), np.float32))
    (tmp_path / "link.npz").symlink_to(kept)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("m.onnx", "plan.json", "x.npy", "link.npz"):
        options = ("--input", tmp_path / "x.npy", "--output", tmp_path / name)
        refused(2, "run", mine, "--plan", kept, *options, says="is the file being read; choose another name")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_weights_beside_the_model_are_not_written_over(staged, tmp_path):
    model, plan, *_ = staged
    mine, weights = tmp_path / "m.onnx", tmp_path / "m.bin"
    whole = onnx.load(str(model))
    onnx.save(whole, str(mine), save_as_external_data=True, location="m.bin", size_threshold=0)
    before = weights.read_bytes()
    refused(2, "stage", mine, "--no-profiles", "-o", weights, says="is the file being read")
    refused(2, "run", mine, "--plan", plan, "--output", weights, says="is the file being read")
    assert weights.read_bytes() == before
    output_of("run", mine, "--plan", plan, "--output", tmp_path / "o.npz")


def test_names_that_numpy_takes_for_its_own(tmp_path):
    """`numpy.savez` has parameters of these names. The result of one, of truth values, has no range to print."""
    path = tmp_path / "m.onnx"
    given = onnx.helper.make_tensor_value_info("file", onnx.TensorProto.FLOAT, [1, 3])
    nodes = [
        onnx.helper.make_node("Relu", ["file"], ["allow_pickle"]),
        onnx.helper.make_node("Greater", ["allow_pickle", "file"], ["more"]),
    ]
    made = [
        onnx.helper.make_tensor_value_info("allow_pickle", onnx.TensorProto.FLOAT, [1, 3]),
        onnx.helper.make_tensor_value_info("more", onnx.TensorProto.BOOL, [1, 3]),
    ]
    graph = onnx.helper.make_graph(nodes, "named", [given], made)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), str(path))
    output_of("stage", path, "--threads", "1", "--no-profiles", "-o", tmp_path / "p.json")
    np.save(tmp_path / "x.npy", np.array([[-1.0, 2.0, -3.0]], np.float32))
    options = ("--input", tmp_path / "x.npy", "--output", tmp_path / "o.npz", "--check")
    assert "from 0 to 2" in output_of("run", path, "--plan", tmp_path / "p.json", *options)
    kept = np.load(tmp_path / "o.npz")
    assert kept["allow_pickle"].tolist() == [[0.0, 2.0, 0.0]]
    assert kept["more"].tolist() == [[True, False, True]]


def test_what_another_library_says_is_cut_between_words(tmp_path):
    """ONNX Runtime lists all inputs, then says what to do."""
    names = [f"input_with_a_long_name_{at}" for at in range(20)]
    given = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in names]
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Sum", names, ["y"])], "sum", given, [made])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(UnsupportedError, match="ONNX Runtime cannot run it") as caught:
        ort.run_on(tmp_path / "m.onnx", {"x": np.zeros(1, np.float32)})
    said = str(caught.value)
    assert len(said) < 350
    *_, last, dots = said.split()
    assert dots == "..."
    assert last.strip("(){}[],'") in {*names, "Required", "inputs", "are", "missing", "from", "input", "feed"}


def test_numbers_that_are_none_of_the_options(staged, fails):
    model, plan, *_ = staged
    refused(2, "run", model, "--plan", plan, "--seed", "-1", says="--seed")
    refused(2, "run", model, "--plan", plan, "--runs", "0", says="--runs")
    refused(2, "run", model, "--plan", plan, "--runs", "9999999999", says="--runs")
    refused(2, "stage", model, "--threads", "100000", says="threads must be from 1 to 1024")
    refused(2, "stage", model, "--max-ops", "1" + "0" * 20, says="--max-ops must be from 1 to")
    fails(6, "stage", model, "--threads", "2", "--no-profiles", "--batch", "100000000000", says="and this machine has")


def test_inputs_that_are_no_arrays(staged, tmp_path):
    model, plan, *_ = staged
    run = ("run", model, "--plan", plan, "--input")
    assert "pickle" not in refused(5, *run, model, says="is not a .npy")
    np.savez(tmp_path / "several.npz", np.zeros((1, 6, 9, 9)))
    refused(5, *run, tmp_path / "several.npz", says="is not a .npy")
    np.save(tmp_path / "objects.npy", np.full((1, 6, 9, 9), None), allow_pickle=True)
    assert "allow_pickle" not in refused(5, *run, tmp_path / "objects.npy", says="Python objects")
    for name, value in (("text", "a"), ("complex", 1j)):
        np.save(tmp_path / f"{name}.npy", np.full((1, 6, 9, 9), value))
        refused(2, *run, tmp_path / f"{name}.npy", says="cannot take")


def test_nan_is_not_lost(staged, tmp_path):
    model, plan, *_ = staged
    np.save(tmp_path / "nan.npy", np.full((1, 6, 9, 9), np.nan, np.float32))
    assert "10 of 10 not a number" in output_of(
        "run", model, "--plan", plan, "--input", tmp_path / "nan.npy", "--check"
    )


def test_other_sizes_than_the_file_s(staged, tmp_path):
    """Of a model that fixes them, in its results too: planned, run and compared."""
    model, plan, *_ = staged
    options = ("--threads", "2", "--budget-timings", "1", "--no-profiles")
    shape = ("--shape", "x=1,6,14,12")
    output_of("stage", model, *options, *shape, "-o", tmp_path / "p.json")
    screen = output_of("run", model, "--plan", tmp_path / "p.json", *shape, "--check")
    difference = r"largest difference from ONNX Runtime, as a share of the largest value: (\S+) \(allowed: (\S+)\)"
    share, allowed = map(float, re.search(difference, screen).groups())
    assert share <= allowed == 1e-3
    refused(4, "run", model, "--plan", tmp_path / "p.json", says="another model")
    output_of("stage", model, *options, "--batch", "3", "-o", tmp_path / "p3.json")
    for batch in (1, 3):
        sizes = ("--shape", f"x={batch},6,9,9")
        assert "[3, 10, 1, 1]" in output_of("run", model, "--plan", tmp_path / "p3.json", *sizes, "--check")
    refused(
        4,
        "run",
        model,
        "--plan",
        tmp_path / "p3.json",
        "--shape",
        "x=2,6,9,9",
        says="batch 3; the sizes given are for 2",
    )
    refused(4, "run", model, "--plan", plan, "--shape", "x=2,6,9,9", says="batch 1; the sizes given are for 2")


def test_advice_names_options_that_there_are(staged, tmp_path, monkeypatch):
    model, plan, *_ = staged
    if not torch.cuda.is_available():
        (tmp_path / "cuda.json").write_text(json.dumps({**json.loads(plan.read_text()), "device": "cuda"}))
        refused(5, "run", model, "--plan", tmp_path / "cuda.json", says="`downset stage --device cpu`")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path / "file"))
    refused(5, "profiles", "list", says="`downset stage --no-profiles`")


def test_a_tampered_plan_is_refused(staged, tmp_path, fails):
    model, plan, *_ = staged
    whole = json.loads(plan.read_text())
    cases = {
        "a unit runs twice": lambda p: p["stages"].append(p["stages"][-1]),
        "a stage is missing": lambda p: p["stages"].pop(),
        "backwards": lambda p: p["stages"].reverse(),
        "an operator in two units": lambda p: p["units"][0].append(p["units"][1][0]),
        "no operator": lambda p: p["units"].append([999]),
        "an empty group": lambda p: p["stages"][0]["groups"].append([]),
        "operators backwards": lambda p: next(unit for unit in p["units"] if len(unit) > 1).reverse(),
        "merged what cannot be": lambda p: p["stages"].__setitem__(0, {**p["stages"][0], "merged": True}),
        "another variant": lambda p: p.update(variant="sideways"),
        "no threads": lambda p: p.update(threads=0),
    }
    graph = prepare(load(model))
    device = open_device("cpu", threads=2)
    check_plan(graph, decode_plan(plan.read_bytes()), device)
    for name, break_it in cases.items():
        broken = json.loads(json.dumps(whole))
        break_it(broken)
        with pytest.raises(InvalidPlan):
            check_plan(graph, decode_plan(json.dumps(broken).encode()), device)
            pytest.fail(name)
    broken = {**whole, "stages": whole["stages"][:-1]}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    fails(4, "run", model, "--plan", tmp_path / "broken.json", says="in no stage")


def test_what_may_differ_from_onnx_runtime(monkeypatch):
    from downset.runtimes.differences import allowed_difference

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert [allowed_difference("cpu", "float32"), allowed_difference("cuda", "float32")] == [1e-3, 2e-2]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert [allowed_difference("cuda", "float32"), allowed_difference("cuda", "float16")] == [1e-3, 5e-2]


def test_a_damaged_cache_is_moved_aside(staged, tmp_path):
    model, *_ = staged
    (tmp_path / "profiles.sqlite").write_bytes(b"not a database " * 100)
    env = {"DOWNSET_CACHE": str(tmp_path)}
    done = completed("stage", model, "--threads", "2", "--budget-timings", "2", env=env)
    assert done.returncode == 0, done.stderr
    assert "damaged" in done.stderr
    assert list(tmp_path.glob("profiles.damaged-*"))
    assert "forgotten" in completed("profiles", "clear", env=env).stdout
