"""Which concatenations to take apart: only those whose rewriting lowers the peak of the best order.

Source: "Ordering Chaos", section 3.3, applies every rewriting it finds; this search is ours.
Names: a *site* is a concatenation that `partition_sites` lists.
Complexity: one exact order search for each set of sites that is tried: all 2^n sets of a few sites; otherwise sets that
    grow by the sites alive where the peak is, so that their number is that of the peaks met.
Deviations: rewriting costs memory too (an accumulator beside each part, where the runtime has no sum in place) and
    time, so what does not lower the peak is taken back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from downset.graph.core import Graph
from downset.graph.kinds import FUSED_CONV
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.orders.plan import plan_order
from downset.plans import Order, Rewrite
from downset.rewrites.concat.partition import Accumulate, Partitioned, PartitionedReader, partition, partition_sites
from downset.rewrites.concat.rules import moves_behind

__all__ = ["ChosenRewrites", "accumulation", "choose_rewrites"]

_FEW = 4
"""Up to so many sites every set of them is tried."""


_SET_STATES = 2**16
"""States of one order search under a work limit. Searches that finish take hundreds or thousands."""

_MANY = 24
"""Up to so many sites all at once are tried in any case."""


@dataclass(frozen=True, slots=True)
class ChosenRewrites:
    """The rewritten graph (the original where nothing pays), its order, and what was done. `before`: the original's."""

    graph: Graph
    order: Order
    before: Order
    rewrites: tuple[Rewrite, ...]


def accumulation(memory: MemoryName | MemoryModel) -> Accumulate:
    """How the runtime of a memory model adds partial results up with least memory."""
    model = memory_model(memory)
    if model.accumulates:
        return "sum"
    return "fused" if FUSED_CONV in model.in_place_input else "chain"


def choose_rewrites(
    graph: Graph,
    *,
    memory: MemoryName | MemoryModel,
    inexact: bool = False,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
) -> ChosenRewrites:
    """The set of sites whose rewriting gives the least peak found under the memory model, and no site more than needed.

    Deterministic unless the time runs out; then the best so far. Never a higher peak than the original's best order.
    `work_limit`: states of all order searches; each set of sites gets so many of them at most that it gets the same
    under any larger limit, so that a larger one never gives a higher peak.
    """
    search = _RewriteSearch(
        graph, memory_model(memory), inexact, time.perf_counter() + time_limit_s, time_limit_s, work_limit
    )
    sites = partition_sites(graph, inexact=inexact)
    nothing: frozenset[int] = frozenset()
    if sites:
        if len(sites) <= _FEW:
            search.try_all(
                frozenset(chosen) for size in range(1, len(sites) + 1) for chosen in combinations(sites, size)
            )
        else:
            search.follow_the_peak(sites)
        search.take_back()
    best = search.best()
    gained = [(site, search.gain(best, site)) for site in sorted(best)]
    return ChosenRewrites(
        search.tried[best].graph,
        search.tried[best].order,
        search.judge(nothing).order,
        tuple(_rewrite(graph, site, search.tried[best].splits, bytes_gained) for site, bytes_gained in gained),
    )


def _rewrite(graph: Graph, site: int, splits: tuple[PartitionedReader, ...], bytes_gained: int) -> Rewrite:
    name = graph.ops[site].name
    ours = [split for split in splits if split.site == name]
    kind = "channel-wise" if any(split.kind == "channel-wise" for split in ours) else "kernel-wise"
    return Rewrite(name, tuple(split.reader for split in ours), kind, bytes_gained)


def _batches(items: list[int], count: int) -> list[list[int]]:
    return [items[begin : begin + count] for begin in range(0, len(items), count)]


@dataclass(frozen=True, slots=True)
class _Tried:
    graph: Graph
    order: Order
    splits: tuple[PartitionedReader, ...]

    @property
    def peak_bytes(self) -> int:
        return self.order.peak_bytes


@dataclass(slots=True)
class _RewriteSearch:
    graph: Graph
    model: MemoryModel
    inexact: bool
    deadline: float
    time_limit_s: float
    work_limit: int | None
    states: int = 0
    readers: tuple[tuple[int, ...], ...] = field(init=False)
    tried: dict[frozenset[int], _Tried] = field(default_factory=dict)
    regions: dict[int, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers = self.graph.consumers()

    def over(self) -> bool:
        spent = self.work_limit is not None and self.states >= self.work_limit
        return spent or time.perf_counter() > self.deadline

    def made(self, sites: frozenset[int]) -> Partitioned:
        """The graph with these sites taken apart."""
        return partition(self.graph, sorted(sites), accumulate=accumulation(self.model), inexact=self.inexact)

    def judge(self, sites: frozenset[int]) -> _Tried:
        """The same in its best order."""
        if sites not in self.tried:
            judged = self.made(sites)
            left = max(min(self.deadline - time.perf_counter(), 0.25 * self.time_limit_s), 0.01)
            allowed = None
            if self.work_limit is not None:
                left = max(self.deadline - time.perf_counter(), 0.01)
                allowed = min(_SET_STATES, max(self.work_limit - self.states, 0))
            order = plan_order(judged.graph, memory=self.model, time_limit_s=left, work_limit=allowed)
            self.states += max(order.evidence.states, 1)
            self.tried[sites] = _Tried(judged.graph, order, judged.splits)
        return self.tried[sites]

    def best(self) -> frozenset[int]:
        """The least peak; among equals the fewest sites, then the first in the file."""
        self.judge(frozenset())
        return min(self.tried, key=lambda sites: (self.tried[sites].peak_bytes, len(sites), sorted(sites)))

    def try_all(self, sets: Iterable[frozenset[int]]) -> None:
        for sites in sets:
            if self.over():
                return
            self.judge(sites)

    def follow_the_peak(self, sites: tuple[int, ...]) -> None:
        """Grow the set by the sites that are alive at the peak, as long as that does not rise; then try all sites, for
        another of the best orders may have its peak elsewhere (many at once only if nothing was gained: a graph in
        pieces is slow to search)."""
        current: frozenset[int] = frozenset()
        self.judge(current)
        while not self.over():
            alive = self._alive(current, sites) - current
            grown = [current | alive, *(current | {site} for site in sorted(alive))] if alive else []
            level = self.tried[current].peak_bytes
            fits = next((one for one in grown if not self.over() and self.judge(one).peak_bytes <= level), None)
            if fits is None:
                break
            current = fits
        gained = self.tried[current].peak_bytes < self.tried[frozenset()].peak_bytes
        if not self.over() and not (gained and len(sites) > _MANY):
            self.judge(frozenset(sites))

    def take_back(self) -> None:
        """Drop what the best set does not need: halves of it, then ever fewer, as long as the peak stays."""
        while not self.over():
            best = self.best()
            count = len(best)
            while count and not self.over():
                for chunk in _batches(sorted(best, reverse=True), count):
                    less = best.difference(chunk)
                    if not self.over() and self.judge(less).peak_bytes <= self.tried[best].peak_bytes:
                        best = less
                count //= 2
            if self.best() == best and all(best - {site} in self.tried for site in best):
                return

    def gain(self, best: frozenset[int], site: int) -> int:
        """By how much the peak rises without the site; against the original's where the time is over."""
        without = self.tried.get(best - {site}) or (
            self.tried[frozenset()] if self.over() else self.judge(best - {site})
        )
        return without.peak_bytes - self.tried[best].peak_bytes

    def _alive(self, current: frozenset[int], sites: tuple[int, ...]) -> frozenset[int]:
        """Sites whose concatenation, or what it could move behind, lives at a step of greatest need."""
        now = self.tried[current]
        steps = now.order.steps
        needs = profile(order_problem(now.graph, self.model), steps)
        peaks = [step for step, need in enumerate(needs) if need == max(needs)]
        living = lifetimes(now.graph, steps, self.model)
        names = {
            tensor.name
            for tensor, record in zip(now.graph.tensors, living.record_of, strict=True)
            if record >= 0
            and any(living.records[record].start <= position < living.records[record].stop for position in peaks)
        }
        return frozenset(site for site in sites if site not in current and names & self._region(site))

    def _region(self, site: int) -> frozenset[str]:
        """Names of what exists because the concatenation does: its result, and what it could move behind, at most."""
        if site not in self.regions:
            stack = [self.graph.ops[site].outputs[0]]
            region = set(stack)
            while stack:
                for reader in self.readers[stack.pop()]:
                    op = self.graph.ops[reader]
                    results = {tensor for tensor in op.outputs if tensor >= 0} - region
                    region |= results if moves_behind(op) else set()
                    # The parts go on into another concatenation, which is a site of its own.
                    stack += sorted(results) if moves_behind(op) and op.kind != "Concat" else []
            self.regions[site] = frozenset(self.graph.tensors[tensor].name for tensor in region)
        return self.regions[site]
