"""Chooses what a device does next: a pure state machine over its own tasks, from the plan and its peers' credits.

A task of a frame begins when the tasks before it are done, which are tasks of the same device, and when its frame has a
slot in every buffer that the task fills. Frame f has one when f < slots + the frames that have given their slot back:
each frame below that limit has a slot reserved, so slots need no order of arrival. The device at which rows arrive owns
their buffer. It tells the sender the limit, as a credit that only rises.

No deadlock: the oldest frame inside is below every limit, because all frames before it have given all slots back; and
no task waits for its turn, since orders decide only which of the tasks that can begin is first. A credit is told when
half of the slots are new, at the latest. That leaves the oldest frame its slot too.
Complexity: O(d) for each task that begins, with d due tasks of its lane; at most frame window · tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from downset.distributed.serving.device_program import DeviceProgram, RowStore
from downset.distributed.wire.messages import ENTER, RESULT, MalformedMessage

__all__ = ["COMPUTES", "DeviceFrame", "DeviceSchedule", "Instance", "Lane"]


class Instance(NamedTuple):
    """A task of a frame. Frames of a run are numbered from 0."""

    frame: int
    task: int


Lane = tuple[str, str]
"""A thread that does one task at a time: ("compute", ""), or ("send", the peer's name, empty for the driver)."""
COMPUTES: Lane = ("compute", "")


@dataclass(slots=True)
class DeviceFrame:
    """A frame on the device. `left`: how many of the device's tasks are not done; `before_result`: how many of them the
    result waits for. `begun`: the tasks that have begun, because a message may arrive twice."""

    store: RowStore
    waits: dict[int, int]
    users: dict[int, int]
    left: int
    before_result: int
    begun: set[int] = field(default_factory=set)


class DeviceSchedule:
    """`spare`: how many more slots each buffer has than the plan says. `window`: the most frames inside."""

    def __init__(self, program: DeviceProgram, *, spare: int = 0, window: int = 1) -> None:
        self._program, self._window = program, window
        steps = program.steps
        self._slots = {buffer: slots + spare for buffer, slots in program.slots.items()}
        self._given_back = dict.fromkeys(program.slots, 0)
        self._below = {
            task: steps[task].credit + spare  # type: ignore[operator]
            for task in program.sends
            if steps[task].credit is not None
        }
        self._told = {task: limit for task in program.receives if (limit := self._limit(task)) is not None}
        self._untold: set[int] = set()
        self._lane: dict[int, Lane] = dict.fromkeys(program.computations, COMPUTES)
        self._lane |= {task: ("send", steps[task].peer) for task in program.sends} | {RESULT: ("send", "")}
        peers = sorted({step.peer for step in steps.values() if step.peer} | {""})
        self.lanes: tuple[Lane, ...] = (COMPUTES, *(("send", peer) for peer in peers))
        self._due: dict[Lane, set[Instance]] = {lane: set() for lane in self.lanes}
        self._followers: dict[int, list[int]] = {}
        for task, step in steps.items():
            for before in step.after:
                self._followers.setdefault(before, []).append(task)
        self._roots = [task for task in self._lane if task != RESULT and not steps[task].after]
        self._users = dict(Counter(buffer for step in steps.values() for buffer in step.used))
        self._filled_by: dict[int, list[int]] = {}
        for task in self._told:
            for buffer in steps[task].written:
                self._filled_by.setdefault(buffer, []).append(task)
        self._readers = program.readers()
        self._frames: dict[int, DeviceFrame] = {}
        self._over: set[int] = set()
        self._first = 0
        """All frames before `_first`, and those in `_over`, have none of the device's tasks left."""

    @property
    def inside(self) -> int:
        """The number of frames with tasks that are not done."""
        return len(self._frames)

    @property
    def held_bytes(self) -> int:
        """The bytes of all rows that are held."""
        return sum(frame.store.nbytes for frame in self._frames.values())

    def arrives(self, instance: Instance, peer: str) -> DeviceFrame | None:
        """The frame to which rows belong that arrive from a peer, whose task has begun now. None if they have arrived
        before. Raises MalformedMessage if the peer does not send them, or had no credit."""
        frame, task = instance
        if task == ENTER:
            expected = peer == "" and self._program.starts
        else:
            expected = task in self._program.receives and self._program.steps[task].peer == peer
        limit = self._limit(task) if expected and task != ENTER else None
        if not expected or frame < 0 or frame >= self._first + self._window or (limit is not None and frame >= limit):
            raise MalformedMessage(f"rows of task {task} of frame {frame}, which {peer or 'the driver'} does not send")
        if frame < self._first or frame in self._over:
            return None
        device_frame = self._frame(frame)
        if task in device_frame.begun:
            return None
        device_frame.begun.add(task)
        return device_frame

    def withdrawn(self, instance: Instance) -> None:
        """Note that rows whose arrival had begun did not arrive."""
        if (device_frame := self._frames.get(instance.frame)) is not None:
            device_frame.begun.discard(instance.task)

    def next(self, lane: Lane) -> tuple[Instance, DeviceFrame] | None:
        """The task that this lane begins now; None if none can begin."""
        able = [instance for instance in self._due[lane] if self._can_begin(instance)]
        if not able:
            return None
        chosen = min(able, key=self._order)
        self._due[lane].discard(chosen)
        device_frame = self._frames[chosen.frame]
        device_frame.begun.add(chosen.task)
        return chosen, device_frame

    def waits_in(self, lane: Lane) -> bool:
        """Whether tasks of this lane are due, or credits are to be told to its peer."""
        if self._due[lane]:
            return True
        return lane[0] == "send" and any(self._program.steps[task].peer == lane[1] for task in self._untold)

    def done(self, instance: Instance) -> None:
        """Note that a task has ended."""
        frame, task = instance
        device_frame = self._frames[frame]
        if task == ENTER:
            self._due_now(frame, self._roots)
        elif task != RESULT:
            step = self._program.steps[task]
            for other in self._followers.get(task, ()):
                device_frame.waits[other] -= 1
                if not device_frame.waits[other]:
                    self._due_now(frame, [other])
            for buffer in step.used:
                device_frame.users[buffer] -= 1
                if not device_frame.users[buffer]:
                    self._give_back(buffer)
        if task not in self._program.sends and task != RESULT:
            device_frame.before_result -= 1
            if not device_frame.before_result and self._program.results:
                self._due_now(frame, [RESULT])
        device_frame.left -= 1
        if not device_frame.left:
            del self._frames[frame]
            self._over.add(frame)
            while self._first in self._over:
                self._over.remove(self._first)
                self._first += 1

    def granted(self, below: dict[int, int], peer: str) -> None:
        """Take a peer's credits. Raises MalformedMessage for tasks that do not send to it."""
        for task in below:
            if task not in self._program.sends or self._program.steps[task].peer != peer:
                raise MalformedMessage(f"credits for task {task}, which does not send to {peer!r}")
        for task, limit in below.items():
            if task in self._below:
                self._below[task] = max(self._below[task], limit)

    def credits_for(self, peer: str) -> dict[int, int]:
        """The credits that a peer has not been told; from now on they count as told."""
        chosen = [task for task in self._untold if self._program.steps[task].peer == peer]
        self._untold.difference_update(chosen)
        for task in chosen:
            self._told[task] = self._limit(task) or 0
        return {task: self._told[task] for task in chosen}

    def _frame(self, number: int) -> DeviceFrame:
        device_frame = self._frames.get(number)
        if device_frame is None:
            program = self._program
            device_frame = self._frames[number] = DeviceFrame(
                RowStore(program.forms, self._readers),
                {task: len(step.after) for task, step in program.steps.items() if step.after},
                dict(self._users),
                program.tasks(),
                len(program.computations) + len(program.receives) + program.starts,
            )
        return device_frame

    def _due_now(self, frame: int, tasks: list[int]) -> None:
        for task in tasks:
            self._due[self._lane[task]].add(Instance(frame, task))

    def _order(self, instance: Instance) -> tuple[int, int, int]:
        if instance.task == RESULT:
            return instance.frame, -1, RESULT
        behind, position = self._program.steps[instance.task].order
        return instance.frame + behind, position, instance.task

    def _can_begin(self, instance: Instance) -> bool:
        frame, task = instance
        if task == RESULT:
            return True
        written = self._program.steps[task].written
        if any(frame >= self._slots[buffer] + self._given_back[buffer] for buffer in written):
            return False
        below = self._below.get(task)
        return below is None or frame < below

    def _limit(self, task: int) -> int | None:
        """The frame below which a transfer may arrive; None without buffers."""
        written = self._program.steps[task].written
        return min((self._slots[buffer] + self._given_back[buffer] for buffer in written), default=None)

    def _give_back(self, buffer: int) -> None:
        self._given_back[buffer] += 1
        for task in self._filled_by.get(buffer, ()):
            limit = self._limit(task) or 0
            fewest = min(self._slots[one] for one in self._program.steps[task].written)
            if limit - self._told[task] >= max(1, fewest // 2):
                self._untold.add(task)
