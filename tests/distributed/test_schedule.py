"""What devices begin next, and that they never wait for each other in a circle: several schedules joined by channels.

Nothing has a time: any thread of any device may go on next, and messages are read long after they were sent. Slots and
dependencies are held to a plain account of the plan's own words."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving.deployment import room_for_frames, steps_of
from downset.distributed.serving.device_program import Computation, DeviceProgram, DeviceStep
from downset.distributed.serving.schedule import COMPUTES, DeviceSchedule, Instance
from downset.distributed.wire.messages import ENTER, RESULT, MalformedMessage
from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.scheduling.events import TimedTask
from downset.results.pipelines import Rows, Turn
from tests.distributed.plans_of_tasks import plan_of
from tests.effort import cases
from tests.models import branchy_model

_NETWORKS = (
    Network("links", 1e6),
    Network("links", 1e6, overlap=True),
    Network("shared", 1e6, overlap=True),
    Network("links", 1e6, overlap=True, duplex="full"),
)
PLANS = [
    (network, method, window, topology)
    for network in _NETWORKS
    for method in ("layerwise", "coedge", "pico", "exact")
    for window in (None, 1, 3)
    for topology in ("leader", "direct")
    if topology == "leader" or method == "exact"
]
"""Of a network with branches: several methods, networks and windows."""


@cache
def planned(folder, network, method, window, topology):
    cluster = Cluster(tuple(Device(f"d{k}", speed) for k, speed in enumerate((3e5, 2e5, 2e5))), network)
    graph = load(branchy_model(folder / "branchy.onnx"))
    return plan_pipeline(graph, cluster, method=method, window=window, topology=topology)


def program_of(plan, device):
    """A device's program without rows: only what its schedule reads."""
    steps, slots = steps_of(plan, device)
    tasks = {number: plan.tasks[number] for number in steps}
    computes = {number: Computation("", (), ()) for number, task in tasks.items() if task.transfer is None}
    moves = {number: task.transfer for number, task in tasks.items() if task.transfer is not None}
    sends = {number: () for number, transfer in moves.items() if transfer.source == device}
    return DeviceProgram(
        plan.cluster.devices[device].name,
        {},
        computes,
        sends,
        {number: () for number in moves if number not in sends},
        results=(Rows(0, 0, 1),) if device == plan.exit else (),
        steps=steps,
        slots=slots,
        starts=device == plan.entry or any(not plan.tasks[number].after for number in (*computes, *sends)),
    )


class Devices:
    """All devices of a plan, and a driver. `moves` lists what can happen next; `make` lets one of them happen."""

    def __init__(self, plan, window, spare=0):
        self.plan, self.window = plan, window
        self.names = [device.name for device in plan.cluster.devices]
        self.programs = {name: program_of(plan, number) for number, name in enumerate(self.names)}
        self.programs = {name: program for name, program in self.programs.items() if program.tasks()}
        self.schedules = {
            name: DeviceSchedule(program, spare=spare, window=window + 64) for name, program in self.programs.items()
        }
        self.channels, self.computing = {}, {}
        self.begun, self.done, self.out, self.admitted = set(), set(), [], 0
        self.slots = Slots(plan, spare)

    def moves(self, frames):
        found = [("read", *ends) for ends, messages in self.channels.items() if messages]
        if self.admitted < frames and self.admitted - len(self.out) < self.window:
            found.append(("admit",))
        for name, schedule in self.schedules.items():
            if name in self.computing:
                found.append(("end", name))
            for lane in schedule.lanes:
                if lane != COMPUTES:
                    found.append(("send", name, lane[1]))
                elif name not in self.computing:
                    found.append(("compute", name))
        return found

    def make(self, move):
        """Whether anything happened."""
        what, *ends = move
        return getattr(self, f"_{what}")(*ends)

    def _admit(self):
        for name, program in self.programs.items():
            if program.starts:
                self.channels.setdefault(("", name), []).append(Instance(self.admitted, ENTER))
        self.admitted += 1
        return True

    def _begin(self, instance):
        assert instance not in self.begun
        assert {Instance(instance.frame, other) for other in self.plan.tasks[instance.task].after} <= self.done
        self.begun.add(instance)
        self.slots.begun(instance, self.done)

    def _ended(self, instance, name):
        self.done.add(instance)
        self.slots.done(instance, self.names.index(name))

    def _compute(self, name):
        chosen = self.schedules[name].next(COMPUTES)
        if chosen is not None:
            self._begin(chosen[0])
            self.computing[name] = chosen[0]
        return chosen is not None

    def _end(self, name):
        instance = self.computing.pop(name)
        self._ended(instance, name)
        self.schedules[name].done(instance)
        return True

    def _send(self, name, peer):
        schedule, channel = self.schedules[name], self.channels.setdefault((name, peer), [])
        told = schedule.credits_for(peer) if peer else {}
        if told:
            channel.append(told)
            return True
        chosen = schedule.next(("send", peer))
        if chosen is None:
            return False
        if chosen[0].task != RESULT:
            self._begin(chosen[0])
            self.slots.done(chosen[0], self.names.index(name))
        channel.append(chosen[0])
        schedule.done(chosen[0])
        return True

    def _read(self, sender, name):
        message = self.channels[sender, name].pop(0)
        if not name:
            self.out.append(message.frame)
        elif isinstance(message, dict):
            self.schedules[name].granted(message, sender)
        else:
            assert self.schedules[name].arrives(message, sender) is not None
            if message.task != ENTER:
                self._ended(message, name)
            self.schedules[name].done(message)
        return True


class Slots:
    """Counts the slots of buffers by the words of `plans.Buffer`: taken from the first writer's start to the last end
    of a writer or reader. A transfer ends at its source when it is sent, and at its target when it is there."""

    def __init__(self, plan, spare):
        self.buffers = [(buffer, buffer.slots + spare) for buffer in plan.schedule.buffers if buffer.writers]
        self.held = [{} for _ in self.buffers]

    def begun(self, instance, done):
        for (buffer, slots), held in zip(self.buffers, self.held, strict=True):
            if instance.task in buffer.writers:
                left = {user for user in buffer.users if (instance.frame, user) not in done}
                held.setdefault(instance.frame, left)
                assert len(held) <= slots, "more frames than slots"

    def done(self, instance, device):
        for (buffer, _), held in zip(self.buffers, self.held, strict=True):
            if instance.frame in held and buffer.device == device:
                held[instance.frame].discard(instance.task)
                if not held[instance.frame]:
                    del held[instance.frame]


def run_to_the_end(plan, frames, draw, *, spare=0):
    """Let anything happen that can, in any order, until all frames are out."""
    devices = Devices(plan, plan.schedule.window + spare, spare)
    while len(devices.out) < frames:
        left = devices.moves(frames)
        while not devices.make(left.pop(draw(len(left)))):
            assert left, "nothing goes on"
    while messages := [move for move in devices.moves(frames) if move[0] in ("read", "end")]:
        devices.make(messages[0])
    assert sorted(devices.out) == list(range(frames))
    return devices


def drawn_by(data):
    random = data.draw(st.randoms(use_true_random=False))
    return random.randrange


@given(data=st.data())
@settings(max_examples=cases(60), deadline=None)
def test_planned_pipelines_finish_all_frames_within_their_slots(data, tmp_path_factory):
    plan = planned(tmp_path_factory.getbasetemp(), *data.draw(st.sampled_from(PLANS)))
    frames, spare = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 2))
    devices = run_to_the_end(plan, frames, drawn_by(data), spare=spare)
    assert devices.done == {Instance(f, t) for f in range(frames) for t in range(len(plan.tasks))}
    assert all(not schedule.inside and schedule._first == frames for schedule in devices.schedules.values())


@st.composite
def random_plans(draw):
    """Tasks on two to four devices. Each reads results of earlier ones; what another device made comes by a transfer,
    from its maker or from a device that has it already: rows go back and forth, are exchanged, and are sent on. Each
    device has a buffer for each result, with one slot mostly."""
    count, tasks = draw(st.integers(2, 4)), []
    held = {}  # (device, result) -> the task that brought it there
    for result in range(draw(st.integers(2, 7))):
        device, after = draw(st.integers(0, count - 1)), []
        earlier = sorted({one for _, one in held})
        for read in draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []:
            if (device, read) not in held:
                sources = [where for where, one in held if one == read]
                source = draw(st.sampled_from(sources))
                tasks.append(TimedTask(1, (source, device), (held[source, read],)))
                held[device, read] = len(tasks) - 1
            after.append(held[device, read])
        tasks.append(TimedTask(1, (device,), tuple(sorted(set(after)))))
        held[device, result] = len(tasks) - 1
    exit_ = draw(st.integers(0, count - 1))
    for result in sorted({one for _, one in held}):  # all results meet at the exit
        if (exit_, result) not in held:
            source = draw(st.sampled_from([where for where, one in held if one == result]))
            tasks.append(TimedTask(1, (source, exit_), (held[source, result],)))
            held[exit_, result] = len(tasks) - 1
    buffers = []
    for (device, _), writer in held.items():
        readers = tuple(k for k, task in enumerate(tasks) if writer in task.after) or (writer,)
        buffers.append((device, 1, draw(st.sampled_from([1, 1, 1, 2, 4])), (writer,), readers))
    orders = [[k for k, task in enumerate(tasks) if device in task.resources] for device in range(count)]
    turns = [tuple(Turn(task, draw(st.integers(0, 3))) for task in draw(st.permutations(own))) for own in orders]
    plan = plan_of(tasks, turns, draw(st.integers(1, 5)), buffers=tuple(buffers))
    return plan, exit_


@given(random_plans(), st.data())
@settings(max_examples=cases(150), deadline=None)
def test_no_random_plan_stops(drawn, data):
    """Whatever the order in which devices compute, send and read."""
    plan, exit_ = drawn
    object.__setattr__(plan, "exit", exit_)
    frames = data.draw(st.integers(1, 7))
    devices = run_to_the_end(plan, frames, drawn_by(data))
    assert len(devices.done) <= frames * len(plan.tasks)


def one_device(after, order, written=((), ()), slots=None):
    return DeviceProgram(
        "d0",
        {},
        {0: Computation("", (), ()), 1: Computation("", (), ())},
        steps={
            k: DeviceStep(after[k], order[k], written[k], tuple(set(slots or {}) & set(written[k]))) for k in (0, 1)
        },
        slots=slots or {},
        starts=True,
    )


@pytest.mark.parametrize("first", [0, 1])
def test_of_what_can_begin_the_plans_order_decides(first):
    """Two tasks of one processor, the second after the first. When the first is done for a frame, the second of this
    frame and the first of the next one can begin: the cyclic order says which."""
    place = {0: ((0, 1), (1, 0)), 1: ((0, 0), (1, 1))}[first]
    schedule, begun = DeviceSchedule(one_device(((), (0,)), place), window=3), []
    for frame in range(3):
        assert schedule.arrives(Instance(frame, ENTER), "") is not None
        schedule.done(Instance(frame, ENTER))
    while schedule.inside:
        started, _ = schedule.next(COMPUTES)
        begun.append(tuple(started))
        schedule.done(started)
    one_by_one = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    first_ahead = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]
    assert begun == (first_ahead if first else one_by_one)


def test_rows_that_nobody_may_send_change_nothing():
    """Of another peer, another task, a frame without a slot, one far ahead, and one below zero; and those that came."""
    program = DeviceProgram(
        "d1",
        {},
        {1: Computation("", (), ())},
        receives={0: ()},
        steps={0: DeviceStep((), (0, 0), (0,), (0,), "d0"), 1: DeviceStep((0,), (0, 1), (), (0,))},
        slots={0: 2},
    )
    schedule = DeviceSchedule(program, window=10)
    for frame, task, peer in ((0, 0, "d2"), (0, 1, "d0"), (2, 0, "d0"), (99, 0, "d0"), (-1, 0, "d0"), (0, ENTER, "")):
        with pytest.raises(MalformedMessage):
            schedule.arrives(Instance(frame, task), peer)
    for below, peer in (({0: 5}, "d0"), ({7: 5}, "d0"), ({1: 5}, "")):
        with pytest.raises(MalformedMessage):
            schedule.granted(below, peer)
    assert not schedule.inside
    assert schedule.arrives(Instance(0, 0), "d0") is not None
    assert schedule.arrives(Instance(0, 0), "d0") is None
    schedule.done(Instance(0, 0))
    instance, _ = schedule.next(COMPUTES)
    schedule.done(instance)
    assert schedule.arrives(Instance(0, 0), "d0") is None and not schedule.inside
    assert schedule.credits_for("d0") == {0: 3}
    assert schedule.credits_for("d0") == {}


def test_a_credit_that_is_late_takes_nothing_back():
    program = DeviceProgram("d0", {}, {}, {0: ()}, steps={0: DeviceStep((), (0, 0), peer="d1", credit=1)}, starts=True)
    schedule = DeviceSchedule(program, window=10)
    for frame in range(3):
        schedule.arrives(Instance(frame, ENTER), "")
        schedule.done(Instance(frame, ENTER))
    lane = ("send", "d1")
    assert schedule.next(lane)[0] == (0, 0) and schedule.next(lane) is None
    schedule.granted({0: 2}, "d1")
    assert schedule.next(lane)[0] == (1, 0) and schedule.next(lane) is None
    for late in (1, 2, 0, -5):
        schedule.granted({0: late}, "d1")
        assert schedule.next(lane) is None
    schedule.granted({0: 3}, "d1")
    assert schedule.next(lane)[0] == (2, 0)


def test_plans_by_the_papers_equations_are_refused(tmp_path):
    graph = load(branchy_model(tmp_path / "branchy.onnx"))
    cluster = Cluster((Device("d0", 3e5), Device("d1", 3e5)), Network("links", 1e6))
    plan = plan_pipeline(graph, cluster, method="pico", comm="paper")
    assert room_for_frames(plan) == 0
    with pytest.raises(UnsupportedError, match="plan with comm=resources"):
        steps_of(plan, 0)
