"""The guides' commands do what the guides show, with no more libraries than their install lines bring."""

import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from downset.formats.stream_files import write_stream
from downset.partial.stream_rows import moving_input, stream_rows
from downset.partial.streams import stream_of
from downset.results.sessions import DEFAULT, SessionTaken
from downset.runtimes.ort_script import Inputs, session_program
from tests.extras_alone import missing_beside, run_alone
from tests.models import branchy_model, installed_model
from tests.partial.test_stream_rows import chain

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"


def extras_of(guide):
    """The extras that the guide's first install line names."""
    return re.search(r"\$ pip install '\.\[([\w,]+)\]'", (GUIDES / guide).read_text())[1].split(",")


def lines(guide):
    """Every line of a shell in the guide, without its remark."""
    shown = re.findall(r"^\$ (.*)$", (GUIDES / guide).read_text(), re.MULTILINE)
    inline = re.findall(r"`(downset [^`]*)`", (GUIDES / guide).read_text())
    return [line.split("    #")[0] for line in (*shown, *inline)]


TYPED = """
import sys
from downset.cli import main
for command in sys.argv[1:]:
    print("\\0", end="", flush=True)
    sys.argv = command.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
"""
"""Several commands in one process, each with a zero byte before what it prints."""


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Run commands of a guide, each given by how it starts, where only the guide's extras are installed: what each
    prints."""
    monkeypatch.chdir(tmp_path)

    def call(guide, *starts):
        typed = []
        for start, *more in [each if isinstance(each, tuple) else (each,) for each in starts]:
            (line,) = {line for line in lines(guide) if line.startswith(start)} or [start]
            typed.append(" ".join([line, *more]))
        return run_alone(tmp_path, extras_of(guide), "-c", TYPED, *typed).split("\0")[1:]

    return call


def test_what_is_blocked_is_missing(tmp_path, alone):
    """The blocker reaches the command and the processes that it starts."""
    assert "torch" in missing_beside(extras_of("several-devices.md"))
    assert "torch" not in missing_beside(extras_of("onnx-runtime.md"))
    branchy_model(tmp_path / "model.onnx")
    with pytest.raises(AssertionError, match=r"needs the extra torch: pip install 'torch>=[\d.]+' 'platformdirs"):
        alone("several-devices.md", "downset stage model.onnx")


def test_onnx_runtime(tmp_path, alone):
    branchy_model(tmp_path / "model.onnx")
    page = (GUIDES / "onnx-runtime.md").read_text()
    fit = re.search(r"^\$ (downset fit .*)", page, re.MULTILINE)[1]
    quick = ("--threads", "1", "--budget-timings", "1", "--no-profiles", "-q")
    fitted, _, said = alone(
        "onnx-runtime.md",
        (fit, "--time-limit", "1s"),
        ("downset stage model.onnx --report", *quick),
        ("downset stage model.onnx --export", "--threads", "1"),
    )
    assert "written: fitted.onnx" in fitted
    assert (tmp_path / "report.html").exists() and (tmp_path / "open.py").exists()
    assert said.startswith("nothing to gain: ") or "x in ONNX Runtime" in said
    assert "Candidates, measured" in (tmp_path / "stage.html").read_text()


def test_a_file_with_open_sizes(tmp_path, monkeypatch, run, fails):
    monkeypatch.chdir(tmp_path)
    shutil.copy(installed_model("swift-f0", "model.onnx"), tmp_path / "model.onnx")
    page = (GUIDES / "onnx-runtime.md").read_text()
    asked, answered = re.findall(r"```console\n(\$ downset fit .*?)```", page, re.DOTALL)
    command, error = asked.splitlines()
    fails(5, *command.split()[2:], says=error.removeprefix("downset: error: "))
    fails(5, "stage", "model.onnx", "--shape", "audio=1,16000", says=re.search("`(no kernel .*?)`", page)[1])
    command, *rows = answered.splitlines()
    status, out, _ = run(*command.split()[2:], "--time-limit", "1s", "-q")
    assert status == 0 and len(rows) == 3
    for row in rows:
        assert any(line.startswith(row) for line in out.splitlines()), row


def test_a_microcontroller(tmp_path, alone):
    shutil.copy(installed_model("pymicro-wakeword", "okay_nabu.tflite"), tmp_path / "model.tflite")
    alone("microcontroller.md", ("downset fit model.tflite --ram", "--time-limit", "1s", "-q"))
    assert (tmp_path / "report.html").exists() and (tmp_path / "model.h").exists()


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.name)
def test_every_program_of_a_guide_is_run(page):
    """By tests that know what it prints: these pages have programs, as many as their tests run."""
    programs = {"engine-authors.md": 2, "listening.md": 1, "pytorch-training.md": 1, "several-devices.md": 1}
    assert len(re.findall(r"```python\n", page.read_text())) == programs.get(page.name, 0)


@pytest.mark.xdist_group("cluster")
def test_several_devices(tmp_path, monkeypatch):
    """As it stands, from the model and the frames to results, with what each command is shown to print."""
    page = (GUIDES / "several-devices.md").read_text()
    monkeypatch.chdir(tmp_path)
    (program,), (cluster,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "toml"))
    exec(program, {})
    (tmp_path / "home.toml").write_text(cluster)
    printed = re.findall(r"^\$ (downset .*)\n((?:(?!\$ |```).*\n)+)", page, re.MULTILINE)
    assert [command.split()[1] for command, _ in printed] == ["split", "split", "simulate", "split", "serve"]
    assert [command for command, _ in printed] == re.findall(r"^\$ (downset .*)", page, re.MULTILINE)
    outputs = run_alone(tmp_path, extras_of("several-devices.md"), "-c", TYPED, *(command for command, _ in printed))
    for (_, rows), out in zip(printed, outputs.split("\0")[1:], strict=True):
        for row in rows.splitlines():
            # What this machine takes is measured: any rate will do.
            rates = r"every [\d.]+ m?s, [\d.]+ frames/s, measured"
            start = rates.join(map(re.escape, re.split(rates, row)))
            assert re.search(f"^{start}", out, re.MULTILINE), (row, out)
    assert np.load("out.npy").shape == (20, 1, 1000, 1, 1)
    assert all((tmp_path / name).exists() for name in ("split.html", "simulated.html", "served.html"))
    served = (tmp_path / "served.html").read_text()
    assert all(f"{name} {version(name)}" in served for name in ("downset", "onnxruntime", "ray"))


def test_an_engine(tmp_path, alone):
    """The file of records, both commands and both files are as the guide shows them, to the character."""
    page = (GUIDES / "engine-authors.md").read_text()
    block, graphs = re.findall(r"```console\n(\$ cat .*?)```", page, re.DOTALL)
    shown = dict(step.split("\n", 1) for step in block.removeprefix("$ ").split("\n$ "))
    records, placing, placed, fitting = shown
    assert (records, placed) == ("cat records.csv", "cat placed.csv")
    (tmp_path / "records.csv").write_text(shown[records] + "\n")
    reading, ordering = graphs.removeprefix("$ ").split("\n$ ")
    command, graph = reading.split("\n", 1)
    (tmp_path / command.removeprefix("cat ")).write_text(graph)
    command, printed = ordering.split("\n", 1)
    said = alone("engine-authors.md", placing, fitting, command)
    assert [each.rstrip("\n") for each in said[:2]] == [shown[placing], shown[fitting].rstrip("\n")]
    assert (tmp_path / "placed.csv").read_text().rstrip("\n") == shown[placed]
    assert "proven least" in (tmp_path / "arena.html").read_text()
    assert said[2] == printed
    assert "Already optimal" not in (tmp_path / "graph.html").read_text()


def test_the_python_of_an_engine(tmp_path, monkeypatch, capsys):
    """Each example prints what the remark behind its `print` says."""
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (GUIDES / "engine-authors.md").read_text(), re.DOTALL)
    names = {}
    for example in examples:
        exec(example, names)
        (said,) = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
        assert capsys.readouterr().out == said + "\n"
    assert len(examples) == 2 and "520" in (tmp_path / "order.html").read_text()
    assert names["order"].peak_bytes == 520 and names["order"].evidence.proven and names["arena"].evidence.proven
    assert "150 B" in (tmp_path / "placed.html").read_text()


def test_the_python_loop_of_a_model_that_listens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stream", raising=False)
    graph = chain(tmp_path / "window.onnx")
    made = stream_of(stream_rows(moving_input(graph, graph.inputs[0], 2), 2), "states")
    write_stream(tmp_path / "stream.onnx", made.graph, made.record)
    inputs = {
        value.name: (value.shape, value.dtype) for value in map(made.graph.tensors.__getitem__, made.graph.inputs)
    }
    taken = SessionTaken("original", DEFAULT, 1, 1)
    path = tmp_path / "stream.py"
    path.write_text(
        session_program("stream.onnx", taken, Inputs(inputs, stream=made.record), program=path, version="1")
    )
    rows = np.random.default_rng(0).standard_normal((1, 2, 24, 4)).astype(np.float32)
    (program,) = re.findall(r"```python\n(.*?)```", (GUIDES / "listening.md").read_text(), re.DOTALL)
    values = {"hops": [np.ascontiguousarray(rows[:, :, 2 * hop : 2 * hop + 2]) for hop in range(12)]}
    exec(program, values)
    assert values["stream"].calls == 0
    window = onnxruntime.InferenceSession("window.onnx", providers=["CPUExecutionProvider"])
    (expected,) = window.run(None, {"x": np.ascontiguousarray(rows[:, :, 8:])})
    assert np.allclose(values["outputs"]["out"], expected, rtol=1e-5, atol=1e-5)
