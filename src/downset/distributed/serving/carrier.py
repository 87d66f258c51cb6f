"""Shards on their way to devices: at once where a plan needs them, else one after another for plans that may come."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable

from downset.distributed.serving.calls import Calls
from downset.distributed.serving.deployment import Shards

__all__ = ["Carrier"]

_log = logging.getLogger("downset.serving")


class Carrier:
    """Knows which shards each device has on its disk; no shard goes to a device twice."""

    def __init__(self, calls: Calls, shards: Shards) -> None:
        self._calls, self._shards = calls, shards
        self._known: dict[str, set[str]] = {}
        self._later: dict[str, deque[str]] = {}
        self._carrying: set[str] = set()

    def has(self, device: str, shards: Iterable[str]) -> None:
        """A device has joined, with these shards on its disk."""
        self._known[device] = set(shards)
        self._later.pop(device, None)
        self._carrying.discard(device)

    def bring(
        self, device: str, shards: Iterable[str], *, then: Callable[[int], None], wanted: Callable[[], bool]
    ) -> None:  # fmt: skip
        """Bring a device what it lacks; `then` gets the bytes that were carried."""
        missing = deque(shard for shard in shards if shard not in self._known.get(device, ()))
        carried = 0

        def following() -> None:
            nonlocal carried
            if not missing:
                then(carried)
                return
            shard = missing.popleft()
            data = self._shards.data(shard)
            carried += len(data)
            self._calls.call(device, "keep", shard, data, wanted=wanted, then=lambda removed: kept(shard, removed))

        def kept(shard: str, removed: Collection[str]) -> None:
            self._holds(device, shard, removed)
            following()

        following()

    def place(self, device: str, shards: Iterable[str]) -> None:
        """Bring a device these when nothing else is carried there; what fails is left out."""
        self._later.setdefault(device, deque()).extend(shards)
        self._place_next(device)

    def _place_next(self, device: str) -> None:
        waiting = self._later.get(device)
        if device in self._carrying or waiting is None:
            return
        while waiting and waiting[0] in self._known.get(device, ()):
            waiting.popleft()
        if waiting:
            self._carrying.add(device)
            shard = waiting.popleft()
            self._calls.call(
                device, "keep", shard, self._shards.data(shard), True,
                then=lambda removed: self._placed(device, shard, removed),
                refused=lambda error: self._refused(device, error),
            )  # fmt: skip

    def _holds(self, device: str, shard: str, removed: Collection[str]) -> None:
        known = self._known.setdefault(device, set())
        known.add(shard)
        known.difference_update(removed)
        if removed:
            _log.warning(
                "device %s removed %d shards that it did not use for longest: its folder of shards is full",
                device, len(removed),
            )  # fmt: skip

    def _placed(self, device: str, shard: str, removed: Collection[str]) -> None:
        self._holds(device, shard, removed)
        self._carrying.discard(device)
        self._place_next(device)

    def _refused(self, device: str, error: BaseException) -> None:
        _log.warning("nothing more is placed ahead on %s: %s", device, error)
        self._later.pop(device, None)
        self._carrying.discard(device)
