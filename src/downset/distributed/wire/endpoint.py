"""Endpoints: where a process is reached, and the threads that read from and write to its peers."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy.typing as npt

from downset.distributed.keys import DeviceKeys
from downset.distributed.wire.connection import Connection, client_context, dialled, server_context, welcomed
from downset.distributed.wire.messages import VERSION, Header, Hello, MalformedMessage

__all__ = ["Endpoint", "Incoming", "Outgoing", "Peer", "Sender"]

_log = logging.getLogger("downset.serving")
_MOST_STRANGERS = 32
"""The most clients at a time that have not shown a certificate and a Hello."""
_MOST_REFUSED = 100
"""A connection ends with the next message that is malformed."""


class Peer(msgspec.Struct, frozen=True):
    """Where an endpoint is, and the name in its certificate."""

    host: str
    port: int
    certificate: str


@dataclass(slots=True)
class Outgoing:
    """A message to be sent. `sent` is called when it is on its way and its arrays are not needed any more."""

    header: Header
    arrays: Sequence[npt.NDArray[Any]] = ()
    sent: Callable[[], None] | None = None


class Endpoint:
    """Listens at one address of this machine. `accepted` is called with every connection whose client has keys and has
    said Hello, on a thread of its own, on which it reads; the connection is closed when it returns."""

    def __init__(self, keys: DeviceKeys, address: str, accepted: Callable[[Connection, Hello], None]) -> None:
        self._server, self._client = server_context(keys), client_context(keys)
        self._accepted = accepted
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._listener = socket.create_server((address, 0), family=_family(address), backlog=64)
        self._closed = False
        port = int(self._listener.getsockname()[1])
        self.here = Peer(address, port, keys.name)
        threading.Thread(target=self._accept, name="downset-accepts", daemon=True).start()

    def dial(self, peer: Peer, hello: Hello) -> Connection:
        """A connection to a peer, to write on. Raises OSError if nobody answers, or another one than this peer."""
        connection = dialled(self._client, peer.host, peer.port)
        if connection.certificate != peer.certificate:
            connection.close()
            raise ConnectionRefusedError(f"{connection.certificate!r} answers in place of {peer.certificate!r}")
        try:
            connection.send(hello)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Accept nobody any more. Connections that are open stay."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # too many files are open
                continue
            if not self._strangers.acquire(blocking=False):
                plain.close()
                continue
            threading.Thread(target=self._welcome, args=(plain,), name="downset-receives", daemon=True).start()

    def _welcome(self, plain: socket.socket) -> None:
        connection = None
        try:
            try:
                connection = welcomed(self._server, plain)
                hello, nbytes = connection.receive_header()
                if not isinstance(hello, Hello) or nbytes or hello.version != VERSION:
                    raise MalformedMessage("no hello of this version")
                connection.patient()
            finally:
                self._strangers.release()
            self._accepted(connection, hello)
        except (OSError, EOFError, MalformedMessage) as error:
            _log.info("a connection was refused: %s", error)
        finally:
            if connection is not None:
                connection.close()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class Incoming:
    """The connections on which the `peers` of a run send, one for each, until it ends."""

    def __init__(self, session: str, run: int, peers: Mapping[str, Peer]) -> None:
        self._session, self._run, self._peers = session, run, peers
        self._lock = threading.Lock()
        self._over = False
        self.connections: dict[str, Connection] = {}

    def read(self, connection: Connection, hello: Hello, take: Callable[[Header, int], None]) -> str | None:
        """Give `take` what a peer sends, which reads the payload of so many bytes. Where it raises MalformedMessage,
        the message counts for nothing, and the next one is read. Returns why the connection ended; None if the run did.
        A client of another run, under another name than that of its certificate, or whose peer
        sends already, is refused: nothing is read from it, and None is returned."""
        if not self._admits(connection, hello):
            return None
        reason, refused = "", 0
        try:
            while not self._over:
                try:
                    header, nbytes = connection.receive_header()
                    if header.run != self._run:
                        raise MalformedMessage("a message of another run")
                    take(header, nbytes)
                except MalformedMessage as error:
                    refused += 1
                    if refused > _MOST_REFUSED:
                        raise ConnectionAbortedError("it sent what it must not again and again") from None
                    who = hello.sender or "the driver"
                    _log.warning("%s sent a message that counts for nothing: %s", who, error, extra={"device": who})
                    connection.skip_rest()
        except (OSError, EOFError) as error:
            reason = _reason(error)
        return None if self._over else reason

    def _admits(self, connection: Connection, hello: Hello) -> bool:
        peer = self._peers.get(hello.sender)
        if (hello.session, hello.run) != (self._session, self._run) or peer is None:
            return False
        with self._lock:
            if self._over or peer.certificate != connection.certificate or hello.sender in self.connections:
                return False
            self.connections[hello.sender] = connection
        return True

    def end(self) -> None:
        """End all connections; no other one is admitted."""
        with self._lock:
            self._over = True
        for connection in self.connections.values():
            connection.end()


class Sender:
    """Sends to `peer`, on a thread of its own, over a connection that it opens for the first message. `take` waits
    for the next message and returns None at the end. `broken` is called once if the connection ends before."""

    def __init__(
        self,
        peer: str,
        dial: Callable[[], Connection],
        take: Callable[[], Outgoing | None],
        broken: Callable[[str], None],
    ) -> None:
        self.peer, self._dial, self._take, self._broken = peer, dial, take, broken
        self._connection: Connection | None = None
        self._ended = False
        threading.Thread(target=self._send, name="downset-sends", daemon=True).start()

    def end(self) -> None:
        """End the connection, whatever is on its way. `take` must return None from now on."""
        self._ended = True
        if (connection := self._connection) is not None:
            connection.end()

    def _send(self) -> None:
        try:
            while (message := self._take()) is not None:
                if self._connection is None:
                    self._connection = self._dial()
                    if self._ended:
                        return
                self._connection.send(message.header, message.arrays)
                if message.sent is not None:
                    message.sent()
        except OSError as error:
            if not self._ended:
                self._broken(_reason(error))
        finally:
            if self._connection is not None:
                self._connection.close()
