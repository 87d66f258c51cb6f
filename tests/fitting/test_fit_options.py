"""The options of `fit` are its keywords, and the command line has each of them."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from downset.commands.fit import fit as command
from downset.fitting import fit as fitting
from downset.fitting.job import FitOptions, Listener

CHOSEN = {
    "output": ("--output", "o.onnx", "o.onnx"),
    "target": ("--target", "torch", "torch"),
    "shapes": ("--shape", "x=1,2", {"x": (1, 2)}),
    "dims": ("--dim", "x=3", {"x": 3}),
    "ram_bytes": ("--ram", "3KB", 3072),
    "arena_bytes": ("--arena", "5KB", 5120),
    "one_file": ("--one-file", None, True),
    "time_limit_s": ("--time-limit", "7s", 7.0),
    "work_limit": ("--work-limit", "9", 9),
    "seed": (None, None, 5),
    "rewrite": ("--rewrite", "off", "off"),
    "inexact": ("--inexact", None, True),
    "max_recompute": ("--max-recompute", "30%", 0.3),
    "strips": ("--strips", "4", 4),
    "front": ("--front", None, True),
    "kernels": ("--kernels", "reference", "reference"),
    "int8": ("--int8", None, True),
    "stream": ("--stream", "8@1", (8, 1)),
    "states": ("--states", "in-place", "in-place"),
    "slower": ("--slower", "1.5x", 1.5),
    "larger": ("--larger", "2x", 2.0),
    "session": ("--session", "s.py", "s.py"),
    "trust": ("--trust", None, True),
    "inputs": ("--input", "x.npy", ("x.npy",)),
}
"""By keyword: its option on the command line, the text there, and a value other than the default."""
CALLBACKS = {"progress", "notice", "takes_longer"}


@pytest.fixture
def heard(monkeypatch):
    """The options that arrive where the job begins."""
    arrived = []

    def begin(options, listener):
        assert isinstance(listener, Listener)
        arrived.append(options)
        raise SystemExit(0)

    monkeypatch.setattr(fitting, "fit_model", begin)
    return arrived


def test_the_options_are_the_keywords_with_their_defaults():
    keywords = {name: one.default for name, one in inspect.signature(fitting.fit).parameters.items()}
    for name in CALLBACKS:
        assert keywords.pop(name) is None
    empty = {inspect.Parameter.empty: MISSING}
    assert {one.name: one.default for one in fields(FitOptions)} == {
        name: empty.get(default, default) for name, default in keywords.items()
    }


@pytest.mark.parametrize("name", [one.name for one in fields(FitOptions) if one.name != "model"])
def test_a_keyword_and_its_option_arrive(name, heard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option, text, value = CHOSEN[name]
    with pytest.raises(SystemExit):
        fitting.fit("m.onnx", **{name: value})
    assert heard == [FitOptions("m.onnx", **{name: value})]
    if option is not None:
        Path("m.onnx").touch()
        found = CliRunner().invoke(command, ["m.onnx", option, *([] if text is None else [text])])
        assert found.exit_code == 0, found.output
        limited = {"time_limit_s": float("inf")} if name == "work_limit" else {}
        assert heard[1:] == [FitOptions("m.onnx", **{"shapes": {}, "dims": {}, name: value} | limited)]
