"""The axis along which a stream's rows move, and what it would share; mistakes about a hop are named."""

from __future__ import annotations

from collections.abc import Sequence

from downset.errors import UnsupportedError, UsageError
from downset.graph.core import Graph, Tensor
from downset.messages import Message, Setting
from downset.partial.stream_rows import StreamRows, moving_input, stream_rows
from downset.partial.streams import check_streamable
from downset.results.stream_fit import Broken
from downset.results.streams import Hop
from downset.text import printable, shortened

__all__ = ["breaks_of", "broken", "check_gains", "chosen_rows", "hop_of"]

_CLEARLY = 0.8
"""An axis of which a call computes at most this share of the multiply-adds that one of another axis does is the one
that moves."""
_GAINS = 0.95
"""A stream is worth writing where a call computes at most this share of the window's multiply-adds."""


def hop_of(stated: Sequence[int]) -> Hop:
    """The hop, with the axis where it is stated. Raises UsageError for other lists of numbers."""
    if not 1 <= len(stated) <= 2:
        raise UsageError(f"a stream is stated by its hop, and maybe the axis: 8 or (8, 1), not {tuple(stated)}")
    return Hop(*stated)


def chosen_rows(graph: Graph, hop: Hop) -> StreamRows:
    """The rows of the stream along the stated axis, or along the one that moves: that of which a call computes the
    fewest multiply-adds, of the first such input. Raises UsageError where no axis is stated and this is not clear."""
    check_streamable(graph)
    if hop.rows < 1:
        raise UsageError(f"a hop has at least 1 row, not {hop.rows}")
    streams = _candidates(graph, hop)
    streams.sort(key=lambda rows: rows.macs)
    if (
        hop.axis is None
        and len(streams) > 1
        and streams[0].macs > _CLEARLY * streams[1].macs
        and streams[1].macs <= _GAINS * streams[1].window_macs
    ):
        axes, first = ", ".join(_axis(rows) for rows in streams[:3]), streams[0].moving
        named = Setting("stream", (hop.rows, first.dimension))
        if first.dimension != streams[1].moving.dimension:
            raise UsageError(Message(f"several axes could be time: {axes}; name one, ", named))
        moving = Message(f" moves {first.graph.tensors[first.tensor].name!r} alone; or join them to one input")
        raise UsageError(Message(f"several inputs could move: {axes}; a stream has one: ", named, moving))
    return streams[0]


def _candidates(graph: Graph, hop: Hop) -> list[StreamRows]:
    """The streams along each axis of each input, or along the stated axis. Raises UsageError where there is none."""
    streams, reasons = [], []
    for tensor in graph.inputs:
        meta = graph.tensors[tensor]
        axes = range(len(meta.shape)) if hop.axis is None else [hop.axis]
        for axis in axes:
            reason = _fault(meta, axis, hop.rows)
            if not reason:
                streams.append(stream_rows(moving_input(graph, tensor, axis), hop.rows))
            elif hop.axis is not None or meta.shape[axis] > 1:
                reasons.append((0 if hop.axis is not None else -meta.shape[axis], f"input {meta.name!r} {reason}"))
    if not streams:  # the longest axis is the likeliest one
        raise UsageError(min(reasons)[1] if reasons else "no input has an axis of several rows that could be time")
    return streams


def _fault(meta: Tensor, axis: int, hop: int) -> str:
    """Why an input has no windows along this axis that move by a hop; "" where it has."""
    shape = meta.shape
    if axis >= len(shape):
        return f"has axes 0 to {len(shape) - 1}, no axis {axis}"
    if axis and len(shape) > 2 and shape[0] > 1:
        return f"has a batch of {shape[0]} windows, and a stream takes one: fix the batch to 1"
    if hop >= shape[axis]:
        return f"has {shape[axis]} rows along axis {axis}: a hop has fewer, not {hop}"
    return ""


def _axis(rows: StreamRows) -> str:
    name = rows.moving.graph.tensors[rows.moving.tensor].name
    return f"axis {rows.moving.dimension} of {name!r} ({rows.moving.window} rows)"


def check_gains(rows: StreamRows) -> None:
    """Raise UnsupportedError where a call computes about as much as the window, naming the operators that break
    sharing."""
    if rows.macs <= _GAINS * rows.window_macs:
        return
    share = 100 * rows.macs / max(rows.window_macs, 1)
    raise UnsupportedError(
        f"a stream of {_axis(rows)} computes {share:.0f} % of the window's multiply-adds in each call: "
        f"{broken(rows) or 'the hop is too long'}"
    )


def broken(rows: StreamRows) -> str:
    """The operators that break sharing most, in a line."""
    named = (f"{one.reason} at {one.kind} {shortened(printable(one.name), 50)!r}" for one in breaks_of(rows)[:3])
    return "; ".join(named)


def breaks_of(rows: StreamRows) -> list[Broken]:
    """The operators that break sharing: those that pad along time first, then those that read all rows; of each, those
    with most multiply-adds first."""
    ops, form = rows.moving.graph.ops, rows.moving.form.ops
    return [
        Broken(ops[index].name, ops[index].kind, why)
        for group in (rows.pads, rows.breaks)
        for index, why in sorted(group.items(), key=lambda item: -form[item[0]].macs)
    ]
