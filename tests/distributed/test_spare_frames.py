"""Frames beyond the window: never more than memory holds, nothing else changed, and never a longer simulated period."""

from dataclasses import replace

import pytest

from downset import load_cluster, plan_pipeline
from downset.distributed.serving.deployment import LEAST_SPARE_FRAMES, with_spare_frames
from downset.distributed.simulator import simulate
from downset.results.pipelines import Buffer
from zoo import graph


@pytest.fixture(scope="module", params=["buffers", "transfers"])
def plan(request):
    """With a buffer for what every transfer brings, and without any."""
    cluster = load_cluster("pico_1mac")
    few = replace(cluster, devices=cluster.devices[::2])
    made = plan_pipeline(graph("squeezenet", weights=False), few, method="pico")
    buffers = [
        Buffer(task.transfer.target, 0, 0, 1, task.transfer.nbytes, 2, (number,), (number,))
        for number, task in enumerate(made.tasks)
        if task.transfer is not None and request.param == "buffers"
    ]
    return replace(made, schedule=replace(made.schedule, buffers=tuple(buffers)))


def frame_bytes(plan, device):
    if plan.schedule.buffers:
        return sum(buffer.nbytes for buffer in plan.schedule.buffers if buffer.device == device)
    ends = [(one.transfer.source, one.transfer.target, one.transfer.nbytes) for one in plan.tasks if one.transfer]
    return sum(nbytes for source, target, nbytes in ends if device in (source, target))


def held(plan, device):
    """Bytes that a device needs: weights and working memory, and rows of every frame that is inside."""
    own = sum(one.total_bytes for one in plan.memory if one.device == device)
    if plan.schedule.buffers:
        return own + sum(one.nbytes * one.slots for one in plan.schedule.buffers if one.device == device)
    return own + plan.schedule.window * frame_bytes(plan, device)


def test_only_window_and_slots_change(plan):
    wide = with_spare_frames(plan)
    more = wide.schedule.window - plan.schedule.window
    assert more > 0
    for one, other in zip(plan.schedule.buffers, wide.schedule.buffers, strict=True):
        assert other == replace(one, slots=one.slots + more)
    assert replace(wide, schedule=plan.schedule) == plan
    assert wide.schedule.orders == plan.schedule.orders


def test_more_frames_inside_never_make_the_period_longer(plan):
    one, other = (simulate(each, frames=200).sustained_period_s for each in (plan, with_spare_frames(plan)))
    assert other <= one * (1 + 1e-9)


@pytest.mark.parametrize(("window", "more"), [(1, 3), (2, 3), (3, 3), (4, 4), (9, 9)])
def test_as_many_frames_more_as_the_window_has_and_three_at_least(plan, window, more):
    """Where nobody asks for another number."""
    narrow = replace(plan, schedule=replace(plan.schedule, window=window))
    assert with_spare_frames(narrow).schedule.window == window + more


@pytest.mark.parametrize("frames", range(LEAST_SPARE_FRAMES + 2))
def test_no_device_holds_more_than_its_memory(plan, frames):
    device = max(range(len(plan.cluster.devices)), key=lambda one: held(plan, one))
    limit = held(plan, device) + frames * frame_bytes(plan, device)
    devices = [replace(one, memory_bytes=limit if k == device else None) for k, one in enumerate(plan.cluster.devices)]
    tight = replace(plan, cluster=replace(plan.cluster, devices=tuple(devices)))
    wide = with_spare_frames(tight, LEAST_SPARE_FRAMES)
    assert held(wide, device) <= limit
    assert wide.schedule.window == plan.schedule.window + min(frames, LEAST_SPARE_FRAMES)


@pytest.mark.parametrize("most", [0, 1, LEAST_SPARE_FRAMES + 4])
def test_as_many_as_are_asked_for_where_devices_have_room(plan, most):
    """A device that holds nothing, and one whose memory nobody knows, limit nothing."""
    roomy = replace(plan.cluster, devices=tuple(replace(one, memory_bytes=1 << 40) for one in plan.cluster.devices))
    for cluster in (plan.cluster, roomy):
        wide = with_spare_frames(replace(plan, cluster=cluster), most)
        assert wide.schedule.window == plan.schedule.window + most


def test_plans_without_orders_stay():
    cluster = load_cluster("pico_1mac")
    paper = plan_pipeline(graph("squeezenet", weights=False), cluster, method="pico", comm="paper")
    assert with_spare_frames(paper) is paper
