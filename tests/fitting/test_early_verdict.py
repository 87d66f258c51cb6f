"""What `fit` says of the verdict about a memory limit before it searches, where the runtime does not run the file."""

import math
import re

import onnx
import pytest
from onnx import TensorProto, helper

from downset.errors import DownsetError, UnsupportedError
from downset.fitting import fit as fitting
from downset.fitting import planning
from downset.results.sessions import DEFAULT
from downset.runtimes import litert, ort, tflm
from downset.runtimes.differences import not_compared
from downset.runtimes.targets import TARGETS
from tests.formats.test_int8_form import uint8_network
from tests.models import branchy_model
from tests.tflite_net import TfliteNet, with_unknown_operator

SEARCHES = ("plan_together", "choose_rewrites", "search_strips", "least_in_strips")
QUIETLY = {"time_limit_s": math.inf, "work_limit": 50}
"""Searches of the same length under any load."""


@pytest.fixture
def runs(tmp_path):
    """Two branches, the larger first, so that another order needs less."""
    net = TfliteNet(3, size=6)
    x = net.input(4)
    left, right = net.conv(x, 16), net.conv(x, 4)
    return net.save(tmp_path / "runs.tflite", [net.conv(net.concat([net.conv(left, 2), net.conv(right, 2)]), 2)])


@pytest.fixture
def refused(runs, tmp_path):
    return with_unknown_operator(runs, tmp_path / "refused.tflite")


@pytest.fixture
def events(monkeypatch):
    """What was measured, searched and said, in turn."""
    recorded = []

    def record(home, name, entry):
        function = getattr(home, name)

        def call(*arguments, **options):
            recorded.append(entry(*arguments))
            return function(*arguments, **options)

        monkeypatch.setattr(home, name, call)

    record(tflm, "measure", lambda path: f"measured {path}")
    record(litert, "measure", lambda path: f"measured {path}")
    record(ort, "measure_sessions", lambda path, settings: f"measured {path}" if DEFAULT in settings else "others")
    for name in SEARCHES:
        record(planning, name, lambda *arguments: "searched")
    return recorded


def verdict(path, events, **options):
    """The state of the verdict; the lines that were told."""
    lines = []

    def notice(line):
        lines.append(line)
        events.append("told")

    try:
        return fitting.fit(path, notice=notice, **QUIETLY, **options).ram.state, lines
    except DownsetError as error:
        return error.result.ram.state, lines


def test_a_file_that_is_refused_is_told_before_anything_is_searched(events, refused):
    state, (line,) = verdict(refused, events, ram_bytes=10**9)
    assert state == "not known"
    assert "TFLite Micro cannot run refused.tflite: " in line and "from op code CUSTOM" in line
    measured = [f"measured {refused}"] * 2  # in TFLite Micro, then in LiteRT
    assert events[:4] == [*measured, "told", "searched"]
    assert [event for event in events if event.startswith("measured")] == measured


def test_the_line_names_the_int8_form(events, tmp_path):
    _, (line,) = verdict(uint8_network(tmp_path / "m.tflite"), events, ram_bytes=10**9)
    assert "the file has an exact int8 form, which int8=True fits" in line


LIMITS = {"ort": "arena_bytes"}
"""The limit of what is planned, by target."""


def file_of(target, tmp_path, runs):
    return branchy_model(tmp_path / "runs.onnx") if TARGETS[target].suffixes[0] == ".onnx" else runs


@pytest.mark.parametrize("target", ["tflm", "litert", "ort"])
def test_the_original_is_measured_once_before_anything_is_searched(events, runs, tmp_path, target):
    path = file_of(target, tmp_path, runs)
    state, lines = verdict(path, events, target=target, **{LIMITS.get(target, "ram_bytes"): 10**9})
    assert (state, lines) == ("fits", [])
    assert events[0] == f"measured {path}" and "searched" in events
    assert events.count(f"measured {path}") == 1


@pytest.mark.parametrize(
    ("target", "kernels"), [*((name, None) for name, row in TARGETS.items() if row.measures), ("tflm", "reference")]
)
def test_what_is_told_is_what_the_verdict_says(events, monkeypatch, runs, tmp_path, target, kernels):
    """At the limits where the verdict changes: around the arena before, the arena after and its bound."""

    def refuses(*arguments, **options):
        raise UnsupportedError("no such operator")

    path = file_of(target, tmp_path, runs)
    target = None if target == "tflm" else target  # which refuses a file with an error where it is named
    monkeypatch.setattr("downset.fitting.choosing.compare", lambda *arguments: not_compared("not asked here"))
    for home, name in ((tflm, "measure"), (litert, "measure"), (ort, "measure_sessions")):
        monkeypatch.setattr(home, name, refuses)
    arena = fitting.fit(path, target=target, kernels=kernels, **QUIETLY).arena
    figures = {arena.before, arena.after, arena.bound}
    states = {}
    for ram_bytes in sorted({1, *figures, *(figure - 1 for figure in figures)}):
        limit = {LIMITS.get(target, "ram_bytes"): ram_bytes}
        states[ram_bytes], lines = verdict(path, events, target=target, kernels=kernels, **limit)
        (line,) = lines
        may_be = re.findall('"([a-z ]+)"', line)
        assert states[ram_bytes] in may_be and "fits" not in may_be
        assert (may_be == ["not known"]) == (ram_bytes >= arena.before), "told as far as it is certain"
    assert {*states.values()} == {"not known", "does not fit"}, "the cases tell verdicts apart"


def test_what_values_choose_is_not_said_to_fit(tmp_path, run):
    """ONNX Runtime runs one branch for the generated inputs; the other one takes 16 times as much."""
    path = tmp_path / "either.onnx"
    branching_model(path)
    assert run("fit", path, "--time-limit", "1s", "-o", tmp_path / "o.onnx")[0] == 0
    status, _, err = run("fit", path, "--arena", "1GB", "--time-limit", "1s")
    assert status == 6 and "for the inputs that were run alone; If 'either' runs what values choose" in err
    assert "Give it" not in err
    status, _, err = run("fit", path, "--arena", "10", "--time-limit", "1s")
    assert status == 3 and "B are enough for the inputs that were run alone; If 'either'" in err


def branching_model(path):
    def branch(name, times):
        nodes, held = [], "x"
        for place in range(times):
            nodes.append(helper.make_node("Concat", [held, held], [f"{name}{place}"], axis=1))
            held = f"{name}{place}"
        nodes.append(helper.make_node("ReduceMean", [held], [f"{name}_mean"], axes=[1], keepdims=1))
        out = helper.make_tensor_value_info(f"{name}_mean", TensorProto.FLOAT, [1, 1, 64])
        return helper.make_graph(nodes, name, [], [out])

    node = helper.make_node("If", ["c"], ["y"], name="either", then_branch=branch("t", 5), else_branch=branch("e", 1))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 64]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 64])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_file_that_pytorch_does_not_run_fits_in_no_case_and_that_is_told_first(events, tmp_path):
    state, told = verdict(branchy_model(tmp_path / "m.onnx"), events, ram_bytes=10**9, target="torch")
    assert state == "not known"
    assert len(told) == 1 and "PyTorch runs .pt2 files, not m.onnx" in told[0]


def test_nothing_is_told_where_nobody_asks(refused):
    told = []
    fitting.fit(refused, notice=told.append, **QUIETLY)
    assert told == []


@pytest.mark.parametrize(
    ("target", "home", "name"), [("tflm", tflm, "measure"), ("ort", ort, "measure_sessions")], ids=["tflm", "ort"]
)
def test_where_another_candidate_is_refused_none_is_measured(monkeypatch, runs, tmp_path, target, home, name):
    """Figures are compared within one runtime; what was measured before counts no longer."""
    path, measure = file_of(target, tmp_path, runs), getattr(home, name)

    def refuses_others(file, *arguments, **options):
        if file != path:
            raise UnsupportedError("too slow")
        return measure(file, *arguments, **options)

    monkeypatch.setattr(home, name, refuses_others)
    told = []
    found = fitting.fit(path, notice=told.append, **QUIETLY)
    assert (found.measured, found.not_measured, told) == (None, "too slow", [])


def test_a_terminal_shows_the_line_and_a_pipe_the_error_alone(run, refused, monkeypatch):
    asked = ("fit", refused, "--ram", "1GB", "--time-limit", "1s")
    status, out, err = run(*asked)
    assert (status, out, err.count("downset: error: ")) == (6, "", 1)
    assert err.startswith("downset: error: ") and "the verdict about" not in err
    monkeypatch.setenv("FORCE_COLOR", "1")
    for options, count in (((), 1), (("-q",), 0)):
        status, _, err = run(*asked, *options)
        assert (status, err.count('the verdict about 1,073,741,824 B will be "not known" (exit 6): ')) == (6, count)
        assert err.rfind("the verdict about") < err.find("downset: error: ")
