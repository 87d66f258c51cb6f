"""Every command that writes, onto a disk that is full: one line, exit code 2, no new file, and what was there stays.

The disk is a small file system in memory; where the system lets nobody mount one, a limit on the size of files stands
for it (the system itself stops the write then too), and the command runs in a process of its own."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.command import output_of
from tests.effort import LONG
from tests.formats.test_int8_form import uint8_network
from tests.fuzz.campaign import CLUSTER, RECORDS
from tests.models import branchy_model, installed_model
from tests.without_ray import start_no_ray

pytestmark = pytest.mark.own_processes("parsers")

ROOT = Path(__file__).resolve().parents[2]
FREE_BYTES = 4 << 12
"""Room for the names and for no output."""


def _limited():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))


class Disk:
    """A folder, and how to run a command so that the folder's disk is full."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={FREE_BYTES}", "none", str(folder)]
        found = shutil.which("mount")
        self.mounted = bool(found) and not subprocess.run(mounting, capture_output=True, check=False).returncode

    def fill(self, *, leave=0):
        """Not a byte is left but for names, or so many pages."""
        if self.mounted:
            with (self.folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(1 << 12))
            os.truncate(self.folder / "filler", FREE_BYTES - (leave << 12))

    def run(self, command):
        """With a limit on files the command still writes elsewhere what it needs for itself, if it is small."""
        return subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            preexec_fn=None if self.mounted else _limited,
        )

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    branchy_model(folder / "m.onnx")
    (folder / "m.tflite").write_bytes(installed_model("tflite-micro", "sine_float.tflite").read_bytes())
    uint8_network(folder / "uint8.tflite")
    (folder / "c.toml").write_text(CLUSTER)
    (folder / "r.csv").write_text(RECORDS)
    np.save(folder / "x.npy", np.ones((1, 3, 8, 8), np.float32))
    for command in (
        ["stage", folder / "m.onnx", "--no-profiles", "--budget-timings", "2", "-o", folder / "staged.json"],
        ["split", folder / "m.onnx", "--cluster", folder / "c.toml", "-o", folder / "plan.json"],
        ["keys", "init", "--authority", folder / "keys"],
    ):
        output_of(*command)
    return folder


def writing(inputs, disk):
    """By what is written: the command."""
    onnx, tflite, plan = inputs / "m.onnx", inputs / "m.tflite", inputs / "plan.json"
    quick, cluster = ("--time-limit", "1s"), ("--cluster", inputs / "c.toml")
    staged = ("stage", onnx, "--no-profiles", "--budget-timings", "2")
    run = ("run", onnx, "--plan", inputs / "staged.json", "--input", inputs / "x.npy", "--runs", "1")
    return {
        "fit .tflite": ("fit", tflite, *quick, "-o", disk / "out.tflite"),
        "fit .onnx": ("fit", onnx, *quick, "-o", disk / "out.onnx"),
        "fit --session": ("fit", onnx, *quick, "-o", disk / "out.onnx", "--session", disk / "open.py"),
        "fit --header": ("fit", tflite, *quick, "-o", disk / "out.tflite", "--header", disk / "model.h"),
        "fit --int8": ("fit", inputs / "uint8.tflite", *quick, "--int8", "-o", disk / "out.tflite"),
        "fit --map": ("fit", tflite, *quick, "--map", disk / "o.svg"),
        "fit --report": ("fit", tflite, *quick, "--report", disk / "o.html"),
        "fit --trace": ("fit", tflite, *quick, "--trace", disk / "o.json"),
        "order --report": ("order", onnx, *quick, "--report", disk / "o.html"),
        "order --trace": ("order", onnx, *quick, "--trace", disk / "o.json"),
        "arena -o": ("arena", inputs / "r.csv", "-o", disk / "out.csv"),
        "arena --report": ("arena", inputs / "r.csv", "--report", disk / "o.html"),
        "stage -o": (*staged, "-o", disk / "s.json"),
        "run --output": (*run, "--output", disk / "y.npz"),
        "split -o": ("split", onnx, *cluster, *quick, "-o", disk / "plan.json"),
        "split --export": ("split", onnx, *cluster, *quick, "--export", disk / "shards"),
        "split --report": ("split", onnx, *cluster, *quick, "--report", disk / "o.html"),
        "simulate -o": ("simulate", plan, "--fail", "two@0.1s", "--replan", onnx, "-o", disk / "anew.json"),
        "simulate --trace": ("simulate", plan, "--trace", disk / "o.json"),
        "profile-cluster -o": ("profile-cluster", "--devices", "d0,d1", "--local", "-o", disk / "c.toml"),
        "keys init": ("keys", "init", "--authority", disk / "keys"),
        "keys issue": ("keys", "issue", "d3", "--host", "10.0.0.3", "--authority", inputs / "keys", "-o", disk / "d3"),
    }


NAMES = list(writing(Path(), Path()))


ALIKE = {
    "fit --int8",
    "fit --trace",
    "order --report",
    "order --trace",
    "arena --report",
    "split --report",
    "simulate --trace",
}
"""Files of the same functions as those of commands that are tried always."""


@pytest.mark.parametrize("name", [name for name in NAMES if LONG or name not in ALIKE])
def test_a_full_disk_is_one_line_and_what_was_there_stays(inputs, disk, run, monkeypatch, name):
    command = writing(inputs, disk.folder)[name]
    (disk.folder / "kept").write_text("kept")
    disk.fill()
    before = {path: path.read_bytes() for path in disk.folder.iterdir()}
    if disk.mounted:
        start_no_ray(monkeypatch, disk.folder)
        status, _, said = run(*command)
    else:
        started = "tests.fuzz.stand_in" if command[0] == "profile-cluster" else "downset"
        done = disk.run([sys.executable, "-m", started, *map(str, command)])
        status, said = done.returncode, done.stderr
    assert status in (2, 5), (status, said)
    assert said.startswith("downset: error: ") and said.count("\n") == 1, said
    files = {path: path.read_bytes() for path in disk.folder.rglob("*") if path.is_file()}
    assert files == before


RESULTS = """
import resource
import sys
import numpy as np
from downset.commands.frames import Results
from downset.errors import UsageError
from downset.formats.reading import load

graph = load(sys.argv[1])
if sys.argv[3] == "limited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    with Results(sys.argv[2], graph, frames=200) as results:
        for _ in range(200):
            results.add({graph.tensors[t].name: np.ones(graph.tensors[t].shape, np.float32) for t in graph.outputs})
        results.finish()
except UsageError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("pages", [0, 1, 2, 3])
def test_results_of_a_pipeline_on_a_full_disk_are_refused_before_the_first_frame(inputs, disk, pages):
    """They are written through mapped pages: one that finds no room would end the process by a signal."""
    disk.fill(leave=pages)
    how = "full" if disk.mounted else "limited"
    run = [sys.executable, "-c", RESULTS, str(inputs / "m.onnx"), str(disk.folder / "y.npz"), how]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and done.stderr.startswith("refused: cannot write"), (done.returncode, done.stderr)
    assert [entry.name for entry in disk.folder.iterdir() if entry.name != "filler"] == []


@pytest.mark.parametrize("command", [("order", "--json"), ("inspect",), ("arena", "-o", "-")])
def test_a_full_stdout_is_one_line(inputs, command):
    name, *options = command
    file = inputs / ("r.csv" if name == "arena" else "m.onnx")
    run = [sys.executable, "-m", "downset", name, str(file), *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("downset: error: ") and done.stderr.count("\n") == 1, done.stderr
