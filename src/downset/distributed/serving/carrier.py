"""Brings shards to devices: at once if the plan in use needs them, in pieces if a plan that may come needs them.

After each piece, the network and the device's processor are left to frames for as long as the piece took.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.fleet import Calls

__all__ = ["Carrier"]

_log = logging.getLogger("downset.serving")
_PIECE_BYTES = 512 << 10
_SHORT_S = 0.05
"""A piece that took at most these seconds is followed by the next one at once."""


@dataclass(slots=True)
class _ShardTransfer:
    """A shard that is being sent in pieces."""

    shard: str
    data: bytes
    arrived_bytes: int = 0


class Carrier:
    """Knows which shards are on the disk of each device, so that no shard is sent to a device twice."""

    def __init__(self, calls: Calls, shards: Shards) -> None:
        self._calls, self._shards = calls, shards
        self._shards_of: dict[str, set[str]] = {}
        self._later: dict[str, deque[str]] = {}
        self._placing: dict[str, _ShardTransfer] = {}
        self._next_s: dict[str, float] = {}  # when the next piece may be sent, by device

    def has(self, device: str, shards: Iterable[str]) -> None:
        """Note that a device has joined with these shards on its disk."""
        self._shards_of[device] = set(shards)
        self._later.pop(device, None)
        self._placing.pop(device, None)
        self._next_s.pop(device, None)

    def lost(self, device: str, shards: Iterable[str]) -> None:
        """Note that a device does not have these shards any more."""
        self._shards_of.setdefault(device, set()).difference_update(shards)

    def bring(
        self, device: str, shards: Iterable[str], *, then: Callable[[int], None], wanted: Callable[[], bool]
    ) -> None:
        """Bring a device the shards that it does not have; `then` is called with the bytes that were sent."""
        missing = deque(shard for shard in shards if shard not in self._shards_of.get(device, ()))
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

    def place(self, device: str, shards: Iterable[str], *, first: bool = False) -> None:
        """Bring a device these shards piece by piece; a shard that fails is left out. `first`: before all shards that
        wait."""
        waiting = self._later.setdefault(device, deque())
        if first:
            waiting.extendleft(reversed(list(shards)))
        else:
            waiting.extend(shards)
        self._place_next(device)

    def awaits(self, device: str, shards: Iterable[str]) -> bool:
        """Whether some of these shards are being sent there, or wait for it."""
        under_way = {placing.shard for name, placing in self._placing.items() if name == device}
        return bool((set(shards) - self._shards_of.get(device, set())) & (under_way | {*self._later.get(device, ())}))

    @property
    def idle(self) -> bool:
        """Whether nothing that was to be placed is on its way or waits."""
        return not self._placing and not any(self._later.values())

    def go_on(self) -> None:
        """Send the pieces that have waited long enough. To be called regularly."""
        for device in [*self._later]:
            self._place_next(device)

    def _place_next(self, device: str) -> None:
        shards_there, waiting = self._shards_of.get(device, set()), self._later.get(device, deque())
        placing = self._placing.get(device)
        if placing is None:
            while waiting and waiting[0] in shards_there:
                waiting.popleft()
            if not waiting:
                return
            shard = waiting.popleft()
            placing = self._placing[device] = _ShardTransfer(shard, self._shards.data(shard))
        if time.monotonic() >= self._next_s.get(device, 0.0):
            self._send_piece(device, placing)

    def _send_piece(self, device: str, placing: _ShardTransfer) -> None:
        piece, begun_s = placing.data[placing.arrived_bytes : placing.arrived_bytes + _PIECE_BYTES], time.monotonic()
        last = placing.arrived_bytes + len(piece) == len(placing.data)
        self._next_s[device] = math.inf
        self._calls.call(
            device,
            "place",
            placing.shard,
            placing.arrived_bytes,
            piece,
            last,
            then=lambda removed: self._arrived(device, placing, len(piece), begun_s, removed),
            refused=lambda error: self._refused(device, error),
        )

    def _arrived(
        self, device: str, placing: _ShardTransfer, nbytes: int, begun_s: float, removed: Collection[str]
    ) -> None:
        if self._placing.get(device) is not placing:
            return
        now = time.monotonic()
        took_s = now - begun_s
        rests_s = took_s if took_s > _SHORT_S else 0.0
        placing.arrived_bytes += nbytes
        self._next_s[device] = now + rests_s
        if placing.arrived_bytes == len(placing.data):
            self._holds(device, placing.shard, removed)
            del self._placing[device]
        if not rests_s:
            self._place_next(device)

    def _holds(self, device: str, shard: str, removed: Collection[str]) -> None:
        shards_there = self._shards_of.setdefault(device, set())
        shards_there.add(shard)
        shards_there.difference_update(removed)
        if removed:
            _log.warning(
                "device %s removed %d shards that it did not use for longest: its folder of shards is full",
                device,
                len(removed),
            )

    def _refused(self, device: str, error: BaseException) -> None:
        _log.warning("nothing more is placed ahead on %s: %s", device, error)
        self._later.pop(device, None)
        self._placing.pop(device, None)
        self._next_s.pop(device, None)
