"""The devices of a running pipeline, as the driver calls them; `ray_fleet` has them in Ray's cluster.

A call returns at once; its answer, or its exception, goes to `then` on some other thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

__all__ = ["DeviceLost", "Fleet", "Then"]

Then = Callable[[Any, BaseException | None], None]
"""(answer, exception): one of them is None."""


class DeviceLost(Exception):
    """A device is gone: its process has ended, or what it sent cannot be had any more (`device` is empty then). For the
    driver, which plans without it: nobody else gets it."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device!r}: {reason}")
        self.device, self.reason = device, reason


class Fleet(Protocol):
    """Devices by name. An exception that `then` gets is a DeviceLost where a device is to blame."""

    def present(self) -> Collection[str]:
        """The devices that could be started: their nodes are in the cluster."""

    def start(self, device: str) -> None:
        """Start the process of a device; an earlier one is ended."""

    def stop(self, device: str) -> None:
        """End the process of a device, whatever state it is in."""

    def call(self, device: str, method: str, *arguments: Any, then: Then) -> None:
        """Call a method of `ServingDevice`."""

    def send(self, device: str, *arguments: Any) -> Any:
        """Call `send`, whose answer stays on the device: a reference to it."""

    def put(self, value: Any) -> Any:
        """A reference to a value that the driver has."""
