"""Commands that write files name each of them on the screen, one line a file, all in the same way."""

import json
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from downset.errors import LimitReached, UnsupportedError
from downset.process.command import Stopped
from tests.cluster_toml import cluster_toml
from tests.models import branchy_model
from tests.without_ray import start_no_ray

PAGE, TRACE = "an HTML page", "a trace in JSON"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model, a cluster and frames, in which commands run."""
    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    (tmp_path / "home.toml").write_text(cluster_toml({"pi_0": 1e5, "pi_1": 1e5}, rate_mbps=800))
    np.save(tmp_path / "frames.npy", np.zeros((3, 3, 8, 8), np.float32))
    return tmp_path


@pytest.fixture
def written(here, run):
    """Run a command; return the lines on files that it prints, each of which names a file that is there."""

    def call(line):
        status, out, err = run(*line.split())
        assert status == 0, err
        lines = [text for text in out.splitlines() if "written: " in text]
        for text in lines:
            assert (here / text.removeprefix("written: ").split(" (")[0]).exists(), text
        assert "written: " not in err
        return lines

    return call


def expected(**files):
    return [f"written: {name.replace('__', '.')} ({what})" for name, what in files.items()]


def test_order(written):
    files = "--report o.html --trace o.json"
    assert written(f"order net.onnx {files}") == expected(o__html=PAGE, o__json=TRACE)
    assert written("order net.onnx") == written(f"order net.onnx {files} --json") == []


def test_names_are_printed_as_they_are(written):
    assert written("order net.onnx --report [b]:warning:.html") == [f"written: [b]:warning:.html ({PAGE})"]


def test_stage_and_run(written, here, run, monkeypatch):
    from downset.tuning import ort_streams

    def fails(*_, **__):
        raise UnsupportedError("nodes without names")

    quick = "--threads 1 --budget-timings 1 --no-profiles"
    files = "-o s.json --report s.html --trace t.json"
    lines = expected(s__json="a plan of stages", s__html=PAGE, t__json=TRACE)
    pages = lines[1:]
    assert written(f"stage net.onnx {quick} {files}") == lines
    assert written(f"stage net.onnx {quick} {files} -q") == []
    assert written("run net.onnx --plan s.json --runs 1 --output o.npz") == expected(o__npz="the outputs")
    monkeypatch.setattr(ort_streams.StreamsTimed, "content", lambda self: b"{}")
    streams = f"stage net.onnx {quick} --ort-streams streams.json"
    for why_not in ("", "some reason"):
        monkeypatch.setattr(ort_streams.StreamsTimed, "why_not", property(lambda self, why_not=why_not: why_not))
        status, out, _ = run(*streams.split())
        lines = [line for line in out.splitlines() if "written: " in line]
        kept = expected(streams__json="streams for ONNX Runtime")
        assert (status, lines) == (0, [f"not written: streams.json ({why_not})"] if why_not else kept)
        (here / "streams.json").unlink(missing_ok=True)
    assert written(f"{streams} --json") == []
    monkeypatch.setattr(ort_streams, "time_streams", fails)
    status, out, err = run(*streams.split(), *files.split())
    assert (status, out) == (5, "") and set(err.splitlines()[1:]) == {*expected(s__json="a plan of stages"), *pages}


def test_split_and_simulate(written):
    planned = "split net.onnx --cluster home.toml --time-limit 1s -o p.json --report s.html --trace t.json"
    lines = expected(p__json="a plan of a pipeline", s__html=PAGE, t__json=TRACE)
    assert written(planned) == lines
    assert written(f"{planned} -q") == written(f"{planned} --json") == []
    shards = "a folder of shards, one for each device"
    exported = written("split net.onnx --cluster home.toml --time-limit 1s --export shards")
    assert exported == expected(shards=shards)
    assert written("simulate p.json --frames 9 --report s.html --trace t.json") == lines[1:]
    replanned = written("simulate p.json --frames 9 --fail pi_0@1s --replan net.onnx -o r.json")
    assert replanned == expected(r__json="a plan of a pipeline, without the dead devices")


def test_serve(written, monkeypatch, tmp_path_factory):
    start_no_ray(monkeypatch, tmp_path_factory.mktemp("fleet"))
    served = "serve net.onnx --cluster home.toml --time-limit 1s --input frames.npy -o o.npz --report s.html"
    lines = expected(o__npz="the results, a row for each frame", s__html=PAGE)
    assert written(served) == lines
    assert written(f"{served} -q") == []


class _Ending:
    """A pipeline that gives two results, and ends by `error`: before the third, or after the last."""

    def __init__(self, error, *, early):
        self._error, self._early, self._done = error, early, False

    def run(self, frames):
        for at, _ in enumerate(frames):
            if at == 2 and self._early:
                raise self._error
            yield {"flat": np.zeros((1, 4), np.float32), "joined": np.zeros((1, 40, 4, 4), np.float32)}
        self._done = True

    def report(self):
        if not self._early and self._done:
            raise self._error
        return SimpleNamespace(completed=0, period_s=None, planned_period_s=0.0, latency_s=None, replans=0)


@pytest.mark.parametrize(
    ("make", "early", "code"),
    [
        (lambda: LimitReached("two devices are lost"), True, 6),
        (lambda: Stopped(signal.SIGINT), False, 130),
        (lambda: Stopped(signal.SIGINT), True, 130),
        (lambda: MemoryError(), True, 6),
    ],
)
def test_serve_names_what_it_wrote_before_it_ended(here, run, monkeypatch, make, early, code):
    @contextmanager
    def starts(*_, **__):
        yield _Ending(make(), early=early)

    monkeypatch.setattr("downset.distributed.serving.serve.serve", starts)
    served = [
        "serve",
        "net.onnx",
        "--cluster",
        "home.toml",
        "--time-limit",
        "1s",
        "--input",
        "frames.npy",
        "--report",
        "s.html",
    ]
    status, out, err = run(*served, "-o", "o.npz")
    assert (status, out) == (code, "")
    with np.load("o.npz") as results:
        assert len(results["flat"]) == (2 if early else 3)
    assert [line for line in err.splitlines() if "written" in line] == expected(
        o__npz="the results, a row for each frame"
    )
    assert ("2 of 3 frames finished" in err.splitlines()) == (early and not isinstance(make(), MemoryError))
    assert "written" not in run(*served, "-q", "-o", "o.npz")[2]
    assert "written" not in run(*served)[2]
    printed = json.loads(run(*served, "--json", "-o", "o.npz")[1])
    assert printed["error"]["exit_code"] == code
    assert printed.get("files") == (None if isinstance(make(), MemoryError) else ["o.npz"])


def test_fit(written):
    fitted = "fit net.onnx --time-limit 1s -o f.onnx --session open.py --report f.html"
    first, *others = written(fitted)
    assert first.startswith("written: f.onnx (")
    assert others == expected(open__py="a program that opens it", f__html=PAGE)
    assert written(f"{fitted} -q") == []
