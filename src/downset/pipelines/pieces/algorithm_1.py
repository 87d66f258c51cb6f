"""Algorithm 1 as printed, and the costs of its pieces: the specification of the native search of `pieces`.

Source: PICO, section 4.3, Algorithm 1. Names, complexity and deviations: see `search`.
"""

from __future__ import annotations

import time

from downset.errors import InfeasibleError, LimitReached
from downset.graph.row_form import Interval, equal_strips, hull
from downset.lattice import bits, successors
from downset.pipelines.pieces.problem import PieceChain, PieceProblem, Ties

__all__ = ["PiecePrices", "partition_graph_into_pieces"]


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
