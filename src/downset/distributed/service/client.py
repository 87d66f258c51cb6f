"""Clients of a service, of the standard library and numpy alone: one that blocks, and one for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.distributed.keys import open_keys
from downset.distributed.service.protocol import HEADER_LENGTH, IDEMPOTENCY_KEY, decode_response, encode_request
from downset.distributed.wire.connection import client_context, set_limits
from downset.errors import UnsupportedError, UsageError

__all__ = ["AsyncServiceClient", "ServiceClient"]

Array = npt.NDArray[Any]
Outputs = dict[str, Array]
Frame = Array | Sequence[Array] | Mapping[str, Array]
_AGAIN_S = 0.05
"""Seconds before a request is repeated whose connection broke, at first."""


class ServiceClient:
    """A client of `downset serve --listen` at HOST:PORT. Safe to use from several threads.

    `keys`: the folder of this client's keys (`downset keys issue NAME --client`); None: plain HTTP, which a service
    speaks on loopback alone. `in_flight`: the most requests at a time, each on a connection of its own. `timeout_s`: of
    a frame, with every repetition: a request that finds no place, or whose connection breaks, is sent again under the
    same key, so that a frame is computed once and its result comes once.

    Raises UsageError for what the service refuses, and UnsupportedError where no answer comes in time."""

    def __init__(
        self,
        address: str,
        *,
        keys: str | os.PathLike[str] | None = None,
        in_flight: int = 4,
        timeout_s: float = 30.0,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"{address!r} is not HOST:PORT")
        if in_flight < 1:
            raise UsageError("in_flight is 1 or more")
        self._host, self._port = host.strip("[]"), int(port)
        self._context = None if keys is None else client_context(open_keys(keys, token=False))
        self.in_flight, self._timeout_s = in_flight, timeout_s
        self._of_thread = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="downset-client")
        self._model: dict[str, Any] | None = None
        self._name = ""

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for connection in self._connections:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def ready(self) -> bool:
        """Whether the service takes frames now."""
        try:
            return self._ask("GET", "/v2/health/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def model(self) -> dict[str, Any]:
        """The model: its name, and name, datatype and shape of its inputs and outputs."""
        if self._model is None:
            self._name = self._name or self._asked("GET", "/v2")["model"]
            self._model = self._asked("GET", f"/v2/models/{self._name}")
        return self._model

    def submit(self, frame: Frame) -> Future[Outputs]:
        """Send a frame: an array, or one for each input by name or in order. Its outputs come by name."""
        return self._pool.submit(self.infer, frame)

    def infer(self, frame: Frame) -> Outputs:
        """The outputs of a frame by name."""
        body, headers = encode_request(self._named(frame), self._timeout_s)
        headers[IDEMPOTENCY_KEY] = secrets.token_hex(16)  # threads share no state for it
        status, answer, length = self._persistent("POST", f"/v2/models/{self._name}/infer", body, headers)
        if status != 200:
            raise UsageError(_error_in(answer, status))
        return decode_response(answer, None if length is None else int(length))

    def run(self, frames: Iterable[Frame]) -> Iterator[Outputs]:
        """The outputs of these frames, in their order. Frames are taken from the iterable as they are needed."""
        waiting: deque[Future[Outputs]] = deque()
        for frame in frames:
            waiting.append(self.submit(frame))
            while len(waiting) >= self.in_flight or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _named(self, frame: Frame) -> dict[str, Array]:
        names = [tensor["name"] for tensor in self.model()["inputs"]]
        if isinstance(frame, Mapping):
            return {name: np.asarray(array) for name, array in frame.items()}
        arrays = list(frame) if isinstance(frame, list | tuple) else [frame]
        if len(arrays) != len(names):
            raise UsageError(f"a frame has {len(arrays)} arrays, and the network {len(names)} inputs")
        return dict(zip(names, map(np.asarray, arrays), strict=True))

    def _asked(self, method: str, path: str) -> Any:
        status, answer, _ = self._persistent(method, path)
        if status != 200:
            raise UsageError(_error_in(answer, status))
        return json.loads(answer)

    def _persistent(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, str | None]:
        """An answer other than "not now". A request without one is repeated until the time is over."""
        until, pause_s = time.monotonic() + self._timeout_s, _AGAIN_S
        while True:
            try:
                status, answer, length = self._ask(method, path, body, headers, max(until - time.monotonic(), 0.1))
                if status not in (503, 504):
                    return status, answer, length
                reason = _error_in(answer, status)
            except ssl.SSLCertVerificationError as error:
                raise UsageError(f"{self._host}:{self._port}: {error.verify_message}") from None
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() + pause_s > until:
                where = f"{self._host}:{self._port}"
                raise UnsupportedError(f"no answer from {where} within {self._timeout_s:g} s: {reason}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> tuple[int, bytes, str | None]:
        connection = self._connection()
        try:
            if connection.sock is None:
                connection.timeout = timeout_s
                connection.connect()
                set_limits(connection.sock)  # type: ignore[arg-type]  # it is a socket now
            connection.sock.settimeout(timeout_s)
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            if answer.length is None:  # the connection broke inside the headers
                raise http.client.IncompleteRead(b"")
            return answer.status, answer.read(), answer.getheader(HEADER_LENGTH)
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            if self._context is None:
                connection = http.client.HTTPConnection(self._host, self._port)
            else:
                connection = http.client.HTTPSConnection(self._host, self._port, context=self._context)
            self._of_thread.connection = connection
            self._connections.append(connection)
        return connection


def _error_in(answer: bytes, status: int) -> str:
    """The reason in an answer of the service."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(answer)["error"])
    return f"the service answered with status {status}"


class AsyncServiceClient:
    """A `ServiceClient` for asyncio: its requests run on threads, as many as may be in flight."""

    def __init__(
        self,
        address: str,
        *,
        keys: str | os.PathLike[str] | None = None,
        in_flight: int = 4,
        timeout_s: float = 30.0,
    ) -> None:
        self._client = ServiceClient(address, keys=keys, in_flight=in_flight, timeout_s=timeout_s)

    async def __aenter__(self) -> AsyncServiceClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        self._client.close()

    async def ready(self) -> bool:
        """Whether the service takes frames now."""
        return await asyncio.to_thread(self._client.ready)

    async def model(self) -> dict[str, Any]:
        """The model: its name, and name, datatype and shape of its inputs and outputs."""
        return await asyncio.to_thread(self._client.model)

    async def infer(self, frame: Frame) -> Outputs:
        """The outputs of a frame by name."""
        return await asyncio.wrap_future(self._client.submit(frame))

    async def run(self, frames: AsyncIterable[Frame] | Iterable[Frame]) -> AsyncIterator[Outputs]:
        """The outputs of these frames, in their order. Frames are taken from the iterable as they are needed."""
        waiting: deque[asyncio.Future[Outputs]] = deque()
        async for frame in _each(frames):
            waiting.append(asyncio.wrap_future(self._client.submit(frame)))
            while len(waiting) >= self._client.in_flight or (waiting and waiting[0].done()):
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()


async def _each(frames: AsyncIterable[Frame] | Iterable[Frame]) -> AsyncIterator[Frame]:
    if isinstance(frames, AsyncIterable):
        async for frame in frames:
            yield frame
    else:
        for frame in frames:
            yield frame
