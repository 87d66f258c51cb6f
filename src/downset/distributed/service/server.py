"""The server: HTTP/1.1 by aiohttp, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol

from downset.distributed.keys import DeviceKeys
from downset.distributed.service.admission import Admission, Busy, Late, LivePipeline, ServiceLimits
from downset.distributed.service.metrics import ServiceMetrics
from downset.distributed.service.protocol import (
    HEADER_LENGTH,
    IDEMPOTENCY_KEY,
    NONE_FINITE,
    InferRequest,
    check_types,
    decode_request,
    encode_response,
    metadata,
    most_request_bytes,
)
from downset.distributed.wire.connection import name_in, server_context, set_limits
from downset.errors import UsageError
from downset.extras import optional_library
from downset.graph.core import Graph
from downset.results.serving import Served
from downset.text import brief

__all__ = ["Service", "ServiceLimits", "listening", "web_library"]

_log = logging.getLogger("downset.service")
_WHAT = "listening for frames"
_HANDSHAKE_S = 20.0
_PIECE_BYTES = 64 << 10
"""An answer is written in pieces: only between two of them TLS in asyncio waits for a client that does not read. A
connection that closes with bytes in the buffer of TLS would stay open, so that the handler waits until it is empty."""
_PAUSE_S = 3600.0
"""How long a client may not read an answer before its connection is closed."""
_MOST_KEY = 128
"""The most characters of an Idempotency-Key."""


class ServedPipeline(LivePipeline, Protocol):
    """A pipeline with figures of its run."""

    def figures(self) -> Served:
        """The figures so far."""

    def inputs_of(self, frame: Any) -> Any:
        """The arrays of a frame; raises UsageError for another shape or type."""


class Service:
    """A pipeline that takes frames at `host`:`port` until it is closed. `name`: of the model in the protocol. `keys`:
    who has none of the same authority is refused; None: plain HTTP, for loopback alone.

    Raises UsageError if it cannot listen there, and UnsupportedError where the extra `service` is missing."""

    def __init__(
        self,
        pipeline: ServedPipeline,
        graph: Graph,
        name: str,
        address: tuple[str, int],
        keys: DeviceKeys | None,
        limits: ServiceLimits | None = None,
    ) -> None:
        self._web = web_library()
        check_types(graph)
        self._pipeline, self._graph, self._name = pipeline, graph, name
        self._limits = limits or ServiceLimits()
        self._context = None if keys is None else server_context(keys)
        self._listener = listening(*address)
        self.port = int(self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._admission = Admission(pipeline, self._limits, self._loop)
        self._metrics = ServiceMetrics(self._admission, pipeline.figures)
        self._stopping = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._serves, name="downset-service", daemon=True)
        self._thread.start()
        self._up.wait()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until the pipeline has ended; raises the error that ended it."""
        while not self._admission.ended.wait(0.5):
            pass
        if self._admission.failed is not None:
            raise self._admission.failed

    def close(self, drain_s: float = 10.0) -> None:
        """Take no more requests, answer those that were taken within this time, and end."""
        if self._thread.is_alive():
            self._admission.close(drain_s)
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(drain_s + 5.0)

    def _serves(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        web = self._web
        app = web.Application(client_max_size=most_request_bytes(self._graph))
        model = f"/v2/models/{self._name}"
        app.add_routes(
            [
                web.get("/v2", self._server_metadata),
                web.get("/v2/health/live", self._live),
                web.get("/v2/health/ready", self._ready),
                web.get(model, self._model_metadata),
                web.get(f"{model}/ready", self._ready),
                web.post(f"{model}/infer", self._infer),
                web.get("/metrics", self._tell_metrics),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, keepalive_timeout=_PAUSE_S)
        await runner.setup()
        limits_s = (None, None) if self._context is None else (_HANDSHAKE_S, _PAUSE_S)
        server = await self._loop.create_server(
            runner.server,
            sock=self._listener,
            ssl=self._context,
            ssl_handshake_timeout=limits_s[0],
            ssl_shutdown_timeout=limits_s[1],
        )
        self._up.set()
        await self._stopping.wait()
        server.close()
        await runner.cleanup()

    # The answers.

    async def _server_metadata(self, _: Any) -> Any:
        from importlib.metadata import version

        about = {"name": "downset", "version": version("downset"), "extensions": ["binary_tensor_data"]}
        about["model"] = self._name  # not of the protocol: there is one model
        return self._web.json_response(about)

    async def _live(self, _: Any) -> Any:
        return self._web.Response()

    async def _ready(self, _: Any) -> Any:
        return self._web.Response(status=200 if self._admission.accepts else 503)

    async def _model_metadata(self, _: Any) -> Any:
        return self._web.json_response(metadata(self._graph, self._name))

    async def _tell_metrics(self, _: Any) -> Any:
        headers = {"Content-Type": self._metrics.content_type}
        return self._web.Response(body=self._metrics.text(), headers=headers)

    async def _infer(self, request: Any) -> Any:
        client = _client(request)
        try:
            answer = await self._answer(request, client)
        except UsageError as error:
            said = str(error.message)
            answer = self._refused(406 if NONE_FINITE in said else 400, client, said)
        except Busy as error:
            answer = self._refused(503, client, str(error), {"Retry-After": "1"})
        except Late:
            answer = self._refused(504, client, "the deadline has passed")
        except ConnectionError as error:
            answer = self._refused(400, client, f"the connection broke: {error}")
        except TimeoutError:
            answer = self._refused(408, client, f"the frame did not arrive within {self._limits.body_s:g} s")
        except self._web.HTTPRequestEntityTooLarge:
            most = most_request_bytes(self._graph)
            answer = self._refused(413, client, f"a request has at most {most} bytes")
        self._metrics.answered(answer.status)
        return answer

    async def _answer(self, request: Any, client: str) -> Any:
        with self._admission.place(client) as arrived:
            key, header_bytes = _headers(request)
            async with asyncio.timeout(self._limits.body_s):
                body = await request.read()
            asked = decode_request(body, header_bytes, self._graph)
            self._pipeline.inputs_of(asked.inputs)
            fingerprint = blake2b(body, digest_size=16).digest() if key else b""
            admitted = self._admission.submit(client, asked.inputs, asked.timeout_s, key, fingerprint)
            arrived()
            outputs = await self._result(asked, admitted)
            self._metrics.took(time.monotonic() - admitted.came_s)
            content, headers = encode_response(self._name, asked, outputs)
            if request.transport is not None:
                request.transport.set_write_buffer_limits(high=1, low=0)
            response = self._web.StreamResponse(headers=headers)
            response.content_length = len(content)
            await response.prepare(request)
            for start in range(0, len(content), _PIECE_BYTES):
                await response.write(memoryview(content)[start : start + _PIECE_BYTES])
            await response.write_eof()
            return response

    async def _result(self, asked: InferRequest, admitted: Any) -> Any:
        try:
            async with asyncio.timeout(asked.timeout_s or self._limits.deadline_s):
                return await asyncio.shield(admitted.answer)
        except TimeoutError:
            raise Late from None

    def _refused(self, status: int, client: str, reason: str, headers: dict[str, str] | None = None) -> Any:
        _log.warning("%s: %s", client or "a client", brief(reason), extra={"client": client, "status": status})
        return self._web.json_response({"error": brief(reason, 600)}, status=status, headers=headers)


def web_library() -> Any:
    """The module aiohttp.web. Raises UnsupportedError where the extra `service` is missing."""
    optional_library("prometheus_client", what=_WHAT, extra="service")
    return optional_library("aiohttp.web", what=_WHAT, extra="service")


def _headers(request: Any) -> tuple[str, int | None]:
    """The key of a request, and the length of its JSON. Raises UsageError for headers that are not valid."""
    key, length = request.headers.get(IDEMPOTENCY_KEY, ""), request.headers.get(HEADER_LENGTH)
    if len(key) > _MOST_KEY:
        raise UsageError(f"an {IDEMPOTENCY_KEY} has at most {_MOST_KEY} characters")
    if length is None:
        return key, None
    if not (length.isascii() and length.isdigit() and len(length) <= 12):
        raise UsageError(f"{HEADER_LENGTH} is a number of bytes")
    return key, int(length)


def _client(request: Any) -> str:
    """The name in the certificate of a client; empty without TLS."""
    shown: Any = None if request.transport is None else request.transport.get_extra_info("peercert")
    return name_in(shown)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UsageError if that is not possible."""
    try:
        kind, _, _, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where[:2], family=kind, backlog=128)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; another program may listen there, or give "
            "another port"
        ) from None
    set_limits(listener, patient=True)  # connections that are accepted have them too
    return listener
