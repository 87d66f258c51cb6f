"""Compares a stream with its window: calls on new rows, one after another, against runs on the windows that end
there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.results.comparisons import Comparison
from downset.results.streams import StreamRecord
from downset.runtimes.differences import compare_arrays, vary
from downset.runtimes.feeds import Feeds, made_feeds
from downset.runtimes.outputs import Array, Computed, calls_in_ort, calls_in_tflm, in_litert, in_ort, in_tflm

__all__ = ["COMPARED", "compare_hops", "drawn_rows", "hops_of"]

COMPARED = 24
"""How many windows are compared where nothing else is asked for."""

Named = str | os.PathLike[str]


def compare_hops(
    runtime: str,
    paths: tuple[Named, Named],
    graphs: Sequence[Graph],
    record: StreamRecord,
    *,
    seed: int = 0,
    windows: int = COMPARED,
) -> Comparison:
    """Call the stream, the second file, once a hop on drawn rows, and run the first on each of the last `windows`
    windows. The first of these is the first that the record promises. Its states are NaN or noise at first, where a
    runtime lets the caller set them and the record promises nothing of that hop. Raises UnsupportedError where the
    runtime does not run both."""
    rows, others = drawn_rows(graphs[0], record, record.first_exact + windows, seed)
    hops = hops_of(rows, record, others)[: record.first_exact + windows]
    last = [hop for hop in range(len(hops)) if hop >= record.first_exact]
    window = {record.input: rows}
    shown: Feeds = [
        {
            name: _rows(value, record, hop) if name == record.input else value
            for name, value in (window | others).items()
        }
        for hop in last
    ]
    order = [graphs[0].tensors[tensor].name for tensor in graphs[0].inputs]
    shown = [{name: fed[name] for name in order} for fed in shown]
    ours = _window_outputs(runtime, paths[0], shown)
    theirs = _stream_outputs(runtime, paths[1], graphs[1], record, [{n: fed[n] for n in order} for fed in hops])
    count = len(graphs[0].outputs)
    kept = [values[:count] for values in theirs[record.first_exact :]]
    comparison = compare_arrays(*([value for run in runs for value in run] for runs in (ours, kept)), runtime=runtime)
    return replace(comparison, runs=len(last), varies=vary(ours))


def drawn_rows(graph: Graph, record: StreamRecord, hops: int, seed: int) -> tuple[Array, dict[str, Array]]:
    """(rows of the input for a window and so many hops, the values of all other inputs, which do not move)."""
    drawn: list[Array] = []
    others: dict[str, Array] = {}
    while sum(value.shape[record.axis] for value in drawn) < record.window + hops * record.hop:
        for fed in made_feeds(graph, seed=seed + len(drawn)):
            drawn.append(fed[record.input])
            others = others or {name: value for name, value in fed.items() if name != record.input}
    return np.concatenate(drawn, record.axis), others


def hops_of(rows: Array, record: StreamRecord, others: dict[str, Array]) -> list[dict[str, Array]]:
    """The feeds of the calls, by hop."""
    count = rows.shape[record.axis] // record.hop
    return [{record.input: _cut(rows, record.axis, hop * record.hop, record.hop), **others} for hop in range(count)]


def _rows(rows: Array, record: StreamRecord, hop: int) -> Array:
    """The window that ends with a hop; zeros stand before the first row."""
    stop = (hop + 1) * record.hop
    first = stop - record.window
    held = _cut(rows, record.axis, max(first, 0), stop - max(first, 0))
    before = [(0, 0)] * rows.ndim
    before[record.axis] = (max(-first, 0), 0)
    return np.pad(held, before)


def _cut(rows: Array, axis: int, first: int, count: int) -> Array:
    return np.ascontiguousarray(np.take(rows, range(first, first + count), axis))


def _window_outputs(runtime: str, path: Named, feeds: Feeds) -> Sequence[Sequence[Array]]:
    runs = {"tflm": in_tflm, "litert": in_litert, "ort": in_ort}
    if runtime not in runs:
        raise UnsupportedError(f"streams are not run in {runtime}")
    return runs[runtime](path, feeds).outputs


def _stream_outputs(
    runtime: str, path: Named, graph: Graph, record: StreamRecord, feeds: Feeds
) -> Sequence[Sequence[Array]]:
    computed: Computed
    if record.form == "states":
        pairs = [(state.name, state.next) for state in record.states]
        computed = calls_in_ort(path, feeds, pairs)
    elif record.form == "in_place" and runtime == "tflm":
        initial = {graph.inputs.index(state.read): state.initial for state in graph.states}
        computed = calls_in_tflm(path, feeds, initial)
    elif record.form == "in_place":
        raise UnsupportedError(f"only TFLite Micro keeps states in place: {runtime} ignores the offsets of {path}")
    else:
        computed = (in_tflm if runtime == "tflm" else in_litert)(path, feeds)
    return computed.outputs
