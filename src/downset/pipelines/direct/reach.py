"""Computes how many rows of every segment a set of devices can take within a period, for all segments and sets at once.

Names: states → multisets of device types; reach → the row behind the last one that a set can compute, starting at the
top, when each device takes as many rows as it can. Greedy is right because a strip that begins lower reaches at least
as far.
The rows of all segments lie one behind the other in one array.
Complexity: O(types · rows · log rows) and O(states) for each segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downset.clusters.model import Cluster
from downset.pipelines.direct.tables import DeviceType, Limit, SegmentBytes, limits_of

__all__ = ["Batch", "batch_of", "reached"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
    segments: Sequence[tuple[int, int]],
    tables: Sequence[SegmentBytes],
    roles: Mapping[int, Sequence[bool]],
    needed: Sequence[int],
    banned: frozenset[tuple[int, int, int]],
) -> Batch:
    """The batch of these segments. `roles`: by role, the types that have a device which may have it. `banned`: (start,
    stop, device) that are forbidden."""
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
    return Batch(tuple(segments), first, rows, segment_of, limits, out, tuple(needed))


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
