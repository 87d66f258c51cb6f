"""A change to another plan: each of its devices gets the shards that it lacks, then its program of the new run.

All of it happens on the driver's thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from downset.distributed.serving.carrier import Carrier
from downset.distributed.serving.deployment import Deployment
from downset.distributed.serving.device_run import RunSetup
from downset.distributed.serving.fleet import Calls
from downset.distributed.serving.health import Wait
from downset.results.serving import ServeEvent

__all__ = ["PlanChange"]

_log = logging.getLogger("downset.serving")
_MOST_RESENT = 3
"""How often a device is sent again what its disk did not keep, for one plan."""


@dataclass(slots=True)
class PlanChange:
    """A change that `waits` until these devices are ready for run `number`. `ready` is called when all are, `lost` with
    a device whose disk does not keep its shards, and neither once the change is `over`."""

    number: int
    deployment: Deployment
    setup: RunSetup
    calls: Calls
    carrier: Carrier
    ready: Callable[[], None]
    lost: Callable[[str, str], None]
    over: bool = False
    waits: set[str] = field(default_factory=set)
    _begun_s: float = field(default_factory=time.monotonic)
    _bytes: int = 0
    _resent: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        self.waits |= set(self.deployment.programs)
        for device in self.deployment.programs:
            self._equip(device)

    def steps(self) -> list[Wait]:
        """The steps that it waits for. Safe to call from any thread."""
        return [Wait(f"shards and the program of device {name}", self._begun_s, name) for name in tuple(self.waits)]

    def recorded(self, event: ServeEvent, at_s: float) -> ServeEvent:
        """The event with what the change has moved and how long it took, which the log says too."""
        took_s = time.monotonic() - self._begun_s
        _log.warning(
            "planned again: %.2f s; %d bytes of shards moved, and opened, in %.2f s; %d frames begin again",
            event.plan_s,
            self._bytes,
            took_s,
            event.replayed,
        )
        return replace(event, at_s=at_s, move_s=took_s, moved_bytes=self._bytes)

    def _wanted(self) -> bool:
        return not self.over

    def _equip(self, device: str) -> None:
        def carried(nbytes: int) -> None:
            self._bytes += nbytes
            self.calls.call(
                device,
                "begin",
                self.number,
                self.deployment.programs[device],
                msgspec.json.encode(self.setup),
                wanted=self._wanted,
                then=lambda missing: self._opened(device, missing),
            )

        self.carrier.bring(device, self.deployment.shards[device], then=carried, wanted=self._wanted)

    def _opened(self, device: str, missing: Sequence[str]) -> None:
        """Send a device again what its disk has not kept as it came; without such shards it is ready."""
        if not missing:
            self.waits.discard(device)
            if not self.waits:
                self.ready()
            return
        self.carrier.lost(device, missing)
        self._resent[device] += 1
        if self._resent[device] > _MOST_RESENT:
            self.lost(device, "its disk does not keep shards as they were sent")
            return
        _log.warning("device %s: %d shards on its disk are damaged or gone; they are sent again", device, len(missing))
        self._equip(device)
