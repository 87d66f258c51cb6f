"""Every command that writes, with the n-th write, flush or rename failing, or the process killed there, for every n:
what was there before is still there, or the whole new file is; nothing else is left."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.campaign import CLUSTER, RECORDS
from tests.fuzz.faults import check_whole, content
from tests.models import branchy_model, installed_model

pytestmark = pytest.mark.own_processes("parsers")

ROOT = Path(__file__).resolve().parents[2]
MOST = 40
"""Writes, flushes and renames of one command, at most."""


def commands(folder):
    """By name: the command, and the files it makes."""
    limits = ("--time-limit", "1s")
    onnx, tflite, cluster = folder / "m.onnx", folder / "m.tflite", folder / "c.toml"
    return {
        "fit tflite": (("fit", tflite, *limits, "-o", folder / "out.tflite"), ["out.tflite"]),
        "fit header": (
            ("fit", tflite, *limits, "-o", folder / "out.tflite", "--header", folder / "model.h"),
            ["out.tflite", "model.h"],
        ),
        "fit map": (("fit", tflite, *limits, "--map", folder / "o.svg"), ["o.svg"]),
        "fit onnx": (("fit", onnx, *limits, "-o", folder / "out.onnx"), ["out.onnx"]),
        "arena": (("arena", folder / "r.csv", "-o", folder / "out.csv"), ["out.csv"]),
        "split": (
            ("split", onnx, "--cluster", cluster, *limits, "-o", folder / "plan.json", "--export", folder / "shards"),
            ["plan.json", "shards"],
        ),
        "stage": (
            ("stage", onnx, *limits, "--no-profiles", "--budget-timings", "2", "-o", folder / "s.json"),
            ["s.json"],
        ),
        "run": (
            ("run", onnx, "--plan", folder / "staged.json", "--input", folder / "x.npy", "--output", folder / "y.npz"),
            ["y.npz"],
        ),
        "profile-cluster": (("profile-cluster", "--devices", "d0,d1", "--local", "-o", folder / "m.toml"), ["m.toml"]),
        "keys": (("keys", "init", "--authority", folder / "keys"), ["keys"]),
    }


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    command, made = commands(folder)["stage"]
    branchy_model(folder / "m.onnx")
    subprocess.run([sys.executable, "-m", "downset", *map(str, command)], capture_output=True, check=True)
    return (folder / made[0]).read_bytes()


@pytest.fixture
def folder(tmp_path, staged):
    (tmp_path / "staged.json").write_bytes(staged)
    branchy_model(tmp_path / "m.onnx")
    (tmp_path / "m.tflite").write_bytes(installed_model("tflite-micro", "sine_float.tflite").read_bytes())
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "r.csv").write_text(RECORDS)
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 8), np.float32))
    return tmp_path


NAMES = list(commands(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_every_write_that_fails_or_is_the_last_leaves_what_was_there_and_the_command_works(folder, name):
    """A failure is one line and exit code 2; a process that is killed leaves a file there, which the next removes."""
    command, made = commands(folder)[name]
    run = [sys.executable, "-m", "tests.fuzz.faults", str(folder), ",".join(made), *map(str, command)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout.split()[-1]) < MOST


@pytest.mark.parametrize("name", ["fit tflite", "split", "run"])
def test_a_disk_that_fills_up_in_the_middle_of_a_file_is_one_line(folder, name):
    """A limit on the size of files stands for the disk: the system itself stops in the middle of a write."""
    command, made = commands(folder)[name]
    before = {output: content(folder / output) for output in made}
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
    limited += "sys.argv[0] = 'downset'\nfrom downset.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", limited, *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (2, 5), done.stderr
    assert done.stderr.startswith("downset: error: ") and done.stderr.count("\n") == 1, done.stderr
    check_whole(folder, made, before)
