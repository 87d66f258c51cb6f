"""What a pipeline waits for is noticed, and said: rows, frames and results that do not arrive, and standstills."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from downset.distributed.serving import driver, health
from downset.distributed.serving.health import STANDSTILL_S, Standstill, Wait
from downset.distributed.serving.run import PipelineRun
from downset.distributed.wire.messages import DeviceReport
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.distributed.test_serving_faults import THREE, wait_for
from tests.distributed.thread_fleet import ThreadFleet, assert_same, first_event, frames_of, running, unsplit
from tests.models import branchy_model


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "downset.serving"]


def test_a_standstill_is_said_once_and_so_is_its_end(caplog):
    one, two = Wait("the first", 0.0, "d0"), Wait("the second", 3.0, "d1")
    still = Standstill()
    for now, waits in ((0.0, [one]), (3.0, [two, one]), (3.0 + 0.9 * STANDSTILL_S, [one, two])):
        still.look(waits, now)
    assert not lines(caplog)
    for later in (3.0, 4.0, 50.0):
        still.look([one, two], later + STANDSTILL_S)
    (said,) = lines(caplog)
    assert said.index("the first (since 13 s)") < said.index("the second (since 10 s)")
    still.look([two], 80.0)
    assert lines(caplog)[1:] == ["the pipeline goes on after 77 s"]
    still.look([two], 80.0 + STANDSTILL_S)
    assert "the first" not in lines(caplog)[-1] and len(lines(caplog)) == 3


def test_a_pipeline_that_has_nothing_to_do_does_not_stand_still(caplog):
    still = Standstill()
    for now in range(0, 100, 5):
        still.look([], float(now))
    assert not lines(caplog)


def test_of_many_waits_the_first_ones_are_named(caplog):
    still, many = Standstill(), [Wait(f"step {number}", float(-number), "d0") for number in range(40)]
    still.look(many, 0.0)
    still.look(many, STANDSTILL_S)
    (said,) = lines(caplog)
    assert "step 39 (since 49 s)" in said and "step 1 " not in said and said.endswith("34 more")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return branchy_model(tmp_path_factory.mktemp("model") / "branchy.onnx")


@dataclass
class Stuck:
    """A step that does not end on its device until `gate` is set. `said`: how the log names it."""

    method: str
    device: str
    said: str
    gate: threading.Event = field(default_factory=threading.Event)

    def close(self, fleet):
        """The bytes of a frame or of rows do not arrive, a computation does not end, or a result is not sent."""
        device = fleet.processes[self.device].device
        run = device.run
        if self.method == "compute":
            compute = device._compute
            run._compute = lambda *given: self.gate.wait(60) and compute(*given)
        elif self.method == "result":
            (sender,) = [sender for sender in run._senders if sender.peer == ""]
            connection = sender._connection
            connection.send = self._late(connection.send)
        else:
            for peer, connection in run._incoming.connections.items():
                if (peer == "") == (self.method == "enter"):
                    connection.receive_into = self._late(connection.receive_into)

    def _late(self, method):
        def late(*given):
            if not isinstance(given[0], DeviceReport):
                self.gate.wait(60)
            return method(*given)

        return late


def stuck_at(method, graph, plan):
    names = [device.name for device in plan.cluster.devices]
    first = next(task for task in plan.tasks if task.transfer is None)
    moved = next(task for task in plan.tasks if task.transfer is not None)
    sent = f"device {names[moved.transfer.source]} to device {names[moved.transfer.target]}"
    frame, result = (sum(graph.tensors[t].nbytes for t in tensors) for tensors in (graph.inputs, graph.outputs))
    return {
        "enter": Stuck("enter", names[plan.entry], f"frame 1: {frame} bytes from the driver to device"),
        "compute": Stuck(
            "compute",
            names[first.device],
            f"frame 1, stage {first.stage}, block {first.block}: computing on device {names[first.device]}",
        ),
        "receive": Stuck(
            "receive",
            names[moved.transfer.target],
            f"frame 1, stage {moved.stage}: {moved.transfer.nbytes} bytes from {sent}",
        ),
        "result": Stuck("result", names[plan.exit], f"frame 1: its result of {result} bytes from device"),
    }[method]


@contextmanager
def stood_still(method, model, tmp_path, caplog):
    """(pipeline, what it waits for), when frame 0 is out and frame 1 waits for a step that does not end."""
    caplog.set_level(logging.INFO, "downset.serving")
    graph = load(model)
    plan, given = plan_pipeline(graph, THREE), frames_of(graph, 2)
    stuck, fleet = stuck_at(method, graph, plan), ThreadFleet(["d0", "d1", "d2"], tmp_path / "devices")
    with running(graph, plan, tmp_path, fleet=fleet) as pipeline:
        pipeline.submit(given[0])
        found = list(pipeline)
        stuck.close(fleet)
        pipeline.submit(given[1])
        yield pipeline, stuck
        stuck.gate.set()
        found += list(pipeline)
    assert_same(found, unsplit(model, given))


@pytest.mark.parametrize("method", ["enter", "receive", "compute", "result"])
def test_the_log_names_the_step_that_a_pipeline_waits_for(method, model, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(health, "STANDSTILL_S", 0.4)
    monkeypatch.setattr(driver, "PING_S", 0.1)
    with stood_still(method, model, tmp_path, caplog) as (_, stuck):
        wait_for(lambda: any("it waits for" in line and stuck.said in line for line in lines(caplog)))
        stuck.gate.set()
        wait_for(lambda: any("the pipeline goes on" in line for line in lines(caplog)))


@pytest.mark.parametrize(
    ("method", "blame"),
    [("enter", "a frame on its way to it"), ("receive", "a transfer of it"), ("result", "a result of it")],
)
def test_what_does_not_arrive_is_blamed_on_its_device(method, blame, model, tmp_path, caplog, monkeypatch):
    """Time is put forward when nothing else is under way: no healthy device is late on a busy machine."""
    overdue, blamed, frame_1 = PipelineRun.overdue, [], threading.Event()

    def later(run, now):
        waits = run.waits()
        if len(waits) == 1 and waits[0].blame == blame and not blamed and frame_1.is_set():
            blamed.append(waits[0].device)
            assert not overdue(run, waits[0].begun_s + 30.0)
            return overdue(run, waits[0].begun_s + 30.1)
        return []

    monkeypatch.setattr(PipelineRun, "overdue", later)
    with stood_still(method, model, tmp_path, caplog) as (pipeline, stuck):
        frame_1.set()
        wait_for(lambda: any(event.kind == "lost" for event in pipeline.report().events))
        lost = first_event(pipeline.report())
        assert [lost.device] == blamed and lost.detail == f"{blame} took more than 30 s"
        assert method == "receive" or lost.device == stuck.device


def test_the_log_says_what_keeps_the_driver(model, tmp_path, caplog, monkeypatch):
    """Results are delivered on the driver's thread: where that does not return, nothing goes on."""
    monkeypatch.setattr(health, "STANDSTILL_S", 0.4)
    monkeypatch.setattr(driver, "_BUSY_S", 0.1)
    graph = load(model)
    plan, given = plan_pipeline(graph, THREE), frames_of(graph, 1)
    gate = threading.Event()
    with running(graph, plan, tmp_path) as pipeline:
        deliver = pipeline._inbox.deliver

        def kept_waiting(outputs):
            gate.wait(60)
            deliver(outputs)

        pipeline._inbox.deliver = kept_waiting
        pipeline.submit(given[0])
        wait_for(
            lambda: any("the driver's own thread, in wait of wait of kept_waiting" in line for line in lines(caplog))
        )
        gate.set()
        assert_same(list(pipeline), unsplit(model, given))
