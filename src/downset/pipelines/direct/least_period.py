"""Lower bounds on the period of all pipelines of row strips, with direct hand-over or with leaders.

Source: ours. Devices of neighbouring stages are different, so every row that a strip reads comes over the network, and
every row that it alone makes for others leaves over it. So the computing, fetching and sending of each device must sum
to at most P. Whether devices can meet this is decided by taking rows greedily (`reach`). On a shared network the medium
carries every fetched byte.
Names: state → multiset of devices used so far; label → how much of a limited quantity is left for later stages.
There are two spaces: stages of one fused block; and stages of any number of blocks, of which only sums over a stage are
known.
A guide asks the same for equal strips, and also that the devices of a stage have time to send the rows that later
stages fetch with their halos. It is not a bound; the plans that it finds are close to what neighbours really cause.
Complexity: a period is tried in O(cuts² · (rows + pairs of disjoint multisets)); about twenty are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.device_order import CanonicalDevices, canonical, rounded
from downset.pipelines.direct.limits import (
    ENTRY,
    EXIT,
    Batch,
    DeviceType,
    batch_of,
    device_types,
    reached,
    segment_bytes,
)
from downset.pipelines.direct.segment_sums import EqualStrips, SegmentSums, least_fetched_s, sums_suffice
from downset.pipelines.floors import Reads
from downset.pipelines.prices import PricedChain

__all__ = ["DirectSpace", "Relaxed", "Stages", "direct_space", "least_period"]

_STATES = 700
"""The most multisets of devices. With more, devices of similar speed count as equal, all as fast as the fastest."""
_SLACK = 1e-11
"""The share by which a tried period is enlarged, so that rounding never makes a bound too high."""

Stages = tuple[tuple[int, int, tuple[int, ...]], ...]
"""(first cut, last cut, number of devices of each type)."""
RelaxedSpace = Literal["one block", "any blocks", "guide"]


@dataclass(frozen=True)
class DirectSpace:
    """The space of plans whose period is bounded. `types[t]`: devices of the cluster that are taken as alike."""

    cuts: int
    types: tuple[tuple[int, ...], ...]
    batches: tuple[Batch, ...]
    pairs: Pairs
    sums: SegmentSums
    guide: EqualStrips
    medium_s: npt.NDArray[np.float64] | None
    """A lower bound on the seconds of a shared medium, by start, stop and multiset."""

    @property
    def counts(self) -> tuple[int, ...]:
        return self.pairs.counts

    def stages(self, period: float, plans: RelaxedSpace) -> Stages | None:
        """Stages in which every device is within the period, as far as the tables decide; None: no plan of the space
        is."""
        return _ReachableCuts(self, period * (1 + _SLACK), plans).stages()


def direct_space(
    problem: PricedChain,
    cluster: Cluster,
    accounting: Accounting,
    *,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> DirectSpace:
    form = canonical(cluster)
    if form.sets() > _STATES:
        form = rounded(form, _STATES, faster=True)
    types = _members(form)
    kinds = device_types(cluster, types)
    reads = Reads(problem)
    batches = _batches(problem, cluster, kinds, reads, accounting, forbidden)
    pairs = pairs_of([len(members) for members in types])
    guide = EqualStrips(problem, cluster, kinds, accounting)
    shared = cluster.network.kind == "shared"
    medium_s = least_fetched_s(problem, cluster, guide.many, accounting) if shared else None
    sums = SegmentSums(problem, cluster, kinds, reads, accounting)
    return DirectSpace(problem.cuts, types, batches, pairs, sums, guide, medium_s)


def _batches(
    problem: PricedChain,
    cluster: Cluster,
    kinds: Sequence[DeviceType],
    reads: Reads,
    accounting: Accounting,
    forbidden: frozenset[tuple[int, int, int]],
) -> tuple[Batch, ...]:
    """All segments, in batches of segments whose devices may have the same roles."""
    source, sink = accounting.source, accounting.sink
    groups: dict[int, list[tuple[int, int]]] = {}
    for start in range(problem.cuts):
        for stop in range(start + 1, problem.cuts + 1):
            groups.setdefault(ENTRY * (start == 0) | EXIT * (stop == problem.cuts), []).append((start, stop))
    batches = []
    for ends, segments in sorted(groups.items()):
        roles, needed = {0: [True] * len(kinds)}, [0]
        for role, device in ((ENTRY, source), (EXIT, sink)):
            if ends & role:
                may = [device is None or device in kind.devices for kind in kinds]
                roles |= {
                    other | role: [a and b for a, b in zip(may, old, strict=True)] for other, old in roles.items()
                }
                needed = [mask | role for mask in needed] + ([] if device is None else needed)
        tables = [
            segment_bytes(problem, *segment, reads, frame_is_held=source is not None, results_are_held=sink is not None)
            for segment in segments
        ]
        batches.append(batch_of(cluster, kinds, tables, roles, needed, forbidden))
    return tuple(batches)


def _members(form: CanonicalDevices) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(form.order[place] for place, kind in enumerate(form.type) if kind == one)
        for one in sorted(set(form.type))
    )


class _ReachableCuts:
    """The multisets of devices that reach each cut within a period. A larger label is better: for the guide it is the
    seconds that the last stage can still send; on a shared network minus the busy seconds of the medium."""

    def __init__(self, space: DirectSpace, period: float, plans: RelaxedSpace) -> None:
        self.space, self.period, self.plans = space, period, plans
        self.shared = space.medium_s is not None
        self.least_label = -period if self.shared else -_SLACK * period

    def stages(self) -> Stages | None:
        cuts, pairs = self.space.cuts, self.space.pairs
        tables = self.tables()
        labels = np.full((cuts + 1, pairs.states), -math.inf)
        labels[0, 0] = 0.0 if self.shared else math.inf
        for stop in range(1, cuts + 1):
            reached = self.labels(labels, tables, stop, pairs.before, pairs.added)
            labels[stop] = np.maximum.reduceat(reached.max(axis=0), pairs.firsts)
        if labels[cuts].max() == -math.inf:
            return None
        return self.traced(labels, tables)

    def labels(
        self,
        labels: npt.NDArray[np.float64],
        tables: _Tables,
        stop: int,
        before: npt.NDArray[np.int64],
        added: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float64]:
        """The label behind a stage of the devices `added`, by start and pair of states; minus infinity if there is
        none."""
        left = labels[:stop][:, before] - tables.needs[:stop, stop][:, added]
        fits = (left >= self.least_label) & tables.able[:stop, stop][:, added]
        return np.where(fits, left if self.shared else tables.offers[:stop, stop][:, added], -math.inf)

    def tables(self) -> _Tables:
        space = self.space
        shape = (space.cuts + 1, space.cuts + 1, space.pairs.states)
        able, offers, needs = np.zeros(shape, bool), np.full(shape, math.inf), np.zeros(shape)
        for batch in space.batches:
            starts, stops = np.array(batch.segments).T
            can = reached(batch, space.counts, self.period)
            if self.plans == "any blocks":
                units = (stops - starts == 1)[:, None]
                can = np.where(units, can, sums_suffice(space.sums, batch.segments, self.period))
            can[:, 0] = False
            able[starts, stops] = can
        if self.plans == "guide":
            offers, needs, enough = space.guide.sending_s(self.period)
            able &= enough
        if space.medium_s is not None:
            needs = space.guide.fetched_s() if self.plans == "guide" else space.medium_s.copy()
        if space.medium_s is not None and self.plans == "any blocks":
            for (start, stop), seconds in space.sums.medium_s().items():
                if stop - start > 1:
                    needs[start, stop] = seconds
        return _Tables(able, offers, needs)

    def traced(self, labels: npt.NDArray[np.float64], tables: _Tables) -> Stages:
        """The stages that lead to the best state behind the last cut; of equal states the first."""
        pairs = self.space.pairs
        stop, state = self.space.cuts, int(labels[self.space.cuts].argmax())
        ends = [*pairs.firsts[1:], len(pairs.before)]
        stages: list[tuple[int, int, tuple[int, ...]]] = []
        while stop:
            own = slice(pairs.firsts[state], ends[state])
            before, added = pairs.before[own], pairs.added[own]
            reached = self.labels(labels, tables, stop, before, added)
            start, place = (int(one) for one in np.argwhere(reached == labels[stop, state])[0])
            stages.insert(0, (start, stop, pairs.members(int(added[place]))))
            stop, state = start, int(before[place])
        return tuple(stages)


@dataclass(frozen=True, slots=True)
class _Tables:
    """Tables by start, stop and multiset: whether it computes the segment; the seconds that it can send; and the
    seconds that it makes earlier stages send, or keeps the medium busy."""

    able: npt.NDArray[np.bool_]
    offers: npt.NDArray[np.float64]
    needs: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of disjoint multisets `before` and `added`, sorted by their union; `firsts`: where each union begins."""

    counts: tuple[int, ...]
    states: int
    before: npt.NDArray[np.int64]
    added: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]

    def members(self, state: int) -> tuple[int, ...]:
        shape = tuple(count + 1 for count in self.counts)
        return tuple(int(one) for one in np.unravel_index(state, shape))


def pairs_of(counts: Sequence[int]) -> Pairs:
    shape = tuple(count + 1 for count in counts)
    states = math.prod(shape)
    sets = np.array(np.unravel_index(np.arange(states), shape)).T
    before, added = [], []
    for state in range(states):
        parts = np.flatnonzero((sets <= sets[state]).all(axis=1))
        before.append(parts)
        added.append(state - parts)  # the number of a union is the sum of the numbers
    firsts = np.concatenate(([0], np.cumsum([len(part) for part in before])[:-1]))
    return Pairs(tuple(counts), states, np.concatenate(before), np.concatenate(added), firsts)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The result of the relaxation: no plan of the space has a period below `bound_s`. `tried`: the periods for which
    there were stages, with these stages; the shortest last. `periods`: how many were tried."""

    bound_s: float
    tried: tuple[tuple[float, Stages], ...]
    finished: bool
    periods: int


def least_period(
    ask: Callable[[float], Stages | None], *, at_least_s: float, at_most_s: float, close: float, clock: Clock
) -> Relaxed:
    """Bisect to a bound that is `close` to a period with stages within it, or until the end of the
    clock. `at_least_s` is a known bound, `at_most_s` the period of a plan."""
    low, high, periods = at_least_s, at_most_s, 0
    tried: list[tuple[float, Stages]] = []
    while low < high * (1 - close):
        if clock.late():
            return Relaxed(low, tuple(tried), False, periods)
        middle = math.sqrt(low * high) if low > 0 and high > 2 * low else (low + high) / 2
        stages = ask(middle)
        periods += 1
        if stages is None:
            low = middle
        else:
            high = middle
            tried.append((middle, stages))
    return Relaxed(low, tuple(tried), True, periods)
