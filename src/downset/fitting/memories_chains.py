"""Networks in strips of rows that move and access fewer bytes of slow memory than the network as it is.

Source: ours.
Names: a *cut* lies before an operator, where one activation is alive that is not larger than at the cuts beside it. A
    *way* runs the operators between two cuts as they are or in strips. A *chain* has a way from each of its cuts to the
    next.
Complexity: each way is priced once, by the quick residency of its own operators, with what enters and leaves it in slow
    memory. Then the chain of least cost is that of least sum.
Deviations: ways between cuts that lie near each other are priced first; a limit ends the pricing, and the chain is the
    best of the ways priced so far. What a way hands to strips stays in pieces, which no concatenation joins. Where the
    persistent part of further operators takes room, a chain has no more than a share of the room for it, and what is
    left is for tensors: each way has a price for each share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, product
from typing import NamedTuple

from downset.budget import Clock
from downset.errors import DownsetError
from downset.formats.firmware_memories import described_bytes
from downset.graph.core import ABSENT, Graph
from downset.graph.cost import row_form
from downset.memories.of_graph import MemoriesRequest, Prices, memories_form
from downset.memories.residency import quick_residency
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from downset.partial.memory_form import tflm_kept, tflm_persistent
from downset.partial.rewrite import InStrips, in_strips
from downset.rewrites.tflite_form import tflite_form, writable_rows

__all__ = ["Room", "Strips", "find_strips"]

_PLACING = 0.9
"""The share of fast memory that ways may take; the rest is for what offsets cost, or for descriptions of moves."""
_AHEAD = 8
"""The most cuts that one way reaches."""


class _StripKind(NamedTuple):
    """Strips that make so many rows of a result each. Convolutions of one cell before one with a window are wide and
    cheap: their rows are computed again, or kept. Windows run on a padded copy, or with SAME, whose wrong rows are cut
    off."""

    rows: int
    keeping: bool
    cut_off: bool


_KINDS = tuple(_StripKind(rows, *how) for rows in (1, 2, 4, 8, 16, 32) for how in product((False, True), repeat=2))
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the room that the persistent part of further operators may take."""
_UNBOUNDED = 1 << 40
_MOST = 2
"""Networks in strips that are planned."""


class Room(NamedTuple):
    """Bytes of fast memory for tensors, and whether the persistent part of further operators is taken from them. If
    not, the bytes in which TFLite Micro has room to describe the tensors of a file, before any of them lives, and the
    kernels whose scratch it describes, too."""

    nbytes: int
    with_persistent: bool
    described_bytes: float = math.inf
    kernels: str = "reference"

    def kept(self, network: Graph) -> int:
        """Bytes of a network that the room bounds: of its persistent part, or those in which it is described."""
        return tflm_kept(network) if self.with_persistent else described_bytes(network, self.kernels)

    def kept_again(self, network: Graph) -> int:
        """The bytes of its operators once more, at least."""
        return sum(tflm_persistent(network).operator_bytes) if self.with_persistent else len(network.ops)


class _WayInStrips(NamedTuple):
    """Operators in strips, and those of them that run with SAME, whose wrong rows are cut off; the others run on a
    padded copy."""

    segment: InStrips
    cut_off: frozenset[int]


class _PricedWay(NamedTuple):
    """The cost of a way with its result in pieces and with a joined result, for each share of the room, what the room
    bounds of its further operators, and the bytes that one of its operators needs at most. No way: the operators as
    they are."""

    pieces: tuple[float, ...]
    joined: tuple[float, ...]
    kept: int
    need: float
    way: _WayInStrips | None


class Strips(NamedTuple):
    """A network in strips, in forms that a .tflite file can state, those first that seem to cost least; none where no
    chain has strips. `least_bytes`: the least room in which a chain of those that were priced runs."""

    networks: tuple[Graph, ...]
    least_bytes: float


def find_strips(graph: Graph, room: Room, prices: Prices, clock: Clock) -> Strips:
    """The chain of least cost, or those of least cost for different shares of the room."""
    taken = [int(share * room.nbytes) for share in _SHARES] if room.with_persistent else [0]
    kept = taken if room.with_persistent else [_PLACING * room.described_bytes - room.kept(graph)]
    search = _ChainSearch(graph, [int(_PLACING * (room.nbytes - one)) for one in taken], prices, room)
    search.price(clock, kept[-1])
    chains = [search.best(place, one) for place, one in enumerate(kept)]
    in_strips = {one.ways: one for one in sorted(chains, key=lambda one: -one.cost) if one.ways}
    chosen = sorted(in_strips.values(), key=lambda one: one.cost)[:_MOST]
    return Strips(tuple(_written(graph, one.ways) for one in chosen), search.least_room())


def _written(graph: Graph, ways: Sequence[_WayInStrips]) -> Graph:
    """The network in strips, in the operators of a .tflite file."""
    cut = frozenset().union(*(way.cut_off for way in ways))
    form = writable_rows(graph, row_form(graph, halos_required=False), cut_off=cut)
    network = in_strips(graph, [way.segment for way in ways], form=form, joined=False)
    return tflite_form(network, cut_off=cut, in_place="nothing")


@dataclass(slots=True)
class _ChainSearch:
    """The ways of a network that were priced so far, by the cuts between which they run: with each of the
    `capacities` for tensors, the largest first."""

    graph: Graph
    capacities: Sequence[int]
    prices: Prices
    room: Room
    cuts: list[int] = field(init=False)
    priced: dict[tuple[int, int], list[_PricedWay]] = field(default_factory=dict)
    least: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cuts = _cuts(self.graph)

    def price(self, clock: Clock, kept: float = math.inf) -> None:
        """Price ways until a limit is reached: kind by kind, those between near cuts first. Ways are left out that
        cannot save anything, or whose further operators keep more than `kept`."""
        inside, floor = {}, {}
        for ahead in range(1, _AHEAD + 1):
            for span in zip(self.cuts, self.cuts[ahead:], strict=False):
                part = inside[span] = _between(self.graph, *span)
                joined, need = self._costs(part)
                self._add(span, _PricedWay(self._nowhere, joined, 0, need, None))
                floor[span] = sum(part.tensors[tensor].nbytes for tensor in (*part.inputs, *part.outputs))
        for kind in _KINDS:
            for (first, stop), part in inside.items():
                if clock.late():
                    return
                if any(self._least_between(first, stop, place) > floor[first, stop] for place in self._places):
                    self._price_between(part, (first, stop), kind, kept)

    def _add(self, span: tuple[int, int], one: _PricedWay) -> None:
        self.priced.setdefault(span, []).append(one)
        lower = tuple(map(min, one.pieces, one.joined))
        self.least[span] = tuple(map(min, self.least.get(span, lower), lower))

    @property
    def _places(self) -> range:
        return range(len(self.capacities))

    @property
    def _nowhere(self) -> tuple[float, ...]:
        return (math.inf,) * len(self.capacities)

    def _least_between(self, first: int, stop: int, capacity: int) -> float:
        """The least cost of a chain from one cut to another with one of the capacities, of what is priced."""
        cuts = [cut for cut in self.cuts if first <= cut <= stop]
        least = dict.fromkeys(cuts, math.inf) | {first: 0.0}
        for place, begin in enumerate(cuts):
            for end in cuts[place + 1 :]:
                cost = self.least.get((begin, end), self._nowhere)[capacity]
                least[end] = min(least[end], least[begin] + cost)
        return least[stop]

    def _price_between(self, inside: Graph, span: tuple[int, int], kind: _StripKind, kept: float) -> None:
        here = _way(inside, kind)
        if here is None:
            return
        segment, cut_off = here
        if (segment.strips - 1) * self.room.kept_again(inside) > kept:
            return
        try:
            network = _written(inside, [here])
        except DownsetError:
            return
        (pieces, _), (joined, need) = self._costs(_in_pieces(network)), self._costs(network)
        first, stop = span
        again = frozenset(first + op for op in segment.recomputed)
        moved = replace(segment, first=first, stop=stop, recomputed=again)
        way = _WayInStrips(moved, frozenset(first + op for op in cut_off))
        self._add(span, _PricedWay(pieces, joined, self.room.kept(network) - self.room.kept(inside), need, way))

    def _costs(self, network: Graph) -> tuple[tuple[float, ...], float]:
        """(by capacity, the quick residency of the operators in their sequence, infinity where one does not fit; the
        bytes that one of them needs at most)."""
        request = MemoriesRequest(_UNBOUNDED, TFLM_WITHOUT_OFFSETS, inputs="slow", outputs="slow", prices=self.prices)
        try:
            problem = memories_form(network, request).problem
        except DownsetError:
            return self._nowhere, math.inf
        order = range(len(network.ops))
        need = max(map(problem.need_bytes, order), default=0)
        costs = tuple(
            quick_residency(problem.within(capacity), order).cost if need <= capacity else math.inf
            for capacity in self.capacities
        )
        return costs, need

    def least_room(self) -> float:
        """The least room in which all operators of a chain fit, of those that are priced; infinity where there is
        none."""
        fronts: dict[int, list[_ChainOfWays]] = {0: [_ChainOfWays(0.0, 0, ())]}
        """By cut: the chains that nothing betters, their need in place of the cost."""
        for (first, stop), ways in sorted(self.priced.items()):
            for before, one in product(fronts.get(first, ()), ways):
                longer = _ChainOfWays(max(before.cost, one.need), before.kept + one.kept, ())
                if longer.cost < math.inf:
                    _offer(fronts.setdefault(stop, []), longer, bounded=self.room.with_persistent)
        shares = _SHARES if self.room.with_persistent else (0.0,)
        rooms = (
            max(one.cost / (_PLACING * (1 - share)), one.kept / share if share else 0)
            for one, share in product(fronts.get(len(self.graph.ops), ()), shares)
        )
        return min(rooms, default=math.inf)

    def best(self, capacity: int, kept: float) -> _ChainOfWays:
        """The chain of least cost with one of the capacities, whose further operators keep no more."""
        none = _ChainOfWays(math.inf, 0, ())
        chains: dict[tuple[int, bool], list[_ChainOfWays]] = {(0, False): [none._replace(cost=0.0)]}
        """By cut, and whether the activation there is in pieces: the chains that nothing betters in both figures."""
        for (first, stop), ways in sorted(self.priced.items()):
            for pieces, one in product((False, True), ways):
                for before in chains.get((first, pieces), ()) if one.way or not pieces else ():
                    segments = before.ways if one.way is None else (*before.ways, one.way)
                    for after, cost in ((True, one.pieces[capacity]), (False, one.joined[capacity])):
                        longer = _ChainOfWays(before.cost + cost, before.kept + one.kept, segments)
                        if longer.cost < math.inf and longer.kept <= kept:
                            _offer(chains.setdefault((stop, after), []), longer, bounded=kept < math.inf)
        return min(chains.get((len(self.graph.ops), False), [none]), key=lambda one: one.cost)


class _ChainOfWays(NamedTuple):
    cost: float
    kept: int
    ways: tuple[_WayInStrips, ...]


def _offer(front: list[_ChainOfWays], one: _ChainOfWays, *, bounded: bool) -> None:
    """Add a chain that no other betters; `bounded`: by cost and bytes, else by cost alone."""
    if any(other.cost <= one.cost and (other.kept <= one.kept or not bounded) for other in front):
        return
    front[:] = [other for other in front if other.cost < one.cost or (bounded and other.kept < one.kept)]
    front.append(one)


def _cuts(graph: Graph) -> list[int]:
    """The cuts, with both ends of the network."""
    producers, last = graph.producers(), [-1] * len(graph.tensors)
    for index, op in enumerate(graph.ops):
        for tensor in op.inputs:
            if tensor != ABSENT and graph.tensors[tensor].role == "activation":
                last[tensor] = index
    for tensor in graph.outputs:
        last[tensor] = len(graph.ops)
    alive: list[set[int]] = [set() for _ in range(len(graph.ops) + 1)]
    for tensor, stop in enumerate(last):
        for cut in range(producers[tensor] + 1, stop + 1):
            alive[cut].add(tensor)
    single = [(cut, graph.tensors[min(alive[cut])].nbytes) for cut in range(1, len(graph.ops)) if len(alive[cut]) == 1]
    nbytes = [math.inf, *(size for _, size in single), math.inf]
    least = [cut for (cut, size), *around in zip(single, nbytes, nbytes[2:], strict=False) if size <= min(around)]
    return [0, *least, len(graph.ops)]


def _between(graph: Graph, first: int, stop: int) -> Graph:
    """Operators [first, stop) as a network: what they read from before is its inputs, what is read later its
    outputs."""
    ops = graph.ops[first:stop]
    results = {tensor for op in ops for tensor in op.outputs if tensor != ABSENT}
    read = {tensor for op in ops for tensor in op.inputs if tensor != ABSENT and tensor not in results}
    later = {tensor for op in graph.ops[stop:] for tensor in op.inputs} | {*graph.outputs}
    source = graph.source
    return replace(
        graph,
        ops=tuple(replace(op, after=()) for op in ops),
        inputs=tuple(sorted(tensor for tensor in read if graph.tensors[tensor].role == "activation")),
        outputs=tuple(sorted(results & later)),
        source=replace(source, op_index=source.op_index[first:stop], settings_of=source.settings_of[first:stop]),
    )


def _way(inside: Graph, kind: _StripKind) -> _WayInStrips | None:
    """All operators of a network in strips of this kind; None where another kind has the same strips, or there is
    none."""
    shape = inside.tensors[inside.outputs[0]].shape if len(inside.outputs) == 1 else ()
    strips = shape[1] // kind.rows if len(shape) == 4 else 0
    cells = [math.prod(op.attrs.get("kernel_shape") or (0,)) for op in inside.ops]
    windows = frozenset(index for index, count in enumerate(cells) if count > 1)
    widening = frozenset(index for index, (one, behind) in enumerate(pairwise(cells)) if one == 1 < behind)
    if strips < 2 or (kind.keeping and not widening) or (kind.cut_off and not windows):
        return None
    again = frozenset() if kind.keeping else widening
    return _WayInStrips(
        InStrips(0, len(inside.ops), strips, recomputed=again), windows if kind.cut_off else frozenset()
    )


def _in_pieces(network: Graph) -> Graph:
    """The network without the concatenations that join its result, whose parts it has in place of that."""
    producer_of = network.producers()
    gone: set[int] = set()

    def parts(tensor: int) -> Iterator[int]:
        op = network.ops[producer_of[tensor]]
        if op.kind != "Concat":
            yield tensor
            return
        gone.add(producer_of[tensor])
        for one in op.inputs:
            yield from parts(one)

    outputs = tuple(dict.fromkeys(chain.from_iterable(map(parts, network.outputs))))
    return replace(network, ops=tuple(op for i, op in enumerate(network.ops) if i not in gone), outputs=outputs)
