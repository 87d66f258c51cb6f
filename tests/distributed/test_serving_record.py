"""What a running pipeline records: planned shares are of the plan's own periods, however fast frames leave."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving.record import ServeRecord
from downset.reports.pipeline_documents import served_document
from downset.reports.terminal import text_of
from downset.results.serving import ServeEvent
from downset.text import format_seconds
from tests.effort import cases
from tests.models import branchy_model


def test_planned_shares_do_not_depend_on_how_fast_frames_leave(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    cluster = Cluster((Device("d0", 2e6), Device("d1", 1e6)), Network("links", 1e7, overlap=True))
    plan = ds.plan_pipeline(graph, cluster, time_limit_s=2)
    shares = []
    for pace in (0.1, 3.0):
        record = ServeRecord(plan, 0.0)
        for frame in range(1, 9):
            record.left(["d0", "d1"], plan.latency_s, frame * pace * plan.period_s)
        uses = record.served(8, 8 * pace * plan.period_s).devices
        shares.append([(use.planned_computing, use.planned_sending, use.planned_receiving) for use in uses])
    fast, slow = shares
    for one, other in zip(fast, slow, strict=True):
        assert one == pytest.approx(other) and max(one) <= 1 + 1e-9
    assert max(use[0] for use in fast) > 0.5


def test_the_memory_of_a_device_that_has_not_told_it_is_not_known(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    plan = ds.plan_pipeline(graph, Cluster((Device("d0", 1e6),), Network("links", 1e7)), time_limit_s=2)
    record = ServeRecord(plan, 0.0)
    record.left(["d0"], 1.0, 1.0)
    assert "d0" in reported(plan, record) and " 0 B" not in reported(plan, record)
    record.memory("d0", 5 << 20)
    record.memory("d0", 4 << 20)
    assert " 5 MB" in reported(plan, record)


def reported(plan, record):
    return text_of(served_document(plan, record.served(0, 1.0)))


def test_of_several_plans_it_is_said_which_one_a_figure_is_of(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    fast, slow = (
        ds.plan_pipeline(graph, Cluster((Device("d0", rate),), Network("links", 1e7, overlap=True)), time_limit_s=2)
        for rate in (2e6, 1e6)
    )
    record = ServeRecord(fast, 0.0)
    rates = [f"{1 / plan.period_s:.4g}" for plan in (slow, fast)]
    assert f"; planned {format_seconds(fast.period_s)}, {rates[1]} frames/s\n" in reported(fast, record)
    record.planned(slow)
    record.event(ServeEvent(1.0, "replanned", "", "a faster plan"))
    record.event(ServeEvent(2.0, "replanned", "d1", "without it"))
    text = reported(fast, record)
    assert f"; planned {format_seconds(slow.period_s)}, {rates[0]} frames/s by the last of 2 plans\n" in text
    assert f"planned by the first plan: {format_seconds(fast.period_s)}, {rates[1]} frames/s" in text
    assert "planned again: 1 time" in text
    assert "another plan in use (a faster plan); " in text and "(d1 without it); " in text
    page = served_document(fast, record.served(0, 1.0))
    assert (
        f"planned {format_seconds(slow.period_s)}, {rates[0]} frames/s by the last of 2 plans" in page.verdict.headline
    )


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A function of a window: a plan with it."""
    graph = ds.load(branchy_model(tmp_path_factory.mktemp("window") / "net.onnx"))
    cluster = Cluster((Device("d0", 2e6), Device("d1", 1e6)), Network("links", 1e7, overlap=True))
    plan = ds.plan_pipeline(graph, cluster, time_limit_s=2)
    assert plan.schedule is not None
    return lambda window: replace(plan, schedule=replace(plan.schedule, window=window))


@settings(max_examples=cases(200), deadline=None)
@given(
    frames=st.integers(0, 60),
    window=st.integers(1, 8),
    burst=st.integers(1, 8),
    phase=st.integers(0, 7),
    fill_s=st.floats(0, 50),
    seed=st.integers(0, 99),
)
def test_a_measured_period_is_the_steady_one_or_is_not_known(windowed, frames, window, burst, phase, fill_s, seed):
    """Results of a pipeline that takes 1 s a frame. They come back in bursts of up to a window; the first frames take
    longer, and results are up to a tenth of a second late."""
    draw, burst = random.Random(seed), min(burst, window)
    record = ServeRecord(windowed(window), 0.0)
    for frame in range(frames):
        together = (frame + phase) // burst * burst + burst  # the burst ends when its last frame is done
        waits_s = max(0.0, fill_s - fill_s / window * frame)
        record.left(["d0"], 1.0, together + waits_s + draw.uniform(0, 0.1))
    period_s = record.served(frames, 100.0).period_s
    if frames >= 4 * window + 4:
        assert period_s is not None
    if frames <= 2 * window:
        assert period_s is None
    assert period_s is None or period_s == pytest.approx(1.0, abs=0.3)
