"""A run on one device: takes rows from its peers, computes, and sends rows on, until another run replaces it.

One thread computes, one sends to each peer, and one reads each connection of a peer. All wait on one lock, which is
held for bookkeeping alone. What begins next is decided by `schedule`. Signs of what was done go to the driver in
reports, at most every `REPORTS_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from downset.distributed.serving.device_program import Computation, DeviceProgram
from downset.distributed.serving.schedule import COMPUTES, DeviceFrame, DeviceSchedule, Instance
from downset.distributed.wire.connection import Connection
from downset.distributed.wire.endpoint import Endpoint, Incoming, Outgoing, Peer, Sender
from downset.distributed.wire.messages import (
    ENTER,
    VERSION,
    BrokenConnection,
    Credits,
    DeviceReport,
    Done,
    Failed,
    Header,
    Hello,
    MalformedMessage,
    RowsOf,
)
from downset.errors import DownsetError
from downset.text import brief

__all__ = ["Compute", "DeviceRun", "RunSetup", "StepUnderWay"]

Array = npt.NDArray[Any]
Compute = Callable[[Computation, Mapping[str, Array], list[str]], tuple[list[Array], float]]
"""(strip, its inputs by name, names of what it makes) -> (arrays, seconds)."""
StepUnderWay = tuple[str, int, int, float]
"""("compute", "send" or "receive", frame, task, seconds since it began)."""
REPORTS_S = 0.02
_LATE_FRAMES = 64
"""A frame may be so many frames ahead of the window of the frames on this device: a task may have ended here and not be
counted yet."""


class RunSetup(msgspec.Struct, frozen=True):
    """`session`: of the driver. `spare`: more slots in every buffer than the program says; `window`: the most frames
    inside. `peers`: by device, and the driver by an empty name."""

    session: str
    spare: int
    window: int
    peers: dict[str, Peer]


class DeviceRun:
    """The run of this number on the device."""

    def __init__(
        self, number: int, program: DeviceProgram, setup: RunSetup, endpoint: Endpoint, compute: Compute
    ) -> None:
        self.number, self.setup, self._program = number, setup, program
        self._endpoint, self._compute = endpoint, compute
        self._lock = threading.Lock()
        self._schedule = DeviceSchedule(program, spare=setup.spare, window=setup.window + _LATE_FRAMES)
        self._wakes = {lane: threading.Condition(self._lock) for lane in self._schedule.lanes}
        self._done: list[tuple[Instance, float, float]] = []
        self._notes: list[BrokenConnection | Failed] = []
        self._reported_s = 0.0
        self._under_way: dict[tuple[str, Instance], float] = {}
        self._incoming = Incoming(setup.session, number, setup.peers)
        self._over = False
        threading.Thread(target=self._computes, name="downset-computes", daemon=True).start()
        self._senders = [self._sender(peer) for kind, peer in self._schedule.lanes if kind == "send"]

    def _sender(self, peer: str) -> Sender:
        hello = Hello(VERSION, self.setup.session, self.number, self._program.device)
        return Sender(
            peer,
            lambda: self._endpoint.dial(self.setup.peers[peer], hello),
            lambda: self._next_message(peer),
            lambda reason: self._lost(peer, reason),
        )

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return self._schedule.held_bytes

    @property
    def inside(self) -> int:
        """The number of frames with tasks of this device that are not done."""
        with self._lock:
            return self._schedule.inside

    def end(self) -> None:
        """End the run: nothing is sent any more, and nothing that arrives counts."""
        with self._lock:
            if self._over:
                return
            self._over = True
            for wake in self._wakes.values():
                wake.notify_all()
        for sender in self._senders:
            sender.end()
        self._incoming.end()

    def steps(self) -> list[StepUnderWay]:
        """The steps that are under way now."""
        now = time.monotonic()
        with self._lock:
            under_way = list(self._under_way.items())
        return [(kind, *instance, now - since_s) for (kind, instance), since_s in under_way]

    # Receiving: on the thread of each connection.

    def read(self, connection: Connection, hello: Hello) -> None:
        """Read what a peer of this run sends, until it or the run ends."""
        sender = hello.sender
        try:
            reason = self._incoming.read(connection, hello, partial(self._take, connection, sender))
        except Exception as error:  # it goes to the driver
            self._fail(error)
            return
        if reason is not None:
            self._lost(sender, reason)

    def _take(self, connection: Connection, sender: str, header: Header, nbytes: int) -> None:
        if isinstance(header, RowsOf):
            self._receive(connection, sender, Instance(header.frame, header.task), nbytes)
        elif isinstance(header, Credits) and not nbytes:
            with self._lock:
                self._schedule.granted(header.below, sender)
                self._wake()
        else:
            raise MalformedMessage(f"a {type(header).__name__} of {nbytes} bytes")

    def _receive(self, connection: Connection, sender: str, instance: Instance, nbytes: int) -> None:
        begun_s = time.monotonic()
        with self._lock:
            device_frame = self._schedule.arrives(instance, sender)
        program = self._program
        wanted = program.enters if instance.task == ENTER else program.receives[instance.task]
        try:
            if nbytes != sum(map(program.nbytes, wanted)):
                raise MalformedMessage(f"{nbytes} bytes of task {instance.task}")
            if device_frame is None:
                connection.skip_rest()
                return
            arrays = [program.room(rows) for rows in wanted]
            with self._lock:
                self._note_begin("receive", instance)
            connection.receive_into(arrays)
        except BaseException:
            if device_frame is not None:
                with self._lock:
                    self._schedule.withdrawn(instance)
            raise
        now = time.monotonic()
        with self._lock:
            self._under_way.pop(("receive", instance), None)
            if self._over:
                return
            for rows, array in zip(wanted, arrays, strict=True):
                device_frame.store.put(rows, array)
            self._ended(instance, now - begun_s, now)

    # Computing.

    def _computes(self) -> None:
        while (chosen := self._next_computation()) is not None:
            instance, device_frame = chosen
            work, forms = self._program.computations[instance.task], self._program.forms
            try:
                with self._lock:
                    feeds = {forms[rows.tensor].name: device_frame.store.rows(rows) for rows in work.reads}
                begun_s = time.monotonic()
                names = [forms[rows.tensor].name for rows in work.makes]
                arrays, seconds = self._compute(work, feeds, names) if work.shard else ([], 0.0)
                now = max(time.monotonic(), begun_s + seconds)
                with self._lock:
                    self._under_way.pop(("compute", instance), None)
                    for rows, array in zip(work.makes if work.shard else (), arrays, strict=True):
                        device_frame.store.put(rows, np.asarray(array))
                    device_frame.store.read({rows.tensor for rows in work.reads})
                    self._ended(instance, seconds, now)
            except Exception as error:  # it goes to the driver
                self._fail(error)
                return

    def _next_computation(self) -> tuple[Instance, DeviceFrame] | None:
        with self._lock:
            while not self._over:
                chosen = self._schedule.next(COMPUTES)
                if chosen is not None:
                    self._note_begin("compute", chosen[0])
                    return chosen
                self._wakes[COMPUTES].wait()
        return None

    # Sending: on the thread of each peer.

    def _next_message(self, peer: str) -> Outgoing | None:
        try:
            return self._for_peer(peer) if peer else self._for_driver()
        except Exception as error:  # it goes to the driver
            self._fail(error)
            return self._for_driver() if not peer else None

    def _for_peer(self, peer: str) -> Outgoing | None:
        with self._lock:
            while not self._over:
                told = self._schedule.credits_for(peer)
                if told:
                    return Outgoing(Credits(self.number, told))
                chosen = self._schedule.next(("send", peer))
                if chosen is not None:
                    return self._rows_out(chosen, self._program.sends[chosen[0].task])
                self._wakes["send", peer].wait()
        return None

    def _for_driver(self) -> Outgoing | None:
        lane = ("send", "")
        with self._lock:
            while not self._over:
                if self._notes:
                    return Outgoing(self._notes.pop(0))
                chosen = self._schedule.next(lane)
                if chosen is not None:
                    return self._rows_out(chosen, self._program.results)
                due_s = self._reported_s + REPORTS_S - time.monotonic()
                if self._done and due_s <= 0:
                    return Outgoing(self._report())
                self._wakes[lane].wait(due_s if self._done else None)
        return None

    def _report(self) -> DeviceReport:
        now, done = time.monotonic(), self._done
        self._done, self._reported_s = [], now
        return DeviceReport(self.number, [Done(*instance, seconds, now - end_s) for instance, seconds, end_s in done])

    def _rows_out(self, chosen: tuple[Instance, DeviceFrame], wanted: Any) -> Outgoing:
        instance, device_frame = chosen
        arrays = [device_frame.store.rows(rows) for rows in wanted]
        self._note_begin("send", instance)

        def sent() -> None:
            with self._lock:
                self._under_way.pop(("send", instance), None)
                device_frame.store.read({rows.tensor for rows in wanted})
                if not self._over:
                    self._schedule.done(instance)
                    self._wake()

        return Outgoing(RowsOf(self.number, *instance), arrays, sent)

    # Bookkeeping, with the lock held.

    def _ended(self, instance: Instance, seconds: float, now: float) -> None:
        self._schedule.done(instance)
        if not self._done:  # the thread that reports waits without a limit; otherwise it knows when to report
            self._wakes["send", ""].notify()
        self._done.append((instance, seconds, now))
        self._wake()

    def _wake(self) -> None:
        for lane, wake in self._wakes.items():
            if self._schedule.waits_in(lane):
                wake.notify()

    def _note_begin(self, kind: str, instance: Instance) -> None:
        self._under_way[kind, instance] = time.monotonic()

    def _lost(self, peer: str, reason: str) -> None:
        self._tell(BrokenConnection(self.number, peer, brief(reason)))

    def _fail(self, error: Exception) -> None:
        said = (
            str(error) if isinstance(error, DownsetError) else f"device {self._program.device!r} failed: {brief(error)}"
        )
        if isinstance(error, MemoryError):
            self._tell(Failed(self.number, "it is out of memory", lost=True))
        else:
            self._tell(Failed(self.number, brief(said, 600), lost=False))

    def _tell(self, note: BrokenConnection | Failed) -> None:
        with self._lock:
            if not self._over:
                self._notes.append(note)
                self._wakes["send", ""].notify()
