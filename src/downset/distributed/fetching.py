"""Fetches Ray's objects from other devices so that a slow network carries each of them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downset.extras import optional_library

__all__ = ["fetched"]

_LOOKS_S = 0.5
"""The seconds after which a device that waits for an object checks whether the object is still wanted."""


def fetched(reference: Any, wanted: Callable[[], bool] = lambda: True) -> Any:
    """The object of a reference; None once it is not wanted any more.

    `get` is called only for objects that have arrived. If a `get` runs out of time, Ray drops the received part of the
    object, and the next `get` has all of it sent again. A `wait` continues the transfer where the last one stopped."""
    ray = optional_library("ray", what="running pipelines on devices", extra="cluster")
    while wanted():
        arrived, _ = ray.wait([reference], timeout=_LOOKS_S)
        if arrived:
            return ray.get(reference)
    return None
