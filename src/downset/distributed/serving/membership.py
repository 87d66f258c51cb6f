"""Keeps which devices take part: they join, are lost, and come back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from downset.distributed.serving.calls import Calls
from downset.distributed.serving.device import versions
from downset.distributed.serving.health import Health
from downset.errors import UnsupportedError

__all__ = ["Membership"]

_log = logging.getLogger("downset.serving")
_RETURNS_AFTER_S = 1.0
"""Seconds after which a lost device is started again; doubled after each loss, up to a minute."""
_MOST_S = 60.0
_OPEN_QUESTIONS = 8
_STARTING_S = 60.0


class Membership:
    """Starts devices and checks them. `joined` is called with a device and its description, `refused` with the reason
    why a device does not fit the driver."""

    def __init__(
        self,
        devices: Sequence[str],
        calls: Calls,
        health: Health,
        *,
        joined: Callable[[str, Mapping[str, Any]], None],
        refused: Callable[[BaseException], None],
    ) -> None:
        self._calls, self._health, self._joined, self._refused = calls, health, joined, refused
        self.alive: set[str] = set()
        self._tries_s = dict.fromkeys(devices, 0.0)
        self._losses = dict.fromkeys(devices, 0)
        self._unanswered: dict[str, int] = {}

    def missing(self) -> list[str]:
        """The devices that do not take part now."""
        return [device for device in self._losses if device not in self.alive]

    def present(self, nodes: Collection[str], now: float) -> None:
        """Start the devices that are in the cluster and do not take part."""
        for device, at_s in list(self._tries_s.items()):
            if device in nodes and device not in self.alive and now >= at_s:
                self._tries_s[device] = now + _STARTING_S  # not again while it starts
                self._calls.start(device)
                self._calls.call(device, "describe", then=partial(self._described, device), refused=self._refused)

    def _described(self, device: str, told: Mapping[str, Any]) -> None:
        ours = versions()
        other = [what for what in ours if told.get(what) != ours[what]]
        if other:
            theirs, here = (", ".join(f"{what} {side.get(what)}" for what in other) for side in (told, ours))
            self._calls.stop(device)
            error = UnsupportedError(f"device {device!r} has {theirs}, the driver has {here}; install the same on both")
            self._refused(error)
            return
        self.alive.add(device)
        self._unanswered[device] = 0
        self._health.watch(device)
        _log.info("device %s joined: process %s, %s threads", device, told["pid"], told["threads"])
        self._joined(device, told)

    def lose(self, device: str, now: float) -> bool:
        """Note that a device is lost; whether it took part until now."""
        was_alive = device in self.alive
        self.alive.discard(device)
        self._health.forget(device)
        self._calls.stop(device)
        if was_alive:
            self._losses[device] += 1
        self._tries_s[device] = now + min(_MOST_S, _RETURNS_AFTER_S * 2.0 ** max(0, self._losses[device] - 1))
        return was_alive

    def ping(self, answered: Callable[[str, Mapping[str, Any]], None], now: float) -> None:
        """Ask every device for a sign of life, except those with so many open questions that they count as lost. May be
        called on any thread; `answered` is called on the driver's thread."""
        for device in tuple(self.alive):
            if self._unanswered.get(device, 0) < _OPEN_QUESTIONS:
                self._unanswered[device] = self._unanswered.get(device, 0) + 1
                self._health.asked(device, now)
                self._calls.call(device, "ping", then=partial(self._pong, device, answered))

    def _pong(self, device: str, answered: Callable[[str, Mapping[str, Any]], None], value: Mapping[str, Any]) -> None:
        self._unanswered[device] = 0
        answered(device, value)
