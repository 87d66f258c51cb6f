"""Simulates a plan with a schedule: every device, link and medium takes its turns in the plan's cyclic order.

A task begins when it is its turn on everything that it occupies, when its frame's earlier tasks are done, when its
frame is inside (at most `window` are), and when the buffers that it writes have a free slot. If a message occupies the
network for a part of its time only, the next one begins while it is under way. The simulation reads the plan's tasks,
orders, buffers and cluster, and shares no code with the planners.

Empty frames: orders name frames by number, and a turn may come for a frame that has not arrived while frames inside
wait behind it. Then an empty frame takes that number and passes all its turns in no time. A run begins with a window of
empty frames less one. So orders, frame window and slots hold as in a stream without gaps, whenever frames arrive, from
the first frame on, and the last frames leave.
A frame that needs a device that is dead for good is lost: it continues as an empty frame, so that frames ahead still
leave, and no frame is let in behind it.
Complexity: O(log tasks) for each task of each frame, plus the search for tasks that wait for an absent frame, which
runs only while no frame waits at the source.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from downset.distributed.simulated_run import Conditions, RunRecord
from downset.errors import InvalidPlan
from downset.results.pipelines import Pipeline, PipelineSchedule, Turn
from downset.results.task_times import ends_of, occupied_seconds, plan_seconds, resources_of

__all__ = ["Turns", "run_plan"]

_WAITING, _RUNNING, _DONE = range(3)
_Instance = tuple[int, int]
"""(number of a frame in the orders, task)."""


def run_plan(
    plan: Pipeline,
    conditions: Conditions,
    *,
    frames: int,
    arrival_s: float | None = None,
    progress: Callable[[], None] = lambda: None,
    observe: Callable[[int, int, float, float], None] | None = None,
) -> RunRecord:
    """Run `frames` frames of a plan with a schedule, which arrive every `arrival_s` seconds, or all at once (None).

    `progress` is called when a frame leaves, `observe` with (frame, task, begin, end) when a task ends. Raises
    InvalidPlan for orders that miss a task or deadlock."""
    assert plan.schedule is not None
    run = _PlanRun(
        _PlanTables(plan, plan.schedule),
        conditions,
        frames,
        arrival_s,
        RunRecord(len(plan.cluster.devices), plan.schedule.window),
    )
    run.progress, run.observe = progress, observe
    run.go()
    return run.record


class _PlanTables:
    """The plan as lists by task, resource and buffer."""

    def __init__(self, plan: Pipeline, schedule: PipelineSchedule) -> None:
        self.window = schedule.window
        self.seconds, self.occupied_s = plan_seconds(plan), occupied_seconds(plan)
        self.ends = [ends_of(task) for task in plan.tasks]
        self.after = [tuple(dict.fromkeys(task.after)) for task in plan.tasks]
        self.followers: list[list[int]] = [[] for _ in plan.tasks]
        for index, before in enumerate(self.after):
            for other in before:
                self.followers[other].append(index)
        place = {order.resource: number for number, order in enumerate(schedule.orders)}
        self.orders = [order.turns for order in schedule.orders]
        self.resources: list[list[int]] = []
        for index, task in enumerate(plan.tasks):
            resources = list(dict.fromkeys(resources_of(plan.cluster, task)))
            if any(resource not in place for resource in resources):
                raise InvalidPlan(f"task {index} occupies a resource for which the plan has no order")
            self.resources.append([place[resource] for resource in resources])
        for number, turns in enumerate(self.orders):
            if sorted(turn.task for turn in turns) != [
                i for i, resources in enumerate(self.resources) if number in resources
            ]:
                raise InvalidPlan("an order must list each task of its resource once, and no other task")
        self.buffers = schedule.buffers
        self.written: list[list[int]] = [[] for _ in plan.tasks]
        self.used: list[list[int]] = [[] for _ in plan.tasks]
        for number, buffer in enumerate(schedule.buffers):
            for index in dict.fromkeys(buffer.writers):
                self.written[index].append(number)
            for index in buffer.users:
                self.used[index].append(number)


class _SimulatedFrame:
    """A frame number of the orders that is inside. `real`: the index of the frame, None for an empty one."""

    __slots__ = ("left", "real", "state", "taken", "users_left", "waits")

    def __init__(self, work: _PlanTables, real: int | None) -> None:
        self.real = real
        self.state = bytearray(len(work.seconds))
        self.waits = [len(before) for before in work.after]
        self.left = len(work.seconds)
        self.users_left = [len(buffer.users) for buffer in work.buffers]
        self.taken: set[int] = set()


class _PlanRun:
    def __init__(
        self, work: _PlanTables, conditions: Conditions, frames: int, arrival_s: float | None, record: RunRecord
    ) -> None:
        self.work, self.conditions, self.record = work, conditions, record
        self.frames, self.arrival_s = frames, arrival_s
        self.progress: Callable[[], None] = lambda: None
        self.observe: Callable[[int, int, float, float], None] | None = None
        self.now = 0.0
        self.turns = [Turns(order) for order in work.orders]
        self.busy = [False] * len(work.orders)
        self.freed = [_Numbers() for _ in work.buffers]  # by buffer: the frames that need it no longer
        self.inside: dict[int, _SimulatedFrame] = {}
        self.admitted = self.real_inside = 0
        self.finished = _Numbers()
        self.arrived = self.let_in = 0
        self.closed = False
        self.due: set[_Instance] = set()
        self.touched: set[int] = set()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0

    def go(self) -> None:
        for _ in range(self.work.window - 1):
            self.admit(None)
        if self.arrival_s is None:
            self.arrived = self.frames
            self.settle()
        else:
            self.schedule(0.0, self.arrive)
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                heapq.heappop(self.events)[2]()
                self.settle()
            while self.needs_empty_frame():
                self.admit(None)
                self.settle()
        if self.real_inside:
            raise InvalidPlan(f"the orders deadlock after {len(self.record.left)} frames")

    def schedule(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def arrive(self) -> None:
        self.record.came.append(self.now)
        self.arrived += 1
        if self.arrived < self.frames and self.arrival_s is not None and not self.closed:
            self.schedule(self.arrived * self.arrival_s, self.arrive)

    def settle(self) -> None:
        """Begin all tasks that can begin now."""
        while True:
            while self.touched:
                self.attempt(self.touched.pop())
            if self.closed or self.let_in == self.arrived or self.is_full():
                return
            self.record.let_in.append(self.now)
            self.admit(self.let_in)
            self.let_in += 1

    def is_full(self) -> bool:
        """Whether the frame window is full."""
        return self.admitted - self.work.window not in self.finished

    def admit(self, real: int | None) -> None:
        self.inside[self.admitted] = frame = _SimulatedFrame(self.work, real)
        self.real_inside += real is not None
        self.due.update((self.admitted, index) for index, count in enumerate(frame.waits) if not count)
        self.admitted += 1
        self.touched.update(range(len(self.turns)))

    def attempt(self, resource: int) -> None:
        """Begin the task whose turn it is on a resource, if nothing else holds it back."""
        work, front = self.work, self.turns[resource].front
        number, index = front
        if self.busy[resource] or number >= self.admitted:
            return
        frame = self.inside[number]
        if frame.waits[index] or any(number - work.buffers[b].slots not in self.freed[b] for b in work.written[index]):
            return
        if all(not self.busy[other] and self.turns[other].front == front for other in work.resources[index]):
            self.begin(number, index, frame)

    def begin(self, number: int, index: int, frame: _SimulatedFrame) -> None:
        self.due.discard((number, index))
        if frame.real is None:
            for resource in self.work.resources[index]:
                self.turns[resource].advance()
                self.touched.add(resource)
            self.done(number, index, frame)
            return
        frame.state[index] = _RUNNING
        for resource in self.work.resources[index]:
            self.busy[resource] = True
        for buffer in self.work.written[index]:
            if buffer not in frame.taken:
                frame.taken.add(buffer)
                self.record.take(self.work.buffers[buffer].device, self.work.buffers[buffer].nbytes)
        ends, seconds, begin = self.work.ends[index], self.work.seconds[index], self.now
        self.record.begin(ends, begin)
        if len(ends) == 1:
            stop = self.conditions.computed_at(ends[0], begin, seconds * self.conditions.noise(index))
        else:
            stop = self.conditions.transferred_at(ends, begin, seconds)
        lost = stop == math.inf
        if lost:
            stop = max(begin, self.conditions.died_at(ends))
        if self.work.occupied_s[index] < seconds:
            free = min(stop, self.conditions.transferred_at(ends, begin, self.work.occupied_s[index]))
            self.schedule(free, lambda: self.free(index, begin))
            self.schedule(stop, lambda: self.end(number, index, frame, begin, lost))
            return

        def end() -> None:
            self.free(index, begin)
            self.end(number, index, frame, begin, lost)

        self.schedule(stop, end)

    def free(self, index: int, begin: float) -> None:
        """Free the resources of a task."""
        ends = self.work.ends[index]
        self.record.end(ends, begin, self.now, transfers=len(ends) > 1)
        for resource in self.work.resources[index]:
            self.busy[resource] = False
            self.turns[resource].advance()
            self.touched.add(resource)

    def end(self, number: int, index: int, frame: _SimulatedFrame, begin: float, lost: bool) -> None:
        if self.observe is not None and frame.real is not None and not lost:
            self.observe(frame.real, index, begin, self.now)
        if lost:
            self.record.stall(self.now)
            self.closed = True
            self.real_inside -= frame.real is not None
            frame.real = None
        self.done(number, index, frame)

    def done(self, number: int, index: int, frame: _SimulatedFrame) -> None:
        work = self.work
        frame.state[index] = _DONE
        for other in work.followers[index]:
            frame.waits[other] -= 1
            if not frame.waits[other]:
                self.due.add((number, other))
                self.touched.add(work.resources[other][0])
        for buffer in work.used[index]:
            frame.users_left[buffer] -= 1
            if not frame.users_left[buffer]:
                self.give_back(buffer, number, frame)
        frame.left -= 1
        if not frame.left:
            self.leave(number, frame)

    def give_back(self, buffer: int, number: int, frame: _SimulatedFrame) -> None:
        """Free the frame's slot in a buffer whose tasks are all done."""
        described = self.work.buffers[buffer]
        self.freed[buffer].add(number)
        if buffer in frame.taken:
            self.record.take(described.device, -described.nbytes)
        self.touched.update(self.work.resources[index][0] for index in described.writers)

    def leave(self, number: int, frame: _SimulatedFrame) -> None:
        del self.inside[number]
        self.finished.add(number)
        if frame.real is not None:
            self.real_inside -= 1
            self.record.left.append((frame.real, self.now))
            self.progress()

    def needs_empty_frame(self) -> bool:
        """Whether the entry could take a frame that has not arrived, while some frame inside waits only for turns of
        such frames."""
        absent = self.closed or self.let_in == self.arrived
        if not absent or not self.real_inside or self.is_full():
            return False
        fronts = [turns.front for place, turns in enumerate(self.turns) if not self.busy[place]]
        if not any(number >= self.admitted and not self.work.after[index] for number, index in fronts):
            return False
        return any(self.inside[due[0]].real is not None and self.waits_for_absent(due) for due in self.due)

    def waits_for_absent(self, due: _Instance) -> bool:
        """Whether this task waits for no running task, directly or through others."""
        seen, left = {due}, [due]
        while left:
            number, index = left.pop()
            if self.inside[number].state[index] == _RUNNING or any(
                self.busy[resource] for resource in self.work.resources[index]
            ):
                return False
            for other in self.undone_before(number, index):
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        return True

    def undone_before(self, number: int, index: int) -> Iterator[_Instance]:
        """The tasks of frames inside that must be done before this task of a frame begins."""
        work, frame = self.work, self.inside[number]
        yield from ((number, other) for other in work.after[index] if frame.state[other] != _DONE)
        for resource in work.resources[index]:
            other = self.turns[resource].before((number, index), self.admitted)
            if other is not None:
                yield other
        for buffer in work.written[index]:
            earlier = number - work.buffers[buffer].slots
            if earlier not in self.freed[buffer]:
                users = work.buffers[buffer].users
                yield from ((earlier, one) for one in users if self.inside[earlier].state[one] != _DONE)


class _Numbers:
    """A set of frame numbers that are added nearly in order."""

    def __init__(self) -> None:
        self._first = 0  # all numbers before it are in the set
        self._behind: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self._first or number in self._behind

    def add(self, number: int) -> None:
        self._behind.add(number)
        while self._first in self._behind:
            self._behind.remove(self._first)
            self._first += 1


_MOST_BEHIND = 1_000_000
"""The most rounds by which one task of a resource may be behind another; plans of our planners stay far below."""


class Turns:
    """`front`: the (frame number, task) whose turn it is. Turns of frames before number 0 are passed over."""

    def __init__(self, order: Sequence[Turn]) -> None:
        behind = [turn.behind for turn in order]
        if not order or max(behind) - min(behind) > _MOST_BEHIND:
            raise InvalidPlan("an order has no turns, or one that is more than a million rounds behind another")
        self._order = [(turn.task, turn.behind) for turn in order]
        self._place_of = {turn.task: place for place, turn in enumerate(order)}
        self._place, self._round = 0, min(behind)
        self.front = self._at(0, self._round)
        if self.front[0] < 0:
            self.advance()

    def _at(self, place: int, number: int) -> tuple[int, int]:
        task, behind = self._order[place]
        return number - behind, task

    def _following(self, place: int, number: int) -> tuple[int, int]:
        return (place + 1, number) if place + 1 < len(self._order) else (0, number + 1)

    def advance(self) -> None:
        """End the turn in front."""
        while True:
            self._place, self._round = self._following(self._place, self._round)
            self.front = self._at(self._place, self._round)
            if self.front[0] >= 0:
                return

    def before(self, instance: tuple[int, int], below: int) -> tuple[int, int] | None:
        """The last turn before this one, which is still to come, of a frame with a number below `below`; None if there
        is none."""
        place = self._place_of[instance[1]]
        number = instance[0] + self._order[place][1]
        while (number, place) > (self._round, self._place):
            place, number = (place - 1, number) if place else (len(self._order) - 1, number - 1)
            turn = self._at(place, number)
            if 0 <= turn[0] < below:
                return turn
        return None
