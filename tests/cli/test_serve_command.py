"""`downset serve` and `downset worker` as users run them; what ends them leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from downset.distributed.serving.node_guard import session_processes
from downset.distributed.serving.nodes import free_port
from tests.cluster_toml import cluster_toml
from tests.distributed.thread_fleet import unsplit
from tests.effort import LONG
from tests.models import branchy_model

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("cluster")

CLUSTER = cluster_toml({"left": 1e5, "right": 1e5}, rate_mbps=800, overlap=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    branchy_model(folder / "net.onnx")
    (folder / "home.toml").write_text(CLUSTER)
    (folder / "one.toml").write_text(cluster_toml({"left": 1e5}, rate_mbps=800, overlap=True))
    frames = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.save(folder / "frames.npy", frames)
    np.save(folder / "many.npy", np.broadcast_to(frames[:1], (100_000, 3, 8, 8)))
    return folder


@pytest.fixture
def here(files, monkeypatch):
    monkeypatch.chdir(files)
    return files


def reach(driver, number):
    """Wait until the driver has finished this frame."""
    assert any(f"frame {number}," in line for line in driver.stderr)


def ended(guards):
    """Whether, soon, no process of these nodes is left."""
    until = time.monotonic() + 120
    while time.monotonic() < until and any(session_processes(guard) for guard in guards):
        time.sleep(0.1)
    return not any(session_processes(guard) for guard in guards)


def test_a_killed_driver_leaves_no_process_behind(here):
    """The guards see to that."""
    command = ["serve", "net.onnx", "--cluster", "one.toml", "--input", "many.npy", "-v"]
    driver = started(command, start_new_session=True)
    reach(driver, 5)
    guards = _guards(driver.pid)
    assert len(guards) == 2  # of the head and of the device
    os.kill(driver.pid, signal.SIGKILL)
    _, errors = driver.communicate(timeout=240)
    assert driver.returncode == -signal.SIGKILL and "Traceback" not in errors, errors
    assert ended(guards)


def started(command, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "downset", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        **options,
    )


@contextmanager
def board(driver, address, run):
    """A worker that waits for the driver at that address, of a board: the words for `serve`, and the worker. It
    outlives the driver, and leaves nothing behind when it is stopped."""
    boards = f"boards-{address}"
    assert run("keys", "init", "--authority", boards)[0] == 0
    for name, host in (("driver", driver), ("board", address)):
        assert run("keys", "issue", name, "--host", host, "--authority", boards)[0] == 0
    Path("board.toml").write_text(cluster_toml({"board": 1e6}, rate_mbps=800, overlap=True))
    head, other = f"{driver}:{free_port('127.0.0.2')}", [] if address == driver else ["--address", address]
    worker = started(["worker", "--head", head, "--name", "board", "--keys", f"{boards}/board", *other])
    try:
        yield ["serve", "net.onnx", "--cluster", "board.toml", "--head", head, "--keys", f"{boards}/driver"]
        assert worker.poll() is None
        guards = _guards(worker.pid)
        assert guards
    finally:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=240)
    assert "board: joins the head" in errors and "Traceback" not in errors
    assert not any(map(session_processes, guards))


def test_a_device_under_keys(here, run):
    """The page's way from keys to results, with a board that is another address of loopback."""
    with board("127.0.0.2", "127.0.0.3", run) as serve:
        status, out, errors = run(*serve, "--input", "frames.npy", "-o", "keyed.npz", "--no-ahead")
    assert status == 0, errors
    assert re.search(r"^12 of 12 frames: a frame every .*, measured; planned ", out) and not errors
    expected = unsplit(here / "net.onnx", [{"x": frame[None]} for frame in np.load("frames.npy")])
    with np.load("keyed.npz") as found:
        for one, other in zip(found["flat"], expected, strict=True):
            np.testing.assert_allclose(one, other["flat"], rtol=1e-3, atol=1e-4)


def test_a_driver_that_is_interrupted_ends_in_order(here, run):
    """By Ctrl-C, at the address that Ray replaces: the worker waits for the next driver."""
    with board("127.0.0.1", "127.0.0.1", run) as serve:
        driver = started([*serve, "--input", "many.npy", "-v"], start_new_session=True)
        reach(driver, 5)
        guards = _guards(driver.pid)
        assert len(guards) == 1
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=240)
        assert driver.returncode == 128 + signal.SIGINT and "Traceback" not in errors, errors
        assert ended(guards)


@pytest.mark.parametrize("process", ["raylet", *(["gcs_server", "ray::DashboardA"] if LONG else [])])
def test_a_lost_process_of_the_head_is_one_line_and_keeps_what_is_finished(process, here):
    """Ray ends the driver's process at once where it finds its node gone, or the driver finds it first."""
    command = ["serve", "net.onnx", "--cluster", "one.toml", "--input", "many.npy", "-o", "part.npz", "-v"]
    driver = started(command)
    reach(driver, 40)
    sessions = [
        session_processes(guard)
        for guard in _guards(driver.pid)
        if b"--head" in Path(f"/proc/{guard}/cmdline").read_bytes()
    ]
    named = [pid for pid in sessions[0] if Path(f"/proc/{pid}/comm").read_text().strip() == process]
    os.kill(named[0], signal.SIGKILL)
    _, said = driver.communicate(timeout=240)
    assert driver.returncode == 5 and "Traceback" not in said, said
    (error,) = (line for line in said.splitlines() if line.startswith("downset: error: "))
    assert error.startswith("downset: error: Ray") and "start the command again" in error
    finished = int(re.search(r"^([\d,]+) of 100,000 frames finished$", said, re.MULTILINE)[1].replace(",", ""))
    assert "written: part.npz (the results, a row for each frame)" in said
    frame = np.load("many.npy", mmap_mode="r")[0]
    (expected,) = unsplit(here / "net.onnx", [{"x": frame[None]}])
    with np.load("part.npz") as found:
        assert found["flat"].shape[0] == finished > 0
        for one in found["flat"]:
            np.testing.assert_allclose(one, expected["flat"], rtol=1e-3, atol=1e-4)
    assert not [entry for entry in here.iterdir() if entry.name.endswith(".part")]


def _guards(command):
    """The guards of a command's nodes, which its working process started; each is the first of a session."""
    parents, guards = {}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"node_guard.py" in line:
                guards.append(int(entry.name))
    return [guard for guard in guards if parents.get(parents[guard]) == command]


def test_mistakes_are_one_line_before_anything_starts(here, fails):
    np.save("wide.npy", np.zeros((2, 3, 8, 9), np.float32))
    np.save("none.npy", np.zeros((0, 3, 8, 8), np.float32))
    model = ("serve", "net.onnx")
    fails(2, *model, "--cluster", "home.toml", says="--input says which frames")
    fails(2, *model, "--input", "frames.npy", says="--cluster is missing, and so is --plan")
    given = (*model, "--cluster", "home.toml", "--input")
    fails(2, *given, "wide.npy", says="wide.npy is float32 [2, 3, 8, 9]; the input 'x' takes float32 frames")
    fails(2, *given, "none.npy", says="has no frames")
    fails(2, *given, ".", "--local", "--head", "10.0.0.1:1", says="give one")
    fails(5, *given, "nowhere.npy", says="cannot read nowhere.npy")
    fails(2, *given, "frames.npy", "-o", "out.npy", says="2 outputs, name a .npz file")
    fails(2, *given, "frames.npy", "-o", "frames.npy", says="being read")
    fails(2, *given, "frames.npy", "--head", "10.0.0.1:6379", says="need keys")
    fails(2, *given, "frames.npy", "--head", "10.0.0.1", "--keys", "k", says="'10.0.0.1' is not HOST:PORT")


def test_a_plan_that_names_a_device_the_cluster_lacks(here, run, fails):
    assert run("split", "net.onnx", "--cluster", "home.toml", "-o", "plan.json", "-q")[0] == 0
    Path("other.toml").write_text(CLUSTER.replace("left", "gauche"))
    fails(
        2,
        "serve",
        "net.onnx",
        "--cluster",
        "other.toml",
        "--plan",
        "plan.json",
        "--input",
        "frames.npy",
        says="plan.json names device 'left', which is not in other.toml; it has gauche, right",
    )


def test_no_memory_for_the_object_store(here, fails, monkeypatch):
    monkeypatch.setattr("downset.distributed.serving.nodes.shutil.disk_usage", lambda _: _Usage())
    fails(
        2, "serve", "net.onnx", "--cluster", "home.toml", "--input", "frames.npy", says="no memory for the object store"
    )


class _Usage:
    free = 1 << 20


def test_a_port_in_use(here, run, fails):
    import socket

    assert run("keys", "init", "--authority", "mine")[0] == 0
    assert run("keys", "issue", "d", "--host", "127.0.0.2", "--authority", "mine")[0] == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        head = f"127.0.0.2:{taken.getsockname()[1]}"
        fails(
            2,
            "serve",
            "net.onnx",
            "--cluster",
            "home.toml",
            "--input",
            "frames.npy",
            "--head",
            head,
            "--keys",
            "mine/d",
            says=f"cannot listen on {head}",
        )
