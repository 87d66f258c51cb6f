"""Further chains of cuts for a network whose cuts are many: around the best stages of whole layers, fine and coarse.

Source: ours. A search over stages of rows works on one chain of cuts, and which chain is best depends on the devices.
`whole_layers` searches all downsets at once for stages of one device each. The cuts of its plan, with cuts between
them, are a chain on which a search over rows begins with that plan; the chain of pieces, thinned, gives others.
Names: room → how many cuts a chain has in addition to those that it must have.
Complexity: `whole_layers`, and O(edges between downsets) for each chain.
Deviations: the rooms are the same for every network and limit, so that a larger limit on the length of chains begins
with the chains of a smaller one, and never gives a longer period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.errors import DownsetError
from downset.graph.core import Graph
from downset.graph.cost import longest_axis
from downset.pipelines.cuts import CutChain, refined_cuts, thinned
from downset.pipelines.drafts import Split, StageDraft, StageDrafts, Tile
from downset.pipelines.network import split_problem
from downset.pipelines.pieces import PieceProblem, piece_problem
from downset.pipelines.prices import PricedChain
from downset.pipelines.whole_layers import WholeLayers, whole_layers

__all__ = ["MOST_CHAINS", "further_chains"]

_CHAINS = ((16, True), (24, False), (32, True))
"""The room of each chain, rising, and whether it is one around the best whole layers or the chain of no piece."""
MOST_CHAINS = len(_CHAINS)
_ORDER_STATES = 5_000
"""The most states for the order inside a stage."""
_SHARE = 1 / 3
"""The share of the clock for the search over downsets."""


def further_chains(
    graph: Graph, cluster: Cluster, *, clock: Clock, rows: bool, most: int = _CHAINS[-1][0]
) -> Iterator[PricedChain]:
    """Yield up to `MOST_CHAINS` chains, shorter ones first, with at most `most` cuts in addition to those that they
    must have, each with the plans to begin with. There are none where the network has one chain of cuts only, or the
    clock ends the search. `rows`: for a search that is not exact on its chain, which may find more on a shorter one;
    otherwise the longest chain around the plan is all."""
    try:
        problem = piece_problem(graph, axis=longest_axis(graph), halos_required=False)
        whole_problem = split_problem(graph, problem.vertices, halos_required=False)
    except DownsetError:
        return
    if not rows and all(not before & ~earlier for earlier, before in _ahead(problem)):
        return  # every vertex waits for all before it: there is one chain, and a search that is exact there
    layers = whole_layers(whole_problem, cluster, clock=clock.within(clock.left() * _SHARE))
    refined: dict[bool, CutChain] = {}
    seen: set[tuple[int, ...]] = set()
    for room, around in _CHAINS if rows else _CHAINS[-1:]:
        if room > most or (around and layers is None):
            continue
        if around not in refined:
            stages = layers.stages if around and layers is not None else None
            refined[around] = refined_cuts(problem, stages, state_limit=_ORDER_STATES, clock=clock)
        chain = thinned(problem, refined[around], room)
        if chain.cuts not in seen:
            seen.add(chain.cuts)
            yield _priced(graph, problem, chain, layers if around else None)


def _ahead(problem: PieceProblem) -> Iterator[tuple[int, int]]:
    """By vertex: what it waits for, and all vertices before it."""
    closed: list[int] = []
    for v, before in enumerate(problem.predecessors):
        mask = before
        for earlier in range(v):
            if before >> earlier & 1:
                mask |= closed[earlier]
        closed.append(mask)
        yield mask, (1 << v) - 1


def _priced(graph: Graph, problem: PieceProblem, chain: CutChain, layers: WholeLayers | None) -> PricedChain:
    priced = PricedChain(split_problem(graph, chain.units(problem), halos_required=False))
    priced.beginnings = () if layers is None else (_drafts(priced, chain.cuts, layers),)
    return priced


def _drafts(priced: PricedChain, cuts: Sequence[int], layers: WholeLayers) -> StageDrafts:
    """The stages of whole layers on a chain with their cuts, handed over without leaders."""
    drafts, start, before = [], 0, 0
    for stage, device in zip(layers.stages, layers.devices, strict=True):
        before |= sum(1 << v for v in stage)
        stop = cuts.index(before)
        tile = Tile(device, 0, priced.segment(start, stop).rows)
        drafts.append(StageDraft(-1, (Split(start, stop, (tile,), halo=True),)))
        start = stop
    return tuple(drafts)
