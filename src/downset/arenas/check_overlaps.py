"""Whether a kernel reads every byte of its input before it overwrites it: its loops are simulated.

Knows the table of kernels (which loops a library runs), not the lags that planners derive from it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from downset.graph.core import Graph, Op
from downset.memory.overlaps import Walk, WindowGeometry, geometry, walk_of

__all__ = ["reads_before_it_writes"]


def reads_before_it_writes(graph: Graph, op: Op, kernels: str, read_at: int, written_at: int) -> bool:
    """Whether the operator may run with its first input and its output at these offsets.

    Every byte of the output has the tick at which it is written, every byte of the input the last at which it is read;
    no byte of the arena is written at an earlier tick than it is read. O(bytes)."""
    walk, window = walk_of(graph, op, kernels), geometry(graph, op)
    if walk is None or window is None:
        return False
    unit = graph.tensors[op.outputs[0]].nbytes // max(1, int(np.prod(window.written)))
    written = np.repeat(_writes(window, walk), unit)
    read = np.repeat(_last_reads(window, walk), unit)
    begin, end = max(read_at, written_at), min(read_at + len(read), written_at + len(written))
    if begin >= end:
        return True
    return bool((read[begin - read_at : end - read_at] <= written[begin - written_at : end - written_at]).all())


def _writes(window: WindowGeometry, walk: Walk) -> npt.NDArray[np.int64]:
    """By element of the output, the tick at which it is written: position times channels plus channel."""
    positions, channels = int(np.prod(window.written[:3])), window.written[3]
    ticks = np.arange(positions * channels, dtype=np.int64).reshape(positions, channels)
    if walk == "four pixels":
        whole = positions // 4 * 4
        blocks = ticks[:whole].reshape(-1, 4, channels)
        blocks[:] = blocks[:, :1, :1] + 4 * np.arange(channels)[None, None, :]
    elif walk == "written first":
        ticks[:] = ticks[:, :1]
    return ticks.reshape(-1)


def _last_reads(window: WindowGeometry, walk: Walk) -> npt.NDArray[np.int64]:
    """By element of the input, the last tick at which it is read; -1 where it never is."""
    batches, rows, columns, depth = window.read
    _, made_rows, made_columns, channels = window.written
    last = np.full((batches, rows, columns, depth), -1, np.int64)
    if walk == "channel":
        in_position = (np.arange(depth, dtype=np.int64) + 1) * (channels // depth) - 1
    else:
        in_position = np.full(depth, channels - 1, np.int64)
    row_of, column_of = _last_windows(window, 0), _last_windows(window, 1)
    seen = (row_of >= 0)[:, None] & (column_of >= 0)[None, :]
    for batch in range(batches):
        position = (batch * made_rows + row_of[:, None]) * made_columns + column_of[None, :]
        if walk == "four pixels":
            whole = batches * made_rows * made_columns // 4 * 4
            # The last of its block, and of that one the last channel.
            begin = np.where(position < whole, position // 4 * 4, position)
            tick = begin * channels + np.where(position < whole, 4, 1) * (channels - 1)
            ticks = np.repeat(tick[:, :, None], depth, axis=2)
        elif walk == "written first":
            ticks = np.repeat((position * channels + 1)[:, :, None], depth, axis=2)
        else:
            ticks = position[:, :, None] * channels + in_position[None, None, :]
        last[batch] = np.where(seen[:, :, None], ticks, -1)
    return last.reshape(-1)


def _last_windows(window: WindowGeometry, axis: int) -> npt.NDArray[np.int64]:
    """By row (or column) of the input, the last of the output whose window holds it; -1 where none does."""
    last_read = np.full(window.read[axis + 1], -1, np.int64)
    for place in range(window.written[axis + 1]):
        begin = place * window.strides[axis] - window.pads[axis]
        for tap in range(window.kernel[axis]):
            tap_place = begin + tap * window.dilations[axis]
            if 0 <= tap_place < len(last_read):
                last_read[tap_place] = place
    return last_read
