"""Messages of any size between devices that are measured, over the connections that pipelines have.

Every message is acknowledged on the connection of the opposite way, as credits are, so that its sender knows when it
has arrived, by its own clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial

import numpy as np

from downset.distributed.keys import DeviceKeys
from downset.distributed.wire.connection import Connection
from downset.distributed.wire.endpoint import Endpoint, Incoming, Peer
from downset.distributed.wire.messages import VERSION, Credits, Header, Hello, MalformedMessage, RowsOf

__all__ = ["Messenger"]

_SESSION, _RUN = "measuring", 0
_MOST_BYTES = 1 << 30
_ANSWERS_S = 120.0


class _SharedConnection:
    """The connection to one peer, on which one thread at a time sends."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.lock = connection, threading.Lock()

    def send(self, header: Header, payload: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None) -> None:
        with self.lock:
            self.connection.send(header, () if payload is None else (payload,))


class Messenger:
    """An endpoint that sends zeros and acknowledges what it receives. `name` is its own among the `peers` of `meet`."""

    def __init__(self, name: str, keys: DeviceKeys, address: str) -> None:
        self._name, self._peers = name, dict[str, Peer]()
        self._incoming = Incoming(_SESSION, _RUN, self._peers)
        self._ways: dict[str, _SharedConnection] = {}
        self._waiting: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._endpoint = Endpoint(keys, address, self._accepted)
        self.here = self._endpoint.here

    def meet(self, peers: Mapping[str, Peer]) -> None:
        """Know where the others are."""
        self._peers.update(peers)

    def close(self) -> None:
        self._endpoint.close()
        for way in self._ways.copy().values():
            way.connection.end()

    def send(self, peer: str, nbytes: int, count: int = 1) -> list[float]:
        """Send so many messages one after another. Returns the seconds until each had arrived. Raises OSError if one
        does not."""
        payload, way = np.zeros(nbytes, np.uint8), self._way(peer)
        return [self._sent(way, payload) for _ in range(count)]

    def _sent(self, way: _SharedConnection, payload: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
        arrived = threading.Event()
        with self._lock:
            self._count += 1
            number = self._count
            self._waiting[number] = arrived
        begun_s = time.monotonic()
        way.send(RowsOf(_RUN, number, 0), payload)
        if not arrived.wait(_ANSWERS_S):
            raise TimeoutError(f"a message of {payload.nbytes} bytes was not answered")
        return time.monotonic() - begun_s

    def _way(self, peer: str) -> _SharedConnection:
        with self._lock:
            if peer not in self._ways:
                hello = Hello(VERSION, _SESSION, _RUN, self._name)
                self._ways[peer] = _SharedConnection(self._endpoint.dial(self._peers[peer], hello))
            return self._ways[peer]

    def _accepted(self, connection: Connection, hello: Hello) -> None:
        self._incoming.read(connection, hello, partial(self._take, connection, hello.sender))

    def _take(self, connection: Connection, sender: str, header: Header, nbytes: int) -> None:
        if isinstance(header, RowsOf) and nbytes <= _MOST_BYTES:
            connection.receive_into([np.empty(nbytes, np.uint8)])
            self._way(sender).send(Credits(_RUN, {header.frame: 0}))
        elif isinstance(header, Credits) and not nbytes:
            for number in header.below:
                if (waits := self._waiting.pop(number, None)) is not None:
                    waits.set()
        else:
            raise MalformedMessage(f"a {type(header).__name__} of {nbytes} bytes")
