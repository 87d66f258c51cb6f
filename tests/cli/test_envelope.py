"""The JSON of every command, on success and on failure, keeps its schema and its envelope."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from downset.commands.group import COMMANDS
from downset.errors import DownsetError
from downset.tuning.profiles import Key, Profiles
from tests.every_command import FAILS, SUCCEEDS, write_files
from tests.without_ray import start_no_ray

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("envelope")
    write_files(folder)
    return folder


@pytest.fixture
def here(files, monkeypatch, tmp_path):
    start_no_ray(monkeypatch, tmp_path)
    monkeypatch.chdir(files)
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path))


def schema(name):
    found = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def test_every_command_is_here():
    assert set(SUCCEEDS) == set(COMMANDS)
    assert {kind for kind, *_ in FAILS} == {*COMMANDS, "downset"}
    assert set(schema("envelope")["properties"]["kind"]["enum"]) == {*COMMANDS, "downset"}


@pytest.mark.parametrize("kind", list(SUCCEEDS))
def test_a_command_that_succeeds(here, run, kind):
    status, out, err = run(*SUCCEEDS[kind], "--json")
    assert (status, err) == (0, "")
    printed = json.loads(out)
    jsonschema.validate(printed, schema(kind))
    jsonschema.validate(printed, schema("envelope"))
    assert list(printed)[:4] == ["kind", "schema", "ok", "error"]
    assert (printed["kind"], printed["schema"], printed["ok"], printed["error"]) == (kind, 1, True, None)
    asked = schema(kind)["then"]
    forms = [form["required"] for form in asked.get("anyOf", [asked])]
    (required,) = (form for form in forms if set(form) <= printed.keys())
    for key in required:  # what the schema asks of a success is checked at all
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
    assert (status, json.loads(out)["ok"], json.loads(out)["proven"]) == (6, False, False)
    assert json.loads(out)["reason"] == json.loads(out)["proof"]["reason"] != ""
    status, out, _ = run("verify", "m.onnx", "other.onnx", "--tolerance", "10", "--accept-runs", "--json")
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
        capture_output=True,
        text=True,
        cwd=files,
        check=True,
    )
    assert json.loads(done.stdout)["kind"] == "order"
    assert done.stderr == ""
