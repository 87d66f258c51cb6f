"""Connections: TLS of the standard library over TCP, used by one thread at a time, in one direction after the Hello.

No call has a time limit of its own. The kernel ends a connection whose other machine is gone: it asks an idle one for a
sign of life, and gives up on bytes that nobody acknowledges.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.distributed.keys import DeviceKeys
from downset.distributed.wire.messages import (
    MOST_HEADER_BYTES,
    MOST_PAYLOAD_BYTES,
    PREFIX,
    Header,
    header_bytes,
    header_of,
)

__all__ = [
    "CONNECTS_S",
    "Connection",
    "client_context",
    "dialled",
    "name_in",
    "server_context",
    "set_limits",
    "welcomed",
]

Array = npt.NDArray[Any]
CONNECTS_S = 20.0
"""Seconds that a connection may take until both ends have shown their certificates."""
_IDLE_S, _ASKS_S, _ASKS = 5, 3, 4
_UNACKNOWLEDGED_MS = 20_000
_JOINED_BYTES = 16 << 10
"""A message of at most so many bytes is one record of TLS."""
_RECORD_BYTES = 16_500
_WAKES_BYTES = 128 << 10
_SLOW_BYTES = 32 << 10
"""While this much is missing, the kernel wakes the reader for `_WAKES_BYTES` at a time, not for each segment."""


def server_context(keys: DeviceKeys) -> ssl.SSLContext:
    """The context of the end that accepts: it refuses a client without a certificate of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # nobody reads on the client's side
    return _secured(context, keys)


def client_context(keys: DeviceKeys) -> ssl.SSLContext:
    """The context of the end that opens: it refuses a server of another authority, and one at a host that its keys do
    not name."""
    return _secured(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), keys)


def _secured(context: ssl.SSLContext, keys: DeviceKeys) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(keys.authority)
    context.load_cert_chain(keys.certificate, keys.key)
    return context


def dialled(context: ssl.SSLContext, host: str, port: int) -> Connection:
    """A connection to an endpoint. Raises OSError (ssl.SSLError is one) if there is none or it is refused."""
    plain = socket.create_connection((host, port), timeout=CONNECTS_S)
    return _wrapped(plain, lambda: context.wrap_socket(plain, server_hostname=host))


def welcomed(context: ssl.SSLContext, plain: socket.socket) -> Connection:
    """The connection of a client that has been accepted. Raises OSError if it is refused. Its first message has
    `CONNECTS_S` too: call `patient` after it."""
    plain.settimeout(CONNECTS_S)
    return _wrapped(plain, lambda: context.wrap_socket(plain, server_side=True), patient=False)


def _wrapped(plain: socket.socket, wrap: Any, *, patient: bool = True) -> Connection:
    try:
        set_limits(plain)
        connection = Connection(wrap())
    except BaseException:
        plain.close()
        raise
    if patient:
        connection.patient()
    return connection


def set_limits(plain: socket.socket, *, patient: bool = False) -> None:
    """Let the kernel end a connection whose other machine is gone. `patient`: one whose other end lives and does not
    read stays; else the kernel ends it too, after the time of bytes that nobody acknowledges."""
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _ASKS_S),
        ("TCP_KEEPCNT", _ASKS),
        ("TCP_USER_TIMEOUT", 0 if patient else _UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):  # Linux has all of them
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def name_in(certificate: Any) -> str:
    """The name in a certificate as `getpeercert` returns it; empty where there is none."""
    parts = (certificate or {}).get("subject", ())
    return next((value for part in parts for key, value in part if key == "commonName"), "")


class Connection:
    """An encrypted connection. `certificate`: the name in the certificate of the other end."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self._low_water = 1
        self._unread = 0  # bytes of the present payload
        self.certificate = name_in(tls.getpeercert())

    def patient(self) -> None:
        """Wait without a limit from now on."""
        self._tls.settimeout(None)

    def send(self, header: Header, arrays: Sequence[Array] = ()) -> None:
        """Send a message whose payload is these contiguous arrays. Raises OSError if the connection has ended."""
        head = header_bytes(header)
        parts = [_bytes_of(array) for array in arrays if array.nbytes]
        nbytes = sum(part.nbytes for part in parts)
        start = PREFIX.pack(len(head), nbytes) + head
        if len(start) + nbytes <= _JOINED_BYTES:
            self._tls.sendall(b"".join([start, *parts]))
            return
        self._tls.sendall(start)
        for part in parts:
            self._tls.sendall(part)

    def receive_header(self) -> tuple[Header, int]:
        """The next header, and the bytes of its payload, which is to be read next. Raises MalformedMessage, after which
        `skip_rest` leads to the next message, EOFError if the other end has closed the connection, and OSError if it
        was lost, or if these bytes are not the begin of a message."""
        head_bytes, nbytes = PREFIX.unpack(self._exactly(PREFIX.size))
        if not 0 < head_bytes <= MOST_HEADER_BYTES or nbytes > MOST_PAYLOAD_BYTES:
            raise ConnectionAbortedError(f"it sent a header of {head_bytes} bytes with {nbytes} behind it")
        head = bytes(self._exactly(head_bytes))
        self._unread = nbytes
        return header_of(head), nbytes

    def receive_into(self, arrays: Sequence[Array]) -> None:
        """Fill contiguous arrays with the payload."""
        for array in arrays:
            if array.nbytes:
                self._fill(_bytes_of(array))
                self._unread -= array.nbytes

    def skip_rest(self) -> None:
        """Read what is left of a payload that nobody wants."""
        room = memoryview(bytearray(min(self._unread, _WAKES_BYTES)))
        while self._unread:
            count = min(self._unread, len(room))
            self._fill(room[:count])
            self._unread -= count

    def _exactly(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        self._fill(memoryview(data))
        return data

    def _fill(self, view: memoryview) -> None:
        got, size = 0, view.nbytes
        while got < size:
            left = size - got
            self._wake_at(min(left - _RECORD_BYTES, _WAKES_BYTES) if left >= _SLOW_BYTES else 1)
            count = self._tls.recv_into(view[got:])
            if not count:
                raise EOFError("the other end closed the connection")
            got += count

    def _wake_at(self, nbytes: int) -> None:
        if nbytes != self._low_water:
            with contextlib.suppress(OSError):
                self._tls.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
            self._low_water = nbytes

    def end(self) -> None:
        """End the connection. May be called on any thread; what waits in it raises OSError or EOFError."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._tls, socket.SHUT_RDWR)  # not that of ssl, after which sends are in clear

    def close(self) -> None:
        """Close it, on the thread that uses it."""
        self.end()
        with contextlib.suppress(OSError):
            self._tls.close()


def _bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)
