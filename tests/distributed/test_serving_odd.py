"""Messages that arrive twice, frames of odd numbers, consumers that stop and clocks that jump."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

from downset.budget import Budget
from downset.clusters.model import Cluster, Device, Network
from downset.distributed.wire.connection import Connection
from downset.distributed.wire.messages import Hello
from downset.errors import UsageError
from downset.formats.reading import load
from downset.pipelines.check import verify_pipeline
from downset.pipelines.direct.nested import nested_stages
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.network import pipeline_chain
from downset.pipelines.plan import plan_pipeline
from tests.distributed.test_serving_faults import NAMES, THREE, wait_for
from tests.distributed.thread_fleet import ThreadFleet, assert_same, frames_of, running, unsplit
from tests.models import branchy_model
from zoo import unet

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return branchy_model(tmp_path_factory.mktemp("model") / "branchy.onnx")


def test_a_message_that_arrives_twice_counts_once(model, tmp_path, monkeypatch):
    """Every message arrives twice, and with it an earlier one of its connection. No result changes, no frame is lost,
    and none of a frame is left on a device."""
    graph, send, drawn, replayed = load(model), Connection.send, random.Random(0), []

    def replaying(connection, header, arrays=()):
        send(connection, header, arrays)
        if not isinstance(header, Hello):
            earlier = connection.__dict__.setdefault("earlier", [])
            earlier.append((header, [np.copy(array) for array in arrays]))
            for again in (earlier[-1], drawn.choice(earlier)):
                send(connection, *again)
                replayed.append(again)

    monkeypatch.setattr(Connection, "send", replaying)
    given, fleet = frames_of(graph, 40), ThreadFleet(NAMES, tmp_path / "devices")
    with running(graph, plan_pipeline(graph, THREE), tmp_path, fleet=fleet) as pipeline:
        found = list(pipeline.run(given))
        assert not pipeline.report().events
        runs = [process.device.run for process in fleet.processes.values()]
        wait_for(lambda: all(run.inside == 0 and run._schedule._first == 40 for run in runs))
        assert not any(run._schedule._over or run.held_bytes for run in runs)
    assert_same(found, unsplit(model, given))
    assert len(replayed) > 400


def test_frames_of_odd_numbers_give_what_the_unsplit_model_gives(model, tmp_path):
    """NaN and infinity at single places reach the outputs that they reach in the unsplit model, and no others."""
    graph, drawn = load(model), np.random.default_rng(0)
    given = frames_of(graph, 30)
    for number, frame in enumerate(given[:24]):
        for value in frame.values():
            odd = (np.nan, np.inf, -np.inf, -0.0, 1e-42, 3e38)[number % 6]
            value.reshape(-1)[drawn.integers(0, value.size, 1 + 20 * (number > 12))] = odd
    given[24] = {name: np.full_like(value, np.nan) for name, value in given[24].items()}
    with running(graph, plan_pipeline(graph, THREE), tmp_path) as pipeline:
        found, report = list(pipeline.run(given)), pipeline.report()
    expected = unsplit(model, given)
    assert_same(found, expected)
    assert not report.events
    some = [np.isnan(value).mean() for outputs in expected for value in outputs.values()]
    assert any(0 < share < 1 for share in some)


def in_thread(work):
    """The exception with which `work` ends on a thread of its own, or None."""
    ended = []

    def run():
        try:
            work()
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60.0)
    assert ended, "it waits for ever"
    return ended[0]


def submit_all(pipeline, frames):
    for frame in frames:
        pipeline.submit(frame)


@pytest.mark.parametrize("how", ["breaks", "ends"])
def test_a_consumer_that_stops_is_not_waited_for(how, model, tmp_path):
    """One that leaves its loop, and one whose thread ends; frames are handed in on another thread."""
    graph = load(model)
    given = frames_of(graph, 200)
    with running(graph, plan_pipeline(graph, THREE), tmp_path) as pipeline:
        submit_all(pipeline, given[:5])
        taken, kept, stopped, ended = [], [], threading.Event(), threading.Event()

        def consume():
            kept.extend([pipeline.results()] if how == "ends" else [])
            for outputs in kept[0] if kept else pipeline.results():
                taken.append(outputs)
                if len(taken) == 3:
                    break

            stopped.set()
            if how == "breaks":
                ended.wait(60.0)  # the thread goes on with something else

        consumer = threading.Thread(target=consume, daemon=True)
        consumer.start()
        assert stopped.wait(60.0)
        error = in_thread(lambda: submit_all(pipeline, given[5:]))
        assert isinstance(error, UsageError) and "results wait to be taken" in str(error)
        assert pipeline._submitted - pipeline._taken == pipeline.capacity, "memory is bounded"
        ended.set()
        taken += list(pipeline)
    assert_same(taken, unsplit(model, given[: len(taken)]))


def test_a_consumer_that_rests_holds_the_pipeline_back_and_loses_nothing(model, tmp_path):
    graph = load(model)
    given, inside = frames_of(graph, 40), []
    with running(graph, plan_pipeline(graph, THREE), tmp_path) as pipeline:
        found = []
        for outputs in pipeline.run(given):
            found.append(outputs)
            if len(found) in (1, 20):
                wait_for(lambda: pipeline.report().completed == pipeline._submitted)
                time.sleep(0.2)  # nothing more is let in meanwhile
                inside.append(pipeline._submitted - pipeline._taken)
        assert max(inside) <= pipeline.capacity and not pipeline.report().events
    assert_same(found, unsplit(model, given))


def test_a_clock_that_jumps_changes_nothing(model, tmp_path, monkeypatch):
    """By days, back and forth, at every look at it."""
    graph, real, looks = load(model), time.time, []

    def jumping():
        looks.append(1)
        return real() + 86400 * (-1) ** len(looks) * len(looks)

    monkeypatch.setattr(time, "time", jumping)
    given = frames_of(graph, 30)
    with running(graph, plan_pipeline(graph, THREE), tmp_path, ahead=True) as pipeline:
        found, report = list(pipeline.run(given)), pipeline.report()
    assert_same(found, unsplit(model, given))
    assert not report.events and 0 < report.latency_s[2] < 60


def test_devices_that_compute_two_parts_around_others_give_what_the_unsplit_model_gives(tmp_path):
    """A U-Net in stages nested in one another: rows of the first level stay where they are made and read again."""
    path = tmp_path / "unet.onnx"
    path.write_bytes(unet.build(image=16, channels=4, levels=2, corners=False).SerializeToString())
    graph, cluster = load(path), Cluster(tuple(Device(name, 1e6) for name in NAMES), Network("links", 1e5))

    def method(problem, cluster, **_):
        return FoundPipeline(next(nested_stages(problem, cluster, Budget().start())), 0.0)

    units = pipeline_chain(graph).units
    plan = plan_pipeline(graph, cluster, method=method, topology="direct", units=units)
    verify_pipeline(graph, plan)
    parts = [{strip.device for strip in block.strips} for stage in plan.stages for block in stage.blocks]
    assert parts[0] == parts[-1] and any(not parts[0] & own for own in parts)
    given = frames_of(graph, 20)
    with running(graph, plan, tmp_path) as pipeline:
        found = list(pipeline.run(given))
        assert not pipeline.report().events
    assert_same(found, unsplit(path, given))
