"""Chooses the tasks that begin next: a pure state machine over the tasks of the frames inside.

A task of a frame begins when the tasks before it are done, when the buffers that it writes have a free slot, and when
everything that it occupies has room: for one task under way and `ahead` more, so that a resource never waits for the
driver. A medium has this room for each pair of devices, because a message may wait for the processors of its ends while
others go on. Of the tasks that can begin, the first in the plan's order begins. The orders decide which task is first,
but a task never waits for a late one: another frame's task goes before. Frames take slots of a buffer in their order,
so the oldest frame never waits for a slot that a younger one has, and some task can always begin or is under way.
Complexity: O(d log d) for each end of a task, with d tasks that wait for room; at most frame window · tasks.

Successive computations of one device on which nothing else depends in between are one step: they need one call. A call
takes milliseconds of the device's processor, which no plan counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from downset.errors import UnsupportedError
from downset.results.pipelines import Pipeline, Resource
from downset.results.task_times import plan_seconds, resources_of

__all__ = ["Dispatch", "Instance", "RunTables", "joined", "work_of"]


class Instance(NamedTuple):
    """A task of a frame. Frames are numbered from 0 in the order in which they are let in."""

    frame: int
    task: int


@dataclass(slots=True)
class _DispatchedFrame:
    waits: list[int]
    left: int
    users_left: list[int]
    taken: set[int] = field(default_factory=set)


class Dispatch:
    """`ahead`: how many tasks beyond one are given to a device, or to a link or medium, at once."""

    def __init__(self, work: RunTables, *, ahead: int = 1) -> None:
        self.work = work
        self._room = [lanes * (1 + ahead) for lanes in work.lanes]
        self._inside: dict[int, _DispatchedFrame] = {}
        self._busy = [0] * len(work.lanes)
        self._taken = [0] * len(work.slots)
        self._given_back = [0] * len(work.slots)
        self._due: set[Instance] = set()
        self._begun: set[Instance] = set()
        self._admitted = 0

    @property
    def inside(self) -> int:
        """The number of frames inside; never more than the plan's frame window."""
        return len(self._inside)

    @property
    def has_room(self) -> bool:
        return len(self._inside) < self.work.window

    @property
    def under_way(self) -> frozenset[Instance]:
        """The tasks that have begun and are not done."""
        return frozenset(self._begun)

    def admit(self) -> int:
        """Let the next frame in and return its number. Call it only while `has_room`."""
        assert self.has_room
        number, work = self._admitted, self.work
        self._inside[number] = _DispatchedFrame(
            [len(before) for before in work.after], len(work.after), list(work.users)
        )
        self._due.update(Instance(number, task) for task, before in enumerate(work.after) if not before)
        self._admitted += 1
        return number

    def begin(self) -> list[Instance]:
        """All tasks that can begin now, in the plan's order. From now on they count as begun."""
        begun = []
        for instance in sorted(self._due, key=self._order):
            if self._can_begin(instance):
                self._start(instance)
                begun.append(instance)
        return begun

    def _order(self, instance: Instance) -> tuple[int, int, int]:
        behind, position = self.work.place[instance.task]
        return instance.frame + behind, position, instance.task

    def _can_begin(self, instance: Instance) -> bool:
        work = self.work
        if any(self._busy[resource] >= self._room[resource] for resource in work.resources[instance.task]):
            return False
        taken = self._inside[instance.frame].taken
        return all(
            buffer in taken
            or (
                self._taken[buffer] == instance.frame
                and self._taken[buffer] - self._given_back[buffer] < work.slots[buffer]
            )
            for buffer in work.written[instance.task]
        )

    def _start(self, instance: Instance) -> None:
        work, frame = self.work, self._inside[instance.frame]
        self._due.discard(instance)
        self._begun.add(instance)
        for resource in work.resources[instance.task]:
            self._busy[resource] += 1
        for buffer in work.written[instance.task]:
            if buffer not in frame.taken:
                frame.taken.add(buffer)
                self._taken[buffer] += 1

    def done(self, instance: Instance) -> bool:
        """Note that a task is done; whether its frame has left with it."""
        work, frame = self.work, self._inside[instance.frame]
        self._begun.remove(instance)
        for resource in work.resources[instance.task]:
            self._busy[resource] -= 1
        for other in work.followers[instance.task]:
            frame.waits[other] -= 1
            if not frame.waits[other]:
                self._due.add(Instance(instance.frame, other))
        for buffer in work.used[instance.task]:
            frame.users_left[buffer] -= 1
            self._given_back[buffer] += not frame.users_left[buffer]
        frame.left -= 1
        if frame.left:
            return False
        del self._inside[instance.frame]
        return True


@dataclass(frozen=True, slots=True)
class RunTables:
    """`place[t]`: (rounds behind, position) of task t in the cyclic order of the first resource that it occupies; tasks
    are ordered by (frame + rounds behind, position). `resources[t]`: the numbers of the resources that it occupies.
    `lanes[r]`: how many tasks run side by side on resource r: one, and on a medium one for each pair of devices.
    `written[t]`: the buffers that it writes; `used[t]`: those that it writes or reads. `slots[b]`: how many frames
    buffer b has room for. `users[b]`: how many tasks write or read it. `planned_s`: the planned seconds of each task.
    `steps[t]`: the tasks of the plan for which t stands, in order."""

    window: int
    after: tuple[tuple[int, ...], ...]
    followers: tuple[tuple[int, ...], ...]
    place: tuple[tuple[int, int], ...]
    transfers: tuple[bool, ...]
    lanes: tuple[int, ...]
    resources: tuple[tuple[int, ...], ...]
    written: tuple[tuple[int, ...], ...]
    used: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]
    users: tuple[int, ...]
    planned_s: tuple[float, ...]
    steps: tuple[tuple[int, ...], ...]


def work_of(plan: Pipeline) -> RunTables:
    """The tables of a plan. Raises UnsupportedError for plans by the paper's equations, which have no transfers between
    stages."""
    if plan.schedule is None:
        raise UnsupportedError(
            "a plan of comm=paper lists no transfers between stages and no orders; plan with comm=resources to run it"
        )
    tasks, schedule = plan.tasks, plan.schedule
    after = tuple(tuple(dict.fromkeys(task.after)) for task in tasks)
    pairs = max(1, len(plan.cluster.devices) // 2)
    followers: list[list[int]] = [[] for _ in tasks]
    for index, before in enumerate(after):
        for other in before:
            followers[other].append(index)
    number: dict[tuple[Resource, bool], int] = {}
    resources = []
    for task in tasks:
        transfers = task.transfer is not None
        own = [(resource, transfers) for resource in dict.fromkeys(resources_of(plan.cluster, task))]
        resources.append(tuple(number.setdefault(key, len(number)) for key in own))
    placed = {order.resource: {turn.task: k for k, turn in enumerate(order.turns)} for order in schedule.orders}
    behind = {turn.task: turn.behind for order in schedule.orders for turn in order.turns}
    place = []
    for index, task in enumerate(tasks):
        first = next((placed[r] for r in resources_of(plan.cluster, task) if r in placed), {})
        place.append((behind.get(index, 0), first.get(index, index)))
    written: list[list[int]] = [[] for _ in tasks]
    used: list[list[int]] = [[] for _ in tasks]
    for buffer, described in enumerate(schedule.buffers):
        _list(written, described.writers, buffer)
        _list(used, described.users, buffer)
    return RunTables(
        window=schedule.window,
        after=after,
        followers=tuple(map(tuple, followers)),
        place=tuple(place),
        transfers=tuple(task.transfer is not None for task in tasks),
        lanes=tuple(pairs if resource.kind == "medium" else 1 for resource, _ in number),
        resources=tuple(resources),
        written=tuple(map(tuple, written)),
        used=tuple(map(tuple, used)),
        slots=tuple(described.slots for described in schedule.buffers),
        users=tuple(len(described.users) for described in schedule.buffers),
        planned_s=tuple(plan_seconds(plan)),
        steps=tuple((index,) for index in range(len(tasks))),
    )


def joined(work: RunTables) -> RunTables:
    """The tables with every chain of computations as one task. In a chain each task occupies the same resources as the
    next, which waits for it alone and is the only task that waits for it."""
    chains = _chains(work)
    new = {old: number for number, chain in enumerate(chains) for old in chain}

    def anew(old: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(new[task] for task in old))

    def together(buffers: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(dict.fromkeys(b for task in chain for b in buffers[task])) for chain in chains)

    used = together(work.used)
    return RunTables(
        window=work.window,
        after=tuple(anew(work.after[chain[0]]) for chain in chains),
        followers=tuple(anew(work.followers[chain[-1]]) for chain in chains),
        place=tuple(work.place[chain[0]] for chain in chains),
        transfers=tuple(work.transfers[chain[0]] for chain in chains),
        lanes=work.lanes,
        resources=tuple(work.resources[chain[0]] for chain in chains),
        written=together(work.written),
        used=used,
        slots=work.slots,
        users=tuple(sum(buffer in one for one in used) for buffer in range(len(work.slots))),
        planned_s=tuple(sum(work.planned_s[task] for task in chain) for chain in chains),
        steps=tuple(tuple(step for task in chain for step in work.steps[task]) for chain in chains),
    )


def _chains(work: RunTables) -> list[list[int]]:
    """The chains of tasks, in the order of their first ones. Each task is in one chain."""
    tasks = range(len(work.after))
    following = {
        task: next_one
        for task in tasks
        if len(work.followers[task]) == 1 and not work.transfers[task]
        for next_one in work.followers[task]
        if work.after[next_one] == (task,)
        and work.resources[next_one] == work.resources[task]
        and not work.transfers[next_one]
    }
    inner, chains = set(following.values()), []
    for first in (task for task in tasks if task not in inner):
        chain = [first]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        chains.append(chain)
    return chains


def _list(by_task: list[list[int]], tasks: Sequence[int], buffer: int) -> None:
    for index in dict.fromkeys(tasks):
        by_task[index].append(buffer)
