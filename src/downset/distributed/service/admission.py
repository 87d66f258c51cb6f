"""Admission of requests: a bounded queue in front of a pipeline, deadlines, and answers that are kept for a repetition.

Requests come and are answered on the thread of an asyncio loop; two more threads hand frames to the pipeline and take
its results. All limits are numbers of frames, so that memory is bounded.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from downset.errors import DownsetError, UsageError

__all__ = ["Admission", "AdmittedFrame", "Busy", "Late", "LivePipeline", "ServiceLimits"]

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
_MOST_S = 1e6


class LivePipeline(Protocol):
    """The part of a `RunningPipeline` that admission needs."""

    def submit(self, frame: Any) -> int:
        """Hand over a frame; waits for room."""

    def results(self, *, wait: bool) -> Iterator[dict[str, Array]]:
        """The results in the order of the frames."""

    def finish(self) -> None:
        """State that no frame comes any more."""


class Busy(Exception):
    """There is no place for the request now; the same request later is right."""


class Late(Exception):
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """`queue`: the most requests, of all clients, that wait for the pipeline; `of_a_client`: the most that one client
    has open; `clients`: the most whose answers are kept. `deadline_s`: of a request that names none; `body_s`: the
    time in which a body must arrive."""

    queue: int = 64
    of_a_client: int = 16
    clients: int = 64
    deadline_s: float = 30.0
    body_s: float = 30.0


@dataclass(slots=True, eq=False)
class AdmittedFrame:
    """A frame that was admitted. `answer`: its outputs, on the loop's thread. `fingerprint`: of its content."""

    frame: Mapping[str, Array] | None
    until_s: float
    answer: asyncio.Future[Outputs]
    fingerprint: bytes = b""
    came_s: float = field(default_factory=time.monotonic)


class Admission:
    """`counts`: requests by what came of them. Call every method but `close` on the loop's thread."""

    def __init__(self, pipeline: LivePipeline, limits: ServiceLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._pipeline, self._limits, self._loop = pipeline, limits, loop
        self._changed = threading.Condition()
        self._queue: deque[AdmittedFrame] = deque()
        self._inside: deque[AdmittedFrame] = deque()
        self._open: Counter[str] = Counter()
        self._arriving = 0
        self._kept: OrderedDict[str, OrderedDict[str, AdmittedFrame]] = OrderedDict()
        self._closing = False
        self.failed: BaseException | None = None
        self.ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"downset-{name}", daemon=True)
            for name, target in (("takes", self._takes), ("submits", self._submits))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for the pipeline."""
        return len(self._queue)

    @property
    def inside(self) -> int:
        """The number of frames in the pipeline."""
        return len(self._inside)

    @property
    def accepts(self) -> bool:
        """Whether requests are taken at all."""
        return not self._closing and self.failed is None

    @contextmanager
    def place(self, client: str) -> Iterator[Callable[[], None]]:
        """A place for a request of the client, from its header to the end of its answer. The function that it gives
        frees the place in the queue, which the request holds while its body arrives. Raises Busy if there is none."""
        if self.failed is not None:
            raise Busy(f"the pipeline has ended: {self.failed}")
        if self._closing:
            raise Busy("the service ends")
        if self._open[client] >= self._limits.of_a_client:
            raise Busy(f"{self._open[client]} requests of this client are open; a client has at most so many")
        if len(self._queue) + self._arriving >= self._limits.queue:
            raise Busy(f"{self._limits.queue} requests wait; no more fit into the queue")
        self._open[client] += 1
        self._arriving += 1
        arrives = True

        def arrived() -> None:
            nonlocal arrives
            self._arriving -= arrives
            arrives = False

        try:
            yield arrived
        finally:
            arrived()
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def submit(
        self, client: str, frame: Mapping[str, Array], timeout_s: float | None, key: str = "", fingerprint: bytes = b""
    ) -> AdmittedFrame:
        """Put a frame into the queue. One that the client has sent under this key before is not taken again: the
        request of that time is returned. Raises UsageError if it had another content, and Busy where too many requests
        under keys have no answer yet."""
        kept = self._kept.get(client, OrderedDict())
        before = kept.get(key) if key else None
        if before is not None and before.fingerprint != fingerprint:
            raise UsageError(f"another frame was sent under the key {key!r}")
        if before is not None and not (before.answer.done() and before.answer.exception()):
            return before
        until_s = time.monotonic() + min(timeout_s or self._limits.deadline_s, _MOST_S)
        request = AdmittedFrame(frame, until_s, self._loop.create_future(), fingerprint)
        request.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())  # it may be unwanted
        if key:
            self._keep(client, key, request)
        with self._changed:
            self._queue.append(request)
            self._changed.notify_all()
        return request

    def _keep(self, client: str, key: str, request: AdmittedFrame) -> None:
        """Keep the answer under this key until newer ones of the client need its place."""
        kept = self._kept.setdefault(client, OrderedDict())
        self._kept.move_to_end(client)
        while len(kept) >= 2 * self._limits.of_a_client:
            done = next((old for old, one in kept.items() if one.answer.done()), None)
            if done is None:
                raise Busy("too many requests of this client have no answer yet")
            del kept[done]
        kept[key] = request
        while len(self._kept) > self._limits.clients:
            self._kept.popitem(last=False)

    def close(self, drain_s: float) -> None:
        """Take no more requests, and wait at most so long until those that were taken are answered."""
        self._closing = True
        until = time.monotonic() + drain_s
        while (self._queue or self._inside) and self.failed is None and time.monotonic() < until:
            time.sleep(0.01)
        self._pipeline.finish()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(0.2)

    # On threads of their own.

    def _submits(self) -> None:
        try:
            while (request := self._next()) is not None:
                frame, request.frame = request.frame, None
                self._pipeline.submit(frame)
        except Exception as error:
            self._fail(error)

    def _next(self) -> AdmittedFrame | None:
        with self._changed:
            while True:
                while self._queue:
                    request = self._queue.popleft()
                    if request.until_s > time.monotonic():
                        self._inside.append(request)
                        return request
                    self._answer(request, Late())
                if self._closing or self.failed is not None:
                    return None
                self._changed.wait(0.5)

    def _takes(self) -> None:
        try:
            for outputs in self._pipeline.results(wait=True):
                self._answer(self._inside.popleft(), outputs)
        except Exception as error:
            self._fail(error)
        self.ended.set()

    def _answer(self, request: AdmittedFrame, outcome: Outputs | Exception) -> None:
        def answer() -> None:
            if not request.answer.done():
                if isinstance(outcome, Exception):
                    request.answer.set_exception(outcome)
                else:
                    request.answer.set_result(outcome)

        self._tell(answer)

    def _tell(self, event: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self.failed is None and not self._closing:
                self.failed = error if isinstance(error, DownsetError) else RuntimeError(str(error))
            waiting = [*self._inside, *self._queue]
            self._changed.notify_all()
        for request in waiting:
            self._answer(request, Busy(f"the pipeline has ended: {error}"))
        self.ended.set()
