"""A network as a chain of pieces with the least redundant work in the worst one.

Source: PICO, section 4.3, Algorithm 1 and equation 13; section 6.2.3 for the divide and conquer of large networks.
Names: the graph 𝔾 that is left → a *state*, a downset of vertices; ending piece M_E → the next piece, from the end;
    C(M) → `cost`, in MACs; F(𝔾) → the least `max_macs`; the constraint of lines 5-7 → the *forced* part of a piece;
    d → `diameter`; n → `layers`.
Complexity: as printed, O(w·d·(n·d/w)^w). Here each threshold visits a state once; states are the cuts that the chain
    constraint leaves, 20 to 83 for networks of chains and blocks.
Deviations: a state is what is left alone: what feeds the part already taken is forced, so line 7's M'_E adds nothing.
    Instead of the full recursion, a search for the least threshold: is there a chain whose pieces all cost at most T?
    A state from which there is none is remembered with its T.
    Vertices are convolutions and pools (the layers, which n and the diameter count), and operators that join tensors
    (Add, Concat, Mul: they count in neither; without them ResNet34 has no chain at all). Every other operator belongs
    to the vertex whose result it reads, the classifier to the last; where others read that result too, to its reader.
    C(M) is not defined to the letter ("the difference of required FLOPs for the two input"): here, each vertex's MACs
    for `strips` equal row strips of the piece's sinks, clipped at the borders, less its MACs for the whole, summed;
    less than nothing (rows that a stride skips) counts as nothing. The sinks of a piece are fixed by the state, so this
    is a sum that only grows with the piece, and leaving out all that contains a piece over the threshold loses nothing.
    Ties: ties="sum" takes the least max C, then the least sum of C, then the most pieces; ties="first" keeps at each
    state the first piece of least max C, as line 12 does, from small pieces to large (the paper names no order).
    The diameter is the number of layers on a longest path within the piece, at most 5.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from downset.cost import row_form
from downset.errors import InfeasibleError, LimitReached, UnsupportedError, UsageError
from downset.graph import Graph
from downset.lattice import bits, successors
from downset.native import native_module
from downset.regions import Interval, RowForm, equal_strips, hull

__all__ = ["PieceChain", "PieceProblem", "Ties", "divided_pieces", "piece_problem", "pieces", "recursive_pieces"]

_LAYERS = {"Conv", "ConvTranspose", "com.microsoft::FusedConv", "MaxPool", "AveragePool", "GlobalAveragePool",
           "GlobalMaxPool"}  # fmt: skip
_MOST_VERTICES = 1024
_NONE = (1 << 63) - 1

Ties = Literal["sum", "first"]


@dataclass(frozen=True, slots=True)
class PieceProblem:
    """Vertices in a topological order. `vertices[v]`: its operators in the graph; `layers[v]`: 1 if it is a layer."""

    form: RowForm
    vertices: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    predecessors: tuple[int, ...]

    @property
    def layer_count(self) -> int:
        return sum(self.layers)


@dataclass(frozen=True, slots=True)
class PieceChain:
    """`pieces[i]`: the vertices of piece i; `costs[i]` its redundant MACs. `bound_macs` ≤ the least possible max;
    `refined`: ties were settled as asked for (otherwise the chain is the first that was found)."""

    pieces: tuple[tuple[int, ...], ...]
    costs: tuple[int, ...]
    bound_macs: int
    refined: bool
    states: int
    seconds: float

    @property
    def max_macs(self) -> int:
        return max(self.costs, default=0)

    @property
    def proven(self) -> bool:
        return self.bound_macs == self.max_macs

    def operators(self, problem: PieceProblem) -> tuple[tuple[int, ...], ...]:
        """By piece: the operators of the graph, in its order."""
        return tuple(tuple(sorted(op for v in piece for op in problem.vertices[v])) for piece in self.pieces)


def piece_problem(graph: Graph, *, strict: bool = True) -> PieceProblem:
    """The vertices that Algorithm 1 groups. Raises UnsupportedError for a kind whose halo is not known (if strict)."""
    form = row_form(graph, strict=strict)
    made_by, read_by = graph.producers(), graph.consumers()
    vertex_of: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}  # by tensor: operators that go with its one reader, the last makes it
    members: list[list[int]] = []
    layers: list[int] = []
    for index, op in enumerate(graph.ops):
        read = [item.tensor for item in form.ops[index].inputs]
        before = [earlier for tensor in op.inputs for earlier in waiting.pop(tensor, ())]
        made = form.ops[index].outputs
        if made and all(graph.tensors[tensor].role != "activation" for tensor in made):
            waiting[made[0]] = [*before, index]  # computes weights: with the first that reads them
            continue
        layer = op.kind in _LAYERS
        one_reader = len(made) == 1 and len(read_by[made[0]]) == 1 and made[0] not in graph.outputs
        moved = len(read) == 1 and (made_by[read[0]] in before or len(read_by[read[0]]) > 1)
        if not layer and one_reader and moved:
            # Kept with its reader, so that a cut in between carries one tensor and not one for each reader.
            waiting[made[0]] = [*before, index]
            continue
        sources = {vertex_of[made_by[tensor]] for tensor in read if made_by[tensor] in vertex_of}
        joined = any(made_by[tensor] in before for tensor in read)
        if layer or joined or len(sources) != 1:
            vertex = len(members)
            members.append([])
            layers.append(int(layer))
        else:
            vertex = sources.pop()
        members[vertex] += [*before, index]
        vertex_of.update(dict.fromkeys([*before, index], vertex))
    for unread in waiting.values():
        if not members:
            members.append([])
            layers.append(0)
        members[0] += unread
        vertex_of.update(dict.fromkeys(unread, 0))
    masks = [0] * len(members)
    for index in vertex_of:
        for item in form.ops[index].inputs:
            source = made_by[item.tensor]
            if source >= 0 and vertex_of[source] != vertex_of[index]:
                masks[vertex_of[index]] |= 1 << vertex_of[source]
    return PieceProblem(form, tuple(tuple(sorted(ops)) for ops in members), tuple(layers), tuple(masks))


def pieces(
    problem: PieceProblem,
    *,
    strips: int = 2,
    diameter: int = 5,
    seconds: float = 10.0,
    state_limit: int = 2_000_000,
    ties: Ties = "sum",
    engine: str = "native",
) -> PieceChain:
    """The chain of least max C, ties as asked for, or the best found within the limits with its bound.

    Raises InfeasibleError if no chain keeps the diameter, LimitReached if none was found in time, UsageError for fewer
    than one strip or a diameter below one layer.
    """
    if strips < 1 or diameter < 1:
        raise UsageError(f"pieces need a strip and a layer at least, not {strips} strips and a diameter of {diameter}")
    if engine == "python":
        return recursive_pieces(problem, strips=strips, diameter=diameter, ties=ties, state_limit=state_limit)
    began = time.perf_counter()
    search = _native_search(problem, strips, diameter, state_limit)
    low, best, threshold = 0, _NONE, 0
    found: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] | None = None
    while low < best:
        left = seconds - (time.perf_counter() - began)
        if left <= 0:
            break
        # What cannot be settled must not cost the whole budget; a threshold at the bound is the easiest to refute.
        outcome, allowed = search.within(threshold, left if threshold == _NONE - 1 else left / 4)
        if outcome == 1:
            found = tuple(map(tuple, search.pieces())), tuple(search.costs())
            best = max(found[1], default=0)
        elif outcome == 0 and allowed == _NONE:
            raise InfeasibleError(f"no chain of pieces keeps the diameter {diameter}; allow a longer one")
        elif outcome == 0:
            low = allowed
        elif threshold in (low, _NONE - 1) and (found is not None or threshold > low):
            break
        unsettled = outcome == -1
        threshold = _NONE - 1 if found is None else low + (0 if unsettled else (best - low) // 2)
    if found is None:
        raise LimitReached(f"no chain of pieces within {seconds:g} s; give it more time, or divide the network")
    spent = time.perf_counter() - began
    left = min(seconds - spent, max(spent, 1.0))  # settling ties is worth as much as the search was
    refined = left > 0 and bool(search.refine(best, ties == "first", left))
    if refined:
        found = tuple(map(tuple, search.pieces())), tuple(search.costs())
    return PieceChain(*found, low, refined, search.states(), time.perf_counter() - began)


def _native_search(problem: PieceProblem, strips: int, diameter: int, state_limit: int) -> Any:
    if len(problem.vertices) > _MOST_VERTICES:
        raise UnsupportedError(
            f"{len(problem.vertices)} vertices are more than {_MOST_VERTICES}; divide the network (divided_pieces)"
        )
    form = problem.form
    inputs = [
        [number for item in op.inputs for number in (item.tensor, *(item.map or (0, 0, 0, 0)))] for op in form.ops
    ]
    numbers = [[op.rows, op.macs_per_row, int(op.whole)] for op in form.ops]
    outputs = [list(op.outputs) for op in form.ops]
    vertices = [list(vertex) for vertex in problem.vertices]
    return native_module().PieceSearch(
        inputs,
        outputs,
        numbers,
        list(form.rows),
        list(form.outputs),
        vertices,
        list(problem.layers),
        strips,
        diameter,
        state_limit,
    )


class _Pricing:
    """Costs of pieces, vertex by vertex from the end; the specification of the native search."""

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
        """Redundant MACs of a piece that is taken from the end of what is left."""
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
            made: Interval = (0, 0)
            for tensor in op.outputs:
                made = hull(made, wanted.get(tensor, nothing)[strip])
            if op.whole and made[0] < made[1]:
                made = (0, op.rows)
            spent += made[1] - made[0] if strip < self.strips else made[0] - made[1]
            if made[0] < made[1]:
                for item in op.inputs:
                    rows = form.rows[item.tensor]
                    read = (0, rows) if item.map is None else item.map(made, rows)
                    has = wanted.setdefault(item.tensor, list(nothing))
                    has[strip] = hull(has[strip], read)
        return max(spent, 0) * op.macs_per_row

    def length(self, piece: int) -> int:
        """Layers on a longest path."""
        found: dict[int, int] = {}
        for v in reversed(list(bits(piece))):
            longest = max((found[later] for later in bits(self.after[v] & piece)), default=0)
            found[v] = longest + self.problem.layers[v]
        return max(found.values(), default=0)


def recursive_pieces(
    problem: PieceProblem, *, strips: int = 2, diameter: int = 5, ties: Ties = "sum", state_limit: int = 100_000
) -> PieceChain:
    """Algorithm 1 as printed, on states instead of hashes: every ending piece of every state. For small networks.

    Raises LimitReached past `state_limit` states, or pieces of one state.
    """
    began = time.perf_counter()
    pricing = _Pricing(problem, strips)
    everything = (1 << len(problem.vertices)) - 1
    known: dict[int, tuple[int, int, int, int] | None] = {0: (0, 0, 0, 0)}
    opened = [everything]
    while opened:
        left = opened[-1]
        if len(known) > state_limit:
            raise LimitReached(f"more than {state_limit} states; use engine='native'")
        options = [] if left in known else _endings(problem, pricing, left, diameter, state_limit)
        missing = [left & ~piece for piece in options if left & ~piece not in known]
        if missing:
            opened += missing
            continue
        opened.pop()
        if left in known:
            continue
        best: tuple[int, int, int, int] | None = None
        for piece in options:
            rest = known[left & ~piece]
            if rest is not None:
                cost = pricing.cost(left, piece)
                option = (max(cost, rest[0]), cost + rest[1], rest[2] - 1, piece)
                compared = 3 if ties == "sum" else 1
                best = option if best is None or option[:compared] < best[:compared] else best
        known[left] = best
    left, chain, costs = everything, [], []
    while left:
        entry = known[left]
        if entry is None:
            raise InfeasibleError(f"no chain of pieces keeps the diameter {diameter}; allow a longer one")
        chain.append(tuple(bits(entry[3])))
        costs.append(pricing.cost(left, entry[3]))
        left &= ~entry[3]
    seconds = time.perf_counter() - began
    largest = max(costs, default=0)
    return PieceChain(tuple(reversed(chain)), tuple(reversed(costs)), largest, True, len(known), seconds)


def _endings(problem: PieceProblem, pricing: _Pricing, left: int, diameter: int, most: int) -> list[int]:
    """The pieces that may be taken from the end of what is left, small to large: closed under successors, with what is
    forced."""
    forced = 0
    for v in bits(((1 << len(problem.vertices)) - 1) & ~left):
        forced |= problem.predecessors[v] & left
    for v in bits(left):
        if forced >> v & 1:
            forced |= pricing.after[v] & left
    found, opened, seen = [], [forced], {forced}
    while opened:
        piece = opened.pop()
        if pricing.length(piece) > diameter:
            continue  # so are all larger ones
        if piece:
            found.append(piece)
        if len(found) > most:
            raise LimitReached(f"more than {most} pieces may end here; use engine='native'")
        for v in bits(left & ~piece):
            larger = piece | 1 << v
            if not pricing.after[v] & left & ~piece and larger not in seen:
                seen.add(larger)
                opened.append(larger)
    return sorted(found, key=lambda piece: (piece.bit_count(), piece))


def divided_pieces(
    problem: PieceProblem, *, parts: int = 8, strips: int = 2, diameter: int = 5, seconds: float = 60.0
) -> PieceChain:
    """The paper's divide and conquer (section 6.2.3): a part from the front, without its last pieces.

    A part is the first vertices of what is left, in their order, cut where few results are read behind it ("roughly
    partitions it into 8 parts"), behind the last piece that was kept, which stays as it
    is: that keeps the pieces of different parts in one chain. A part's last two pieces go back to the rest, and as many
    more as are read from behind the part. Of the whole nothing is proven: the bound is 0. Raises LimitReached out of
    time, InfeasibleError if a part has no chain.
    """
    began = time.perf_counter()
    total = len(problem.vertices)
    after = successors(problem.predecessors)
    kept: list[tuple[int, ...]] = []
    states = 0
    for number in range(1, parts + 1):
        reach = _narrow(after, -(-total * number // parts), total // parts) if number < parts else total
        taken = {v for piece in kept for v in piece}
        chosen = [v for v in range(reach) if v not in taken]
        left = seconds - (time.perf_counter() - began)
        before = kept.pop() if kept else ()
        part = _part(problem, before, chosen, diameter)
        found = pieces(part, strips=strips, diameter=diameter, seconds=max(left, 0.0) / (parts - number + 1))
        states += found.states
        groups = [before, *((v,) for v in chosen)] if before else [(v,) for v in chosen]
        kept += [tuple(sorted(v for place in piece for v in groups[place])) for piece in found.pieces]
        if number < parts:
            del kept[-2:]
            while any(after[v] >> reach for piece in kept[:-1] for v in piece):
                kept.pop()  # only the last piece may be read by what is not decided
    return PieceChain(tuple(kept), _costs(problem, kept, strips), 0, False, states, time.perf_counter() - began)


def _narrow(after: Sequence[int], target: int, slack: int) -> int:
    """A position not far before the target where the fewest vertices are read from behind it; the last of equals."""

    def crossing(cut: int) -> int:
        return sum(1 for v in range(cut) if after[v] >> cut)

    return min(range(max(target - slack, 1), target + 1), key=lambda cut: (crossing(cut), -cut))


def _costs(problem: PieceProblem, chain: Sequence[Sequence[int]], strips: int) -> tuple[int, ...]:
    pricing, left, costs = _Pricing(problem, strips), (1 << len(problem.vertices)) - 1, []
    for piece in reversed(chain):
        mask = sum(1 << v for v in piece)
        costs.append(pricing.cost(left, mask))
        left &= ~mask
    return tuple(reversed(costs))


def _part(problem: PieceProblem, before: Sequence[int], chosen: Sequence[int], diameter: int) -> PieceProblem:
    """Some vertices alone; `before` as one vertex so long that no layer behind it fits into its piece."""
    groups = [tuple(before), *((v,) for v in chosen)] if before else [(v,) for v in chosen]
    number = {v: place for place, group in enumerate(groups) for v in group}
    vertices = tuple(tuple(sorted(op for v in group for op in problem.vertices[v])) for group in groups)
    layers = tuple(diameter if len(group) > 1 or (before and not place) else problem.layers[group[0]]
                   for place, group in enumerate(groups))  # fmt: skip
    masks = [0] * len(groups)
    for v, place in number.items():
        for earlier in bits(problem.predecessors[v]):
            if earlier in number and number[earlier] != place:
                masks[place] |= 1 << number[earlier]
    inside = {op for vertex in vertices for op in vertex}
    form = problem.form
    made = {tensor for op in inside for tensor in form.ops[op].outputs}
    read = {item.tensor for op in range(len(form.ops)) if op not in inside for item in form.ops[op].inputs}
    outputs = tuple(sorted((set(form.outputs) | read) & made))
    return PieceProblem(replace(form, outputs=outputs), vertices, layers, tuple(masks))
