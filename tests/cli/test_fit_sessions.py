"""`fit` for ONNX Runtime on the command line: the program it writes, the limit on time, and what it announces."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema

from downset.fitting.strip_notes import arithmetic
from downset.formats.reading import load
from downset.graph.cost import macs
from downset.results.sessions import DEFAULT, FITTED
from tests.formats.test_int8_form import uint8_network
from tests.models import branchy_model

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "fit.json").read_text())


def test_json_has_the_settings_and_the_program_is_written(run, tmp_path):
    model, output, program = branchy_model(tmp_path / "m.onnx"), tmp_path / "f.onnx", tmp_path / "open.py"
    status, out, err = run(
        "fit", model, "-o", output, "--session", program, "--slower", "50x", "--time-limit", "1s", "--json"
    )
    assert status == 0, err
    said = json.loads(out)
    jsonschema.validate(said, SCHEMA)
    assert said["session_path"] == str(program)
    assert said["session"]["name"] in {settings.name for settings in (DEFAULT, *FITTED)}
    assert [row for row in said["measured"]["rows"] if row["settings"] == said["session"]]
    for name, value in {**said["session"]["options"], **said["session"]["arena"]}.items():
        assert name in program.read_text() and str(value) in program.read_text()
    assert "each run in a runtime" not in err


def test_who_waits_at_a_terminal_is_told_what_runs_may_take(run, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = re.compile("\x1b\\[[0-9;]*m")
    for limit, told in (("1s", 1), ("31s", 0)):
        _, _, err = run("fit", branchy_model(tmp_path / "m.onnx"), "--arena", "1", "--time-limit", limit)
        said = plain.sub("", err)
        assert said.count("each run in a runtime may take 30 s, also after --time-limit 1 s") == told


def test_the_screen_has_milliseconds_beside_bytes_and_every_option(run, tmp_path):
    status, out, err = run("fit", branchy_model(tmp_path / "m.onnx"), "--time-limit", "1s", "-q")
    assert (status, err) == (0, "")
    for words in ("arena holds", "process grows by", "ms", "against default", "original, default"):
        assert words in out
    if "open it by: " in out:
        for name in FITTED[0].arena:
            assert name in out


def test_mistakes_are_one_line(run, tmp_path):
    model = branchy_model(tmp_path / "m.onnx")
    for arguments, words in (
        (("--slower", "0.5x"), "is not a factor from 1"),
        (("--slower", "fast"), "is not a factor from 1"),
        (("--session", tmp_path / "s.py"), "--session opens the written file: give -o, too"),
        (("-o", tmp_path / "f.onnx", "--session", tmp_path / "x.svg", "--map", tmp_path / "x.svg"), "both name"),
    ):
        status, out, err = run("fit", model, *arguments)
        assert (status, out) == (2, "") and words in err, arguments


def test_strips_that_drop_what_nobody_reads_compute_less(tmp_path):
    graph = load(branchy_model(tmp_path / "m.onnx"))
    less = replace(graph, ops=graph.ops[:-1] if graph.ops[-1].kind == "Conv" else graph.ops[1:])
    assert macs(less) < macs(graph)
    assert re.search(r"[0-9]% less$", arithmetic(graph, less))
    assert "-" not in arithmetic(graph, less)


def test_the_error_names_the_int8_form(run, tmp_path):
    """A file of uint8, which TFLite Micro refuses, does not fit into a byte; its int8 form is named."""
    status, _, err = run("fit", uint8_network(tmp_path / "m.tflite"), "--ram", "1", "--time-limit", "1s")
    assert status != 0
    assert "\n  1. Fit the exact int8 form (--int8)" in err
    assert err.count("TFLite Micro cannot run") <= 1
