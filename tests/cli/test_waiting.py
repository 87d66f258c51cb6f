"""Progress: whatever may take long is done while the terminal says what is being done, one line at a time."""

import io
import json
import re
import threading
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace

import pytest
from rich.console import Console

import downset as ds
from downset.commands.stage import _streams_s as streams_s
from downset.commands.waiting import Waiting, counting, waiting
from downset.errors import DownsetError
from downset.fitting import measuring
from downset.fitting.job import FitOptions
from downset.fitting.measuring import DECIDING_S, TIMING_S, estimate_runs
from tests.cluster_toml import cluster_toml
from tests.command import completed, output_of
from tests.fitting.test_fit_rewrite import tflite_model
from tests.models import branchy_model
from tests.networks import branches

LONG = (
    "formats.reading.load",
    "orders.plan.plan_order",
    "pipelines.plan.plan_pipeline",
    "pipelines.replan.replan",
    "formats.shards.write.export_shards",
    "runtimes.compare.compare",
    "reports.inspection.inspect",
    "fitting.fit.fit_model",
    "executor.stage_engine.run_stages",
)
"""Functions of the package that take long for large models."""


@pytest.fixture
def announced(monkeypatch):
    """Names of long functions that ran, each while one line, and one only, was said."""
    open_lines, ran = [], []

    @contextmanager
    def said(talk, what, *, limit_s=None):
        assert not open_lines, f"{what!r} inside {open_lines}: a terminal shows one line"
        open_lines.append(what)
        try:
            yield Waiting()
        finally:
            open_lines.pop()

    def watched(name, function):
        def call(*arguments, **options):
            assert open_lines, f"{name} in silence"
            ran.append(name)
            return function(*arguments, **options)

        return call

    homes = [(import_module(f"downset.{module}"), name) for module, _, name in (path.rpartition(".") for path in LONG)]
    for home, name in homes:  # all are imported before: none keeps what another test put there
        monkeypatch.setattr(home, name, watched(name, getattr(home, name)))
    monkeypatch.setattr(import_module("downset.commands.waiting"), "waiting", said)  # which `reading` calls
    for name in ("arena", "fit", "inspect", "order", "run", "serve", "simulate", "split", "stage", "verify"):
        module = import_module(f"downset.commands.{name}")
        if hasattr(module, "waiting"):
            monkeypatch.setattr(module, "waiting", said)
        if hasattr(module, "write_page"):
            monkeypatch.setattr(module, "write_page", watched("write_page", module.write_page))
    return ran


@pytest.fixture
def model(tmp_path):
    return branchy_model(tmp_path / "net.onnx")


def test_reading_ordering_and_drawing_are_announced(announced, model, tmp_path):
    output_of("order", model, "--report", tmp_path / "page.html")
    output_of("inspect", model)
    output_of("verify", model, model)
    assert announced == ["load", "plan_order", "write_page", "load", "inspect", "compare"]


def test_planning_of_pipelines_is_announced(announced, model, tmp_path):
    home, plan = tmp_path / "home.toml", tmp_path / "plan.json"
    home.write_text(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=5000))
    output_of(
        "split",
        model,
        "--cluster",
        home,
        "--method",
        "pico",
        "-q",
        "-o",
        plan,
        "--export",
        tmp_path / "shards",
        "--report",
        tmp_path / "split.html",
    )
    assert {"load", "plan_pipeline", "export_shards", "write_page"} <= {*announced}
    announced.clear()
    output_of(
        "simulate", plan, "--frames", 5, "--fail", "a@0s", "--replan", model, "--report", tmp_path / "simulate.html"
    )
    assert {"load", "replan", "write_page"} <= {*announced}


@pytest.mark.parametrize(
    ("options", "doing"),
    [
        ((), []),
        (("--compare",), ["planning by every other method"]),
        (("--what-if",), ["planning for larger clusters"]),
        (("-o", "plan.json"), ["writing the files"]),
        (("--report", "plan.html"), ["planning for larger clusters", "writing the files"]),
    ],
)
def test_split_announces_only_what_it_does(monkeypatch, model, tmp_path, options, doing):
    texts = []

    class Listed(Waiting):
        def __call__(self, text):
            texts.append(text)

    @contextmanager
    def listed(talk, what, *, limit_s=None):
        texts.append(what)
        yield Listed()

    monkeypatch.setattr("downset.commands.split.waiting", listed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home.toml").write_text(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=5000))
    output_of("split", model, "--cluster", "home.toml", "--method", "single", *options)
    assert texts == ["planning for 2 devices", *doing]


def test_measuring_is_announced(announced, model, tmp_path, monkeypatch):
    """Where reading fails, after it was announced."""

    monkeypatch.setattr("downset.executor.device.open_device", lambda *arguments, **options: None)
    (tmp_path / "frames").mkdir()
    for command in (
        ("stage", tmp_path / "none.onnx"),
        ("serve", tmp_path / "none.onnx", "--cluster", "rpi_8", "--input", tmp_path / "frames"),
        ("fit", tmp_path / "none.onnx"),
    ):
        announced.clear()
        with pytest.raises(DownsetError):
            output_of(*command)
        assert announced, command


class Screen(io.StringIO):
    """A terminal's text, and an event once it shows what is looked for."""

    def __init__(self, wanted):
        super().__init__()
        self.wanted, self.shown = wanted, threading.Event()

    def write(self, text):
        count = super().write(text)
        if all(part in self.getvalue() for part in self.wanted):
            self.shown.set()
        return count


def talk_to(screen):
    return Console(file=screen, force_terminal=True, width=100)


def test_a_line_says_what_is_done_and_about_how_long_it_may_take(monkeypatch):
    monkeypatch.setattr("downset.commands.waiting._PATIENCE_S", 0.0)
    screen = Screen(["reading [red]net", "of about 20 s"])
    with waiting(talk_to(screen), "reading [red]net", limit_s=20.0) as told:
        assert screen.shown.wait(60)
        screen.wanted = ["ordering 5 operators"]
        screen.shown.clear()
        told("ordering 5 operators")
        assert screen.shown.wait(60)


@pytest.mark.parametrize("width", [30, 60, 100])
def test_time_is_never_cut_and_an_estimate_that_is_passed_is_told(monkeypatch, width):
    monkeypatch.setattr("downset.commands.waiting._PATIENCE_S", 0.0)
    screen = Screen(["0:00:00", "of about 300 ms"])
    talk = Console(file=screen, force_terminal=True, width=width)
    with waiting(talk, "running 12 candidates in TFLite Micro", limit_s=0.3) as told:
        assert screen.shown.wait(60)
        screen.wanted = ["0:00:01", "longer than 300 ms"]
        assert screen.shown.wait(60)
        told("timing the original and what ships, and a name that is long")
    drawn = [re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", line) for line in re.split("[\r\n]", screen.getvalue())]
    assert all(len(line) <= width for line in drawn)


def test_nothing_is_said_of_what_is_soon_done_or_in_a_pipe():
    screen = Screen(["reading"])
    with waiting(talk_to(screen), "reading", limit_s=20.0) as told:
        told("ordering")
    assert not screen.getvalue()
    piped = io.StringIO()
    with waiting(Console(file=piped), "reading") as told:
        told("ordering")
    assert not piped.getvalue()


def test_runs_that_are_expected_are_added_to_the_estimate(monkeypatch, model):
    """`fit` learns from the original's run how long runs take."""
    monkeypatch.setattr("downset.commands.waiting._PATIENCE_S", 0.0)
    screen = Screen(["of about 20 s"])
    with waiting(talk_to(screen), "fitting", limit_s=20.0) as told:
        assert screen.shown.wait(60)
        for more_s, wanted in ((12.3, "of about 33 s"), (30.0, "of about 50 s")):
            screen.wanted = [wanted]
            screen.shown.clear()
            told.takes_longer(more_s)
            assert screen.shown.wait(60)
    asked, doing, expected = [], [], []
    for module in ("preparing", "measuring"):
        estimate = f"downset.fitting.{module}.estimate_runs"
        monkeypatch.setattr(estimate, lambda *given: asked.append(given[2]) or (3, 7.0))
    ds.fit(model, time_limit_s=2.0, progress=doing.append, takes_longer=expected.append)
    (counted,) = [int(number) for text in doing for number in re.findall(r"running (\d+) candidate", text)]
    assert asked[-1] == counted and expected == [7.0] * len(asked)
    assert any(text.endswith("; measuring takes about 7 s") for text in doing)


def test_runs_take_as_long_as_those_of_the_original():
    once, tflm, ort = 5.0, SimpleNamespace(sessions=None), SimpleNamespace(sessions=SimpleNamespace(fitted=[0] * 4))

    def estimate(target, others, **options):
        return estimate_runs(SimpleNamespace(target=target, options=FitOptions("m", **options)), once, others)[1]

    assert estimate(tflm, 3) - estimate(tflm, 2) == pytest.approx(once)
    assert estimate(tflm, 0) == pytest.approx(3 * once + DECIDING_S)
    # The original is measured with two settings of a session, and each other file with all of them.
    assert estimate(ort, 3) - estimate(ort, 2) == pytest.approx(2 * once)
    assert estimate(ort, 3, slower=1.1) - estimate(ort, 3) == pytest.approx(DECIDING_S - TIMING_S)


def test_what_measuring_takes_is_told_before_it_begins_where_it_takes_longer_than_the_search(monkeypatch, tmp_path):
    """One line, also in a pipe, unless the verdict about a memory limit has to stand first; JSON is what it was."""
    model, log = tflite_model(tmp_path / "m.tflite"), []
    measure = measuring.measure
    monkeypatch.setattr(measuring, "measure", lambda *given, **more: log.append("measured") or measure(*given, **more))

    def told(*options, seconds=90.4):
        log.clear()
        monkeypatch.setattr(measuring, "estimate_runs", lambda *given: log.append("told") or (24, seconds))
        done = completed("fit", model, "--time-limit", "5s", *options)
        assert log[log.index("told") + 1] == "measured"
        return [line for line in done.stderr.splitlines() if line.startswith("measuring takes")], done.stdout

    line = "measuring takes about 24 runs in the runtime and 90 s; --time-limit bounds the searches alone"
    assert told()[0] == [line]
    lines, printed = told("--json")
    assert lines == [line] and json.loads(printed)["ok"]
    for options in (("-q",), ("--ram", "1MB")):
        assert not told(*options)[0]
    assert not told(seconds=4.0)[0]


def test_a_bar_says_the_time_that_is_left_by_the_rounds_that_are_done():
    now = [0.0]
    screen = Screen([])
    with counting(talk_to(screen), get_time=lambda: now[0]) as told:

        def shows(what, done, total, *wanted):
            screen.wanted = [what, *wanted]
            screen.truncate(screen.seek(0))
            screen.shown.clear()
            told(what, done, total)
            assert screen.shown.wait(60), (what, done, wanted)

        for seconds, what in ((3.0, "timing candidates"), (40.0, "confirming the best")):
            now[0] += 1.0  # a bar is drawn again after half a second
            shows(what, 0, 17, "0%", "-:--:--")  # and not the 0:00:00 of what was done before
            for done in range(1, 18):
                now[0] += seconds
                minutes, rest = divmod(int(seconds) * (17 - done), 60)
                left = f"0:{minutes:02}:{rest:02}" if done > 1 else "-:--:--"  # one round tells no speed
                shows(what, done, 17, f"{100 * done / 17:.0f}%", left)
    quiet = io.StringIO()
    with counting(Console(file=quiet)) as told:
        told("timing candidates", 1, 2)
    assert not quiet.getvalue()


def test_every_round_of_stages_is_told(tmp_path):
    told, rounds = {}, 3 + 2
    result = ds.tune_stages(
        ds.load(branches(tmp_path / "m.onnx")),
        ds.open_device("cpu", threads=2),
        limits=ds.StageLimits(timings=6),
        runs=3,
        peers=True,
        progress=lambda what, done, total: told.setdefault(what, []).append((done, total)),
    )
    assert len(result.candidates) > 1
    every = [(done, rounds) for done in range(rounds + 1)]
    for what in ("timing candidates", "confirming the best", "timing other runtimes"):
        assert told.pop(what) == every, what
    assert any("of at most 6 stages timed" in what for what in told)
    assert all(done < total for steps in told.values() for done, total in steps)  # a bar that is full says 0:00:00


def test_the_time_of_streams_is_estimated_from_runs_of_onnx_runtime():
    """Five sessions are timed, each opened and run once more than asked: three, and two of them again."""
    plan = SimpleNamespace(evidence=SimpleNamespace(value=2.0))
    measured = SimpleNamespace(plan=plan, peer_s={"downset": (9.0,), "ONNX Runtime": (0.1, 0.3)})
    assert streams_s(measured, 9) == pytest.approx(5 * (1.5 + 10 * 0.3))
    assert streams_s(SimpleNamespace(plan=plan, peer_s={}), 9) == pytest.approx(5 * (1.5 + 10 * 2.0))
