"""Frames beyond the window: never more than memory holds, nothing else changed, and never a longer simulated period."""

from dataclasses import replace

import pytest

from downset import load_cluster, plan_pipeline
from downset.distributed.serving.spare_frames import SPARE_FRAMES, with_spare_frames
from downset.distributed.simulator import simulate
from zoo import graph


@pytest.fixture(scope="module")
def plan():
    cluster = load_cluster("pico_1mac")
    few = replace(cluster, devices=cluster.devices[::2])
    return plan_pipeline(graph("squeezenet", weights=False), few, method="pico")


def held(plan, device):
    """Bytes that a device needs: weights and working memory, and every slot of its buffers."""
    own = sum(one.total_bytes for one in plan.memory if one.device == device)
    return own + sum(buffer.nbytes * buffer.slots for buffer in plan.schedule.buffers if buffer.device == device)


def test_only_window_and_slots_change(plan):
    wide = with_spare_frames(plan)
    assert wide.schedule.window == plan.schedule.window + SPARE_FRAMES
    for one, other in zip(plan.schedule.buffers, wide.schedule.buffers, strict=True):
        assert other == replace(one, slots=one.slots + SPARE_FRAMES)
    assert replace(wide, schedule=plan.schedule) == plan
    assert wide.schedule.orders == plan.schedule.orders


def test_more_frames_inside_never_make_the_period_longer(plan):
    one, other = (simulate(each, frames=200).sustained_period_s for each in (plan, with_spare_frames(plan)))
    assert other <= one * (1 + 1e-9)


@pytest.mark.parametrize("frames", range(SPARE_FRAMES + 2))
def test_no_device_holds_more_than_its_memory(plan, frames):
    device = max(range(len(plan.cluster.devices)), key=lambda one: held(plan, one))
    frame_bytes = sum(buffer.nbytes for buffer in plan.schedule.buffers if buffer.device == device)
    limit = held(plan, device) + frames * frame_bytes
    devices = [replace(one, memory_bytes=limit if k == device else None) for k, one in enumerate(plan.cluster.devices)]
    tight = replace(plan, cluster=replace(plan.cluster, devices=tuple(devices)))
    wide = with_spare_frames(tight)
    assert held(wide, device) <= limit
    assert wide.schedule.window == plan.schedule.window + min(frames, SPARE_FRAMES)


def test_plans_without_orders_stay():
    cluster = load_cluster("pico_1mac")
    paper = plan_pipeline(graph("squeezenet", weights=False), cluster, method="pico", comm="paper")
    assert with_spare_frames(paper) is paper
