"""Every method's plan executes, and gives the outputs of the unsplit model: driver and devices without Ray."""

from __future__ import annotations

from functools import partial

import onnx
import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving.run import PipelineRun
from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.pipelines.early_fused import early_fused
from downset.pipelines.plan import plan_pipeline
from downset.reports.timeline import measured_timeline
from tests.distributed.thread_fleet import ThreadFleet, assert_same, frames_of, running, unsplit
from tests.effort import untimed
from tests.models import branchy_model, installed_model
from zoo import ZOO

pytest.importorskip("onnxruntime")

FOUR = Cluster(
    tuple(Device(f"d{place}", speed) for place, speed in enumerate((3e8, 2.5e8, 2e8, 2e8))),
    Network("links", 1e9, overlap=True),
)
METHODS = ["single", "layerwise", "early_fused", "optimal_fused", "coedge", "pico", "exact"]


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "squeezenet.onnx"
    onnx.save(ZOO["squeezenet1_0"](image=63), str(path))
    return path


def check_ran(plan, ran, frames):
    """Every task of every frame ran once, after those that it waits for; the picture has no others."""
    times = {(frame, task): (begin, end) for frame, task, begin, end in ran}
    assert len(ran) == len(times) == frames * len(plan.tasks)
    for (frame, task), (begin, end) in times.items():
        assert begin <= end
        assert all(times[frame, other][1] <= begin + 1e-6 for other in plan.tasks[task].after)
    timeline = measured_timeline(plan, ran, None)
    assert timeline.slices and {item.task for item in timeline.slices} <= set(range(len(plan.tasks)))


def working(plan):
    """The names of the devices that compute."""
    devices = {strip.device for stage in plan.stages for block in stage.blocks for strip in block.strips}
    return {plan.cluster.devices[device].name for device in devices}


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, squeezenet, tmp_path):
    graph = load(squeezenet)
    plan = plan_pipeline(graph, FOUR, method=method, time_limit_s=2)
    frames = frames_of(graph, 6)
    with running(graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(squeezenet, frames))
        report, (used, ran) = pipeline.report(), pipeline.ran()
    assert used == plan
    check_ran(plan, ran, 6)
    assert report.completed == 6 and not report.events
    assert report.period_s is None or report.period_s > 0, "too few frames for a period in a long window"
    assert {use.name for use in report.devices if use.computing > 0} == working(plan)
    assert {use.name for use in report.devices if use.planned_computing > 0} == working(plan)


def test_reports_that_come_late_hide_no_work(squeezenet, tmp_path, monkeypatch):
    """They put the end of a task behind those that wait for it. The picture is moved, and what was measured counts."""
    graph = load(squeezenet)
    plan = plan_pipeline(graph, FOUR, method="pico", time_limit_s=2)
    reported, last = PipelineRun._reported, plan.cluster.devices[plan.tasks[-1].device].name

    def late(run, device, done, now):
        reported(run, device, done, now + (device != last))

    monkeypatch.setattr(PipelineRun, "_reported", late)
    frames = frames_of(graph, 6)
    with running(graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(squeezenet, frames))
        report, (_, ran) = pipeline.report(), pipeline.ran()
    check_ran(plan, ran, 6)
    assert {use.name for use in report.devices if use.computing > 0} == working(plan)


def test_what_the_plan_counts_stands_beside_what_was_measured(squeezenet, tmp_path):
    """One device alone computes for a period a frame; every transfer is sent once and received once."""
    graph = load(squeezenet)
    frames = frames_of(graph, 6)
    for method in ("single", "layerwise"):
        plan = plan_pipeline(graph, FOUR, method=method, time_limit_s=2)
        with running(graph, plan, tmp_path) as pipeline:
            list(pipeline.run(frames))
            report = pipeline.report()
        sent, received, computed = (
            sum(getattr(use, f"planned_{what}") for use in report.devices) * plan.period_s
            for what in ("sending", "receiving", "computing")
        )
        assert sent == pytest.approx(received)
        if method == "single":
            assert (computed, sent) == (pytest.approx(plan.period_s), 0)
        else:
            moved_s = sum(task.transfer.nbytes / 1e9 for task in plan.tasks if task.transfer is not None)
            assert sent == pytest.approx(moved_s) and moved_s > 0


def test_frames_cost_no_calls(squeezenet, tmp_path):
    """Devices are asked for signs of life alone, however many frames pass: what begins next is decided there."""
    graph = load(squeezenet)
    plan = plan_pipeline(graph, FOUR, method="layerwise", time_limit_s=2)
    frames, fleet = frames_of(graph, 5), ThreadFleet(["d0", "d1", "d2", "d3"], tmp_path / "devices")
    with running(graph, plan, tmp_path, fleet=fleet) as pipeline:
        before = len(fleet.calls)
        assert_same(list(pipeline.run(frames)), unsplit(squeezenet, frames))
        assert {method for _, method, _ in fleet.calls[before:]} <= {"ping"}


def test_spare_frames_are_as_many_as_asked_for(squeezenet, tmp_path):
    graph = load(squeezenet)
    plan = plan_pipeline(graph, FOUR, method="single", time_limit_s=2)
    for spare in (0, 3, 5):
        with running(graph, plan, tmp_path, spare_frames=spare) as pipeline:
            most = 0
            for _ in pipeline.run(frames_of(graph, 12)):
                run = pipeline._driver._run
                most = max(most, run.setup.window)
                assert len(run.frames()) <= run.setup.window
        assert most == plan.schedule.window + spare


@pytest.mark.parametrize("network", [Network("links", 1e8), Network("shared", 1e8, overlap=True)])
def test_networks(network, squeezenet, tmp_path):
    graph = load(squeezenet)
    plan = plan_pipeline(graph, Cluster(FOUR.devices, network), time_limit_s=2)
    frames = frames_of(graph, 4)
    with running(graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(squeezenet, frames))


def test_tiles_with_columns(squeezenet, tmp_path):
    graph = load(squeezenet)
    plan = plan_pipeline(graph, FOUR, method=partial(early_fused, fused=4), time_limit_s=2)
    assert any(strip.columns for strip in plan.stages[0].blocks[0].strips)
    frames = frames_of(graph, 3)
    with running(graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(squeezenet, frames))


def test_a_network_without_branches(tmp_path):
    path = tmp_path / "vgg16.onnx"
    onnx.save(ZOO["vgg16"](image=32, classifier=False), str(path))
    graph = load(path)
    plan = plan_pipeline(graph, FOUR, **untimed(200_000))
    assert {strip.device for stage in plan.stages for block in stage.blocks for strip in block.strips} == {0, 1, 2, 3}
    frames = frames_of(graph, 3)
    with running(graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(path, frames))


def test_two_outputs_and_strips_along_columns(tmp_path):
    path = branchy_model(tmp_path / "branchy.onnx")
    graph = load(path)
    for method in ("layerwise", "coedge", partial(early_fused, fused=2)):
        plan = plan_pipeline(graph, FOUR, method=method)
        frames = frames_of(graph, 3)
        with running(graph, plan, tmp_path) as pipeline:
            assert_same(list(pipeline.run(frames)), unsplit(path, frames))


@pytest.mark.models
@pytest.mark.parametrize("method", ["exact", "coedge", "early_fused"])
def test_a_real_model(method, tmp_path):
    path = installed_model("onnx", "light_squeezenet.onnx")
    graph = load(path)
    plan = plan_pipeline(graph, FOUR, method=method, time_limit_s=2)
    frames = frames_of(graph, 3)
    with running(graph, plan, tmp_path) as pipeline:
        assert_same(list(pipeline.run(frames)), unsplit(path, frames))


def test_plans_by_the_papers_equations_are_refused(squeezenet, tmp_path):
    graph = load(squeezenet)
    plan = plan_pipeline(graph, FOUR, method="pico", comm="paper", time_limit_s=2)
    with pytest.raises(UnsupportedError, match="comm=resources"), running(graph, plan, tmp_path):
        pass
