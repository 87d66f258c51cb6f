"""Rows of a front of plans, as data: what each takes, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from downset.text import abridged

__all__ = ["FrontRow"]


@dataclass(frozen=True, slots=True)
class FrontRow:
    """A plan that computes `segments` in strips.

    `peak_bytes` and `arena_bytes` are planned; `extra_macs` is also given as a share of the network's. `measured`: what
    the runtime took, by part; empty where it was not asked. `before_s` and `after_s`: a run of the original and of this
    file, medians of interleaved rounds on this host; None where it was not timed."""

    segments: tuple[str, ...]
    peak_bytes: int
    arena_bytes: int
    extra_macs: int
    extra_share: float
    operators: int
    file_bytes: int
    measured: Mapping[str, int] = field(default_factory=dict)
    before_s: float | None = None
    after_s: float | None = None

    __repr__ = abridged
