"""The problem of Algorithm 1, vertices and the rows that they read, and its result, a chain of pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm

__all__ = ["PieceChain", "PieceProblem", "Ties", "piece_problem"]

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
