"""Lower bounds of a strip's cost where stages hand over directly, as tables over the rows of every segment.

Names: limit → a constraint `upper[hi] - lower[lo] <= P` on a strip [lo, hi) in seconds, `final[lo]` where the strip is
the last; out → bytes of rows that this strip alone makes and that somebody else reads: they are sent at least once.
A strip of a first stage reads the frame where it appears, at the entry; so one device of that stage, the entry, sends
what the others read instead of fetching its own rows. One device of the last stage, the exit, likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downset.clusters.model import Cluster
from downset.pipelines.direct.reads import Reads
from downset.pipelines.problem import SplitProblem

__all__ = ["DeviceType", "Limit", "SegmentBytes", "device_types", "limits_of", "segment_bytes"]

Floats = npt.NDArray[np.float64]
ENTRY, EXIT = 1, 2


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Devices that are alike, or the fastest in everything of those taken as alike. `per_byte` and `latency`: of the
    best link that one has."""

    devices: tuple[int, ...]
    mac_per_s: float
    moved_per_s: float
    per_byte: float
    latency: float
    full_duplex: bool


def device_types(cluster: Cluster, types: Sequence[Sequence[int]]) -> tuple[DeviceType, ...]:
    """The best of each list of devices."""
    return tuple(_best_of(cluster, tuple(devices)) for devices in types)


def _best_of(cluster: Cluster, members: tuple[int, ...]) -> DeviceType:
    devices, held = cluster.devices, cluster.occupied
    others = [[held.link(one, two) for two in range(len(devices)) if two != one] for one in members]
    links = [link for line in others for link in line]
    return DeviceType(
        members,
        max(devices[one].peak_speed for one in members),
        max(devices[one].moved_per_s for one in members),
        min((1.0 / rate for rate, _ in links), default=0.0),
        min((latency for _, latency in links), default=0.0),
        any(cluster.duplex(one) == "full" for one in members),
    )


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """Tables (upper, lower, final) of a segment by row: MACs, moved bytes, bytes fetched, bytes sent at least once."""

    rows: int
    macs: tuple[Floats, Floats, Floats]
    moved: tuple[Floats, Floats, Floats]
    fetched: tuple[Floats, Floats, Floats]
    sent: tuple[Floats, Floats, Floats]
    came: float
    """Bytes that all strips together must have."""


def segment_bytes(
    problem: SplitProblem, start: int, stop: int, reads: Reads, *, frame_is_held: bool, results_are_held: bool,
) -> SegmentBytes:  # fmt: skip
    """`frame_is_held`: a device of a later stage may have the frame already (it is the source); `results_are_held`: one
    of an earlier stage may keep results (it is the sink). What such devices move is then left out."""
    segment = problem.segment(start, stop)
    tables = [
        tuple(table[quantity].astype(np.float64) for table in (segment.upper, segment.lower, segment.final))
        for quantity in (0, 3, 1)
    ]
    if frame_is_held and start > 0 and _reads_frame(problem, start, stop):
        tables[2] = tuple(np.zeros(segment.rows + 1) for _ in range(3))
    sent = _sent(problem, start, stop, reads, results_are_held=results_are_held)
    return SegmentBytes(segment.rows, tables[0], tables[1], tables[2], sent, float(reads.came(start, stop)))


def _reads_frame(problem: SplitProblem, start: int, stop: int) -> bool:
    frame = set(problem.crossing(0))
    return any(frame & set(problem.ops[op].inputs) for unit in problem.units[start:stop] for op in unit)


def _sent(
    problem: SplitProblem, start: int, stop: int, reads: Reads, *, results_are_held: bool
) -> tuple[Floats, Floats, Floats]:
    """Own rows of tensors that one strip makes alone: no reader inside (its halo would be made twice), no operator that
    makes all rows or none."""
    rows = problem.segment(start, stop).rows
    frame = np.arange(rows + 1, dtype=np.int64)
    upper, lower, final = (np.zeros(rows + 1) for _ in range(3))
    inside = [op for unit in problem.units[start:stop] for op in unit]
    later = {t for unit in problem.units[stop:] for op in unit for t in problem.ops[op].inputs}
    read_inside = {tensor for op in inside for tensor in problem.ops[op].inputs}
    wanted = later if results_are_held and stop < problem.cuts else later | problem.kept
    for op in inside:
        described = problem.ops[op]
        (tensor, *more) = described.outputs
        if more or described.whole or tensor in read_inside or tensor not in wanted:
            continue
        extent, row_bytes = problem.tensors[tensor].rows, problem.tensors[tensor].row_bytes
        before = np.concatenate(([0], np.cumsum(reads.rows[tensor]))) * float(row_bytes)
        if extent == 1:
            final += before[-1]
            continue
        sent = before[frame * extent // rows]
        upper += sent
        lower += sent
        final += before[-1] - sent
    return upper, lower, final


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds of a strip as tables, beside `fixed` ones that do not depend on its rows. `idle`: those of a device that
    has the role and no rows."""

    upper: Floats
    lower: Floats
    final: Floats
    fixed: float
    idle: float


def limits_of(cluster: Cluster, kind: DeviceType, tables: SegmentBytes, role: int) -> list[Limit]:
    """The quantities of a strip on such a device that must each be at most P, in its `role`: 0, ENTRY, EXIT or both."""
    network = cluster.network
    fetched, sent = tables.fetched, tables.sent
    computing = _sum((1 / kind.mac_per_s, tables.macs), (1 / kind.moved_per_s, tables.moved))
    # The entry sends what the others read: all but its own rows. The exit receives what the others make.
    receive = _sum((kind.per_byte * (not role & ENTRY), fetched), (-kind.per_byte * bool(role & EXIT), sent))
    send = _sum((kind.per_byte * (not role & EXIT), sent), (-kind.per_byte * bool(role & ENTRY), fetched))
    gathered = float(sent[2][0]) * kind.per_byte if role & EXIT else 0.0
    scattered = tables.came * kind.per_byte if role & ENTRY else 0.0
    receive_s = gathered + (0.0 if role & ENTRY else kind.latency * _always(fetched))
    send_s = scattered + (0.0 if role & EXIT else kind.latency * _always(sent))
    if not network.overlap:
        return [Limit(*_sum((1.0, computing), (1.0, receive), (1.0, send)), receive_s + send_s, gathered + scattered)]
    limits = [Limit(*computing, 0.0, 0.0)]
    if network.kind == "shared":
        return limits
    if kind.full_duplex:
        return [*limits, Limit(*receive, receive_s, gathered), Limit(*send, send_s, scattered)]
    return [*limits, Limit(*_sum((1.0, receive), (1.0, send)), receive_s + send_s, gathered + scattered)]


def _sum(*parts: tuple[float, tuple[Floats, Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    first, second, third = (sum(weight * tables[place] for weight, tables in parts) for place in range(3))
    return np.asarray(first), np.asarray(second), np.asarray(third)


def _always(tables: tuple[Floats, Floats, Floats]) -> bool:
    """Whether every strip has some of it."""
    upper, lower, final = tables
    return bool((upper[1:-1] > lower[:-2]).all() and (final[:-1] > 0).all())
