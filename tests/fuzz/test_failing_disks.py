"""Every command that writes, with the n-th write, flush or rename failing, or the process killed there, for every n:
what was there before is still there, or the whole new file is; nothing else is left."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from downset.formats.reading import load
from tests.fuzz.campaign import CLUSTER, RECORDS
from tests.models import branchy_model, installed_model

ROOT = Path(__file__).resolve().parents[2]
MOST = 40
"""Writes, flushes and renames of one command, at most."""


def commands(folder):
    """By name: the command, and the files it makes."""
    limits = ("--time-limit", "1s")
    onnx, tflite, cluster = folder / "m.onnx", folder / "m.tflite", folder / "c.toml"
    return {
        "fit tflite": (("fit", tflite, *limits, "-o", folder / "out.tflite"), ["out.tflite"]),
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


def content(path):
    if path.is_dir():
        return {
            str(entry.relative_to(path)): entry.read_bytes() for entry in sorted(path.rglob("*")) if entry.is_file()
        }
    return path.read_bytes() if path.exists() else None


def check_whole(folder, made, before):
    """Every output is as it was, or reads as a whole file of its kind."""
    left = [entry.name for entry in folder.rglob("*") if entry.name.endswith(".part")]
    assert not left
    for name in made:
        path = folder / name
        if content(path) == before[name]:
            continue
        if path.suffix in (".onnx", ".tflite"):
            load(path)
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                assert all(arrays[key].size for key in arrays.files)
        elif name == "shards":
            if (path / "shards.json").exists():
                index = json.loads((path / "shards.json").read_text())
                assert all((path / shard["file"]).is_file() for shard in index["shards"])
        elif name != "keys":  # keys: a folder that was begun is not taken for whole, see below
            assert path.read_bytes().rstrip().endswith((b"}", b"</svg>", b"#endif", b"8", b"0")), name


FAULTS = """
import errno, os, shutil, sys
from pathlib import Path

kill, left = sys.argv[1] == "kill", int(sys.argv[2])
sys.argv[:] = ["downset", *sys.argv[3:]]


def counted(function, tear=None):
    def called(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            if tear is not None:
                tear(*arguments)
            if kill:
                os.kill(os.getpid(), 9)
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*arguments, **options)

    return called


def torn(path, data):
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])


os.fsync = counted(os.fsync)
Path.replace = counted(Path.replace)
Path.write_bytes = counted(Path.write_bytes, torn)
shutil.copyfile = counted(shutil.copyfile, lambda one, two: torn(two, Path(one).read_bytes()))
from downset.cli import main

try:
    main()
finally:
    sys.stderr.flush()
"""


def attempt(how, writes, command):
    run = [sys.executable, "-c", FAULTS, how, str(writes), *map(str, command)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_write_that_fails_is_one_line_and_leaves_what_was_there(folder, name):
    command, made = commands(folder)[name]
    before = {output: content(folder / output) for output in made}
    for writes in range(MOST):
        done = attempt("fail", writes, command)
        check_whole(folder, made, before)
        if done.returncode == 0:
            break
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("downset: error: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "No space left" in done.stderr
    assert 0 < writes < MOST - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_is_killed_leaves_what_was_there_and_the_next_one_works(folder, name):
    command, made = commands(folder)[name]
    before = {output: content(folder / output) for output in made}
    for writes in range(MOST):
        done = attempt("kill", writes, command)
        for entry in [*folder.rglob("*.part")]:  # of a dead process: the next one that writes there removes them
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        check_whole(folder, made, before)
        if done.returncode != -9:
            break
    assert done.returncode == 0, done.stderr
    assert 0 < writes < MOST - 1
    assert all(content(folder / output) != before[output] for output in made)


@pytest.mark.parametrize("name", ["fit tflite", "split", "run"])
def test_a_disk_that_fills_up_in_the_middle_of_a_file_is_one_line(folder, name):
    """A limit on the size of files stands for the disk: the system itself stops in the middle of a write."""
    command, made = commands(folder)[name]
    before = {output: content(folder / output) for output in made}
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
    limited += "sys.argv[0] = 'downset'\nfrom downset.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", limited, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode in (2, 5), done.stderr
    assert done.stderr.startswith("downset: error: ") and done.stderr.count("\n") == 1, done.stderr
    check_whole(folder, made, before)
