"""Calls devices, and handles their answers on the driver's thread, one after another."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from downset.distributed.serving.fleet import DeviceLost, Fleet
from downset.distributed.serving.health import Health

__all__ = ["Calls", "Events"]

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
        self._fleet, self._events, self._health = fleet, events, health
        self._lost, self._failed = lost, failed
        self._life: dict[str, int] = {}

    def start(self, device: str) -> None:
        """Start a device's process. Answers of its earlier processes are ignored from now on."""
        self._life[device] = self._life.get(device, 0) + 1
        self._fleet.start(device)

    def stop(self, device: str) -> None:
        self._life[device] = self._life.get(device, 0) + 1
        self._fleet.stop(device)

    def reference(self, value: Any) -> Any:
        return self._fleet.put(value)

    def send(self, device: str, *arguments: Any) -> Any:
        """A reference to the rows that the device will have sent; None if the device has been stopped."""
        try:
            return self._fleet.send(device, *arguments)
        except DeviceLost as error:
            life, reason = self._life.get(device, 0), error.reason
            self._events.put(lambda: self._lost(device, reason) if life == self._life.get(device, 0) else None)
            return None

    def call(
        self,
        device: str,
        method: str,
        *arguments: Any,
        then: Callable[[Any], None],
        wanted: Callable[[], bool] = _always,
        sender: str = "",
        refused: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Call a method of a device. `then` is called with the answer if it is still `wanted`. `sender`: the device to
        blame if what the called device fetches is gone. `refused` is called with the device's own errors, in place of
        `failed`."""
        life = self._life.get(device, 0)

        def answered(value: Any, error: BaseException | None) -> None:
            if error is None and life == self._life.get(device, 0):
                self._health.heard(device)  # here, because the driver's thread may be busy
            self._events.put(lambda: handle(value, error))

        def handle(value: Any, error: BaseException | None) -> None:
            if life != self._life.get(device, 0):
                return
            if isinstance(error, DeviceLost):
                if error.device or wanted():
                    self._lost(error.device or sender, error.reason)
                return
            self._health.heard(device)
            if error is not None:
                if wanted():
                    (refused or self._failed)(error)
            elif wanted():
                then(value)

        try:
            self._fleet.call(device, method, *arguments, then=answered)
        except DeviceLost as error:
            answered(None, error)
