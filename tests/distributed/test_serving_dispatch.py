"""What begins next, held to a plain account of its own: windows, slots, order, and that some task can always go on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving.dispatch import Dispatch, RunTables, joined, work_of
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.effort import cases
from tests.models import branchy_model

_PLANS = []


def _plans(folder):
    """Plans of a network with branches, of several methods, networks and windows; made once."""
    if not _PLANS:
        graph = load(branchy_model(folder / "branchy.onnx"))
        for network in (
            Network("links", 1e6),
            Network("links", 1e6, overlap=True),
            Network("shared", 1e6, overlap=True),
            Network("links", 1e6, overlap=True, duplex="full"),
        ):
            cluster = Cluster(tuple(Device(f"d{k}", speed) for k, speed in enumerate((3e5, 2e5, 2e5))), network)
            _PLANS.extend(
                plan_pipeline(graph, cluster, method=method, window=window)
                for method in ("layerwise", "coedge", "pico", "exact")
                for window in (None, 1, 3)
            )
    return _PLANS


@given(data=st.data())
@settings(max_examples=cases(60))
def test_any_order_of_ends_finishes_all_frames_within_the_limits(data, tmp_path_factory):
    plans = _plans(tmp_path_factory.getbasetemp())
    plan = data.draw(st.sampled_from(plans))
    ahead, frames = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 8))
    work = data.draw(st.sampled_from([work_of, lambda plan: joined(work_of(plan))]))(plan)
    dispatch = Dispatch(work, ahead=ahead)
    done, begun, left, admitted = {}, set(), [], 0
    while len(left) < frames:
        while dispatch.has_room and admitted < frames:
            assert dispatch.admit() == admitted
            admitted += 1
        assert dispatch.inside <= plan.schedule.window
        for instance in dispatch.begin():
            assert instance not in begun
            begun.add(instance)
            earlier = {*work.steps[instance.task]} | {step for f, step in _steps(work, done) if f == instance.frame}
            for step in work.steps[instance.task]:
                assert earlier >= set(plan.tasks[step].after)
        under_way = [instance for instance in begun if instance not in done]
        assert dispatch.under_way == set(under_way) and under_way, "nothing goes on"
        _check_slots(plan, _steps(work, begun), _steps(work, done))
        for device in range(len(plan.cluster.devices)):
            firsts = [plan.tasks[work.steps[i.task][0]] for i in under_way]
            assert sum(task.transfer is None and task.device == device for task in firsts) <= 1 + ahead
        ended = data.draw(st.sampled_from(sorted(under_way)))
        done[ended] = True
        if dispatch.done(ended):
            left.append(ended.frame)
    assert sorted(left) == list(range(frames))
    assert len(_steps(work, done)) == frames * len(plan.tasks) and dispatch.inside == 0


def _steps(work, instances):
    """(frame, task of the plan) of what these stand for."""
    return {(instance.frame, step) for instance in instances for step in work.steps[instance.task]}


def test_chains_are_joined_and_nothing_else():
    """Tasks 0 to 4 compute, 5 is a transfer. 0, 1, 2 are a chain; both 3 and 5 wait for 2; 4 waits for 3 elsewhere."""
    work = RunTables(
        window=1,
        after=((), (0,), (1,), (2,), (3,), (2,)),
        followers=((1,), (2,), (3, 5), (4,), (), ()),
        place=tuple((0, k) for k in range(6)),
        transfers=(False,) * 5 + (True,),
        lanes=(1,) * 3,
        resources=((0,), (0,), (0,), (0,), (1,), (2,)),
        written=((0,), (1,), (2,), (3,), (), ()),
        used=((0,), (0, 1), (1, 2), (2, 3), (3,), (2,)),
        slots=(1, 1, 1, 1),
        users=(2, 2, 3, 2),
        planned_s=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        steps=tuple((k,) for k in range(6)),
    )
    found = joined(work)
    assert found.steps == ((0, 1, 2), (3,), (4,), (5,))
    assert found.planned_s == (7.0, 8.0, 16.0, 32.0)
    assert found.after == ((), (0,), (1,), (0,)) and found.followers == ((1, 3), (2,), (), ())
    assert found.written == ((0, 1, 2), (3,), (), ()) and found.used == ((0, 1, 2), (2, 3), (3,), (2,))
    assert found.users == (1, 1, 3, 2)


def _check_slots(plan, begun, done):
    """By the words of `plans.Buffer`: taken from the first writer's start to the last end of a writer or reader."""
    for buffer in plan.schedule.buffers:
        if not buffer.writers:
            continue
        frames = {frame for frame, task in begun if task in buffer.writers}
        holding = [f for f in frames if any((f, user) not in done for user in (*buffer.writers, *buffer.readers))]
        assert len(holding) <= buffer.slots


@pytest.mark.parametrize("devices", range(2, 7))
def test_a_medium_has_room_for_every_pair_of_devices(devices, tmp_path):
    """Messages of as many frames as there is room for begin together; no more than that."""
    graph = load(branchy_model(tmp_path / "branchy.onnx"))
    cluster = Cluster(tuple(Device(f"d{k}", 3e5) for k in range(devices)), Network("shared", 1e6, overlap=True))
    plan = plan_pipeline(graph, cluster, method="layerwise", window=1)
    work = work_of(plan)
    (medium,) = {resources[0] for resources, moves in zip(work.resources, work.transfers, strict=True) if moves}
    assert work.lanes[medium] == devices // 2
    assert {lanes for resource, lanes in enumerate(work.lanes) if resource != medium} == {1}
    many = 2 * devices
    free = RunTables(
        window=many,
        after=((),),
        followers=((),),
        place=((0, 0),),
        transfers=(True,),
        lanes=(work.lanes[medium],),
        resources=((0,),),
        written=((),),
        used=((),),
        slots=(),
        users=(),
        planned_s=(1.0,),
        steps=((0,),),
    )
    dispatch = Dispatch(free, ahead=1)
    for _ in range(many):
        dispatch.admit()
    assert len(dispatch.begin()) == 2 * (devices // 2)


@pytest.mark.parametrize("first", [0, 1])
def test_of_what_can_begin_the_plans_order_decides(first):
    """Two tasks of one processor, the second after the first. When the first is done for a frame, the second of this
    frame and the first of the next one can begin: the cyclic order says which."""
    place = {0: ((0, 1), (1, 0)), 1: ((0, 0), (1, 1))}[first]
    work = RunTables(
        window=3,
        after=((), (0,)),
        followers=((1,), ()),
        place=place,
        transfers=(False, False),
        lanes=(1,),
        resources=((0,), (0,)),
        written=((), ()),
        used=((), ()),
        slots=(),
        users=(),
        planned_s=(1.0, 1.0),
        steps=((0,), (1,)),
    )
    dispatch, begun = Dispatch(work, ahead=0), []
    for _ in range(3):
        dispatch.admit()
    while dispatch.inside:
        (started,) = dispatch.begin()
        begun.append(tuple(started))
        dispatch.done(started)
    one_by_one = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    first_ahead = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]
    assert begun == (first_ahead if first else one_by_one)
