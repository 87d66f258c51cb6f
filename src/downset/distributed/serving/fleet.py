"""The devices of a running pipeline as the driver sees them: how it calls them, and which of them take part.

`Fleet` is the interface, which `ray_fleet` implements on Ray: a call returns at once, and `then` is called on another
thread with its answer or its exception. `Calls` handles the answers on the driver's thread, one after another.
`Membership` starts devices, loses them and takes them back.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from downset.distributed.keys import DeviceKeys
from downset.distributed.serving.device import versions
from downset.distributed.serving.health import Health
from downset.errors import UnsupportedError

__all__ = ["Calls", "DeviceLost", "Events", "Fleet", "Membership", "Then"]

Then = Callable[[Any, BaseException | None], None]
"""Called with (answer, exception); one of them is None."""


class DeviceLost(Exception):
    """A device is gone: its process has ended. The driver catches it and plans without the device."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device!r}: {reason}")
        self.device, self.reason = device, reason


class Fleet(Protocol):
    """Devices by name. If a device is to blame, the exception passed to `then` is a DeviceLost. `keys`, `address`: of
    the driver's own endpoint."""

    keys: DeviceKeys
    address: str

    def check(self) -> None:
        """Raise if the cluster cannot go on. Returns at once."""

    def present(self) -> Collection[str]:
        """The devices that can be started, because their nodes are in the cluster."""

    def start(self, device: str) -> None:
        """Start the process of a device; an earlier process of it is ended."""

    def stop(self, device: str) -> None:
        """End the process of a device, whatever its state."""

    def call(self, device: str, method: str, *arguments: Any, then: Then) -> None:
        """Call a method of `ServingDevice`."""


Events = queue.SimpleQueue[Callable[[], None]]
"""Functions to be called on the driver's thread."""


def _always() -> bool:
    return True


class Calls:
    """Calls of devices. Every answer is a sign of life. Answers from before a device was started again are ignored.

    `lost` is called with the device to blame for an answer that does not come, `failed` with every other error."""

    def __init__(
        self,
        fleet: Fleet,
        events: Events,
        health: Health,
        *,
        lost: Callable[[str, str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._fleet, self._events, self.health = fleet, events, health
        self._lost, self._failed = lost, failed
        self._life: dict[str, int] = {}

    def start(self, device: str) -> None:
        """Start a device's process. Answers of its earlier processes are ignored from now on."""
        self._life[device] = self._life.get(device, 0) + 1
        self._fleet.start(device)

    def stop(self, device: str) -> None:
        self._life[device] = self._life.get(device, 0) + 1
        self._fleet.stop(device)

    def call(
        self,
        device: str,
        method: str,
        *arguments: Any,
        then: Callable[[Any], None],
        wanted: Callable[[], bool] = _always,
        refused: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Call a method of a device. `then` is called with the answer if it is still `wanted`. `refused` is called with
        the device's own errors, in place of `failed`."""
        life = self._life.get(device, 0)

        def answered(value: Any, error: BaseException | None) -> None:
            if error is None and life == self._life.get(device, 0):
                self.health.heard(device)  # here, because the driver's thread may be busy
            self._events.put(lambda: handle(value, error))

        def handle(value: Any, error: BaseException | None) -> None:
            if life != self._life.get(device, 0):
                return
            if isinstance(error, DeviceLost):
                self._lost(error.device, error.reason)
                return
            self.health.heard(device)
            if error is not None:
                if wanted():
                    (refused or self._failed)(error)
            elif wanted():
                then(value)

        try:
            self._fleet.call(device, method, *arguments, then=answered)
        except DeviceLost as error:
            answered(None, error)


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
        *,
        joined: Callable[[str, Mapping[str, Any]], None],
        refused: Callable[[BaseException], None],
    ) -> None:
        self._calls, self._health, self._joined, self._refused = calls, calls.health, joined, refused
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

    def _described(self, device: str, description: Mapping[str, Any]) -> None:
        ours = versions()
        other = [what for what in ours if description.get(what) != ours[what]]
        if other:
            theirs, here = (", ".join(f"{what} {side.get(what)}" for what in other) for side in (description, ours))
            self._calls.stop(device)
            error = UnsupportedError(f"device {device!r} has {theirs}, the driver has {here}; install the same on both")
            self._refused(error)
            return
        self.alive.add(device)
        self._unanswered[device] = 0
        self._health.watch(device)
        _log.info("device %s joined: process %s, %s threads", device, description["pid"], description["threads"])
        self._joined(device, description)

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
                self._health.note_question(device, now)
                self._calls.call(device, "ping", then=partial(self._pong, device, answered))

    def _pong(self, device: str, answered: Callable[[str, Mapping[str, Any]], None], value: Mapping[str, Any]) -> None:
        self._unanswered[device] = 0
        answered(device, value)
