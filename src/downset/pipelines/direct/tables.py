"""Lower bounds of a strip's cost under direct hand-over, as tables over the rows of every segment.

Names: limit → a constraint `upper[hi] - lower[lo] <= P` on a strip [lo, hi) in seconds, with `final[lo]` for the last
strip; out → bytes of rows that only this strip makes and that other stages read: they are sent at least once.
The strips of a first stage read the frame where it appears, at the entry. So the entry, a device of that stage, sends
what the others read and does not fetch its own rows. The exit, a device of the last stage, is treated alike.
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
    """Devices that are alike, or that are taken as alike with the best value of each property. `per_byte` and
    `latency`: of the best link of any of them."""

    devices: tuple[int, ...]
    mac_per_s: float
    moved_per_s: float
    per_byte: float
    latency: float
    full_duplex: bool


def device_types(cluster: Cluster, types: Sequence[Sequence[int]]) -> tuple[DeviceType, ...]:
    """The types of these lists of devices, each with the best values of its devices."""
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
    """The bytes that all strips together must fetch."""


def segment_bytes(
    problem: SplitProblem, start: int, stop: int, reads: Reads, *, frame_is_held: bool, results_are_held: bool
) -> SegmentBytes:
    """The tables of units [start, stop). `frame_is_held`: a device of a later stage may hold the frame already, as the
    source. `results_are_held`: a device of an earlier stage may keep results, as the sink. The bytes of such devices
    are left out."""
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
    """Tables of the rows that one strip alone makes: of tensors without a reader inside (its halo would be made twice),
    and of operators that can make some of their rows."""
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
    """Seconds of a strip as tables, plus `fixed` seconds that do not depend on its rows. `idle`: the seconds of a
    device that has the role and no rows."""

    upper: Floats
    lower: Floats
    final: Floats
    fixed: float
    idle: float


def limits_of(cluster: Cluster, kind: DeviceType, tables: SegmentBytes, role: int) -> list[Limit]:
    """The limits of a strip on such a device in its `role` (0, ENTRY, EXIT or both); each must be at most P."""
    network = cluster.network
    fetched, sent = tables.fetched, tables.sent
    computing = _sum((1 / kind.mac_per_s, tables.macs), (1 / kind.moved_per_s, tables.moved))
    # The entry sends the rows that others read, the exit receives the rows that others make.
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
    """Whether the quantity is above 0 for every strip."""
    upper, lower, final = tables
    return bool((upper[1:-1] > lower[:-2]).all() and (final[:-1] > 0).all())
