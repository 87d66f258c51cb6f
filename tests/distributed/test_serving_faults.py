"""Devices that die, stop, slow down and come back: no frame is lost, none comes twice, and their order is kept. Driver
and devices without Ray; what a cluster does in the same cases is in test_cluster.py."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving import health
from downset.distributed.serving.kept_shards import KeptShards
from downset.distributed.serving.run import PipelineRun
from downset.distributed.serving.serve import serve
from downset.errors import InfeasibleError, UnsupportedError, UsageError
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.distributed.thread_fleet import ThreadFleet, assert_same, first_event, frames_of, running, unsplit
from tests.models import branchy_model

pytest.importorskip("onnxruntime")

THREE = Cluster(
    tuple(Device(f"d{place}", 1e5) for place in range(3)), Network("links", 1e9, overlap=True)
)  # so slow that every device has work
NAMES = ["d0", "d1", "d2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return branchy_model(tmp_path_factory.mktemp("model") / "branchy.onnx")


def wait_for(happened, limit_s=120.0):
    """Until it happens; the limit is for what never does, however busy the machine."""
    until = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def _served(model, tmp_path, disturb, *, frames=60, delay_s=0.01, ahead=False, names=NAMES):
    """A pipeline that `disturb(fleet, count, pipeline)` disturbs, told how many results are out."""
    graph = load(model)
    plan = plan_pipeline(graph, THREE)
    given, fleet = frames_of(graph, frames), ThreadFleet(names, tmp_path / "devices", delay_s=delay_s)
    found = []
    with running(graph, plan, tmp_path, fleet=fleet, ahead=ahead) as pipeline:
        for outputs in pipeline.run(given):
            found.append(outputs)
            disturb(fleet, len(found), pipeline)
        assert_same(found, unsplit(model, given))
        return pipeline.report(), fleet


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_device(name, ahead, model, tmp_path):
    report, _ = _served(model, tmp_path, lambda f, n, p: f.kill(name) if n == 20 else None, ahead=ahead)
    assert (first_event(report).kind, first_event(report).device) == ("lost", name)
    change = next(event for event in report.events if event.kind == "replanned")
    assert change.device == name and change.replayed > 0 and report.completed == 60


def test_one_after_another_dies_and_none_returns(model, tmp_path):
    def disturb(fleet, count, pipeline):
        if count in (10, 20):
            fleet.names.discard(f"d{count // 10}")
            fleet.kill(f"d{count // 10}")

    report, _ = _served(model, tmp_path, disturb)
    assert [event.device for event in report.events if event.kind == "lost"] == ["d1", "d2"]
    assert {use.name for use in report.devices if use.frames == 60} == {"d0"}


def test_the_last_device_dies(model, tmp_path):
    """What was finished is delivered; then comes the error."""

    def disturb(fleet, count, pipeline):
        if count == 10:
            fleet.names.clear()
            for name in NAMES:
                fleet.kill(name)

    graph = load(model)
    given = frames_of(graph, 40)
    fleet = ThreadFleet(NAMES, tmp_path / "devices", delay_s=0.01)
    found = []
    with (
        pytest.raises(InfeasibleError, match="no device is left"),
        running(graph, plan_pipeline(graph, THREE), tmp_path, fleet=fleet) as pipeline,
    ):
        for outputs in pipeline.run(given):
            found.append(outputs)
            disturb(fleet, len(found), pipeline)
    assert 10 <= len(found) < 40
    assert_same(found, unsplit(model, given)[: len(found)])


def _later(monkeypatch, waits_for, device, seconds):
    """Put the health's clock forward by so many seconds once `waits_for(state)` holds of this device, while no other
    has a question open: on a busy machine a healthy one may be late as well."""
    lost = health.Health.lost

    def later(self, now):
        states = dict(self._states)
        disturbed = device in states and waits_for(states.pop(device))
        others_rest = all(other.asked_s is None for other in states.values())
        return lost(self, now + (seconds if disturbed and others_rest else 0.0))

    monkeypatch.setattr(health.Health, "lost", later)


def test_a_stopped_device(model, tmp_path, monkeypatch):
    monkeypatch.setattr("downset.distributed.serving.driver.PING_S", 0.1)

    def disturb(fleet, count, pipeline):
        if count == 20:
            fleet.stall("d1")
            _later(monkeypatch, lambda state: state.asked_s is not None, "d1", health.SILENCE_S)

    report, _ = _served(model, tmp_path, disturb)
    lost = next(event for event in report.events if event.kind == "lost")
    assert lost.device == "d1" and "silent" in lost.detail


def test_a_device_that_answers_and_computes_nothing(model, tmp_path, monkeypatch):
    """Alive by its signs, at one computation for ever. Time is put forward while no other device computes."""
    monkeypatch.setattr("downset.distributed.serving.driver.PING_S", 0.1)
    gate, overdue, armed = threading.Event(), PipelineRun.overdue, threading.Event()

    def later(run, now):
        waits = [wait for wait in run.waits() if wait.blame == "one computation"]
        stuck = armed.is_set() and {wait.device for wait in waits} == {"d2"}
        return [] if not stuck else overdue(run, waits[0].begun_s + health.LEAST_DEADLINE_S + 0.1)

    monkeypatch.setattr(PipelineRun, "overdue", later)

    def disturb(fleet, count, pipeline):
        if count == 20:
            fleet.processes["d2"].device.run._compute = lambda *_: gate.wait(60)
            armed.set()

    report, _ = _served(model, tmp_path, disturb)
    gate.set()
    lost = next(event for event in report.events if event.kind == "lost")
    assert lost.device == "d2" and lost.detail == "one computation took more than 6 s"


def test_a_device_comes_back_and_works_again(model, tmp_path):
    """Its shards are on its disk still: none is carried there twice."""

    def disturb(fleet, count, pipeline):
        if count == 20:
            fleet.kill("d0")
        if count == 30:
            wait_for(lambda: any(event.detail.startswith("a faster") for event in pipeline.report().events))

    report, fleet = _served(model, tmp_path, disturb, frames=120)
    kinds = [event.kind for event in report.events if event.kind not in ("slow", "recovered")]
    assert kinds[0] == "lost" and sorted(kinds[:3]) == ["back", "lost", "replanned"] and "replanned" in kinds[3:]
    assert len(fleet.kept) == len(set(fleet.kept))
    frames = {use.name: use.frames for use in report.devices}
    assert 20 < frames["d0"] < 120 and frames["d1"] == 120


def test_a_device_that_comes_back_while_the_plan_changes_is_used(model, tmp_path, monkeypatch):
    """The plan without it is still on its way to the others when it is there again."""
    fleet_method = ThreadFleet._method

    def method(fleet, device, name, arguments):
        if name == "begin" and arguments[0] == 2:
            wait_for(lambda: fleet.returned)
        return fleet_method(fleet, device, name, arguments)

    def disturb(fleet, count, pipeline):
        fleet.returned = any(event.kind == "back" for event in pipeline.report().events)
        if count == 20:
            fleet.kill("d0")
            wait_for(lambda: any(event.kind == "back" for event in pipeline.report().events))
            fleet.returned = True
            wait_for(lambda: any(event.detail.startswith("a faster") for event in pipeline.report().events))

    monkeypatch.setattr(ThreadFleet, "_method", method)
    _served(model, tmp_path, disturb, frames=60)


def test_a_device_dies_again_while_its_return_is_prepared(model, tmp_path):
    """The better plan needs it, and frames are still leaving the old one: nothing waits for the dead device."""
    killed = []

    def disturb(fleet, count, pipeline):
        driver = pipeline._driver
        if count == 20:
            fleet.kill("d0")
            begin = driver._move_to

            def move_to(deployment, event):
                if "d0" in deployment.programs and not killed:
                    killed.append("d0")
                    driver._better = deployment
                    fleet.kill("d0")
                    time.sleep(0.2)  # the driver's thread: the loss is the next event
                    return
                begin(deployment, event)

            driver._move_to = move_to
        if count == 30:
            wait_for(lambda: len([e for e in pipeline.report().events if e.kind == "back"]) == 2)

    report, _ = _served(model, tmp_path, disturb, frames=80)
    assert killed and [event.device for event in report.events if event.kind == "lost"] == ["d0", "d0"]


def test_a_device_that_becomes_slow_is_relieved(model, tmp_path):
    def disturb(fleet, count, pipeline):
        if count == 30:
            fleet.slow("d0", 5.0)
        if count == 60:
            wait_for(lambda: any(event.detail.startswith("a faster") for event in pipeline.report().events))

    report, _ = _served(model, tmp_path, disturb, frames=80)
    slow = [event for event in report.events if event.kind == "slow" and event.device == "d0"]
    assert slow and not [event for event in report.events if event.kind == "lost"]
    assert any(event.detail.startswith("a faster plan") for event in report.events)


def test_twice_as_slow_is_noticed_within_five_frames_and_once(model, tmp_path):
    """Counted where the driver notices: frames that the slow device has computed wholly, and that have left. Then its
    pace is what it is planned with: it is noticed again only when it is fast again."""
    noticed = []

    def disturb(fleet, count, pipeline):
        driver = pipeline._driver
        if count == 1:
            note = driver._note

            def noted(kind, device, detail):
                if device == "d0" and kind != "replanned":
                    noticed.append((kind, driver._run.number, driver._delivered))
                note(kind, device, detail)

            driver._note = noted
        if count == 20:
            fleet.slow("d0", 2.0)
        if count == 60:
            fleet.slow("d0", 1.0)

    _, fleet = _served(model, tmp_path, disturb, frames=90, delay_s=0.04)
    slow = [frame for (run, frame), factors in fleet.computed["d0"].items() if run == 1 and factors == {2.0}]
    _, run, delivered = noticed[0]
    assert run == 1 and 20 <= delivered <= min(slow) + 5
    assert [kind for kind, _, _ in noticed] == ["slow", "recovered"], noticed


def _placed(driver):
    """Whether the driver knows that every device has the shards of all plans that were made ahead."""
    held = driver._carrier._shards_of
    return all(
        held[name] >= set(shards)
        for deployment in tuple(driver._ready_for.values())
        for name, shards in deployment.shards.items()
    )


def test_shards_for_losses_are_placed_before(model, tmp_path):
    """With plans made ahead, the loss carries nothing."""
    graph = load(model)
    plan, given = plan_pipeline(graph, THREE), frames_of(graph, 60)
    fleet = ThreadFleet(NAMES, tmp_path / "devices", delay_s=0.01)
    with running(graph, plan, tmp_path, fleet=fleet, ahead=True) as pipeline:
        driver, found = pipeline._driver, []
        for outputs in pipeline.run(given):
            found.append(outputs)
            if len(found) == 20:
                wait_for(lambda: len(driver._ready_for) == 3 and _placed(driver))
                fleet.names.discard("d1")
                fleet.kill("d1")
        report = pipeline.report()
    assert_same(found, unsplit(model, given))
    assert next(event for event in report.events if event.kind == "replanned").moved_bytes == 0


def test_shards_that_are_removed_are_brought_again(model, tmp_path, monkeypatch):
    """Devices that keep only what their program needs: plans change back and forth."""
    monkeypatch.setenv("DOWNSET_SHARDS_LIMIT", "1")

    def disturb(fleet, count, pipeline):
        if count in (20, 40):
            fleet.kill("d1")
            wait_for(lambda: any(event.detail.startswith("a faster") for event in pipeline.report().events))

    _, fleet = _served(model, tmp_path, disturb, frames=80)
    assert len(fleet.kept) > len(set(fleet.kept))
    for name, process in fleet.processes.items():
        kept = {path.stem for path in (tmp_path / "devices" / name).glob("*.onnx")}
        assert kept >= set(process.device._sessions)


def _flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40  # in the weights, which ONNX Runtime takes as they are
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [_flipped, lambda path: os.truncate(path, 0), Path.unlink], ids=["bit", "cut", "gone"]
)
def test_damaged_shards_are_brought_again(damage, model, tmp_path, caplog):
    """Those of an earlier run, which the devices say that they have; and those placed ahead, before a loss."""
    graph = load(model)
    plan, given = plan_pipeline(graph, THREE), frames_of(graph, 30)
    with running(graph, plan, tmp_path):
        pass
    shards = list((tmp_path / "devices").glob("*/*.onnx"))
    assert len(shards) >= 3
    for path in shards:
        damage(path)
    fleet, found = ThreadFleet(NAMES, tmp_path / "devices", delay_s=0.01), []
    with running(graph, plan, tmp_path, fleet=fleet, ahead=True) as pipeline:
        assert set(fleet.kept) >= {(path.parent.name, path.stem) for path in shards}
        for outputs in pipeline.run(given):
            found.append(outputs)
            if len(found) == 10:
                wait_for(lambda: len(pipeline._driver._ready_for) == 3 and _placed(pipeline._driver))
                for path in (tmp_path / "devices").glob("*/*.onnx"):
                    damage(path)
                fleet.names.discard("d1")
                fleet.kill("d1")
        report = pipeline.report()
    assert_same(found, unsplit(model, given))
    assert next(event for event in report.events if event.kind == "replanned").moved_bytes > 0
    assert "damaged or gone; they are sent again" in caplog.text


def test_a_device_whose_disk_keeps_nothing_is_planned_without(model, tmp_path, monkeypatch):
    content = KeptShards.content
    broken = tmp_path / "devices" / "d1"
    monkeypatch.setattr(KeptShards, "content", lambda self, one: None if self._folder == broken else content(self, one))
    report, _ = _served(model, tmp_path, lambda *_: None, frames=5)
    assert "does not keep shards" in first_event(report).detail and first_event(report).device == "d1"


def test_a_device_that_never_joins(model, tmp_path):
    graph = load(model)
    fleet = ThreadFleet(["d1", "d2"], tmp_path / "devices")
    with (
        pytest.raises(UsageError, match=r"'d0'.*did not join within 0.5 s"),
        running(graph, plan_pipeline(graph, THREE), tmp_path, fleet=fleet, gather_s=0.5),
    ):
        pass


def test_a_device_with_another_runtime(model, tmp_path, monkeypatch):
    graph = load(model)
    fleet = ThreadFleet(NAMES, tmp_path / "devices")
    method = fleet._method

    def told(device, name, arguments):
        found = method(device, name, arguments)
        return {**found, "onnxruntime": "1.2.3"} if (device, name) == ("d1", "describe") else found

    monkeypatch.setattr(fleet, "_method", told)
    with (
        pytest.raises(UnsupportedError, match=r"'d1' has onnxruntime 1.2.3"),
        running(graph, plan_pipeline(graph, THREE), tmp_path, fleet=fleet),
    ):
        pass


def test_a_full_disk_on_a_device(model, tmp_path, monkeypatch):
    graph = load(model)
    monkeypatch.setattr("downset.distributed.serving.kept_shards._FREE_DISK_BYTES", 1 << 60)
    with (
        pytest.raises(UnsupportedError, match=r"device 'd.': the disk .* is full"),
        running(graph, plan_pipeline(graph, THREE), tmp_path),
    ):
        pass


def test_wrong_frames_are_refused_and_the_pipeline_goes_on(model, tmp_path):
    graph = load(model)
    (good,) = frames_of(graph, 1)
    (name,) = good
    with running(graph, plan_pipeline(graph, THREE), tmp_path) as pipeline:
        for wrong, said in (
            (good[name][:, :2], "the frame has"),
            (good[name].astype("float64"), "float64"),
            ([], "0 arrays"),
            ({"other": good[name]}, "inputs are"),
            ([good[name]] * 2, "2 arrays"),
            (3, "has int"),
        ):
            with pytest.raises(UsageError, match=said):
                pipeline.submit(wrong)
        assert pipeline.submit(good) == 0
        assert_same(list(pipeline), unsplit(model, [good]))


@pytest.mark.parametrize("spare_frames", [0, 20])
def test_results_that_nobody_takes_stop_the_submitter_with_a_word(model, tmp_path, spare_frames):
    """Not before the pipeline is full, spare frames included."""
    graph = load(model)
    (frame,) = frames_of(graph, 1)
    plan = plan_pipeline(graph, THREE)
    with running(graph, plan, tmp_path, spare_frames=spare_frames) as pipeline:
        assert pipeline.capacity > plan.schedule.window + spare_frames
        for _ in range(pipeline.capacity):
            pipeline.submit(frame)
        with pytest.raises(UsageError, match="wait to be taken"):
            pipeline.submit(frame)
        assert len(list(pipeline)) == pipeline.capacity


def test_two_threads_submit_and_take(model, tmp_path):
    graph = load(model)
    given = frames_of(graph, 80)
    with running(graph, plan_pipeline(graph, THREE), tmp_path) as pipeline:

        def feed():
            for frame in given:
                pipeline.submit(frame)

        feeder = threading.Thread(target=feed)
        found = []
        feeder.start()
        while len(found) < len(given):
            found += list(pipeline)
        feeder.join()
    assert_same(found, unsplit(model, given))


def test_a_cluster_that_cannot_go_on_ends_the_pipeline_with_its_reason(model, tmp_path):
    found = []

    def disturb(fleet, count, pipeline):
        found.append(count)
        if count == 20:
            fleet.broken = UnsupportedError("the head is gone")

    with pytest.raises(UnsupportedError, match="the head is gone"):
        _served(model, tmp_path, disturb, frames=2_000)
    assert found[:20] == list(range(1, 21))


def test_the_old_name_of_an_option_is_refused_in_one_line(model):
    graph = load(model)
    with pytest.raises(UsageError, match=r"^serve: prepares= is called ahead= now"):
        serve(graph, plan_pipeline(graph, THREE), prepares=False)
