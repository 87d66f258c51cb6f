"""Pipelines on Ray: four devices as nodes of this machine, one cluster for all tests of this file.

Outputs equal the unsplit model's; a killed process, a stopped one, a dead node and one that comes back lose no frame.
What slow devices, methods, windows and wrong inputs do is tested without Ray, in test_serving_*.py.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import onnx
import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.node_guard import session_processes
from downset.distributed.serving.nodes import LOCAL_ADDRESS
from downset.distributed.serving.ray_fleet import cluster
from downset.distributed.serving.serve import ServingSettings, run_on
from downset.errors import UsageError
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.distributed.sockets import open_sockets, processes_of
from tests.distributed.test_serving_faults import wait_for
from tests.distributed.thread_fleet import assert_same, first_event, frames_of, unsplit
from tests.effort import untimed
from tests.models import branchy_model, installed_model
from zoo import ZOO

pytest.importorskip("ray")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.xdist_group("cluster")

NAMES = ["d0", "d1", "d2", "d3"]


def devices(speed):
    """Four devices so slow that a plan uses all of them."""
    return Cluster(
        tuple(Device(name, speed * share) for name, share in zip(NAMES, (1.2, 1.0, 0.9, 0.9), strict=True)),
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
    """The cluster of a driver whose current folder is a stranger's. It leaves nothing in the driver's environment."""
    before = environment()
    with ExitStack() as stack:
        with chdir(hostile_folder):
            found = stack.enter_context(cluster(NAMES))
        wait_for(lambda: set(found.present()) == set(NAMES), 300.0)
        assert environment() == before
        yield found
    assert environment() == before


def sockets_of(fleet):
    """The sockets of this process, of the nodes, and of all processes that began with the run's token."""
    token = fleet.local_nodes[0].options.environment["RAY_AUTH_TOKEN_PATH"]
    return open_sockets(processes_of(os.getpid(), mark=f"RAY_AUTH_TOKEN_PATH={token}"))


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
    assert counts == {ours: 1, "gcs_server": 1, "raylet": 10, "ray::RuntimeEnv": 5, "ray::RayDevice": 2}


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


@pytest.mark.parametrize(
    ("name", "options", "speed", "frames"),
    [("vgg16", {"image": 32, "classifier": False}, 3e8, 8), ("inception_v3", {"image": 75}, 3e8, 4)],
)
def test_the_zoo(name, options, speed, frames, fleet, tmp_path):
    path = tmp_path / f"{name}.onnx"
    onnx.save(ZOO[name](**options), str(path))
    graph = load(path)
    plan = plan_pipeline(graph, devices(speed), **untimed(200_000))
    used = {strip.device for stage in plan.stages for block in stage.blocks for strip in block.strips}
    assert used == {0, 1, 2, 3}
    given = frames_of(graph, frames)
    with running(fleet, graph, plan, tmp_path / "shards") as pipeline:
        assert_same(list(pipeline.run(given)), unsplit(path, given))
        report = pipeline.report()
    assert report.completed == frames and not report.events
    assert all(use.computing > 0 and use.rss_bytes > 50e6 for use in report.devices)
    assert any(use.receiving > 0 for use in report.devices)


@pytest.mark.models
def test_a_real_model(fleet, tmp_path):
    path = installed_model("onnx", "light_squeezenet.onnx")
    graph = load(path)
    plan, given = plan_pipeline(graph, devices(1e8), method="coedge", time_limit_s=2), frames_of(graph, 4)
    with running(fleet, graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(given)), unsplit(path, given))


def _disturbed(fleet, tmp_path, disturb, *, frames=80):
    """Results, what was expected, and the report of a pipeline that `disturb(count, pipeline)` disturbs."""
    path = branchy_model(tmp_path / "branchy.onnx")
    graph = load(path)
    plan, given, found = plan_pipeline(graph, devices(1e5)), frames_of(graph, frames), []
    with running(fleet, graph, plan, tmp_path / "shards") as pipeline:
        for outputs in pipeline.run(given):
            found.append(outputs)
            disturb(len(found), pipeline)
        report = pipeline.report()
    assert_same(found, unsplit(path, given))
    return report


def _happened(pipeline, kind):
    return lambda: any(event.kind == kind for event in pipeline.report().events)


def test_a_killed_process_is_replaced_and_comes_back(fleet, tmp_path):
    def disturb(count, pipeline):
        if count == 20:
            os.kill(pid_of(fleet, "d0"), signal.SIGKILL)
        if count == 30:
            wait_for(_happened(pipeline, "back"))

    report = _disturbed(fleet, tmp_path, disturb)
    kinds = [(event.kind, event.device) for event in report.events if event.kind != "slow"]
    assert kinds[0] == ("lost", "d0") and {("replanned", "d0"), ("back", "d0")} <= set(kinds[1:])
    assert "process has ended" in first_event(report).detail


def test_a_stopped_process_is_noticed_by_its_silence(fleet, tmp_path):
    pids = []

    def disturb(count, pipeline):
        if count == 20:
            pids.append(pid_of(fleet, "d1"))
            os.kill(pids[0], signal.SIGSTOP)
        if count == 40:
            wait_for(_happened(pipeline, "lost"))

    report = _disturbed(fleet, tmp_path, disturb)
    assert (first_event(report).kind, first_event(report).device) == ("lost", "d1")
    assert "silent" in first_event(report).detail
    wait_for(lambda: not _exists(pids[0]))  # it is ended, not left stopped


def _exists(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stopped_node_is_noticed_before_ray_notices(fleet, tmp_path):
    """The raylet and everything under it stands still, as a machine that is cut off does."""
    node = next(node for node in fleet.local_nodes if node.options.device == "d2")
    stopped = []

    def disturb(count, pipeline):
        if count == 20:
            stopped.extend(session_processes(node.session))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        if count == 40:
            wait_for(_happened(pipeline, "lost"))

    try:
        report = _disturbed(fleet, tmp_path, disturb)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert (first_event(report).kind, first_event(report).device) == ("lost", "d2")
    assert next(use for use in report.devices if use.name == "d2").frames < 80
