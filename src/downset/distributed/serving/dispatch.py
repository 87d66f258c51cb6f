"""Chooses the tasks that begin next: a pure state machine over the tasks of the frames inside.

A task of a frame begins when the tasks before it are done, when the buffers that it writes have a free slot, and when
everything that it occupies has room: for one task under way and `ahead` more, so that a resource never waits for the
driver. A medium has this room for each pair of devices, because a message may wait for the processors of its ends while
others go on. Of the tasks that can begin, the first in the plan's order begins. The orders decide which task is first,
but a task never waits for a late one: another frame's task goes before. Frames take slots of a buffer in their order,
so the oldest frame never waits for a slot that a younger one has, and some task can always begin or is under way.
Complexity: O(d log d) for each end of a task, with d tasks that wait for room; at most frame window · tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from downset.distributed.serving.work import RunTables

__all__ = ["Dispatch", "Instance"]


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
        if any(self._busy[resource] >= self._room[resource] for resource in work.held[instance.task]):
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
        for resource in work.held[instance.task]:
            self._busy[resource] += 1
        for buffer in work.written[instance.task]:
            if buffer not in frame.taken:
                frame.taken.add(buffer)
                self._taken[buffer] += 1

    def done(self, instance: Instance) -> bool:
        """Note that a task is done; whether its frame has left with it."""
        work, frame = self.work, self._inside[instance.frame]
        self._begun.remove(instance)
        for resource in work.held[instance.task]:
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
