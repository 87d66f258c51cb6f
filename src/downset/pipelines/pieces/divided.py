"""The paper's divide and conquer for networks that Algorithm 1 cannot take whole (section 6.2.3).

Source: PICO, section 6.2.3. Names, complexity and deviations: see `search`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from downset import clock
from downset.lattice import bits, successors
from downset.pipelines.pieces.algorithm_1 import PiecePrices
from downset.pipelines.pieces.problem import PieceChain, PieceProblem
from downset.pipelines.pieces.search import pieces

__all__ = ["divided_pieces"]


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
    begin, began = time.perf_counter(), clock.now()
    total = len(problem.vertices)
    after = successors(problem.predecessors)
    kept: list[tuple[int, ...]] = []
    states = 0
    for number in range(1, parts + 1):
        reach = _narrow(after, -(-total * number // parts), total // parts) if number < parts else total
        taken = {v for piece in kept for v in piece}
        chosen = [v for v in range(reach) if v not in taken]
        left = seconds - (clock.now() - began)
        before = kept.pop() if kept else ()
        part = _part(problem, before, chosen, diameter)
        pieces_of_part = pieces(part, strips=strips, diameter=diameter, seconds=max(left, 0.0) / (parts - number + 1))
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
