"""The hops that a stream of a network could have, each with what it takes, and those that `fit` would refuse."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from downset.errors import DownsetError, UnsupportedError, UsageError
from downset.fitting.fit import fit_model
from downset.fitting.in_hops import bytes_of_window, least_to_beat, measured_window, window_options, written_stream
from downset.fitting.job import FitOptions, Job, Listener, check_options
from downset.fitting.moving_axis import check_gains, chosen_rows
from downset.fitting.preparing import start
from downset.fitting.stream_bytes import measured_bytes, quick_plan
from downset.formats.onnx.read import without_defaults
from downset.formats.reading import check_readable, load
from downset.graph.core import Graph
from downset.partial.stream_rows import Moving, StreamRows, stream_rows
from downset.results.stream_fit import HopOffer, HopOffers
from downset.results.streams import Hop
from downset.text import format_bytes

__all__ = ["stream_hops"]

_FIRST = 8
"""The hop by which the axis that moves is found; a shorter one where the window is short."""


def stream_hops(options: FitOptions) -> HopOffers:
    """Hops for a stream of a .tflite or .onnx file: the powers of two, and the rows by which its tensors move by whole
    rows. Streams are written in the form that the options ask for and measured in the runtime of the target as `fit`
    does; in ONNX Runtime, and where a runtime is missing, they are planned. Hops with which a stream takes no less than
    the fitted window, or computes about as much, are left out by name: `fit` refuses them. Raises UsageError and
    UnsupportedError as `fit` does."""
    target = check_options(options)
    check_readable(Path(options.model))
    with tempfile.TemporaryDirectory(prefix="downset-") as scratch:
        job = start(options, target, Path(scratch), Listener())
        graph = without_defaults(load(job.path, shapes=job.options.shapes))
        longest = max((extent for tensor in graph.inputs for extent in graph.tensors[tensor].shape), default=0)
        rows = chosen_rows(graph, Hop(min(_FIRST, max(longest // 2, 1))))
        bench = _bench(job, graph)
        offers, left_out = [], []
        for hop in _hops(rows.moving):
            try:
                offers.append(bench.offer(stream_rows(rows.moving, hop)))
            except (UnsupportedError, UsageError) as error:
                left_out.append((hop, str(error.message)))
    name, moving = graph.tensors[rows.moving.tensor].name, rows.moving
    return HopOffers(
        str(options.model),
        name,
        moving.dimension,
        moving.window,
        rows.window_macs,
        bench.least,
        tuple(offers),
        tuple(left_out),
        measured=bench.measures,
    )


def _hops(moving: Moving) -> list[int]:
    whole = _whole_hops(moving)
    powers = [1 << power for power in range(moving.window.bit_length())]
    return sorted({hop for hop in (*powers, *whole, *(2 * one for one in whole)) if hop <= moving.window // 2})


def _whole_hops(moving: Moving) -> list[int]:
    """Hops by which more and more tensors move by whole rows, up to the one by which all do, or one that is longer than
    half of the window: in each, the longest queue ends one stride further on."""
    hops = [1]
    while 2 * hops[-1] < moving.window:
        more = lcm(*(kept.hops for kept in stream_rows(moving, hops[-1]).kept.values()))
        if more == 1:
            break
        hops.append(hops[-1] * more)
    return hops


@dataclass(frozen=True, slots=True)
class _Bench:
    """The bytes to which streams are compared: `least`, those of the window, fitted where that takes less. `measures`:
    whether these, and those of streams, are measured."""

    job: Job
    least: int
    measures: bool

    def offer(self, rows: StreamRows) -> HopOffer:
        """The offer of a hop. Raises UnsupportedError where `fit` would refuse it, or no stream has it."""
        check_gains(rows)
        with tempfile.TemporaryDirectory(prefix="hop-", dir=self.job.scratch) as scratch:
            job = written_stream(replace(self.job, scratch=Path(scratch)), rows)
            nbytes = measured_bytes(job) if self.measures else _planned(self.job, load(job.path))
        if nbytes >= self.least:
            raise UnsupportedError(f"it takes {format_bytes(nbytes)} B")
        memory = self.job.target.memory
        exact = memory == "tflm" or not any(
            meta.dtype.startswith(("float", "bfloat")) for meta in rows.moving.graph.tensors
        )
        return HopOffer(
            rows.hop, rows.macs, nbytes, rows.kept_bytes, sum(kept.hops for kept in rows.kept.values()), exact
        )


def _bench(job: Job, graph: Graph) -> _Bench:
    if job.target.sessions is not None:
        return _Bench(job, _planned(job, graph), measures=False)
    job, window = measured_window(job)
    if window.file.measured is None or job.target.measure is None:
        return _Bench(job, _planned(job, window.graph), measures=False)
    try:
        fitted = fit_model(window_options(job, job.options.shapes), Listener())
    except DownsetError:
        fitted = None
    return _Bench(job, least_to_beat(*bytes_of_window(window, fitted), None), measures=True)


def _planned(job: Job, graph: Graph) -> int:
    """The bytes of a quickly planned arena."""
    return quick_plan(graph, job.target.memory)[1].arena_bytes
