"""The interface by which the driver calls the devices of a running pipeline. `ray_fleet` implements it on Ray.

A call returns at once; `then` is called on another thread with its answer or its exception.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

__all__ = ["DeviceLost", "Fleet", "Then"]

Then = Callable[[Any, BaseException | None], None]
"""Called with (answer, exception); one of them is None."""


class DeviceLost(Exception):
    """A device is gone: its process has ended, or what it sent cannot be fetched any more (`device` is empty then). The
    driver catches it and plans without the device."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device!r}: {reason}")
        self.device, self.reason = device, reason


class Fleet(Protocol):
    """Devices by name. If a device is to blame, the exception passed to `then` is a DeviceLost."""

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

    def send(self, device: str, *arguments: Any) -> Any:
        """Call `send`. Its answer stays on the device; returns a reference to it."""

    def put(self, value: Any) -> Any:
        """A reference to a value of the driver's process."""
