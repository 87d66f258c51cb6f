"""A run: takes frames through the devices of one deployment, until it ends or another run replaces it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from downset.distributed.serving.deployment import Deployment, with_spare_frames
from downset.distributed.serving.dispatch import Dispatch, Instance, joined, work_of
from downset.distributed.serving.fleet import Calls
from downset.distributed.serving.health import Wait
from downset.distributed.serving.record import ServeRecord
from downset.results.pipelines import Task

__all__ = ["Outlet", "PipelineRun", "ServingSettings", "SubmittedFrame"]

Array = npt.NDArray[Any]
_log = logging.getLogger("downset.serving")
_ENTERING = 2
"""The most frames that are on their way to the entry, or wait there to be let in."""
_RETURNING = 4
"""The most results on their way back while another frame is let in."""
_TRANSFER_FACTOR = 20.0
_LEAST_TRANSFER_DEADLINE_S = 30.0
"""Deadlines, in seconds, of transfers, of frames on their way in and of results on their way out. They are long because
other users of a network may slow it down."""


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


class PipelineRun:
    """One run. `finished` is called with a frame and its outputs. Frame numbers of a run begin at 0."""

    def __init__(
        self,
        number: int,
        deployment: Deployment,
        calls: Calls,
        record: ServeRecord,
        finished: Callable[[SubmittedFrame, list[Array]], None],
        *,
        spare_frames: int | None = None,
    ) -> None:
        self.number, self.deployment, self.over = number, deployment, False
        self._calls, self._record = calls, record
        self._health, self._pace = calls.health, calls.health.pace
        self._finished = finished
        self._plan = deployment.plan
        self._work = joined(work_of(with_spare_frames(self._plan, spare_frames)))
        self._dispatch = Dispatch(self._work)
        self._names = [device.name for device in self._plan.cluster.devices]
        self._entering: deque[int] = deque()
        self._here: set[int] = set()
        self._frames: dict[int, SubmittedFrame] = {}
        self._count = self._returning = 0
        self._waits: dict[Instance | tuple[str, int], Wait] = {}

    def frames(self) -> list[SubmittedFrame]:
        """The frames without a result, in their order."""
        return [self._frames[number] for number in sorted(self._frames)]

    def room(self) -> bool:
        """Whether another frame can be sent to the entry."""
        return len(self._entering) < _ENTERING

    def enter(self, frame: SubmittedFrame) -> None:
        number = self._count
        self._count += 1
        self._frames[number] = frame
        self._entering.append(number)
        references, entry = [self._calls.reference(list(frame.inputs))], self._names[self._plan.entry]
        nbytes = sum(array.nbytes for array in frame.inputs)
        what = f"frame {frame.index}: {nbytes} bytes from the driver to device {entry}"
        self._waits["frame", number] = self._waited(what, entry, "a frame on its way to it", self._driver_s(nbytes))
        self._calls.call(
            entry,
            "enter",
            self.number,
            number,
            references,
            wanted=self._wanted,
            then=lambda value: self._entered(number, float(value["seconds"])),
        )

    def _wanted(self) -> bool:
        return not self.over

    def _entered(self, number: int, seconds: float) -> None:
        del self._waits["frame", number]
        self._record.moved("", self._names[self._plan.entry], seconds, time.monotonic())  # the plan does not count it
        self._here.add(number)

    def go_on(self) -> None:
        """Let in all frames and give out all tasks that can begin now."""
        while (
            self._entering
            and self._entering[0] in self._here
            and self._dispatch.has_room
            and self._returning < _RETURNING
        ):
            number = self._entering.popleft()
            self._here.discard(number)
            admitted = self._dispatch.admit()
            assert admitted == number
            self._frames[number].let_in_s = time.monotonic()
        for instance in self._dispatch.begin():
            steps = self._work.steps[instance.task]
            task = self._plan.tasks[steps[0]]
            if task.transfer is None:
                self._compute(instance, self._names[task.device], steps)
            else:
                self._transfer(instance, task, steps[0])

    def _compute(self, instance: Instance, device: str, steps: tuple[int, ...]) -> None:
        usual_s = sum(self._pace.expected_s(device, self._shard(step)) for step in steps)
        expected_s = max(self._work.planned_s[instance.task], usual_s)
        begun_s, number, task = time.monotonic(), self._frames[instance.frame].index, self._plan.tasks[steps[0]]
        self._health.begun(device, instance, expected_s, begun_s)
        what = f"frame {number}, stage {task.stage}, block {task.block}: computing on device {device}"
        self._waits[instance] = Wait(what, begun_s, device)
        self._calls.call(
            device,
            "compute",
            self.number,
            instance.frame,
            steps,
            wanted=self._wanted,
            then=lambda value: self._computed(instance, device, dict(zip(steps, value["seconds"], strict=True))),
        )

    def _shard(self, step: int) -> str:
        """The shard that a task of the plan computes, which names the computation in all plans."""
        return self.deployment.computed.get(step, "")

    def _computed(self, instance: Instance, device: str, took_s: dict[int, float]) -> None:
        self._health.done(device, time.monotonic())
        del self._waits[instance]
        number = self._frames[instance.frame].index
        self._record.computed(device, number, took_s, time.monotonic())
        for step, seconds in took_s.items():
            task = self._plan.tasks[step]
            self._pace.took(device, self._shard(step), number, seconds)
            _log.debug(
                "frame %d, stage %d, block %d, device %s: computed in %.4f s",
                number,
                task.stage,
                task.block,
                device,
                seconds,
            )
        self._done(instance)

    def _transfer(self, instance: Instance, task: Task, step: int) -> None:
        assert task.transfer is not None
        source, target = self._names[task.transfer.source], self._names[task.transfer.target]
        what = (
            f"frame {self._frames[instance.frame].index}, stage {task.stage}: {task.transfer.nbytes} bytes from device "
            f"{source} to device {target}"
        )
        planned_s = self._work.planned_s[instance.task]
        self._waits[instance] = self._waited(what, source, "a transfer of it", planned_s)
        sent = self._calls.send(source, self.number, instance.frame, step)
        if sent is not None:
            self._calls.call(
                target,
                "receive",
                self.number,
                instance.frame,
                step,
                [sent],
                wanted=self._wanted,
                sender=source,
                then=lambda value: self._moved(instance, task, step, float(value["seconds"])),
            )

    def _moved(self, instance: Instance, task: Task, step: int, seconds: float) -> None:
        assert task.transfer is not None
        number, now = self._frames[instance.frame].index, time.monotonic()
        source, target = self._names[task.transfer.source], self._names[task.transfer.target]
        self._record.moved(source, target, seconds, now)
        self._record.transferred(number, step, seconds, now)
        del self._waits[instance]
        _log.debug(
            "frame %d, stage %d, device %s to %s: %d bytes in %.4f s",
            number,
            task.stage,
            source,
            target,
            task.transfer.nbytes,
            seconds,
        )
        self._done(instance)

    def _done(self, instance: Instance) -> None:
        if self._dispatch.done(instance):
            self._returning += 1
            number, leaves = self._frames[instance.frame].index, self._names[self._plan.exit]
            self._pace.left(number)
            what = f"frame {number}: its result of {self._plan.result_bytes} bytes from device {leaves} to the driver"
            planned_s = self._driver_s(self._plan.result_bytes)
            self._waits["result", instance.frame] = self._waited(what, leaves, "a result of it", planned_s)
            self._calls.call(
                leaves,
                "result",
                self.number,
                instance.frame,
                wanted=self._wanted,
                then=lambda value: self._returned(instance.frame, value),
            )

    def _returned(self, number: int, outputs: list[Array]) -> None:
        self._returning -= 1
        del self._waits["result", number]
        frame, now = self._frames.pop(number), time.monotonic()
        self._record.left(tuple(self.deployment.programs), now - frame.let_in_s, now)
        self._finished(frame, outputs)

    def _driver_s(self, nbytes: int) -> float:
        """Seconds of a message between the driver and a device, as if over the slowest link; plans do not count it."""
        network = self._plan.cluster.network
        return nbytes / min([network.bytes_per_s, *(link.bytes_per_s for link in network.links)])

    def _waited(self, what: str, device: str, blame: str, planned_s: float) -> Wait:
        allowed_s = max(_LEAST_TRANSFER_DEADLINE_S, _TRANSFER_FACTOR * planned_s)
        return Wait(what, time.monotonic(), device, allowed_s, blame)

    def waits(self) -> list[Wait]:
        """The steps that have begun and not ended."""
        return list(self._waits.values())

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """(device, reason) of the devices to blame for rows, frames or results that did not arrive in time."""
        return [
            (wait.device, f"{wait.blame} took more than {wait.allowed_s:.0f} s")
            for wait in self._waits.values()
            if now - wait.begun_s > wait.allowed_s
        ]
