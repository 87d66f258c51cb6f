"""Divides a network into a chain of pieces so that the worst piece has the least redundant work.

Source: PICO, section 4.3, Algorithm 1 and equation 13; section 6.2.3 for the divide and conquer of large networks.
Names: the graph 𝔾 that is left → a *state*, a downset of vertices; ending piece M_E → the next piece, from the end;
C(M) → `cost`, in MACs; F(𝔾) → the least `max_macs`; the constraint of lines 5-7 → the *forced* part of a piece; d →
`diameter`; n → `layers`.
Complexity: as printed, O(w·d·(n·d/w)^w). Here each threshold visits a state once; states are the cuts that the chain
constraint leaves, 20 to 83 for networks of chains and blocks.
Deviations:
- A state is only the vertices that are left. The vertices that feed the part already taken are forced, so line 7's M'_E
  adds nothing.
- In place of the full recursion there is a search for the least threshold T such that some chain has only pieces of
  cost at most T. A state without such a chain is remembered with its T.
- Vertices are convolutions and pools (the layers, which n and the diameter count), and operators that join tensors
  (Add, Concat, Mul), which neither counts; without these ResNet34 has no chain. Every other operator belongs to the
  vertex whose result it reads, or, if other operators read that result too, to its reader; the classifier belongs to
  the last vertex.
- The paper does not define C(M) exactly ("the difference of required FLOPs for the two input"). Here it is the sum over
  the piece's vertices of their MACs for `strips` equal row strips of the piece's sinks, clipped at the borders, less
  their MACs for the whole; a negative difference (a stride skips rows) counts as 0. The state determines the sinks of a
  piece, so the sum only grows with the piece, and all pieces that contain one above the threshold can be left out.
- Ties: ties="sum" takes the least max C, then the least sum of C, then the most pieces. ties="first" keeps at each
  state the first piece of least max C, as line 12 does, from small pieces to large (the paper names no order).
- The diameter is the number of layers on a longest path within the piece, at most 5.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from downset import native
from downset.budget import Budget, Clock
from downset.errors import InfeasibleError, LimitReached, UnsupportedError, UsageError
from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm

if TYPE_CHECKING:
    from downset import _native

__all__ = ["PieceChain", "PieceProblem", "Ties", "piece_problem", "pieces"]

Ties = Literal["sum", "first"]


@dataclass(frozen=True, slots=True)
class PieceProblem:
    """Vertices in a topological order. `vertices[v]`: its operators in the graph. `layers[v]`: 1 if it is a layer, else
    0."""

    form: RowForm
    vertices: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    predecessors: tuple[int, ...]

    @property
    def layer_count(self) -> int:
        return sum(self.layers)


@dataclass(frozen=True, slots=True)
class PieceChain:
    """`pieces[i]`: the vertices of piece i; `costs[i]`: its redundant MACs. `bound_macs`: a lower bound on the largest
    cost of every chain. `refined`: whether ties were settled as asked for; otherwise the chain is the first that was
    found."""

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
        """The operators of each piece, in the graph's order."""
        return tuple(tuple(sorted(op for v in piece for op in problem.vertices[v])) for piece in self.pieces)


def piece_problem(graph: Graph, *, axis: int = 0, halos_required: bool = True) -> PieceProblem:
    """The vertices that Algorithm 1 groups, with halos along rows (axis 0) or columns (1). Raises UnsupportedError for
    an operator kind whose halo is not known, if `halos_required`."""
    form = row_form(graph, axis=axis, halos_required=halos_required)
    made_by, read_by = graph.producers(), graph.consumers()
    vertex_of: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}  # by tensor: operators that go with its only reader, its maker last
    members: list[list[int]] = []
    layers: list[int] = []
    for index, op in enumerate(graph.ops):
        read = [item.tensor for item in form.ops[index].inputs]
        before = [earlier for tensor in op.inputs for earlier in waiting.pop(tensor, ())]
        outputs = form.ops[index].outputs
        if outputs and all(graph.tensors[tensor].role != "activation" for tensor in outputs):
            waiting[outputs[0]] = [*before, index]  # computes weights: goes with their first reader
            continue
        layer = kind_of(op.kind).convolves_or_pools
        one_reader = len(outputs) == 1 and len(read_by[outputs[0]]) == 1 and outputs[0] not in graph.outputs
        moved = len(read) == 1 and (made_by[read[0]] in before or len(read_by[read[0]]) > 1)
        if not layer and one_reader and moved:
            # It stays with its reader, so that a cut before them carries one tensor.
            waiting[outputs[0]] = [*before, index]
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


_MOST_VERTICES = 1024
_NONE = (1 << 63) - 1


def pieces(
    problem: PieceProblem,
    *,
    strips: int = 2,
    diameter: int = 5,
    clock: Clock | None = None,
    state_limit: int = 2_000_000,
    ties: Ties = "sum",
) -> PieceChain:
    """The chain of least max C with ties settled as asked for, or the best found within the limits (10 s by default),
    with its bound.

    Raises InfeasibleError if no chain keeps the diameter, LimitReached if none was found in time, UsageError for fewer
    than one strip, a diameter below one layer or too many vertices.
    """
    if strips < 1 or diameter < 1:
        raise UsageError(f"pieces need at least one strip and a diameter of 1; given {strips} and {diameter}")
    clock = clock or Budget().start()
    begin, seconds = time.perf_counter(), clock.left()
    outcomes = native.compiled.Outcome
    search = _native_search(problem, strips, diameter, min(state_limit, clock.left_states()))
    low, best, threshold = 0, _NONE, 0
    result: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] | None = None
    while low < best:
        left = clock.left()
        if left <= 0:
            break
        # Ties that cannot be settled must not take the whole time. A threshold at the bound is refuted soonest.
        part = clock if threshold == _NONE - 1 else clock.within(left / 4)
        before = search.pairs()
        outcome, allowed = search.within(threshold, part.left_s())
        clock.count(search.pairs() - before)
        if outcome is outcomes.SOLVED:
            result = tuple(map(tuple, search.pieces())), tuple(search.costs())
            best = max(result[1], default=0)
        elif outcome is outcomes.IMPOSSIBLE and allowed == _NONE:
            raise InfeasibleError(f"no chain of pieces keeps the diameter {diameter}; allow a longer one")
        elif outcome is outcomes.IMPOSSIBLE:
            low = allowed
        elif threshold in (low, _NONE - 1) and (result is not None or threshold > low):
            break
        unsettled = outcome is outcomes.LIMIT
        threshold = _NONE - 1 if result is None else low + (0 if unsettled else (best - low) // 2)
    if result is None:
        raise LimitReached(f"no chain of pieces within {clock.budget}; give it more, or divide the network")
    left = clock.left()
    part = clock.within(max(seconds - left, 1.0))  # at most as long for ties as for the search
    refined = left > 0 and search.refine(best, ties == "first", part.left_s())
    if refined:
        result = tuple(map(tuple, search.pieces())), tuple(search.costs())
    return PieceChain(*result, low, refined, search.states(), time.perf_counter() - begin)


def _native_search(problem: PieceProblem, strips: int, diameter: int, state_limit: int) -> _native.PieceSearch:
    if len(problem.vertices) > _MOST_VERTICES:
        raise UnsupportedError(f"{len(problem.vertices)} vertices are more than {_MOST_VERTICES}; divide the network")
    form = problem.form
    inputs = [
        [number for item in op.inputs for number in (item.tensor, *(item.map or (0, 0, 0, 0)))] for op in form.ops
    ]
    numbers = [[op.rows, op.macs_per_row, int(op.whole)] for op in form.ops]
    outputs = [op.outputs for op in form.ops]
    rows = native.compiled.RowForm(inputs, outputs, numbers, form.rows, form.outputs)
    return native.compiled.PieceSearch(
        rows, problem.vertices, problem.layers, strips=strips, diameter=diameter, state_limit=state_limit
    )
