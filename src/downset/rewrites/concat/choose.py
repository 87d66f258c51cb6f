"""The search for concatenations to take apart: those whose rewriting lowers the peak of the best order.

Source: "Ordering Chaos", section 3.3, applies every rewriting that it finds; this search is ours.
Names: a *site* is a concatenation that `partition_sites` lists.
Complexity: one exact search for an order for each set of sites that is tried. Of a few sites all 2^n sets are tried;
    otherwise sets that grow by the sites whose tensors are live at the peak, so that there are about as many sets as
    peaks.
Deviations: rewriting also costs time, and memory where the runtime does not sum in place (an accumulator for each
    part). So sites that do not lower the peak are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, combinations

from downset.budget import Budget, Clock
from downset.graph.core import Graph
from downset.graph.kinds import FUSED_CONV
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.orders.plan import plan_order
from downset.results.fit import Rewrite
from downset.results.plans import Order
from downset.rewrites.concat.partition import Accumulate, Partitioned, PartitionedReader, partition, partition_sites
from downset.rewrites.concat.rules import moves_behind

__all__ = ["accumulation", "choose_rewrites"]

_FEW = 4
"""The most sites of which every set is tried."""


_SET_STATES = 2**16
"""States of one order search under a work limit. Searches that finish take hundreds or thousands."""

_MANY = 24
"""The most sites of which the set of all is always tried."""


@dataclass(frozen=True, slots=True)
class ChosenRewrites:
    """The rewritten graph (the original where no rewriting lowers the peak), its order, and the rewrites. `before`: the
    order of the original graph. `in_time`: no time limit ended a search, so that another run chooses the same."""

    graph: Graph
    order: Order
    before: Order
    rewrites: tuple[Rewrite, ...]
    in_time: bool


def accumulation(memory: MemoryName | MemoryModel) -> Accumulate:
    """The way of adding up partial results that takes the least memory under a memory model."""
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
    """The set of sites whose rewriting gives the least peak found under the memory model, without sites that are not
    needed for it. The peak is never higher than that of the original's order.

    The result is deterministic unless the time runs out; it is then the best so far. `work_limit`: states of all order
    searches. The states for one set of sites are limited too, so that a larger `work_limit` repeats the same searches
    first and never gives a higher peak.
    """
    search = _RewriteSearch(graph, memory_model(memory), inexact, Budget(time_limit_s, work_limit).start())
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
        search.in_time(),
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
    clock: Clock
    readers: tuple[tuple[int, ...], ...] = field(init=False)
    tried: dict[frozenset[int], _Tried] = field(default_factory=dict)
    regions: dict[int, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers = self.graph.consumers()

    def in_time(self) -> bool:
        orders = [tried.order.evidence.stopped_by for tried in self.tried.values()]
        return "time" not in (self.clock.stopped_by(), *orders)

    def made(self, sites: frozenset[int]) -> Partitioned:
        """The graph with these sites taken apart."""
        return partition(self.graph, sorted(sites), accumulate=accumulation(self.model), inexact=self.inexact)

    def judge(self, sites: frozenset[int]) -> _Tried:
        """The graph with these sites taken apart, in its best order."""
        if sites not in self.tried:
            judged = self.made(sites)
            by_time = self.clock.budget.states is None
            part = (
                self.clock.part(seconds=0.25 * self.clock.budget.seconds)
                if by_time
                else self.clock.part(states=_SET_STATES)
            )
            seconds = max(part.budget.seconds, 0.01)
            order = plan_order(judged.graph, memory=self.model, time_limit_s=seconds, work_limit=part.budget.states)
            self.clock.count(max(order.evidence.states, 1))
            self.tried[sites] = _Tried(judged.graph, order, judged.splits)
        return self.tried[sites]

    def best(self) -> frozenset[int]:
        """The set tried with the least peak; of equals the one with the fewest sites, then with the first in the
        file."""
        self.judge(frozenset())
        return min(self.tried, key=lambda sites: (self.tried[sites].peak_bytes, len(sites), sorted(sites)))

    def try_all(self, sets: Iterable[frozenset[int]]) -> None:
        for sites in sets:
            if self.clock.over():
                return
            self.judge(sites)

    def follow_the_peak(self, sites: tuple[int, ...]) -> None:
        """Grow the set by the sites that are live at the peak, as long as the peak does not rise. Then try the set of
        all sites, since another order of equal peak may have it elsewhere. Where there are many sites this is done only
        if nothing was gained, since a graph with all of them taken apart is slow to search."""
        current: frozenset[int] = frozenset()
        self.judge(current)
        while not self.clock.over():
            alive = self._alive(current, sites) - current
            grown = [current | alive, *(current | {site} for site in sorted(alive))] if alive else []
            level = self.tried[current].peak_bytes
            fits = next((one for one in grown if not self.clock.over() and self.judge(one).peak_bytes <= level), None)
            if fits is None:
                break
            current = fits
        gained = self.tried[current].peak_bytes < self.tried[frozenset()].peak_bytes
        if not self.clock.over() and not (gained and len(sites) > _MANY):
            self.judge(frozenset(sites))

    def take_back(self) -> None:
        """Drop sites that the best set does not need: all, then halves and smaller parts, where the peak does not
        rise."""
        while not self.clock.over():
            best = self.best()
            count = len(best)
            while count and not self.clock.over():
                for chunk in _batches(sorted(best, reverse=True), count):
                    less = best.difference(chunk)
                    if not self.clock.over() and self.judge(less).peak_bytes <= self.tried[best].peak_bytes:
                        best = less
                count //= 2
            if self.best() == best and all(best - {site} in self.tried for site in best):
                return

    def gain(self, best: frozenset[int], site: int) -> int:
        """By how many bytes the peak is higher without the site; if a limit was reached and that was not tried, by how
        many it is higher without any site."""
        without = self.tried.get(best - {site}) or (
            self.tried[frozenset()] if self.clock.over() else self.judge(best - {site})
        )
        return without.peak_bytes - self.tried[best].peak_bytes

    def _alive(self, current: frozenset[int], sites: tuple[int, ...]) -> frozenset[int]:
        """Sites of which a tensor (see `_region`) is live at a step with the largest transient."""
        now = self.tried[current]
        steps = now.order.steps
        needs = profile(order_problem(now.graph, self.model), steps)
        most = max(needs)
        peaks = (0, *accumulate(int(need == most) for need in needs))
        living = lifetimes(now.graph, steps, self.model)
        names = {
            tensor.name
            for tensor, record in zip(now.graph.tensors, living.record_of, strict=True)
            if record >= 0 and peaks[living.records[record].start] < peaks[living.records[record].stop]
        }
        return frozenset(site for site in sites if site not in current and names & self._region(site))

    def _region(self, site: int) -> frozenset[str]:
        """Names of the concatenation's result and of the results of all operators that it could move behind."""
        if site not in self.regions:
            stack = [self.graph.ops[site].outputs[0]]
            region = set(stack)
            while stack:
                for reader in self.readers[stack.pop()]:
                    op = self.graph.ops[reader]
                    results = {tensor for tensor in op.outputs if tensor >= 0} - region
                    region |= results if moves_behind(op) else set()
                    # Another concatenation joins the parts again; it is a separate site.
                    stack += sorted(results) if moves_behind(op) and op.kind != "Concat" else []
            self.regions[site] = frozenset(self.graph.tensors[tensor].name for tensor in region)
        return self.regions[site]
