"""Starts and joins a cluster that is to be measured, and waits for its devices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from downset.distributed.serving.ray_fleet import RayFleet, cluster
from downset.errors import LimitReached

__all__ = ["joined_cluster"]

_LOOKS_S = 0.2


@contextmanager
def joined_cluster(
    names: Sequence[str],
    *,
    head: str | None,
    keys: str | os.PathLike[str] | None,
    joins_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[RayFleet]:
    """Join a cluster with these devices, as `cluster` makes it. Everything that it starts ends with the context.

    Raises LimitReached naming the devices that did not join within `joins_s` seconds, and the errors of `cluster`."""
    with cluster(names, head=head, keys=keys) as fleet:
        until, missing = time.monotonic() + joins_s, len(names) + 1
        while lacks := sorted(set(names) - set(fleet.present())):
            if time.monotonic() > until:
                raise LimitReached(
                    f"device {', '.join(lacks)} did not join within {joins_s:g} s; does downset worker run there?"
                )
            if len(lacks) < missing:
                missing = len(lacks)
                progress(f"waiting for {', '.join(lacks)}")
            time.sleep(_LOOKS_S)
        yield fleet
