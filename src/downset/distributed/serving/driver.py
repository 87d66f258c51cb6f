"""Drives a pipeline on its devices: gives out work, notices losses, plans again and replays frames.

One thread handles all events, so there are no locks. A run is the time between two plans. Answers to an earlier run are
ignored, so no frame is delivered twice. A frame is kept until its result is back, so none is lost.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
import numpy.typing as npt

from downset.distributed.serving.carrier import Carrier
from downset.distributed.serving.deployment import Deployment, Shards, room_for_frames
from downset.distributed.serving.device_run import RunSetup
from downset.distributed.serving.fleet import Calls, Events, Fleet, Membership
from downset.distributed.serving.health import LOOK_S, PING_S, Health, Standstill, Wait, function_of
from downset.distributed.serving.plan_change import PlanChange
from downset.distributed.serving.planning import Advice, Advisor, Planning
from downset.distributed.serving.record import ServeRecord
from downset.distributed.serving.run import Outlet, PipelineRun, ServingSettings, SubmittedFrame
from downset.distributed.wire.connection import Connection
from downset.distributed.wire.endpoint import Endpoint, Peer
from downset.distributed.wire.messages import Hello
from downset.errors import InfeasibleError, UnsupportedError, UsageError
from downset.results.pipelines import Pipeline
from downset.results.serving import ServeEvent

__all__ = ["Driver"]

Array = npt.NDArray[Any]
_log = logging.getLogger("downset.serving")
_MOST_RESTARTS = 3
"""How often a run begins again because connections break, without a result in between."""
_BUSY_S = 2.0
"""An event that takes the driver longer than this is listed among the things that the pipeline waits for."""


class Driver:
    """The driver of one pipeline, on a separate thread from `start` to `stop`."""

    def __init__(
        self,
        fleet: Fleet,
        shards: Shards,
        plan: Pipeline,
        planning: Planning,
        outlet: Outlet,
        settings: ServingSettings,
    ) -> None:
        self._fleet, self._shards, self._planning, self._outlet = fleet, shards, planning, outlet
        self._plan, self._settings = plan, settings
        self._begun_s = time.monotonic()
        self.record = ServeRecord(plan, self._begun_s)
        self._events: Events = queue.SimpleQueue()
        self._health = Health()
        self.pace = self._health.pace
        self._session = secrets.token_hex(16)
        self._endpoint = Endpoint(fleet.keys, fleet.address, self._accepted)
        self._peers: dict[str, Peer] = {"": self._endpoint.here}
        self._calls = Calls(fleet, self._events, self._health, lost=self._lose, failed=self._fail)
        self._carrier = Carrier(self._calls, shards)
        names = [device.name for device in plan.cluster.devices]
        self._members = Membership(names, self._calls, joined=self._joined, refused=self._refused)
        self._advisor = Advisor(planning, shards, lambda advice: self._events.put(lambda: self._advised(advice)))
        self._standstill = Standstill()
        self._move: PlanChange | None = None
        self._run: PipelineRun | None = None
        self._better: Deployment | None = None
        self._ready_for: dict[frozenset[str], Deployment] = {}
        self._waiting: deque[SubmittedFrame] = deque()
        self._outputs: dict[int, list[Array]] = {}
        self._submitted = self._delivered = self._runs = 0
        self._restarted = (-1, 0)  # frames delivered when a connection broke last, and how often it did since
        self._is_ready = self._ended = False
        self._event_s: float | None = None  # when the driver began with the present event
        self._thread = threading.Thread(target=self._loop, name="downset-serves", daemon=True)
        self._pinger = threading.Thread(target=self._ping, name="downset-pings", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="downset-watches", daemon=True)

    def start(self) -> None:
        """Begin: devices join, the first plan is placed, and `Outlet.ready` is called."""
        self._thread.start()
        self._watcher.start()
        self._pinger.start()

    def submit(self, inputs: tuple[Array, ...]) -> None:
        """Hand in the next frame: the network's inputs in their order."""
        self._events.put(lambda: self._submit(inputs))

    def stop(self) -> None:
        """Stop at once; nothing is delivered afterwards."""
        self._events.put(self._end)
        self._thread.join(10.0)

    def _end(self) -> None:
        self._ended = True

    def _submit(self, inputs: tuple[Array, ...]) -> None:
        self._waiting.append(SubmittedFrame(self._submitted, inputs))
        self._submitted += 1

    def _loop(self) -> None:
        tick_s = 0.0
        try:
            while not self._ended:
                self._event_s = None
                try:
                    event = self._events.get(timeout=max(0.0, tick_s - time.monotonic()))
                    while True:
                        self._event_s = time.monotonic()
                        event()
                        event = self._events.get_nowait()
                except queue.Empty:
                    pass
                self._event_s = time.monotonic()
                if time.monotonic() >= tick_s:
                    self._tick(time.monotonic())
                    tick_s = time.monotonic() + LOOK_S
                self._go_on()
        except Exception as error:  # every error goes to the caller, who waits for results
            self._outlet.fail(error)
        self._ended = True
        self._advisor.stop()
        if self._run is not None:
            self._run.end()
        self._endpoint.close()

    def _accepted(self, connection: Connection, hello: Hello) -> None:
        """Read from a device of the run, on the thread of the connection."""
        if (run := self._run) is not None:
            run.read(connection, hello)

    def settle(self, limit_s: float = 1.0) -> None:
        """Wait until devices have reported what they did for results that are out, no longer than this. May be called
        on any thread but the driver's."""
        until = time.monotonic() + limit_s
        while (run := self._run) is not None and self._delivered == self._submitted and run.unreported:
            if self._ended or time.monotonic() > until:
                return
            time.sleep(0.002)

    def _watch(self) -> None:
        """Look which nodes are in the cluster, on a separate thread, because Ray may take long to answer."""
        while not self._ended:
            try:
                present = self._fleet.present()
            except Exception as error:  # errors of Ray if the head is gone; ours if two workers have one name
                self._events.put(partial(self._fail, error))
                return
            self._events.put(partial(self._present, present))
            time.sleep(PING_S)

    def _ping(self) -> None:
        """Ask for signs of life and look for standstills, on a separate thread: planning or a call of Ray may keep the
        driver's thread busy, and devices that hear nothing end."""
        while not self._ended:
            self._members.ping(self._pong, time.monotonic())
            self._standstill.look(self._waits(), time.monotonic())
            time.sleep(PING_S)

    def _present(self, nodes: Collection[str]) -> None:
        self._members.present(nodes, time.monotonic())

    def _pong(self, device: str, value: Mapping[str, Any]) -> None:
        self.record.memory(device, int(value["most_rss_bytes"]))
        if self._run is not None and self._move is None and value["run"] == self._run.number:
            self._run.told(device, value["steps"], time.monotonic())

    def _tick(self, now: float) -> None:
        self._fleet.check()
        run = self._run if self._move is None else None
        for device, reason in self._health.lost(now) + ([] if run is None else run.overdue(now)):
            self._lose(device, reason)
        if run is not None and run is self._run and self._move is None and run.stands_still(now):
            self._again("", "nothing was heard of any frame")
        absent = set() if self._move is None else self._move.waits - self._members.alive
        if absent:
            self._recover(min(absent), now)
        self._carrier.go_on()
        missing = self._members.missing()
        if self._runs == 0 and missing and now - self._begun_s > self._settings.gather_s:
            raise UsageError(
                f"the plan names device {missing[0]!r}, which did not join within {self._settings.gather_s:g} s; start "
                "`downset worker` with this name on it, or plan without it"
            )

    def _waits(self) -> list[Wait]:
        """The steps that have begun and not ended, and an event that keeps the driver busy. Safe to call from any
        thread."""
        move, run, event_s = self._move, self._run, self._event_s
        waits = move.steps() if move is not None else [] if run is None else run.waits()
        if event_s is not None and time.monotonic() - event_s > _BUSY_S:
            waits.append(Wait(f"the driver's own thread, in {function_of(self._thread)}", event_s, ""))
        return waits

    def _fail(self, error: BaseException) -> None:
        raise error

    # Devices.

    def _joined(self, device: str, description: Mapping[str, Any]) -> None:
        self._carrier.has(device, description["shards"])
        self._peers[device] = msgspec.convert(description["endpoint"], Peer)
        if self._runs:
            self._note("back", device, "used from the next plan on")
            self._consider()
        elif not self._members.missing():
            self._move_to(self._shards.deployment(self._plan), None)

    def _refused(self, error: BaseException) -> None:
        if not self._runs:
            raise error
        _log.warning("%s", error)

    def _lose(self, device: str, reason: str) -> None:
        begun_s = time.monotonic()
        if not self._members.lose(device, begun_s):
            return
        self.pace.forget(device)
        self._note("lost", device, reason)
        if not self._runs:
            raise UnsupportedError(f"device {device!r} was lost before the first frame: {reason}")
        if self._better is not None and device in self._better.programs:
            self._better = None
        used = self._move.deployment if self._move is not None else self._deployment()
        if device in used.programs:
            self._recover(device, begun_s)
        else:
            self._consider()

    def _recover(self, device: str, begun_s: float) -> None:
        """Change to a plan without this device, which the plan in use or the next one needs."""
        left = frozenset(self._members.alive)
        deployment = self._ready_for.get(left)
        self._advisor.forget()
        if deployment is None:
            deployment = self._planned(left)
        plan_s = time.monotonic() - begun_s
        self._move_to(deployment, ServeEvent(0.0, "replanned", device, "without it", plan_s=plan_s))

    def _planned(self, devices: frozenset[str]) -> Deployment:
        """A deployment on these devices. Raises InfeasibleError if no plan is left."""
        try:
            return self._shards.deployment(self._planning.plan(devices, self._factors()))
        except UsageError as error:
            raise InfeasibleError("no plan is left: ", error.message) from None

    def _deployment(self) -> Deployment:
        assert self._run is not None
        return self._run.deployment

    def _factors(self) -> dict[str, float]:
        return {name: factor for name, factor in self.pace.factor.items() if name in self._members.alive}

    def _note(self, kind: Literal["lost", "back", "slow", "recovered"], device: str, detail: str) -> None:
        _log.warning("device %s %s: %s", device, kind, detail, extra={"device": device})
        self.record.event(ServeEvent(self.record.since_start_s(time.monotonic()), kind, device, detail))

    # Plans.

    def _consider(self) -> None:
        """Look for a better plan, because devices or their speeds have changed."""
        self._ready_for.clear()
        if self._move is None and self._run is not None:
            self._advisor.consider(self._run.deployment.plan, self._members.alive, self._factors())

    def _advised(self, advice: Advice) -> None:
        if advice.devices - self._members.alive or self._run is None or self._move is not None:
            return
        if advice.deployment is None:
            self._prepare()
            return
        if advice.better:
            self._better = advice.deployment
        else:
            self._ready_for[advice.devices] = advice.deployment
        for device, shards in advice.deployment.shards.items():
            self._carrier.place(device, shards, first=advice.better)

    def _prepare(self) -> None:
        if self._settings.ahead:
            self._advisor.prepare(self._deployment(), self._members.alive, self._factors())

    def _move_to(self, deployment: Deployment, event: ServeEvent | None) -> None:
        """End the run, bring every device its shards and its program, and begin a run of the other plan. Frames without
        a result begin again."""
        if self._move is not None:
            self._move.over = True
        replayed = 0
        if self._run is not None:
            self._run.end()
            again = [] if self._move is not None else self._run.frames()
            replayed = len(again)
            self._waiting.extendleft(reversed(again))
        self._better = None
        self._ready_for.clear()
        self._runs += 1
        event = None if event is None else replace(event, replayed=replayed)
        spare = room_for_frames(deployment.plan, self._settings.spare_frames)
        window = 1 if deployment.plan.schedule is None else deployment.plan.schedule.window
        peers = {name: self._peers[name] for name in ("", *deployment.programs)}
        setup = RunSetup(self._session, spare, window + spare, peers)
        move = self._move = PlanChange(
            self._runs,
            deployment,
            setup,
            self._calls,
            self._carrier,
            ready=lambda: self._moved(move, event),
            lost=self._lose,
        )
        move.begin()

    def _moved(self, move: PlanChange, event: ServeEvent | None) -> None:
        now = time.monotonic()
        self._run = PipelineRun(move.number, move.deployment, move.setup, self._endpoint, self, self._events.put)
        self._move = None
        if not self._is_ready:
            self._is_ready = True
            self.record.start(now)
            self._outlet.ready()
        if event is not None:
            self.record.planned(move.deployment.plan)
            self.record.event(move.recorded(event, self.record.since_start_s(now)))
        if self._members.alive <= {device.name for device in move.deployment.plan.cluster.devices}:
            self._prepare()
        else:  # a device has come back while this plan was made and placed
            self._consider()

    # Frames.

    def _go_on(self) -> None:
        if self._run is None or self._move is not None:
            return
        better = self._better
        if better is not None and any(self._carrier.awaits(name, shards) for name, shards in better.shards.items()):
            better = None  # the pipeline runs on until the shards are there
        if better is None:
            while self._waiting and self._run.room():
                self._run.enter(self._waiting.popleft())
        elif not self._run.frames():
            self._move_to(better, ServeEvent(0.0, "replanned", "", "a faster plan for the devices as they are"))

    def finished(self, frame: SubmittedFrame, outputs: list[Array]) -> None:
        now = time.monotonic()
        self.record.left(tuple(self._deployment().programs), now - frame.let_in_s, now)
        self._outputs[frame.index] = outputs
        while self._delivered in self._outputs:
            self._outlet.deliver(self._outputs.pop(self._delivered))
            self._delivered += 1

    def broken(self, device: str, peer: str, reason: str) -> None:
        """Begin the run again if both ends are alive. A device that is not is lost, and its frames begin again."""
        other, run = peer or device, self._run
        _log.info("device %s: its connection with %s broke: %s", device, peer or "the driver", reason)

        def answered(_: Any) -> None:
            if self._run is run and self._move is None:
                self._again(other, f"its connection with {device if peer else 'the driver'} broke")

        self._calls.call(other, "ping", then=answered)

    def _again(self, device: str, reason: str) -> None:
        """Begin the run again with the same plan. A device whose connections break again and again is lost."""
        delivered, times = self._restarted
        times = times + 1 if delivered == self._delivered else 1
        self._restarted = (self._delivered, times)
        if times > _MOST_RESTARTS:
            self._lose(device or min(self._deployment().programs), reason)
        else:
            self._move_to(self._deployment(), ServeEvent(0.0, "replanned", device, f"{reason}; the plan stays"))

    def failed(self, device: str, reason: str, lost: bool) -> None:
        if not lost:
            raise UnsupportedError(reason)
        self._lose(device, reason)

    def counted(self) -> None:
        changed = self.pace.changed()
        if not changed:
            return
        for device, factor in changed.items():
            slower = factor > self.pace.factor.get(device, 1.0)
            times = "as long" if factor == 1.0 else f"{factor:.2g} times as long"
            self._note("slow" if slower else "recovered", device, f"takes {times} as at first")
        self.pace.accept(changed)
        if self._better is None:
            self._consider()
