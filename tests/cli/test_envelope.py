"""The JSON of every command, on success and on failure, keeps its schema and its envelope."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from downset.cli import _COMMANDS
from downset.errors import DownsetError
from downset.tuning.profiles import Key, Profiles
from tests.cluster_toml import cluster_toml
from tests.models import branchy_model

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
RECORDS = "id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n"
CLUSTER = cluster_toml({"fast": 2e9, "slow": 1e9})
STAGE = ("--threads", "1", "--budget-timings", "1", "--no-profiles")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model with another that computes something else, records, a cluster, and plans of stages and of a pipeline."""
    from tests.command import output_of

    folder = tmp_path_factory.mktemp("envelope")
    model = branchy_model(folder / "m.onnx")
    data = bytearray(model.read_bytes())
    at = data.find(b"\x00\x00\x80\x3f" * 8)  # the bias of ones
    data[at : at + 4] = b"\x00\x00\x00\x40"
    (folder / "other.onnx").write_bytes(data)
    (folder / "records.csv").write_text(RECORDS)
    (folder / "home.toml").write_text(CLUSTER)
    output_of("stage", model, *STAGE, "-o", folder / "stages.json", "-q")
    output_of("split", model, "--cluster", folder / "home.toml", "-o", folder / "pipeline.json", "-q")
    np.save(folder / "frames.npy", np.zeros((3, 1, 3, 8, 8), np.float32))
    np.save(folder / "few.npy", np.zeros((3, 1, 3, 8), np.float32))
    output_of("keys", "init", "--authority", folder / "mine")
    output_of("keys", "issue", "d0", "--host", "127.0.0.2", "--authority", folder / "mine")
    return folder


@pytest.fixture
def here(files, monkeypatch, tmp_path):
    monkeypatch.chdir(files)
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path))


SUCCEEDS = {
    "fit": ("fit", "m.onnx", "--time-limit", "1s", "-q"),
    "inspect": ("inspect", "m.onnx"),
    "verify": ("verify", "m.onnx", "m.onnx"),
    "order": ("order", "m.onnx"),
    "arena": ("arena", "records.csv"),
    "split": ("split", "m.onnx", "--cluster", "home.toml", "-q"),
    "simulate": ("simulate", "pipeline.json", "--frames", "20"),
    "serve": ("serve", "m.onnx", "--cluster", "home.toml", "--input", "frames.npy", "-o", "served.npz", "-q"),
    "worker": ("worker", "--head", "127.0.0.1:9", "--name", "d0", "--keys", "mine/d0", "--wait", "1ms", "-q"),
    "stage": ("stage", "m.onnx", *STAGE, "-q"),
    "run": ("run", "m.onnx", "--plan", "stages.json", "--runs", "1", "--check"),
    "profiles": ("profiles", "list"),
    "keys": ("keys", "init", "--authority", "authority"),
    "profile-cluster": ("profile-cluster", "--devices", "d0,d1", "--local", "--probe-time", "1ms", "-q"),
    "doctor": ("doctor",),
}
FAILS = [
    ("fit", "infeasible", 3, ("fit", "m.onnx", "--ram", "1", "--time-limit", "1s")),
    ("fit", "usage", 2, ("fit", "m.onnx", "--ram", "plenty")),
    ("fit", "usage", 2, ("fit",)),
    ("inspect", "load", 5, ("inspect", "none.onnx")),
    ("inspect", "usage", 2, ("inspect", "m.onnx", "--colour")),
    ("verify", "invalid", 4, ("verify", "m.onnx", "other.onnx")),
    ("verify", "load", 5, ("verify", "home.toml", "home.toml")),
    ("order", "usage", 2, ("order", "m.onnx", "--method", "magic")),
    ("arena", "infeasible", 3, ("arena", "records.csv", "--capacity", "10")),
    ("split", "load", 5, ("split", "m.onnx", "--cluster", "none.toml")),
    ("simulate", "usage", 2, ("simulate", "stages.json")),
    ("serve", "usage", 2, ("serve", "m.onnx", "--cluster", "home.toml", "--input", "few.npy")),
    ("worker", "usage", 2, ("worker", "--head", "nowhere", "--name", "d0", "--keys", "mine/d0")),
    ("stage", "usage", 2, ("stage", "m.onnx", "--runs", "1")),
    ("run", "invalid", 4, ("run", "other.onnx", "--plan", "stages.json", "--shape", "x=2,3,8,8")),
    ("profiles", "usage", 2, ("profiles", "forget")),
    ("keys", "load", 5, ("keys", "issue", "d0", "--host", "10.0.0.5", "--authority", "none")),
    ("profile-cluster", "usage", 2, ("profile-cluster", "--devices", "d0")),
    ("doctor", "usage", 2, ("doctor", "--colour")),
    ("downset", "usage", 2, ("magic",)),
]


def schema(name):
    found = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def test_every_command_is_here():
    assert set(SUCCEEDS) == set(_COMMANDS)
    assert {kind for kind, *_ in FAILS} == {*_COMMANDS, "downset"}
    assert set(schema("envelope")["properties"]["kind"]["enum"]) == {*_COMMANDS, "downset"}


@pytest.mark.parametrize("kind", list(SUCCEEDS))
def test_a_command_that_succeeds(here, run, kind):
    status, out, err = run(*SUCCEEDS[kind], "--json")
    assert (status, err) == (0, "")
    printed = json.loads(out)
    jsonschema.validate(printed, schema(kind))
    jsonschema.validate(printed, schema("envelope"))
    assert list(printed)[:4] == ["kind", "schema", "ok", "error"]
    assert (printed["kind"], printed["schema"], printed["ok"], printed["error"]) == (kind, 1, True, None)
    for key in schema(kind)["then"]["required"]:  # what the schema asks of a success is checked at all
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({k: v for k, v in printed.items() if k != key}, schema(kind))


@pytest.mark.parametrize(("kind", "code", "exit_code", "arguments"), FAILS)
def test_a_command_that_fails(here, run, kind, code, exit_code, arguments):
    status, out, err = run(*arguments, "--json")
    printed = json.loads(out)
    jsonschema.validate(printed, schema("envelope"))
    if kind != "downset":
        jsonschema.validate(printed, schema(kind))
    assert (printed["kind"], printed["ok"], status) == (kind, False, exit_code)
    figures = printed["error"].pop("figures", {})
    assert bool(figures) == (code == "infeasible")
    if figures:
        assert figures["least_bytes"] > figures["limit_bytes"] > 0
    message = printed["error"].pop("message")
    assert printed["error"] == {"code": code, "exit_code": exit_code}
    first, *rest = err.removeprefix("downset: error: ").splitlines()
    assert "\n" not in message and message.startswith(first)
    assert bool(rest) == ((kind, code) == ("fit", "infeasible"))
    assert rest or message == first
    assert run(*arguments)[1] == "", "without --json stdout stays empty"


def test_outputs_that_differ_are_printed_all_the_same(here, run):
    _, out, _ = run("verify", "m.onnx", "other.onnx", "--json")
    printed = json.loads(out)
    assert (printed["runtime"], printed["equal"], printed["ok"]) == ("ort", False, False)
    assert printed["max_abs_error"] > 0
    status, out, _ = run("verify", "m.onnx", "other.onnx", "--tolerance", "10", "--json")
    assert (status, json.loads(out)["ok"], json.loads(out)["equal"]) == (0, True, False)


def test_clearing_profiles(here, run):
    Profiles().put([(Key("device", "torch 1", "float32", 1, "a stage"), 0.5)])
    kept = sum(row["timings"] for row in json.loads(run("profiles", "list", "--json")[1])["profiles"])
    _, out, _ = run("profiles", "clear", "--json")
    jsonschema.validate(json.loads(out), schema("profiles"))
    assert json.loads(out)["forgotten"] == kept > 0
    assert json.loads(run("profiles", "list", "--json")[1])["profiles"] == []


def test_an_argument_behind_the_dashes_is_no_option(here, run):
    status, out, _ = run("inspect", "--", "--json")
    assert (status, out) == (5, "")


def test_what_downset_itself_does_wrong(here, run, monkeypatch):
    """The JSON carries the error, and a report says where it happened."""
    import downset.formats.reading

    def broken(*_, **__):
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setattr(downset.formats.reading, "load", broken)
    status, out, err = run("inspect", "m.onnx", "--json")
    printed = json.loads(out)
    jsonschema.validate(printed, schema("inspect"))
    message = printed["error"].pop("message")
    assert (status, printed["error"]) == (70, {"code": "internal", "exit_code": 70})
    assert err == f"downset: error: {message}\n"
    report = Path(message.rpartition("a report is in ")[2].partition(";")[0])
    assert 'raise ZeroDivisionError("by\\nnothing")' in report.read_text()
    report.unlink()


def test_a_command_that_is_stopped(tmp_path):
    """A pipe that nobody fills keeps the command reading until it is stopped."""
    os.mkfifo(tmp_path / "records.csv")
    command = [sys.executable, "-m", "downset", "arena", str(tmp_path / "records.csv"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, (tmp_path / "records.csv").open("w"):  # opens once the command reads
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    assert err == "downset: stopped\n"
    assert json.loads(out)["error"] == {"code": "stopped", "exit_code": 143, "message": "stopped"}


def test_every_kind_of_error_has_a_code_of_the_schema():
    codes = schema("envelope")["properties"]["error"]["properties"]["code"]["enum"]
    kinds = DownsetError.__subclasses__()
    assert len(kinds) == 6
    assert {error.code for error in kinds} | {"internal", "stopped"} == set(codes)


def test_python_m_downset(files):
    done = subprocess.run(
        [sys.executable, "-m", "downset", "order", "m.onnx", "--json"],
        capture_output=True, text=True, cwd=files, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["kind"] == "order"
    assert done.stderr == ""
