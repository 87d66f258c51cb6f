"""Fetches objects of Ray's from other devices so that a slow network carries each of them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downset.extras import optional_library

__all__ = ["fetched"]

_LOOKS_S = 0.5
"""How often a device that waits for an object looks whether it is still wanted."""


def fetched(reference: Any, wanted: Callable[[], bool] = lambda: True) -> Any:
    """The object of a reference; None where nobody wants it any more.

    Only what has arrived is asked for with `get`: where the time of a `get` runs out, Ray drops what has come of the
    object, and the next `get` has all of it sent again. A `wait` goes on where the one before it ended."""
    ray = optional_library("ray", what="running pipelines on devices", extra="cluster")
    while wanted():
        arrived, _ = ray.wait([reference], timeout=_LOOKS_S)
        if arrived:
            return ray.get(reference)
    return None
