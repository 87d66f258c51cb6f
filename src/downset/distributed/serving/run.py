"""A run, as its driver sees it: frames go in, results come out, and devices report what they did.

What begins next is decided on the devices (`schedule`). The driver lets in as many frames as the plan's frame window.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from downset.distributed.serving.deployment import Deployment
from downset.distributed.serving.device_program import DeviceProgram
from downset.distributed.serving.device_run import RunSetup, StepUnderWay
from downset.distributed.serving.health import DEADLINE_FACTOR, LEAST_DEADLINE_S, Pace, Wait
from downset.distributed.serving.record import ServeRecord
from downset.distributed.wire.connection import Connection
from downset.distributed.wire.endpoint import Endpoint, Incoming, Outgoing, Sender
from downset.distributed.wire.messages import (
    ENTER,
    RESULT,
    VERSION,
    BrokenConnection,
    DeviceReport,
    Done,
    Failed,
    Header,
    Hello,
    MalformedMessage,
    RowsOf,
)
from downset.results.pipelines import Task
from downset.results.task_times import plan_seconds
from downset.text import brief, printable

__all__ = ["Outlet", "PipelineRun", "RunEvents", "ServingSettings", "SubmittedFrame"]

Array = npt.NDArray[Any]
_log = logging.getLogger("downset.serving")
_TRANSFER_FACTOR = 20.0
_LEAST_TRANSFER_DEADLINE_S = 30.0
"""Deadlines, in seconds, of transfers, of frames on their way in and of results on their way out. They are long because
other users of a network may slow it down."""
_MOST_SECONDS = 1e6
"""More than any task takes."""


def _in_a_line(reason: str) -> str:
    return printable(brief(reason, 600))


@dataclass(slots=True)
class SubmittedFrame:
    """`index`: counts submitted frames from 0. `inputs`: kept until the result is back."""

    index: int
    inputs: tuple[Array, ...]
    let_in_s: float = 0.0


class Outlet(Protocol):
    """Receives results in the order of the frames. Its methods are called on the driver's thread."""

    def deliver(self, outputs: list[Array]) -> None:
        """Take the next result."""

    def ready(self) -> None:
        """Note that the devices have joined and have what they need."""

    def fail(self, error: BaseException) -> None:
        """Note that nothing more will be delivered, because of this error."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """`gather_s`: how long devices may take to join at first. `ahead`: whether to plan ahead for the loss of each
    device and place the shards of these plans. `spare_frames`: the most frames inside beyond the plan's frame window
    (`spare_frames_of`)."""

    gather_s: float = 60.0
    ahead: bool = True
    spare_frames: int | None = None


class RunEvents(Protocol):
    """Takes what a run tells the driver, on the driver's thread, and notes what devices did."""

    record: ServeRecord
    pace: Pace

    def finished(self, frame: SubmittedFrame, outputs: list[Array]) -> None:
        """A frame is out."""

    def counted(self) -> None:
        """All tasks of a frame have been reported."""

    def broken(self, device: str, peer: str, reason: str) -> None:
        """A connection of a device with a peer, or with the driver (an empty name), ended."""

    def failed(self, device: str, reason: str, lost: bool) -> None:
        """A device cannot do a task."""


@dataclass(slots=True)
class _FrameReport:
    """The reports of a frame: (seconds, end) by task and device, and how many reports are still to come."""

    index: int
    left: int
    done: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)


class PipelineRun:
    """One run. Frame numbers of a run begin at 0. `put` gives functions to the driver's thread."""

    def __init__(
        self,
        number: int,
        deployment: Deployment,
        setup: RunSetup,
        endpoint: Endpoint,
        events: RunEvents,
        put: Callable[[Callable[[], None]], None],
    ) -> None:
        self.number, self.deployment, self.setup, self.over = number, deployment, setup, False
        self._endpoint, self._events, self._put = endpoint, events, put
        plan = self._plan = deployment.plan
        self._planned_s = plan_seconds(plan)
        self._names = [device.name for device in plan.cluster.devices]
        self._programs = {
            name: msgspec.json.decode(program, type=DeviceProgram) for name, program in deployment.programs.items()
        }
        self._starters: dict[str, queue.SimpleQueue[Outgoing | None]] = {
            name: queue.SimpleQueue() for name, program in self._programs.items() if program.starts
        }
        self._reports_of_a_frame = len(plan.tasks) + len(self._starters)
        self._frames: dict[int, SubmittedFrame] = {}
        self._reports: dict[int, _FrameReport] = {}
        self._count = 0
        self._waits: dict[tuple[str, int, int], Wait] = {}
        self._progress_s = time.monotonic()
        devices = {name: setup.peers[name] for name in self._programs}
        self._incoming = Incoming(setup.session, number, devices)
        self._senders = [self._sender(name) for name in self._starters]

    def _sender(self, name: str) -> Sender:
        hello = Hello(VERSION, self.setup.session, self.number, "")
        return Sender(
            name,
            lambda: self._endpoint.dial(self.setup.peers[name], hello),
            self._starters[name].get,
            lambda reason: self._tell(partial(self._events.broken, name, "", reason)),
        )

    def end(self) -> None:
        """End the run: what devices send for it does not count any more."""
        self.over = True
        for frames in self._starters.values():
            frames.put(None)
        for sender in self._senders:
            sender.end()
        self._incoming.end()

    def frames(self) -> list[SubmittedFrame]:
        """The frames without a result, in their order."""
        return [self._frames[number] for number in sorted(self._frames)]

    @property
    def unreported(self) -> int:
        """The number of frames of which not all tasks have been reported."""
        return len(self._reports)

    def room(self) -> bool:
        """Whether another frame can be let in."""
        return len(self._frames) < self.setup.window

    def enter(self, frame: SubmittedFrame) -> None:
        """Let in the next frame."""
        number, now = self._count, time.monotonic()
        self._count += 1
        self._frames[number] = frame
        self._reports[number] = _FrameReport(frame.index, self._reports_of_a_frame)
        frame.let_in_s = now
        entry, nbytes = self._names[self._plan.entry], sum(array.nbytes for array in frame.inputs)
        what = f"frame {frame.index}: {nbytes} bytes from the driver to device {entry}"
        self._waits["", number, ENTER] = self._waited(what, entry, "a frame on its way to it", self._driver_s(nbytes))
        for name, frames in self._starters.items():
            arrays = frame.inputs if name == entry else ()
            frames.put(Outgoing(RowsOf(self.number, number, ENTER), arrays))

    # On the thread of each connection.

    def read(self, connection: Connection, hello: Hello) -> None:
        """Read what a device of this run sends, until it or the run ends."""
        device = hello.sender
        reason = self._incoming.read(connection, hello, partial(self._take, connection, device))
        if reason is not None:
            self._tell(partial(self._events.broken, device, "", reason))

    def _take(self, connection: Connection, device: str, header: Header, nbytes: int) -> None:
        if isinstance(header, RowsOf):
            self._tell(partial(self._returned, header.frame, self._result(connection, device, header, nbytes)))
        elif nbytes:
            raise MalformedMessage(f"a {type(header).__name__} of {nbytes} bytes")
        elif isinstance(header, DeviceReport) and all(self._may_report(device, one) for one in header.done):
            self._tell(partial(self._reported, device, header.done, time.monotonic()))
        elif isinstance(header, BrokenConnection) and header.peer in {"", *self._programs} - {device}:
            self._tell(partial(self._events.broken, device, header.peer, _in_a_line(header.reason)))
        elif isinstance(header, Failed):
            self._tell(partial(self._events.failed, device, _in_a_line(header.reason), header.lost))
        else:
            raise MalformedMessage(f"a {type(header).__name__} of what it has no part in")

    def _may_report(self, device: str, one: Done) -> bool:
        """Whether the task is the device's own, and its times are some that a task can have."""
        program = self._programs[device]
        own = one.task in program.computations or one.task in program.receives
        own = own or (one.task == ENTER and program.starts)
        return own and 0 <= one.seconds <= _MOST_SECONDS and 0 <= one.ago_s <= _MOST_SECONDS

    def _result(self, connection: Connection, device: str, header: RowsOf, nbytes: int) -> list[Array]:
        program = self._programs[device]
        expected = sum(map(program.nbytes, program.results))
        if header.task != RESULT or not program.results or nbytes != expected or not 0 <= header.frame < self._count:
            raise MalformedMessage(f"{nbytes} bytes of task {header.task} of frame {header.frame}")
        arrays = [program.room(rows) for rows in program.results]
        connection.receive_into(arrays)
        return arrays

    def _tell(self, event: Callable[[], None]) -> None:
        self._put(lambda: None if self.over else event())

    # On the driver's thread.

    def _returned(self, number: int, outputs: list[Array]) -> None:
        frame = self._frames.pop(number, None)
        if frame is None:  # it came before
            return
        self._progress_s = time.monotonic()
        self._forget(number, RESULT)
        self._events.finished(frame, outputs)

    def _reported(self, device: str, done: Sequence[Done], now: float) -> None:
        self._progress_s = now
        for one in done:
            frame = self._reports.get(one.frame)
            if frame is None or (one.task, device) in frame.done:
                continue
            frame.done[one.task, device] = one.seconds, now - one.ago_s
            frame.left -= 1
            self._forget(one.frame, one.task)
            if not frame.left:
                del self._reports[one.frame]
                self._count_in(frame)
                self._events.counted()

    def _forget(self, number: int, task: int) -> None:
        for key in [key for key in self._waits if key[1:] == (number, task)]:
            del self._waits[key]

    def _count_in(self, frame: _FrameReport) -> None:
        """Record the tasks of a frame. Clocks of devices are compared by the arrival of their reports, so that a task
        may seem to begin before those that it waits for have ended: pictures show it from their end on, and what its
        device measured counts in full."""
        record, pace, plan = self._events.record, self._events.pace, self._plan
        ends: dict[int, float] = {}
        for number, task in enumerate(plan.tasks):
            device = self._names[task.device if task.transfer is None else task.transfer.target]
            seconds, end = frame.done[number, device]
            begin = max([end - seconds, *(ends[other] for other in task.after)])
            ends[number] = end = max(begin, end)
            record.task_ran(frame.index, number, begin, end)
            if task.transfer is None:
                record.computed(device, seconds)
                pace.took(device, self.deployment.computed.get(number, ""), frame.index, seconds)
                _log.debug(
                    "frame %d, stage %d, block %d, device %s: computed in %.4f s",
                    frame.index,
                    task.stage,
                    task.block,
                    device,
                    seconds,
                )
            else:
                source = self._names[task.transfer.source]
                record.moved(source, device, seconds, end)
                _log.debug(
                    "frame %d, stage %d, device %s to %s: %d bytes in %.4f s",
                    frame.index,
                    task.stage,
                    source,
                    device,
                    task.transfer.nbytes,
                    seconds,
                )
        entry = self._names[plan.entry]
        record.moved("", entry, *frame.done[ENTER, entry])  # the plan does not count it
        pace.left(frame.index)

    def told(self, device: str, steps: Sequence[StepUnderWay], now: float) -> None:
        """Note what a device says is under way there."""
        own = {key for key in self._waits if key[0] == device}
        for _, number, task, seconds in steps:
            frame = self._frames.get(number)
            if frame is None or task == ENTER:
                continue
            self._forget(number, ENTER)  # it has arrived, though nobody has reported it
            key = (device, number, task)
            own.discard(key)
            if key not in self._waits:
                self._waits[key] = self._wait_of(frame.index, device, task, now - seconds)
        for key in own:
            del self._waits[key]

    def _wait_of(self, frame: int, device: str, number: int, begun_s: float) -> Wait:
        if number == RESULT:
            nbytes = self._plan.result_bytes or sum(map(self._programs[device].nbytes, self._programs[device].results))
            what = f"frame {frame}: its result of {nbytes} bytes from device {device} to the driver"
            return self._waited(what, device, "a result of it", self._driver_s(nbytes), begun_s)
        task = self._plan.tasks[number]
        if task.transfer is None:
            what = f"frame {frame}, stage {task.stage}, block {task.block}: computing on device {device}"
            expected_s = self._events.pace.expected_s(device, self.deployment.computed.get(number, ""))
            expected_s = max(self._planned_s[number], expected_s)
            allowed_s = max(LEAST_DEADLINE_S, DEADLINE_FACTOR * expected_s)
            return Wait(what, begun_s, device, allowed_s, "one computation")
        return self._transfer(frame, task, self._planned_s[number], begun_s)

    def _transfer(self, frame: int, task: Task, planned_s: float, begun_s: float) -> Wait:
        assert task.transfer is not None
        source, target = self._names[task.transfer.source], self._names[task.transfer.target]
        what = (
            f"frame {frame}, stage {task.stage}: {task.transfer.nbytes} bytes from device {source} to device {target}"
        )
        return self._waited(what, source, "a transfer of it", planned_s, begun_s)

    def _driver_s(self, nbytes: int) -> float:
        """Seconds of a message between the driver and a device, as if over the slowest link; plans do not count it."""
        network = self._plan.cluster.network
        return nbytes / min([network.bytes_per_s, *(link.bytes_per_s for link in network.links)])

    def _waited(self, what: str, device: str, blame: str, planned_s: float, begun_s: float | None = None) -> Wait:
        allowed_s = max(_LEAST_TRANSFER_DEADLINE_S, _TRANSFER_FACTOR * planned_s)
        return Wait(what, time.monotonic() if begun_s is None else begun_s, device, allowed_s, blame)

    def waits(self) -> list[Wait]:
        """The steps that are under way, as the devices told last, and frames on their way to the entry."""
        return [*self._waits.copy().values()]

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """(device, reason) of the devices to blame for computations, rows, frames or results that took too long."""
        return [
            (wait.device, f"{wait.blame} took more than {wait.allowed_s:.0f} s")
            for wait in self._waits.values()
            if now - wait.begun_s > wait.allowed_s
        ]

    def stands_still(self, now: float) -> bool:
        """Whether nothing has been heard of any frame for so long that something must have been lost."""
        allowed_s = max(_LEAST_TRANSFER_DEADLINE_S, _TRANSFER_FACTOR * self._plan.latency_s)
        return bool(self._frames) and not self._waits and now - self._progress_s > allowed_s
