"""Compares a file that keeps variables with one that keeps them in place: call by call, with all states."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from downset.errors import UnsupportedError
from downset.formats.tflite.states_in_place import write_with_values
from downset.graph.core import Graph
from downset.results.comparisons import Comparison
from downset.runtimes.differences import compare_arrays, vary
from downset.runtimes.feeds import RUNS, Feeds, FeedSource, made_feeds, read_feeds
from downset.runtimes.outputs import calls_in_tflm, in_tflm

__all__ = ["CALLS", "calls_differ", "calls_difference", "compare_calls"]

CALLS = 200
"""How many calls are made in one sequence, where inputs are drawn."""

Named = str | os.PathLike[str]


def calls_differ(graphs: Sequence[Graph]) -> bool:
    """Whether only the second of two networks has states in place, which a call does not set."""
    return bool(graphs[1].states) and not graphs[0].states


def calls_difference(graphs: Sequence[Graph]) -> str:
    """How what a call sets differs in two networks; "" where it does not."""
    ours, theirs = ([graph.tensors[tensor] for tensor in graph.inputs] for graph in graphs)
    theirs = theirs[: len(theirs) - len(graphs[1].states)]
    if [(one.shape, one.dtype) for one in ours] == [(one.shape, one.dtype) for one in theirs]:
        return ""
    return (
        f"the first takes {len(ours)} inputs, the second {len(theirs)} besides its states, or of other types or shapes"
    )


def compare_calls(runtime: str, paths: tuple[Named, Named], graphs: Sequence[Graph], source: FeedSource) -> Comparison:
    """Run both files in TFLite Micro on the same sequence of calls and compare, after each, the outputs and the next
    value of each state. Raises UnsupportedError for another runtime, and where TFLite Micro does not run both."""
    (first, second), (before, after) = paths, graphs
    if runtime != "tflm":
        raise UnsupportedError(f"only TFLite Micro keeps states in place: {runtime} ignores the offsets of {second}")
    if calls_difference(graphs):
        raise UnsupportedError(calls_difference(graphs))
    feeds = read_feeds(before, source.files) if source.files else drawn_calls(before, source.seed)
    initial = {after.inputs.index(state.read): state.initial for state in after.states}
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        shown = Path(folder) / Path(first).name
        write_with_values(first, shown, [state.name for state in after.states])
        ours = in_tflm(shown, feeds).outputs
    theirs = calls_in_tflm(second, feeds, initial).outputs
    comparison = compare_arrays(
        *([value for call in calls for value in call] for calls in (ours, theirs)), runtime="tflm"
    )
    return replace(comparison, runs=len(feeds), varies=vary(ours), inside=len(after.states))


def drawn_calls(graph: Graph, seed: int) -> Feeds:
    """`CALLS` inputs, drawn from the seed."""
    drawn = [fed for turn in range(-(-CALLS // RUNS)) for fed in made_feeds(graph, seed=seed + RUNS * turn)]
    return drawn[:CALLS]
