"""A fitted stream beside its window: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from downset.results.comparisons import Comparison
from downset.results.streams import StreamRecord

__all__ = ["Broken", "StreamFit"]


class Broken(NamedTuple):
    """An operator whose rows are not those of earlier windows, although those of its inputs are."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class StreamFit:
    """A stream beside its window. `window_bytes`, `stream_bytes`: measured, else planned; `macs`: multiply-adds of a
    call, `window_macs` those of the window; `kept_bytes`: of all states. `comparison`: hops against windows in the
    runtime; None where it was not run."""

    record: StreamRecord
    window_bytes: int
    stream_bytes: int
    window_macs: int
    macs: int
    kept_bytes: int
    breaks: tuple[Broken, ...] = ()
    comparison: Comparison | None = None
