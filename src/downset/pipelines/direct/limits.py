"""Lower bounds of a strip's cost under direct hand-over, and how many rows a set of devices can take within a period.

Names: limit → a constraint `upper[hi] - lower[lo] <= P` on a strip [lo, hi) in seconds, with `final[lo]` for the last
strip; sent → bytes of rows that only this strip makes and that other stages read: they are sent at least once; states →
multisets of device types; reach → the row behind the last one that a set can compute, from the top row down, if each
device takes as many rows as it can. Greedy is right because a strip that begins lower reaches at least as far.
The strips of a first stage read the frame where it appears, at the entry. So the entry, a device of that stage, sends
what the others read and does not fetch its own rows. The exit, a device of the last stage, is treated alike.
All segments and sets are computed at once: the rows of all segments lie one behind the other in one array.
Complexity: O(types · rows · log rows) and O(states) for each segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downset.clusters.model import Cluster
from downset.pipelines.floors import Reads
from downset.pipelines.prices import PricedChain

__all__ = [
    "Batch",
    "DeviceType",
    "Limit",
    "SegmentBytes",
    "batch_of",
    "device_types",
    "limits_of",
    "reached",
    "segment_bytes",
]

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
    devices, occupied = cluster.devices, cluster.occupied
    others = [[occupied.link(one, two) for two in range(len(devices)) if two != one] for one in members]
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

    units: tuple[int, int]
    """The first unit, and the unit behind the last."""
    rows: int
    macs: tuple[Floats, Floats, Floats]
    moved: tuple[Floats, Floats, Floats]
    fetched: tuple[Floats, Floats, Floats]
    sent: tuple[Floats, Floats, Floats]
    came: float
    """The bytes that all strips together must fetch."""


def segment_bytes(
    problem: PricedChain, start: int, stop: int, reads: Reads, *, frame_is_held: bool, results_are_held: bool
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
    return SegmentBytes(
        (start, stop), segment.rows, tables[0], tables[1], tables[2], sent, float(reads.came(start, stop))
    )


def _reads_frame(problem: PricedChain, start: int, stop: int) -> bool:
    frame = set(problem.crossing(0))
    return any(frame & set(problem.ops[op].inputs) for unit in problem.units[start:stop] for op in unit)


def _sent(
    problem: PricedChain, start: int, stop: int, reads: Reads, *, results_are_held: bool
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


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _SegmentLimits:
    """One limit, for all segments of a batch. `upper` never falls within a segment."""

    upper: Floats
    lower: Floats
    final: Floats
    fixed: Floats
    idle: Floats


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments between ends of the same kind. `limits[role][type]`: limits of a device that scatters the frame (ENTRY),
    gathers the results (EXIT), does both or neither; None if no device of the type may have the role. `needed`: roles
    that some device must have."""

    segments: tuple[tuple[int, int], ...]
    first: Ints
    rows: Ints
    segment_of: Ints
    limits: dict[int, list[list[_SegmentLimits] | None]]
    banned: npt.NDArray[np.bool_]
    needed: tuple[int, ...]


def batch_of(
    cluster: Cluster,
    kinds: Sequence[DeviceType],
    tables: Sequence[SegmentBytes],
    roles: Mapping[int, Sequence[bool]],
    needed: Sequence[int],
    banned: frozenset[tuple[int, int, int]],
) -> Batch:
    """The batch of the segments of these tables. `roles`: by role, the types that have a device which may have it.
    `banned`: (start, stop, device) that are forbidden."""
    segments = tuple(table.units for table in tables)
    rows = np.array([table.rows for table in tables], np.int64)
    first = np.concatenate(([0], np.cumsum(rows + 1)))[:-1].astype(np.int64)
    segment_of = np.repeat(np.arange(len(tables)), rows + 1)
    limits: dict[int, list[list[_SegmentLimits] | None]] = {}
    for role, may in roles.items():
        limits[role] = [
            _joined([limits_of(cluster, kind, table, role) for table in tables], falls=role > 0) if allowed else None
            for kind, allowed in zip(kinds, may, strict=True)
        ]
    out = np.array(
        [[all((*ends, device) in banned for device in kind.devices) for ends in segments] for kind in kinds], bool
    )
    return Batch(segments, first, rows, segment_of, limits, out, tuple(needed))


def _joined(limits: Sequence[Sequence[Limit]], *, falls: bool) -> list[_SegmentLimits]:
    joined = []
    for many in zip(*limits, strict=True):
        uppers = [one.upper for one in many]
        if falls:  # if the table falls, take the last row from which all later values are within the limit
            uppers = [np.append(np.minimum.accumulate(one[-2::-1])[::-1], one[-1]) for one in uppers]
        joined.append(
            _SegmentLimits(
                np.concatenate(uppers),
                np.concatenate([one.lower for one in many]),
                np.concatenate([one.final for one in many]),
                np.array([one.fixed for one in many]),
                np.array([one.idle for one in many]),
            )
        )
    return joined


def reached(batch: Batch, counts: Sequence[int], period: float) -> npt.NDArray[np.bool_]:
    """Whether each set can compute each segment within the period, by segment and state."""
    steps = {role: [_step(batch, kind, role, period) for kind in range(len(counts))] for role in batch.limits}
    top = batch.first[:, None]
    layers = {mask: (top if mask == 0 else np.full_like(top, -1)) for mask in sorted(batch.limits)}
    for kind, count in enumerate(counts):
        grown = [layers]
        for _ in range(count):
            grown.append(_one_more(grown[-1], {role: steps[role][kind] for role in steps}))
        layers = {
            mask: np.stack([level[mask] for level in grown], axis=2).reshape(len(batch.segments), -1) for mask in layers
        }
    end = (batch.first + batch.rows)[:, None]
    return np.asarray(np.logical_or.reduce([layers[mask] == end for mask in batch.needed]))


def _one_more(layers: dict[int, Ints], steps: dict[int, Ints | None]) -> dict[int, Ints]:
    """The layers with one more device, which may take a role that no device has yet."""
    extended = {}
    for mask in layers:
        best = np.full_like(layers[0], -1)
        for role, step in steps.items():
            if step is not None and mask & role == role:
                layer = layers[mask & ~role]
                best = np.maximum(best, np.where(layer >= 0, step[layer], -1))
        extended[mask] = best
    return extended


def _step(batch: Batch, kind: int, role: int, period: float) -> Ints | None:
    """How far one device gets from each row; -1 where it exceeds the limits of its role. None if no device of the type
    may have the role."""
    limits = batch.limits[role][kind]
    if limits is None:
        return None
    places = np.arange(len(batch.segment_of))
    end = (batch.first + batch.rows)[batch.segment_of]
    rooms = [(period - limit.fixed)[batch.segment_of] for limit in limits]
    ceilings = [limit.lower + room for limit, room in zip(limits, rooms, strict=True)]
    low, high = places.copy(), np.maximum(end - 1, places)
    for _ in range(int(batch.rows.max()).bit_length() + 1):
        middle = (low + high + 1) // 2
        fits = np.logical_and.reduce(
            [limit.upper[middle] <= ceiling for limit, ceiling in zip(limits, ceilings, strict=True)]
        )
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        high = np.maximum(low, high)
    whole = np.logical_and.reduce([limit.final <= room for limit, room in zip(limits, rooms, strict=True)])
    reachable = np.where(whole & (places < end), end, low)
    reachable = np.where(batch.banned[kind][batch.segment_of], places, reachable)
    if role:
        idle = np.logical_and.reduce([(period >= limit.idle)[batch.segment_of] for limit in limits])
        reachable = np.where(idle | (reachable > places), reachable, -1)
        # A strip that begins higher may reach farther; the rows above it are then computed twice.
        base = batch.segment_of * (len(places) + 1)
        reachable = np.maximum.accumulate(reachable + base) - base
        reachable = np.where(reachable >= 0, np.maximum(reachable, places), -1)
    return reachable.astype(np.int64)
