"""Algorithm 1 of PICO as printed, and the paper's divide and conquer for networks that it cannot take whole.

Source: PICO, section 4.3, Algorithm 1, and section 6.2.3. Names, complexity and deviations: see
`downset.pipelines.pieces`, whose compiled search the tests hold to this one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from downset.budget import Budget
from downset.errors import InfeasibleError, LimitReached
from downset.graph.row_form import Interval, equal_strips, hull
from downset.lattice import bits, successors
from downset.pipelines.pieces import PieceChain, PieceProblem, Ties, pieces


class PiecePrices:
    """Costs of pieces, computed vertex by vertex from the end; the specification of the native search."""

    def __init__(self, problem: PieceProblem, strips: int) -> None:
        self.problem, self.strips = problem, strips
        self.after = successors(problem.predecessors)
        self._made_by = {
            t: v for v, ops in enumerate(problem.vertices) for o in ops for t in problem.form.ops[o].outputs
        }
        read: dict[int, int] = {}
        for v, ops in enumerate(problem.vertices):
            for index in ops:
                for item in problem.form.ops[index].inputs:
                    read[item.tensor] = read.get(item.tensor, 0) | 1 << v
        self._read_by = read

    def cost(self, left: int, piece: int) -> int:
        """Redundant MACs of a piece that is taken from the end of the state `left`."""
        form, wanted = self.problem.form, {}
        for tensor, maker in self._made_by.items():
            readers = self._read_by.get(tensor, 0)
            if piece >> maker & 1 and (not readers or readers & ~left or tensor in form.outputs):
                wanted[tensor] = [*equal_strips(form.rows[tensor], self.strips), (0, form.rows[tensor])]
        total = 0
        ops = sorted(op for v in bits(piece) for op in self.problem.vertices[v])
        for index in reversed(ops):
            total += self._sweep(index, wanted)
        return total

    def _sweep(self, index: int, wanted: dict[int, list[Interval]]) -> int:
        form, nothing = self.problem.form, [(0, 0)] * (self.strips + 1)
        op, spent = form.ops[index], 0
        for strip in range(self.strips + 1):
            output_rows: Interval = (0, 0)
            for tensor in op.outputs:
                output_rows = hull(output_rows, wanted.get(tensor, nothing)[strip])
            if op.whole and output_rows[0] < output_rows[1]:
                output_rows = (0, op.rows)
            spent += output_rows[1] - output_rows[0] if strip < self.strips else output_rows[0] - output_rows[1]
            if output_rows[0] < output_rows[1]:
                for item in op.inputs:
                    rows = form.rows[item.tensor]
                    read = (0, rows) if item.map is None else item.map(output_rows, rows)
                    has = wanted.setdefault(item.tensor, list(nothing))
                    has[strip] = hull(has[strip], read)
        return max(spent, 0) * op.macs_per_row

    def length(self, piece: int) -> int:
        """The number of layers on a longest path of a piece."""
        lengths: dict[int, int] = {}
        for v in reversed(list(bits(piece))):
            longest = max((lengths[later] for later in bits(self.after[v] & piece)), default=0)
            lengths[v] = longest + self.problem.layers[v]
        return max(lengths.values(), default=0)


def partition_graph_into_pieces(
    problem: PieceProblem, *, strips: int = 2, diameter: int = 5, ties: Ties = "sum", state_limit: int = 100_000
) -> PieceChain:
    """Algorithm 1 as printed, on states in place of hashes: it tries every ending piece of every state. For small
    networks.

    Raises LimitReached if there are more than `state_limit` states, or pieces of one state, and InfeasibleError if no
    chain keeps the diameter.
    """
    began = time.perf_counter()
    pricing = PiecePrices(problem, strips)
    everything = (1 << len(problem.vertices)) - 1
    known_costs: dict[int, tuple[int, int, int, int] | None] = {0: (0, 0, 0, 0)}
    opened = [everything]
    while opened:
        left = opened[-1]
        if len(known_costs) > state_limit:
            raise LimitReached(f"more than {state_limit} states")
        options = [] if left in known_costs else _endings(problem, pricing, left, diameter, state_limit)
        missing = [left & ~piece for piece in options if left & ~piece not in known_costs]
        if missing:
            opened += missing
            continue
        opened.pop()
        if left in known_costs:
            continue
        best: tuple[int, int, int, int] | None = None
        for piece in options:
            rest = known_costs[left & ~piece]
            if rest is not None:
                cost = pricing.cost(left, piece)
                option = (max(cost, rest[0]), cost + rest[1], rest[2] - 1, piece)
                compared = 3 if ties == "sum" else 1
                best = option if best is None or option[:compared] < best[:compared] else best
        known_costs[left] = best
    left, chain, costs = everything, [], []
    while left:
        entry = known_costs[left]
        if entry is None:
            raise InfeasibleError(f"no chain of pieces keeps the diameter {diameter}; allow a longer one")
        chain.append(tuple(bits(entry[3])))
        costs.append(pricing.cost(left, entry[3]))
        left &= ~entry[3]
    seconds = time.perf_counter() - began
    largest = max(costs, default=0)
    return PieceChain(tuple(reversed(chain)), tuple(reversed(costs)), largest, True, len(known_costs), seconds)


def _endings(problem: PieceProblem, pricing: PiecePrices, left: int, diameter: int, most: int) -> list[int]:
    """The pieces that may be taken from the end of the state `left`, small to large. They are closed under successors
    and hold the forced part."""
    forced = 0
    for v in bits(((1 << len(problem.vertices)) - 1) & ~left):
        forced |= problem.predecessors[v] & left
    for v in bits(left):
        if forced >> v & 1:
            forced |= pricing.after[v] & left
    endings, opened, seen = [], [forced], {forced}
    while opened:
        piece = opened.pop()
        if pricing.length(piece) > diameter:
            continue  # all larger ones are too long as well
        if piece:
            endings.append(piece)
        if len(endings) > most:
            raise LimitReached(f"more than {most} pieces may end here")
        for v in bits(left & ~piece):
            larger = piece | 1 << v
            if not pricing.after[v] & left & ~piece and larger not in seen:
                seen.add(larger)
                opened.append(larger)
    return sorted(endings, key=lambda piece: (piece.bit_count(), piece))


def divided_pieces(
    problem: PieceProblem, *, parts: int = 8, strips: int = 2, diameter: int = 5, seconds: float = 60.0
) -> PieceChain:
    """The paper's divide and conquer (section 6.2.3): Algorithm 1 on one part after another, from the front.

    A part holds the first vertices that are left, in their order, cut where later vertices read few results ("roughly
    partitions it into 8 parts"). It begins behind the last piece that was kept; that piece takes part in the search and
    stays as it is, so that the pieces of different parts form one chain. A part's last two pieces go back to the rest,
    and so do further ones that vertices behind the part read. Nothing is proven of the whole chain: its bound is 0.
    Raises LimitReached out of time, InfeasibleError if a part has no chain.
    """
    begin = time.perf_counter()
    total = len(problem.vertices)
    after = successors(problem.predecessors)
    kept: list[tuple[int, ...]] = []
    states = 0
    for number in range(1, parts + 1):
        reach = _narrow(after, -(-total * number // parts), total // parts) if number < parts else total
        taken = {v for piece in kept for v in piece}
        chosen = [v for v in range(reach) if v not in taken]
        left = seconds - (time.perf_counter() - begin)
        before = kept.pop() if kept else ()
        part = _part(problem, before, chosen, diameter)
        pieces_of_part = pieces(
            part, strips=strips, diameter=diameter, clock=Budget(max(left, 0.0) / (parts - number + 1)).start()
        )
        states += pieces_of_part.states
        groups = [before, *((v,) for v in chosen)] if before else [(v,) for v in chosen]
        kept += [tuple(sorted(v for place in piece for v in groups[place])) for piece in pieces_of_part.pieces]
        if number < parts:
            del kept[-2:]
            while any(after[v] >> reach for piece in kept[:-1] for v in piece):
                kept.pop()  # only the last kept piece may be read by vertices that are left
    return PieceChain(tuple(kept), _costs(problem, kept, strips), 0, False, states, time.perf_counter() - begin)


def _narrow(after: Sequence[int], target: int, slack: int) -> int:
    """A position near the target, at or before it, behind which the fewest earlier vertices are read; the last of
    equals."""

    def crossing(cut: int) -> int:
        return sum(1 for v in range(cut) if after[v] >> cut)

    return min(range(max(target - slack, 1), target + 1), key=lambda cut: (crossing(cut), -cut))


def _costs(problem: PieceProblem, chain: Sequence[Sequence[int]], strips: int) -> tuple[int, ...]:
    pricing, left, costs = PiecePrices(problem, strips), (1 << len(problem.vertices)) - 1, []
    for piece in reversed(chain):
        mask = sum(1 << v for v in piece)
        costs.append(pricing.cost(left, mask))
        left &= ~mask
    return tuple(reversed(costs))


def _part(problem: PieceProblem, before: Sequence[int], chosen: Sequence[int], diameter: int) -> PieceProblem:
    """The problem of some vertices alone. The vertices `before` are one vertex that is so long that no layer behind it
    fits into its piece."""
    groups = [tuple(before), *((v,) for v in chosen)] if before else [(v,) for v in chosen]
    number = {v: place for place, group in enumerate(groups) for v in group}
    vertices = tuple(tuple(sorted(op for v in group for op in problem.vertices[v])) for group in groups)
    layers = tuple(
        diameter if len(group) > 1 or (before and not place) else problem.layers[group[0]]
        for place, group in enumerate(groups)
    )
    masks = [0] * len(groups)
    for v, place in number.items():
        for earlier in bits(problem.predecessors[v]):
            if earlier in number and number[earlier] != place:
                masks[place] |= 1 << number[earlier]
    inside = {op for vertex in vertices for op in vertex}
    form = problem.form
    results = {tensor for op in inside for tensor in form.ops[op].outputs}
    read = {item.tensor for op in range(len(form.ops)) if op not in inside for item in form.ops[op].inputs}
    outputs = tuple(sorted((set(form.outputs) | read) & results))
    return PieceProblem(replace(form, outputs=outputs), vertices, layers, tuple(masks))
