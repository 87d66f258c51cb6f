"""Commands that are killed, and commands that are told to ignore signals. What a killed command leaves is removed by
the next one; what another one still uses is not touched."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.effort import LONG, cases
from tests.models import branchy_model

COMMAND = [sys.executable, "-m", "downset"]
ROOT = Path(__file__).resolve().parents[2]
RECORDS = "id,lower,upper,size\na,0,2,100\nb,1,3,50\n"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(folder, *words, ignored=(), **options):
    """A process that ignores these signals from its start; its temporary files lie in `scratch` below the folder."""
    (folder / "scratch").mkdir(exist_ok=True)

    def before():
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [*map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "scratch"), "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        preexec_fn=before,
        **options,
    )


def wait_for_all(folder):
    """Wait until no process has its temporary files below the folder: those of a killed command end a moment later."""
    mark = f"TMPDIR={folder}/scratch".encode()
    until = time.monotonic() + 60
    while time.monotonic() < until and any(mark in environment(path) for path in Path("/proc").glob("[0-9]*")):
        time.sleep(0.02)


def environment(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def reading(tmp_path):
    """A command that has begun to read records, and how they come to it."""
    os.mkfifo(tmp_path / "r.csv")

    def begin(*ignored):
        process = start(tmp_path, *COMMAND, "arena", "r.csv", "--json", ignored=ignored)
        return process, (tmp_path / "r.csv").open("w")  # opens once the command reads

    return begin


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("to_all", [False, True], ids=["to one", "to all, as a terminal does"])
def test_a_signal_that_is_ignored_from_the_start_changes_nothing(tmp_path, reading, number, to_all):
    """As with `nohup`, and in the background of a shell without job control."""
    process, records = reading(number)
    with process, records:
        for _ in range(2):
            (os.killpg if to_all else os.kill)(process.pid, number)
            time.sleep(0.5)  # a command that answers has ended by then
        records.write(RECORDS)
        records.close()
        out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["arena_bytes"] == 150
    assert not names(tmp_path / "scratch")


def test_the_other_signals_are_answered(reading):
    process, records = reading(signal.SIGHUP, signal.SIGINT)
    with process, records:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=240)[1] == "downset: stopped\n"
    assert process.returncode == 128 + signal.SIGTERM


@pytest.fixture
def inputs(tmp_path):
    branchy_model(tmp_path / "m.onnx")
    (tmp_path / "records.csv").write_text(RECORDS)
    return tmp_path


def write_plan(folder):
    """A command that writes into the folder, from its start to its end."""
    with start(folder, *COMMAND, "arena", "records.csv", "-o", "plan.json") as process:
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err


SPLIT = ["split", "m.onnx", "--cluster", "rpi_8", "--export", "shards", "-q"]
FIT = ["fit", "m.onnx", "-o", "fitted.onnx", "--session", "open.py", "--time-limit", "1s", "-q"]
EVERY = [SPLIT, FIT] if LONG else [SPLIT]


@pytest.mark.parametrize("words", EVERY, ids=[words[0] for words in EVERY])
def test_after_kills_at_random_moments_nothing_is_left(inputs, words):
    """The moments lie in all of a command's work; the first of them is one at which it has temporary files. What is
    killed is everything, or the process that watches, or the one that works."""
    begin = time.monotonic()
    draw = random.Random(words[0])
    with start(inputs, *COMMAND, *words) as whole:
        assert whole.communicate(timeout=240)[1] == "" and whole.returncode == 0
    takes_s, before = time.monotonic() - begin, names(inputs)
    left = 0
    for at in range(cases(30)):
        with start(inputs, *COMMAND, *words) as process:
            while at < 2 and not names(inputs / "scratch") and process.poll() is None:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.05 if at < 2 else takes_s))
            worker = workers_of(process.pid)
            if at % 3 == 2 and worker:
                os.kill(worker[0], signal.SIGKILL)
            else:
                (os.killpg if at % 3 else os.kill)(process.pid, signal.SIGKILL)
            process.communicate(timeout=240)
        wait_for_all(inputs)
        left += bool(names(inputs / "scratch"))
    assert left, "a killed command leaves something, or this test tries nothing"
    with start(inputs, *COMMAND, *words) as again:
        assert again.communicate(timeout=240)[1] == "" and again.returncode == 0
    assert names(inputs) == before
    # Python's own trial of a folder for temporary files has a name of eight characters, and is empty or says "blat".
    ours = [path for path in (inputs / "scratch").iterdir() if not (path.is_file() and path.stat().st_size <= 4)]
    assert not ours
    assert not [path for path in inputs.rglob("*") if path.name.endswith(".part")]


def workers_of(process):
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


RESULTS = """
import os
from types import SimpleNamespace
import numpy as np
from downset.commands.frames import Results

def busy(**_):
    metas = [SimpleNamespace(name=name, dtype="float32", shape=(1, 2), nbytes=8) for name in "xy"]
    with Results("out.npz", SimpleNamespace(tensors=metas, outputs=range(2)), 3) as results:
        results.add({meta.name: np.ones((1, 2)) for meta in metas})
        print(os.getpid(), flush=True)
        input()
        results.finish()

from downset.commands import group
group.downset.main = busy
from downset.__main__ import main
main()
"""
"""A command that has reserved room beside its output for the results of three frames, and has one."""


@pytest.fixture
def holding(inputs):
    """Such a command, and the process of it that works."""
    process = start(inputs, sys.executable, "-c", RESULTS)
    with process:
        yield process, int(process.stdout.readline())
        process.kill()


def parts(folder):
    return [name for name in names(folder) if name.endswith(".part")]


def test_reserved_room_is_freed_by_the_next_command(inputs, holding):
    process, _ = holding
    os.killpg(process.pid, signal.SIGKILL)
    wait_for_all(inputs)
    assert len(parts(inputs)) == 2 and names(inputs / "scratch")
    write_plan(inputs)
    assert not parts(inputs) and not names(inputs / "scratch")


def test_a_command_that_runs_keeps_what_it_uses(inputs, holding):
    process, _ = holding
    for _ in range(2):
        write_plan(inputs)
    assert len(parts(inputs)) == 2 and len(names(inputs / "scratch")) == 1
    assert process.communicate("\n", timeout=240)[1] == "" and process.returncode == 0
    assert (inputs / "out.npz").exists() and not parts(inputs) and not names(inputs / "scratch")


def test_results_are_kept_for_the_process_that_watches(inputs, holding):
    """It writes them when the one that works was killed, so that they are not left over before."""
    process, worker = holding
    process.send_signal(signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    write_plan(inputs)
    assert len(parts(inputs)) == 2
    process.send_signal(signal.SIGCONT)
    assert "1 of 3 frames finished" in process.communicate(timeout=240)[1]
    assert (inputs / "out.npz").exists() and not parts(inputs) and not names(inputs / "scratch")
