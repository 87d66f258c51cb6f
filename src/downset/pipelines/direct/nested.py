"""Nested stages: devices that compute a part of the chain and, later, another one, while others compute what lies
between. Rows that the second part reads of the first one never leave these devices.

Source: ours, for networks whose skips go from their beginning to their end: in a U-Net the rows of the first level are
read by the last one, and any stage that has one of them only pays for the bytes of the other.
Names: fold → what is left of the chain, units [i, j), is computed by a group, which takes units [i, a) and [b, j) of
it, and by the groups behind it, which have [a, b). With b = j a fold is a stage of an ordinary pipeline.
Groups are consecutive devices of one order. A group's load is counted as its MACs at the speed of all its devices, and
the bytes over the borders of its units and of its strips (the rows that two strips read, in each unit) at the rate of
all its links. So the result is a beginning for the descent, which prices it as it is.
Complexity: the folds of n units are O(n⁴), with n at most `_UNITS`; each is asked once for each pair of devices, until
the end of the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.pipelines.device_order import by_speed
from downset.pipelines.drafts import Split, StageDraft, StageDrafts
from downset.pipelines.prices import PricedChain
from downset.pipelines.strips import fastest_on_top

__all__ = ["Folds", "folds_of", "nested_stages"]

_UNITS = 24
"""The most units of a chain whose folds are asked; of a longer one the cuts that carry least."""
_LEAST_UNITS = 3
Part = tuple[int, int, tuple[int, ...]]
"""Units [start, stop) and the devices that compute them."""


def nested_stages(problem: PricedChain, cluster: Cluster, clock: Clock) -> Iterator[StageDrafts]:
    """The folds of least load for devices from the fastest on, from the slowest on, and in turns from both ends, those
    that are found in time. Folds without a group that has two parts are left out: they are stages in a row, which
    others find."""
    if problem.cuts < _LEAST_UNITS:
        return
    folds = folds_of(problem, _chosen_cuts(problem))
    order = by_speed(cluster)
    half = (len(order) + 1) // 2
    turns = [device for pair in zip(order[:half], [*order[half:][::-1], -1], strict=False) for device in pair]
    for devices in (order, order[::-1], [device for device in turns if device >= 0]):
        parts = folds.best(cluster, devices, clock)
        if len(parts) > len({group for _, _, group in parts}):
            yield _drafts(problem, cluster, folds.cuts, parts)


def _chosen_cuts(problem: PricedChain) -> list[int]:
    """All cuts of a short chain; of a long one those that carry least, one for each equal part of the work."""
    if problem.cuts <= _UNITS:
        return list(range(problem.cuts + 1))
    before, carried = problem.macs_before(), problem.cut_bytes()
    best: dict[int, int] = {}
    for cut in range(1, problem.cuts):
        part = before[cut] * (_UNITS - 1) // (before[-1] + 1)
        if part not in best or carried[cut] < carried[best[part]]:
            best[part] = cut
    return sorted({0, *best.values(), problem.cuts})


@dataclass(frozen=True, slots=True)
class Folds:
    """By fold, in units between `cuts`: its ends (i, j, a, b), by which folds ascend, its MACs, the bytes over its
    borders, and those that two strips of it both read."""

    cuts: Sequence[int]
    ends: npt.NDArray[np.int64]
    macs: npt.NDArray[np.float64]
    nbytes: npt.NDArray[np.float64]
    halo: npt.NDArray[np.float64]

    def best(self, cluster: Cluster, devices: Sequence[int], clock: Clock) -> tuple[Part, ...]:
        """The parts of the folds of least load on groups of consecutive `devices`; none if the clock ends before."""
        count, units = len(devices), len(self.cuts) - 1
        i, j, a, b = self.ends
        begins = np.flatnonzero(np.diff(i * (units + 1) + j, prepend=-1))  # of the folds of each interval [i, j)
        low, high = i[begins], j[begins]
        least = np.full((count + 1, units + 1, units + 1), np.inf)
        least[:, range(units + 1), range(units + 1)] = 0.0
        ends_of = np.zeros(least.shape, np.int64)
        """By first device, low and high: where the first group ends."""
        for first in reversed(range(count)):
            if clock.over():
                return ()
            for last in range(first + 1, count + 1):
                loads = np.maximum(self._load_s(cluster, devices[first:last]), least[last, a, b])
                lowest = np.minimum.reduceat(loads, begins)
                less = lowest < least[first, low, high]
                least[first, low[less], high[less]] = lowest[less]
                ends_of[first, low[less], high[less]] = last
        return self._parts(cluster, devices, least, ends_of)

    def _load_s(self, cluster: Cluster, group: Sequence[int]) -> npt.NDArray[np.float64]:
        """The load of each fold on a group."""
        speed, count = sum(cluster.devices[device].speed for device in group), len(group)
        sent = self.nbytes + 2 * (count - 1) * self.halo
        computing, sending = self.macs / speed, sent / cluster.occupied.network.bytes_per_s
        if cluster.network.kind == "shared":
            return np.maximum(computing, sending)
        if cluster.network.overlap:
            return np.maximum(computing, sending / count)
        return computing + sending / count

    def _parts(
        self,
        cluster: Cluster,
        devices: Sequence[int],
        least: npt.NDArray[np.float64],
        ends_of: npt.NDArray[np.int64],
    ) -> tuple[Part, ...]:
        i, j, a, b = self.ends
        parts: list[Part] = []
        place, low, high = 0, 0, len(self.cuts) - 1
        while low < high:
            last = int(ends_of[place, low, high])
            folds = np.flatnonzero((i == low) & (j == high))
            loads = np.maximum(self._load_s(cluster, devices[place:last]), least[last, a, b])
            fold = folds[loads[folds].argmin()]
            left, right = int(a[fold]), int(b[fold])
            group = tuple(sorted(devices[place:last]))
            ends = ((low, high),) if left == right else ((low, left), (right, high))
            parts += [(self.cuts[start], self.cuts[stop], group) for start, stop in ends if start < stop]
            place, low, high = last, left, right
        return tuple(sorted(parts))


def folds_of(problem: PricedChain, cuts: Sequence[int]) -> Folds:
    """All folds of the chain whose units end at these cuts, which ascend from 0 to the end."""
    units = len(cuts) - 1
    grid = np.indices((units + 1,) * 4).reshape(4, -1)
    i, j, a, b = grid
    ends = grid[:, (i <= a) & (a <= b) & (b <= j) & (i < j) & ((i < a) | (b < j))]
    i, j, a, b = ends
    before = np.array([problem.macs_before()[cut] for cut in cuts], np.float64)
    unit_of = np.searchsorted(np.array(cuts), np.arange(problem.cuts), side="right") - 1
    makers: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for unit, ops in enumerate(problem.units):
        for op in ops:
            makers |= {tensor: int(unit_of[unit]) for tensor in problem.ops[op].outputs}
            for tensor in problem.ops[op].inputs:
                readers.setdefault(tensor, set()).add(int(unit_of[unit]))
    nbytes = np.zeros(ends.shape[1])
    for tensor, own in readers.items():
        maker = makers.get(tensor, -1)
        inside = [((i <= unit) & (unit < a)) | ((b <= unit) & (unit < j)) for unit in sorted(own)]
        makes = ((i <= maker) & (maker < a)) | ((b <= maker) & (maker < j))
        reads, others = np.any(inside, axis=0), ~np.all(inside, axis=0)
        nbytes += problem.tensors[tensor].nbytes * np.where(makes, others, reads)
    halo = np.array([0.0, *np.cumsum([_halo_bytes(problem, ops) for ops in problem.units])])[list(cuts)]
    macs, both = (of[a] - of[i] + of[j] - of[b] for of in (before, halo))
    return Folds(cuts, ends, macs, nbytes, both)


def _halo_bytes(problem: PricedChain, ops: Sequence[int]) -> int:
    """The bytes of the rows that both sides of a border in the middle of each operator's rows read."""
    total = 0
    for op in (problem.ops[op] for op in ops):
        middle = problem.tensors[op.outputs[0]].rows // 2
        for tensor, first, last in zip(op.inputs, op.first, op.last, strict=True):
            if middle:
                total += max(0, int(last[middle] - first[middle])) * problem.tensors[tensor].row_bytes
    return total


def _drafts(problem: PricedChain, cluster: Cluster, cuts: Sequence[int], parts: Sequence[Part]) -> StageDrafts:
    """Stages of a block for each unit; groups whose parts lie around others' are one stage with them."""
    stages: list[list[Part]] = []
    until = 0
    for part in parts:
        if part[0] >= until:
            stages.append([])
        stages[-1].append(part)
        until = max(until, *(stop for _, stop, group in parts if group == part[2]))
    return tuple(
        StageDraft(-1, tuple(split for part in own for split in _splits(problem, cluster, cuts, *part)))
        for own in stages
    )


def _splits(
    problem: PricedChain, cluster: Cluster, cuts: Sequence[int], start: int, stop: int, group: Sequence[int]
) -> Iterator[Split]:
    inside = [cut for cut in cuts if start <= cut <= stop] if len(group) > 1 else [start, stop]
    speeds = [device.speed for device in cluster.devices]
    for low, high in pairwise(inside):
        yield Split(low, high, fastest_on_top(problem.segment(low, high).rows, group, speeds), halo=True)
