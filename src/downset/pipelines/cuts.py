"""Refines the chain of pieces: a cut may be any downset, and costs the bytes of every tensor that crosses it.

Source: beyond PICO, whose section 4.2 demands that each piece reads only the one before it. Here the stages in between
relay a tensor that is read later, and a cut costs the bytes of all tensors that it carries.
Names: a *cut* is a downset of vertices (`pieces.piece_problem`). It carries the tensors made before it (or
given to the network) and read after it, and results of the network made before it.
Complexity: within a piece, one heap step for each edge between downsets of the piece; after `state_limit` of them, or
at the end of the clock, the cheapest next vertex is taken, O(V²).
Deviations: the cuts of the chain of pieces stay, and each piece is refined into single vertices, in the order with the
least sum of carried bytes. So every plan on the chain of pieces is also a plan here, at the same cost: for any cost
model the optimum over these cuts is at least as good.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from downset.budget import Clock
from downset.lattice import bits, successors
from downset.pipelines.pieces import PieceProblem

__all__ = ["CutChain", "refined_cuts", "thinned"]


_LOOK = 256
"""The number of states between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class CutChain:
    """`cuts[i]`: the set of vertices before cut i, from none to all. `carried[i]`: bytes over cut i. `of_pieces[i]`:
    whether the chain of pieces has it. `exact`: whether every piece's order is proven to carry least."""

    cuts: tuple[int, ...]
    carried: tuple[int, ...]
    of_pieces: tuple[bool, ...]
    exact: bool

    def units(self, problem: PieceProblem) -> tuple[tuple[int, ...], ...]:
        """The operators of the graph between consecutive cuts, in the graph's order."""
        return tuple(
            tuple(sorted(op for v in bits(after & ~before) for op in problem.vertices[v]))
            for before, after in zip(self.cuts[:-1], self.cuts[1:], strict=True)
        )


def refined_cuts(
    problem: PieceProblem,
    pieces: Sequence[Iterable[int]] | None = None,
    *,
    state_limit: int = 50_000,
    clock: Clock | None = None,
) -> CutChain:
    """A chain with a cut behind every vertex, which contains the cuts between `pieces` (of vertices; None: the whole
    network is one). At the end of the clock the cheapest next vertex is taken."""
    carrying = _Carrying(problem)
    everything = range(len(problem.vertices))
    masks = [sum(1 << v for v in piece) for piece in ([everything] if pieces is None else pieces)]
    cuts, of_pieces, exact, before = [0], [True], True, 0
    for piece in masks:
        if not piece:
            continue
        order, proven = _least_carrying(carrying, before, piece, state_limit, clock)
        exact = exact and proven
        for place, v in enumerate(order):
            before |= 1 << v
            cuts.append(before)
            of_pieces.append(place == len(order) - 1)
    return CutChain(tuple(cuts), tuple(carrying.nbytes(cut) for cut in cuts), tuple(of_pieces), exact)


def thinned(problem: PieceProblem, chain: CutChain, most: int) -> CutChain:
    """The chain with at most `most` cuts in addition to those of the chain of pieces. The cuts divide the work into
    equal parts, and each part keeps its cheapest cut."""
    form = problem.form
    work = [
        sum(form.ops[op].macs for v in bits(cut) for op in problem.vertices[v]) if not of_pieces else -1
        for cut, of_pieces in zip(chain.cuts, chain.of_pieces, strict=True)
    ]
    total = sum(op.macs for op in form.ops) + 1
    cheapest: dict[int, int] = {}
    for place, done in enumerate(work):
        if done >= 0:
            part = done * most // total
            if part not in cheapest or chain.carried[place] < chain.carried[cheapest[part]]:
                cheapest[part] = place
    kept = sorted({place for place, of_pieces in enumerate(chain.of_pieces) if of_pieces} | set(cheapest.values()))
    return CutChain(
        tuple(chain.cuts[place] for place in kept),
        tuple(chain.carried[place] for place in kept),
        tuple(chain.of_pieces[place] for place in kept),
        chain.exact,
    )


class _Carrying:
    def __init__(self, problem: PieceProblem) -> None:
        self.problem = problem
        self.after = successors(problem.predecessors)
        form = problem.form
        made_by = {tensor: v for v, ops in enumerate(problem.vertices) for op in ops for tensor in form.ops[op].outputs}
        readers: dict[int, int] = dict.fromkeys(form.outputs, 1 << len(problem.vertices))  # a reader after everything
        for v, ops in enumerate(problem.vertices):
            for op in ops:
                for item in form.ops[op].inputs:
                    readers[item.tensor] = readers.get(item.tensor, 0) | 1 << v
        self._readers, self._made_by = readers, made_by
        self._nbytes = {tensor: form.rows[tensor] * form.bytes_per_row[tensor] for tensor in readers}
        self._touched: list[list[int]] = [[] for _ in problem.vertices]  # by vertex: what it makes or reads
        for tensor, mask in readers.items():
            for v in {*bits(mask & ((1 << len(problem.vertices)) - 1)), made_by.get(tensor, -1)} - {-1}:
                self._touched[v].append(tensor)

    def nbytes(self, cut: int) -> int:
        return sum(
            self._nbytes[tensor]
            for tensor, readers in self._readers.items()
            if readers & ~cut and (tensor not in self._made_by or cut >> self._made_by[tensor] & 1)
        )

    def change(self, cut: int, v: int) -> int:
        """The bytes by which the carried ones grow when a vertex is added to a cut."""
        larger, total = cut | 1 << v, 0
        for tensor in self._touched[v]:
            open_after = bool(self._readers[tensor] & ~larger)
            if self._made_by.get(tensor, -1) == v:
                total += self._nbytes[tensor] * open_after
            elif not open_after:
                total -= self._nbytes[tensor]
        return total


def _least_carrying(
    carrying: _Carrying, before: int, piece: int, state_limit: int, clock: Clock | None
) -> tuple[Sequence[int], bool]:
    """The order of a piece's vertices with the least sum of carried bytes, and whether that is proven. Dijkstra's
    algorithm over downsets of the piece."""
    predecessors = carrying.problem.predecessors
    count = len(predecessors)
    goal = before | piece
    heap = [(0, 0, before)]
    came: dict[int, tuple[int, int]] = {before: (0, -1)}  # downset -> (least sum, last vertex)
    carried = {before: carrying.nbytes(before)}
    ready = {before: sum(1 << v for v in bits(piece) if not predecessors[v] & ~before)}
    done: set[int] = set()
    while heap:
        total, _, cut = heapq.heappop(heap)
        if cut in done:
            continue
        done.add(cut)
        if cut == goal:
            break
        if len(done) > state_limit or (len(done) % _LOOK == 0 and clock is not None and clock.late()):
            return _greedy(carrying, before, piece), False
        may = ready.pop(cut)
        for v in bits(may):
            larger = cut | 1 << v
            if larger not in carried:
                carried[larger] = carried[cut] + carrying.change(cut, v)
                opened = sum(1 << w for w in bits(carrying.after[v] & piece) if not predecessors[w] & ~larger)
                ready[larger] = (may & ~(1 << v)) | opened
            reached = total + carried[larger]
            if larger not in came or reached < came[larger][0]:
                came[larger] = (reached, v)
                heapq.heappush(heap, (reached, count - larger.bit_count(), larger))
    order, cut = [], goal
    while cut != before:
        v = came[cut][1]
        order.append(v)
        cut &= ~(1 << v)
    return order[::-1], True


def _greedy(carrying: _Carrying, before: int, piece: int) -> list[int]:
    order, cut = [], before
    while piece & ~cut:
        ready = [v for v in bits(piece & ~cut) if not carrying.problem.predecessors[v] & ~cut]
        chosen = min(ready, key=lambda v: (carrying.change(cut, v), v))
        order.append(chosen)
        cut |= 1 << chosen
    return order
