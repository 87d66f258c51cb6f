"""The hops that a stream of a network could have, each with what it would take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from math import lcm

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError, UsageError
from downset.fitting.in_hops import chosen_rows
from downset.formats.onnx.read import without_defaults
from downset.formats.reading import load
from downset.graph.core import Graph, InPlaceState
from downset.memory.models import MemoryName
from downset.orders.plan import plan_order
from downset.partial.rewrite import reordered
from downset.partial.stream_rows import Moving, StreamRows, stream_rows
from downset.partial.streams import stream_of
from downset.results.stream_fit import HopOffer, HopOffers
from downset.results.streams import Hop
from downset.rewrites.tflite_form import tflite_form

__all__ = ["stream_hops"]

_SEARCH_S = 0.5
"""The time limit of an order."""
_FIRST = 8
"""The hop by which the axis that moves is found; a shorter one where the window is short."""


def stream_hops(
    model: str | os.PathLike[str], *, shapes: Mapping[str, tuple[int, ...]] | None = None, memory: MemoryName = "tflm"
) -> HopOffers:
    """Hops for a stream of a .tflite or .onnx file: the powers of two, and the rows by which its tensors move by
    whole rows. Arenas are planned under this memory model, with the states in them; nothing is run. Raises
    UsageError and UnsupportedError as `fit` does."""
    graph = without_defaults(load(model, shapes=shapes))
    longest = max((extent for tensor in graph.inputs for extent in graph.tensors[tensor].shape), default=0)
    rows = chosen_rows(graph, Hop(min(_FIRST, max(longest // 2, 1))))
    whole = _whole_hops(rows.moving)
    powers = [1 << power for power in range(rows.moving.window.bit_length())]
    hops = sorted({hop for hop in (*powers, *whole, *(2 * one for one in whole)) if hop <= rows.moving.window // 2})
    offers = tuple(offer for hop in hops if (offer := _offer(stream_rows(rows.moving, hop), memory)) is not None)
    arena = plan_arena(graph, range(len(graph.ops)), method="greedy_by_size", memory=memory)
    name = graph.tensors[rows.moving.tensor].name
    return HopOffers(
        str(model), name, rows.moving.dimension, rows.moving.window, rows.window_macs, arena.arena_bytes, offers
    )


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


def _offer(rows: StreamRows, memory: MemoryName) -> HopOffer | None:
    """The offer of a hop; None where no stream has it."""
    try:
        stream = stream_of(rows, "in_place")
        graph = tflite_form(stream.graph)
    except (UnsupportedError, UsageError):
        return None
    if memory == "tflm":
        graph = _in_place(graph, len(stream.record.states))
    order = plan_order(graph, memory=memory, time_limit_s=_SEARCH_S)
    arena = plan_arena(graph, order, method="greedy_by_size", memory=memory)
    exact = memory == "tflm" or not any(meta.dtype.startswith(("float", "bfloat")) for meta in graph.tensors)
    return HopOffer(rows.hop, rows.macs, arena.arena_bytes, rows.kept_bytes, len(stream.record.states), exact)


def _in_place(graph: Graph, count: int) -> Graph:
    """The graph with its last inputs and outputs as states in place, in an order that writes each after it was read."""
    pairs = zip(graph.inputs[len(graph.inputs) - count :], graph.outputs[len(graph.outputs) - count :], strict=True)
    states = tuple(InPlaceState(graph.tensors[one].name, one, other) for one, other in pairs)
    sorter = TopologicalSorter(dict(enumerate(replace(graph, states=states).predecessors())))
    return replace(reordered(graph, tuple(sorter.static_order())), states=states)
