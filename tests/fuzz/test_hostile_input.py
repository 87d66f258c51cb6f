"""What users and files get wrong: one line, an exit code, in bounded time, and nothing drawn on their terminal."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from downset.errors import LoadError, UsageError
from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.runtimes.compare import compare_arrays
from tests.models import branchy_model, installed_model

pytestmark = pytest.mark.own_processes("parsers")

GRAPH = {
    "name": "g",
    "tensors": [{"size": 4}, {"size": 8}, {"size": 2}],
    "ops": [{"ins": [0], "outs": [1]}, {"ins": [1], "outs": [2]}],
    "inputs": [0],
    "outputs": [2],
}


@pytest.fixture
def model(tmp_path):
    return branchy_model(tmp_path / "m.onnx")


def test_a_graph_of_very_many_orders_is_inspected_in_time(run, tmp_path):
    """1,100 operators side by side: 2**1100 downsets, more than a float holds."""
    path, count = tmp_path / "wide.json", 1100
    ops = [{"ins": [0], "outs": [index + 1]} for index in range(count)]
    graph = {"tensors": [{"size": 1}] * (count + 1), "ops": ops, "inputs": [0], "outputs": [*range(1, count + 1)]}
    path.write_text(json.dumps(graph))
    status, out, _ = run("inspect", path, "--json")
    facts = json.loads(out)
    assert (status, facts["width"], facts["downsets_exact"]) == (0, count, False)
    assert math.isclose(facts["downsets_log10"], count * math.log10(2), rel_tol=1e-6)
    assert facts["downsets"] <= sys.float_info.max


def test_files_may_have_names_that_are_no_text(run, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.json")
    Path(path).write_text(json.dumps({key: value for key, value in GRAPH.items() if key != "name"}))
    for command in ("inspect", "order"):
        status, out, _ = run(command, path, "--json")
        assert (status, json.loads(out)["ok"]) == (0, True)
    status, out, _ = run("inspect", f"{path}\udcfe", "--json")
    assert (status, json.loads(out)["ok"]) == (5, False)
    records, drawn = f"{path}.csv", f"{path}.svg"
    Path(records).write_text("id,lower,upper,size\na,0,1,4\n")
    assert run("arena", records, "--map", drawn)[0] == 0
    assert Path(drawn).read_text(encoding="utf-8").startswith("<svg")


def test_names_draw_nothing_on_the_terminal(run, tmp_path):
    path = tmp_path / "[red]x.json"
    tensors = [{"size": 4, "name": "a\x1b[2J"}, {"size": 8, "name": "[bold]b\n"}, {"size": 2}]
    path.write_text(json.dumps({**GRAPH, "name": "g\x1b[31m", "tensors": tensors}))
    for command in ("order", "inspect"):
        out = run(command, path)[1]
        assert "\x1b" not in out
    assert "[red]x.json: 2 operators" in run("inspect", path)[1]
    assert "[bold]b?" in run("order", path)[1]
    path.write_text(json.dumps({**GRAPH, "tensors": tensors, "ops": GRAPH["ops"][::-1]}))
    assert "\x1b" not in run("order", path)[2]


def test_a_byte_order_mark_is_no_error(run, tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GRAPH).encode())
    assert run("order", path, "--json")[0] == 0


def test_sizes_that_cannot_be_are_refused(fails, model, tmp_path):
    fails(2, "fit", model, "--shape", "x=1,3,0,8", says="is not NAME=1,3,224,224")
    fails(5, "fit", model, "--shape", "x=1,3,16,16", says="which fixes them to 1,3,8,8")
    wide = branchy_model(tmp_path / "open.onnx", open_batch=True)
    fails(5, "fit", wide, "--shape", "x=99999999999,3,8,8", says=f"{wide}: tensor")
    plain = tmp_path / "g.json"
    plain.write_text(json.dumps(GRAPH))
    fails(2, "order", plain, "--shape", "t0=1", says="sizes in a .json file are fixed")


def test_what_is_no_file_of_a_model(fails, model, tmp_path):
    fails(5, "order", "/dev/null", says="is a pipe or a device")
    fails(5, "order", tmp_path / ("n" * 300 + ".onnx"), says="cannot read")
    fake = tmp_path / "fake.pt2"
    fake.write_bytes(model.read_bytes())
    fails(5, "inspect", fake, says="is not an exported program")


def test_verify_says_what_it_runs(fails, model, tmp_path):
    plain = tmp_path / "g.json"
    plain.write_text(json.dumps(GRAPH))
    fails(6, "verify", plain, plain, "--accept-runs", says="outputs not compared: .json files hold no weights")
    fails(2, "verify", model, model, "--runtime", "tflm", says="tflm does not run .onnx files; choose ort")
    fails(2, "verify", model, model, "--seed", "-1", says="--seed")
    fails(2, "verify", model, model, "--tolerance", "-1", says="--tolerance")


def test_zeros_of_either_sign_are_not_equal_bit_for_bit():
    one, other = np.array([0.0, np.nan], np.float32), np.array([-0.0, np.nan], np.float32)
    assert compare_arrays([one], [one]).equal
    assert compare_arrays([one], [other]).equal is False
    assert compare_arrays([one], [other]).max_abs_error == 0.0
    finite = np.array([0.5, 0.0], np.float32)
    assert compare_arrays([one], [finite]).max_abs_error == np.inf


@pytest.mark.parametrize(
    "options",
    [
        {"time_limit_s": 0.0},
        {"time_limit_s": float("nan")},
        {"rewrite": "maybe"},
        {"max_recompute": -0.1},
        {"max_recompute": float("nan")},
    ],
)
def test_options_without_sense_are_usage_errors(model, options):
    with pytest.raises(UsageError):
        fit(model, **options)


def test_shapes_of_a_program_are_its_own(tmp_path):
    path = tmp_path / "p.pt2"
    path.write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(UsageError, match="fixed"):
        load(path, shapes={"x": (1,)})
    with pytest.raises(LoadError):
        load(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_nothing(tmp_path, number):
    model = installed_model("pyopen-wakeword", "embedding_model.tflite")
    scratch, out = tmp_path / "scratch", tmp_path / "out.tflite"
    scratch.mkdir()
    command = [sys.executable, "-m", "downset", "fit", str(model), "-o", str(out)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)}, text=True
    )
    # The folder for candidates, in the command's own, is there once it is at work; signals are answered by then.
    while not any(scratch.glob("*/*")) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=240)
    assert (running.returncode, stdout) == (128 + number, "")
    assert stderr.strip() == "downset: stopped"
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]
    assert not list(scratch.iterdir())


def external(model, location="weights.bin"):
    loaded = onnx.load(model)
    onnx.save(loaded, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded = onnx.load(model, load_external_data=False)
    for weight in loaded.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = location
    model.write_bytes(loaded.SerializeToString())
    return model.with_name("weights.bin")


@pytest.mark.parametrize("location", ["../weights.bin", "a/../../weights.bin", "/etc/hostname", "..\\weights.bin"])
def test_weights_outside_the_models_folder_are_refused(fails, model, tmp_path, location):
    """They are linked into scratch folders and copied next to outputs: a file could name any path to write to."""
    external(model, location)
    for command in (["fit", model, "-o", tmp_path / "out.onnx"], ["inspect", model], ["verify", model, model]):
        fails(5, *command, says="not beside the file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "weights.bin"]


def test_weights_that_are_missing_or_cut_off(fails, run, model, tmp_path):
    weights = external(model)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert run("fit", model, "-o", folder / "out.onnx", "--time-limit", "2s")[0] == 0
    weights.write_bytes(weights.read_bytes()[:100])
    fails(5, "fit", model, "-o", tmp_path / "out.onnx", says="m.onnx")
    weights.unlink()
    fails(5, "fit", model, "-o", tmp_path / "out.onnx", says="weights.bin")
    assert not (tmp_path / "out.onnx").exists()


def _surrounded():
    """Close stdout, and ignore the ends of children, as some programs do that start others."""
    os.close(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_or_closed_stdout_is_no_traceback(tmp_path, options):
    path = tmp_path / "ñ 模型.json"
    path.write_text(json.dumps(GRAPH))
    command = [sys.executable, "-m", "downset", "inspect", str(path), *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "downset: error: cannot go on: No space left on device\n")
    read_in_worker = [*command[:4], str(branchy_model(tmp_path / "m.onnx")), *options]
    done = subprocess.run(read_in_worker, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=_surrounded)
    assert (done.returncode, done.stderr) == (0, "")
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("模型" if options else "\\u6a21") in done.stdout  # JSON is UTF-8 whatever the terminal
