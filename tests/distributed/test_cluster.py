"""Pipelines on Ray: three devices as nodes of this machine, one cluster for all tests of this file.

Outputs equal the unsplit model's; a killed process, a stopped one, a dead node and one that comes back lose no frame.
What slow devices, methods, windows and wrong inputs do is tested without Ray, in test_serving_*.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from contextlib import ExitStack, chdir, contextmanager, nullcontext, suppress
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.clusters.toml_file import load_cluster
from downset.distributed.profiling import joined
from downset.distributed.serving import serve
from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.node_guard import session_processes
from downset.distributed.serving.nodes import LOCAL_ADDRESS
from downset.distributed.serving.ray_fleet import cluster
from downset.distributed.serving.serve import ServingSettings, run_on
from downset.errors import UsageError
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.cluster_toml import cluster_toml
from tests.distributed.sockets import open_sockets, processes_of
from tests.distributed.test_serving_faults import wait_for
from tests.distributed.thread_fleet import assert_same, frames_of, unsplit
from tests.effort import untimed
from tests.models import branchy_model
from zoo import ZOO

pytest.importorskip("ray")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.xdist_group("cluster")

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
NAMES = ["d0", "d1", "d2"]


def devices(speed):
    """Three devices so slow that a plan uses all of them."""
    return Cluster(
        tuple(Device(name, speed * share) for name, share in zip(NAMES, (1.2, 1.0, 0.9), strict=True)),
        Network("links", 1e9, overlap=True),
    )


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory):
    """A folder with a module of a name that devices import; it leaves a mark where it runs."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "msgspec.py").write_text(f"import os\nos.makedirs({str(folder / 'it_ran')!r}, exist_ok=True)\n")
    return folder


def environment():
    """The environment variables of this process without the one that pytest changes."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="module")
def fleet(hostile_folder):
    """The cluster of a driver whose current folder is a stranger's. It leaves nothing in the driver's environment,
    and no process."""
    before = environment()
    with ExitStack() as stack:
        with chdir(hostile_folder):
            found = stack.enter_context(cluster(NAMES))
        wait_for(lambda: set(found.present()) == set(NAMES), 300.0)
        assert environment() == before
        yield found
        started = processes_of(mark=mark_of(found))
        assert len(started) > len(NAMES)
    assert environment() == before
    assert not [pid for pid in started if _exists(pid)]


def mark_of(fleet):
    """What is in the environment of every process that the run starts."""
    return f"RAY_AUTH_TOKEN_PATH={fleet.local_nodes[0].options.environment['RAY_AUTH_TOKEN_PATH']}"


def sockets_of(fleet):
    """The sockets of this process, of the nodes, and of all processes that began with the run's token."""
    return open_sockets(processes_of(os.getpid(), mark=mark_of(fleet)))


def test_no_node_starts_an_autoscaler(fleet):
    commands = []
    for pid in processes_of(mark=mark_of(fleet)):
        with suppress(OSError):  # it has ended meanwhile
            commands.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    assert any(b"gcs_server" in command for command in commands)
    assert not [command for command in commands if b"monitor.py" in command]


def test_devices_of_this_machine_are_reached_from_this_machine_alone(fleet):
    """The law holds for every process of the run; two devices have actors."""
    for name in NAMES[:2]:
        fleet.start(name)
    try:
        assert len({pid_of(fleet, name) for name in NAMES[:2]}) == 2
        found = sockets_of(fleet)
    finally:
        for name in NAMES[:2]:
            fleet.stop(name)
    assert {address for _, address, _ in found} == {LOCAL_ADDRESS}, found
    ours = Path("/proc/self/comm").read_text().strip()
    counts = Counter(name for name, *_ in found)
    assert counts == {ours: 1, "gcs_server": 1, "raylet": 8, "ray::RuntimeEnv": 4, "ray::RayDevice": 4}


def test_a_process_is_in_one_cluster_at_a_time(fleet):
    """The second is refused before anything is started, and the first goes on."""
    before = environment(), processes_of(os.getpid())
    with pytest.raises(UsageError, match="end that pipeline first"), cluster(NAMES):
        pass
    assert environment() == before[0]
    assert processes_of(os.getpid()) <= before[1]
    assert set(fleet.present()) == set(NAMES)


def test_modules_of_the_drivers_folder_are_not_run_on_devices(fleet, hostile_folder):
    fleet.start("d0")
    try:
        assert pid_of(fleet, "d0") != os.getpid()
    finally:
        fleet.stop("d0")
        assert not (hostile_folder / "it_ran").exists()


@contextmanager
def running(fleet, graph, plan, folder, *, ahead=False):
    try:
        with run_on(fleet, graph, plan, Shards(graph, folder), ServingSettings(ahead=ahead)) as pipeline:
            yield pipeline
    finally:
        for name in NAMES:
            fleet.stop(name)


def pid_of(fleet, device):
    """The process of a device's actor."""
    found, answered = {}, threading.Event()

    def then(value, error):
        found.update(value or {"error": error})
        answered.set()

    fleet.call(device, "describe", then=then)
    assert answered.wait(120)
    return found["pid"]


def test_the_zoo(fleet, tmp_path):
    path = tmp_path / "inception_v3.onnx"
    onnx.save(ZOO["inception_v3"](image=75), str(path))
    graph = load(path)
    plan = plan_pipeline(graph, devices(3e8), **untimed(200_000))
    used = {strip.device for stage in plan.stages for block in stage.blocks for strip in block.strips}
    assert used == {0, 1, 2}
    frames = frames_of(graph, 4)
    with running(fleet, graph, plan, tmp_path / "shards") as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(path, frames))
        report = pipeline.report()
    assert report.completed == 4 and not report.events
    assert all(use.computing > 0 and use.rss_bytes > 50e6 for use in report.devices)
    assert any(use.receiving > 0 for use in report.devices)


def test_from_frames_to_results(fleet, run, tmp_path, monkeypatch):
    """`downset serve`, on devices that are there."""
    monkeypatch.setattr(serve, "cluster", lambda *_, **__: nullcontext(fleet))
    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    Path("home.toml").write_text(cluster_toml({"d0": 1e5, "d1": 1e5}, rate_mbps=800, overlap=True))
    np.save("frames.npy", np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32))
    status, out, err = run(
        "serve",
        "net.onnx",
        "--cluster",
        "home.toml",
        "--input",
        "frames.npy",
        "-o",
        "out.npz",
        "-v",
        "--report",
        "served.html",
        "--trace",
        "served.json",
    )
    assert status == 0, err
    page = Path("served.html").read_text()
    assert "Measured: 3 periods from" in page and "Simulated: 3 periods from" in page
    assert "shares of the time: measured (planned, simulated)" in page
    events = json.loads(Path("served.json").read_text())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(processes.values()) == {"planned", "simulated", "measured"}
    assert {processes[event["pid"]] for event in events if event["ph"] == "X"} == {"planned", "simulated", "measured"}
    expected = unsplit(tmp_path / "net.onnx", [{"x": frame[None]} for frame in np.load("frames.npy")])
    with np.load("out.npz") as found:
        for name in ("flat", "joined"):
            assert found[name].shape[0] == 12
            for one, other in zip(found[name], expected, strict=True):
                np.testing.assert_allclose(one, other[name], rtol=1e-3, atol=1e-4)
    assert (
        re.search(r"12 of 12 frames: (a frame every .*, measured|too few frames to tell a period); planned ", out)
        and "share this machine" in out
    )
    whose = "the plan is for the rates in home.toml; the devices here are processes of this machine"
    assert whose in out and page.count(whose) == 1  # below the verdict
    assert "d0" in out and "d1" in out and "latency p50, measured: " in out
    assert "shares of the time: measured (planned, simulated)" in out
    assert len(re.findall(r"\d+% \(\d+%, \d+%\)", out)) == 6  # two devices, each computing, sending and receiving
    assert re.search(r"frame 3, stage \d, block \d, device \w+: computed in", err)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.endswith(".part")]


def test_the_cluster_is_measured(fleet, run, tmp_path, monkeypatch):
    """Through the command line: what is written is what planners read."""
    monkeypatch.setattr(joined, "cluster", lambda *_, **__: nullcontext(fleet))
    file = tmp_path / "measured.toml"
    status, out, err = run(
        "profile-cluster", "--devices", "d0,d1", "--local", "--probe-time", "2ms", "-o", file, "--json"
    )
    assert status == 0, err
    found, cluster = json.loads(out), load_cluster(file)
    jsonschema.validate(found, json.loads((SCHEMAS / "profile-cluster.json").read_text()))
    assert [device.name for device in cluster.devices] == ["d0", "d1"]
    assert cluster.network.overlap
    for stated, device in zip(found["devices"], cluster.devices, strict=True):
        assert device.mac_per_s == pytest.approx(stated["mac_per_s"], rel=1e-5)
        # Convolutions had most MACs. A busy machine may give times that one of the others does not explain.
        assert set(device.alpha_of) <= {"Gemm", "MatMul"}
        assert 1e7 < device.mac_per_s < 1e13
        assert stated["samples"] == 3 * 20
        assert 50e6 < device.runtime_bytes < 2e9
        assert device.messages is not None
        for what in ("send", "receive", "frame", "result"):
            cost = getattr(device.messages, what)
            assert cost.each_s == pytest.approx(stated["messages"][what]["each_s"], rel=1e-5)
            assert 0 <= cost.of(1 << 20) < 60.0  # how long a stall of the machine is, nobody knows
        assert device.memory_bytes > device.runtime_bytes
    bytes_per_s, latency_s = cluster.link(0, 1)
    assert 1e5 < bytes_per_s < 1e12
    assert 0 < latency_s < 60
    assert "# Measured 20" in file.read_text()


def _happened(pipeline, kind, device):
    return any((event.kind, event.device) == (kind, device) for event in pipeline.report().events)


def _exists(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_faults_one_after_another_lose_no_frame(fleet, tmp_path):
    """A killed process is replaced and comes back. A stopped one is noticed by its silence, and so is a stopped node,
    before Ray notices it: the raylet and everything under it stands still, as a machine that is cut off does."""
    path = branchy_model(tmp_path / "branchy.onnx")
    graph = load(path)
    plan, frames, found, stopped = plan_pipeline(graph, devices(1e5)), frames_of(graph, 120), [], []
    node = next(node for node in fleet.local_nodes if node.options.device == "d2")

    def disturb(pipeline):
        match len(found):
            case 20:
                os.kill(pid_of(fleet, "d0"), signal.SIGKILL)
            case 30:
                wait_for(lambda: _happened(pipeline, "back", "d0"))
            case 40:
                stopped.append(pid_of(fleet, "d1"))
                os.kill(stopped[0], signal.SIGSTOP)
            case 60:
                wait_for(lambda: _happened(pipeline, "back", "d1"))
            case 70:
                stopped.extend(session_processes(node.session))
                for pid in stopped[1:]:
                    os.kill(pid, signal.SIGSTOP)
            case 90:
                wait_for(lambda: _happened(pipeline, "lost", "d2"))

    try:
        with running(fleet, graph, plan, tmp_path / "shards") as pipeline:
            for outputs in pipeline.run(frames):
                found.append(outputs)
                disturb(pipeline)
            report = pipeline.report()
    finally:
        for pid in stopped[1:]:
            os.kill(pid, signal.SIGCONT)
    assert_same(found, unsplit(path, frames))
    events = [event for event in report.events if event.kind != "slow"]
    assert [event.device for event in events if event.kind == "lost"] == ["d0", "d1", "d2"]
    assert events[0].kind == "lost" and ("replanned", "d0") in {(event.kind, event.device) for event in events}
    ended, silent, _ = (event.detail for event in events if event.kind == "lost")
    assert "process has ended" in ended and "silent" in silent
    wait_for(lambda: not _exists(stopped[0]))  # it is ended, not left stopped
    assert next(use for use in report.devices if use.name == "d2").frames < 120
