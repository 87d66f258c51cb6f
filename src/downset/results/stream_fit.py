"""A fitted stream and its window: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from downset.results.comparisons import Comparison
from downset.results.sessions import Latency
from downset.results.streams import State, StreamRecord

__all__ = ["Broken", "HopOffer", "HopOffers", "KeptState", "StreamFit"]


class Broken(NamedTuple):
    """An operator whose rows are not those of earlier windows, although those of its inputs are."""

    name: str
    kind: str
    reason: str


class HopOffer(NamedTuple):
    """A hop that a stream could have: multiply-adds of a call, and the bytes that it takes with its states, of which
    these are `state_bytes`. `exact`: every element is computed as in the window; else that is known by runs alone."""

    hop: int
    macs: int
    arena_bytes: int
    state_bytes: int
    states: int
    exact: bool


@dataclass(frozen=True, slots=True)
class HopOffers:
    """The hops that streams of a model could have, and what its window takes, fitted where that is less. `left_out`:
    (hop, why) of those with which a stream gains nothing. `measured`: whether bytes are measured; else arenas are
    planned."""

    model: str
    input: str
    axis: int
    window: int
    window_macs: int
    window_bytes: int
    offers: tuple[HopOffer, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    measured: bool = False


class KeptState(NamedTuple):
    """A state, the rows of its tensor in a window, those of them that a call computes, and its bytes."""

    state: State
    rows: int
    new: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StreamFit:
    """A stream and its window. `window_bytes`, `stream_bytes`: measured, else planned; `fitted_bytes`: the same of the
    window after a fit of its own, None where that failed; `growths`: of a process that runs the window by default, and
    of one that runs the stream as it ships, where these are measured; `macs`: multiply-adds of a call, `window_macs`
    those of the window; `kept_bytes`: of all states. `comparison`: hops against windows in the
    runtime, and the proof. `window_s`: seconds of a run of the window, and `latency` those of a call with its ratio to
    that: processor time, medians of interleaved rounds on this host; None where they were not timed."""

    record: StreamRecord
    window_bytes: int
    fitted_bytes: int | None
    stream_bytes: int
    window_macs: int
    macs: int
    kept_bytes: int
    kept: tuple[KeptState, ...]
    breaks: tuple[Broken, ...] = ()
    comparison: Comparison | None = None
    window_s: float | None = None
    latency: Latency | None = None
    growths: tuple[int, int] | None = None
