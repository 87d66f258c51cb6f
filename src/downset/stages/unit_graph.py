"""Units: operators that are always run together. Planners of stages see the graph of units only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from downset.graph.core import ABSENT, Graph, Op
from downset.lattice import ancestors, bits, descendants, topological

__all__ = ["PATTERNS", "Pattern", "UnitGraph", "group_units", "search_blocks", "unit_predecessors"]

Pattern = tuple[str, ...]

PATTERNS: tuple[Pattern, ...] = (
    # separable convolutions with the ReLU, and the sum, in front of them
    ("Add|Sum", "Relu", "Conv.depthwise", "Conv.pointwise"),
    ("Relu", "Conv.depthwise", "Conv.pointwise"),
    # convolutions with what follows them
    ("Conv", "Relu|Clip|LeakyRelu|HardSwish|Sigmoid"),
    ("Add|Sum", "Relu", "Conv"),
    ("Relu", "Conv"),
    # a concatenation with the sums of its parts
    ("Add|Sum", "Concat"),
)
"""The kinds of a unit's operators from first to last. `|` separates alternatives; `.depthwise` and `.pointwise` name
forms of a convolution. IOS's units are Conv-ReLU and ReLU-SepConv (Table 2); its published networks also have ReLU-Conv
and the sums in front of a ReLU-SepConv or of a concatenation. Ours are further: a sum in front of any ReLU-Conv, and
Clip, LeakyRelu, HardSwish or Sigmoid behind a convolution.
"""


@dataclass(frozen=True, slots=True)
class UnitGraph:
    """`units[u]`: operators of unit u, ascending. `predecessors[u]`: mask of the units it waits for, all below u."""

    units: tuple[tuple[int, ...], ...]
    predecessors: tuple[int, ...]


def group_units(graph: Graph, patterns: Sequence[Pattern] = PATTERNS) -> UnitGraph:
    """The unit graph of a network. Each operator is in one unit, except operators whose results are constants.

    A pattern is matched backwards from its last operator: each earlier operator must make a tensor that only the
    operator behind it reads. Earlier patterns are matched first, and within a pattern earlier operators. Several
    operators may match one step, such as the sums of a concatenation. O(patterns · operators · inputs).
    """
    made_by, read_by = graph.producers(), graph.consumers()
    outputs = set(graph.outputs)
    unit_of: dict[int, int] = {}
    active = [
        index
        for index, op in enumerate(graph.ops)
        if not all(tensor in graph.constants for tensor in op.outputs if tensor != ABSENT)
    ]

    def makers(index: int, step: str) -> list[int]:
        producers = []
        for tensor in dict.fromkeys(graph.ops[index].inputs):
            maker = made_by[tensor] if tensor != ABSENT else -1
            alone = maker >= 0 and read_by[tensor] == (index,) and tensor not in outputs
            if alone and maker not in unit_of and _matches(graph, graph.ops[maker], step):
                producers.append(maker)
        return producers

    members: list[list[int]] = []
    for pattern in patterns:
        for index in active:
            if index in unit_of or not _matches(graph, graph.ops[index], pattern[-1]):
                continue
            unit, front = [index], [index]
            for step in reversed(pattern[:-1]):
                front = [maker for index in front for maker in makers(index, step)]
                if not front:
                    break
                unit += front
            if front:
                unit_of.update(dict.fromkeys(unit, len(members)))
                members.append(sorted(unit))
    for index in active:
        if index not in unit_of:
            unit_of[index] = len(members)
            members.append([index])
    return _numbered(graph, members)


def _matches(graph: Graph, op: Op, step: str) -> bool:
    for alternative in step.split("|"):
        kind, _, form = alternative.partition(".")
        if op.kind != kind:
            continue
        if not form:
            return True
        shapes = [graph.tensors[tensor].shape for tensor in op.inputs[:2]]
        if len(shapes) < 2 or min(map(len, shapes)) < 3:
            continue
        source, weights = shapes
        last = op.attrs.get("layout") == "NHWC"
        group, inside, kernel = int(op.attrs.get("group", 1)), source[-1 if last else 1], weights[1:-1]
        if form == "depthwise" and group > 1 and group == inside:
            return True
        if form == "pointwise" and group == 1 and all(extent == 1 for extent in (kernel if last else weights[2:])):
            return True
    return False


def _numbered(graph: Graph, members: list[list[int]]) -> UnitGraph:
    """The units in a topological order near that of their last operators, and their edges."""
    ordered = sorted((tuple(ops) for ops in members), key=lambda ops: ops[-1])
    # Where operators write what others read, two units may wait for each other: such a unit is taken apart.
    while tangled := [unit for unit in _tangled(unit_predecessors(graph, ordered)) if len(ordered[unit]) > 1]:
        apart = [(op,) for op in ordered.pop(tangled[0])]
        ordered = sorted((*ordered, *apart), key=lambda ops: ops[-1])
    final = topological(unit_predecessors(graph, ordered))
    units = tuple(ordered[unit] for unit in final)
    return UnitGraph(units, unit_predecessors(graph, units))


def _tangled(predecessors: Sequence[int]) -> list[int]:
    """The units that lie on cycles, or on paths between two cycles."""
    left = (1 << len(predecessors)) - 1
    while True:
        waited = 0
        for unit in bits(left):
            waited |= predecessors[unit]
        ends = sum(1 << unit for unit in bits(left) if not predecessors[unit] & left or not waited >> unit & 1)
        if not ends:
            return list(bits(left))
        left &= ~ends


def unit_predecessors(graph: Graph, units: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The mask of the units that each unit directly waits for. Operators in no unit count as computed."""
    unit_of = {op: unit for unit, ops in enumerate(units) for op in ops}
    masks = [0] * len(units)
    for index, before in enumerate(graph.predecessors()):
        if index in unit_of:
            here = unit_of[index]
            for earlier in before:
                if earlier in unit_of and unit_of[earlier] != here:
                    masks[here] |= 1 << unit_of[earlier]
    return tuple(masks)


def search_blocks(predecessors: Sequence[int], *, largest: int = 40) -> tuple[tuple[int, ...], ...]:
    """Consecutive blocks of units, each to be searched by itself: the differences of a chain of downsets.

    There is a cut behind every unit that is ordered with all others. It loses nothing, because a stage across it could
    only be a chain. Blocks of more than `largest` units are cut further, behind the units that are unordered with the
    fewest others; stages across such a cut are lost. IOS cuts by hand. O(V²) mask steps.
    """
    count = len(predecessors)
    above, below = ancestors(predecessors), descendants(predecessors)
    unordered = [count - 1 - above[unit].bit_count() - below[unit].bit_count() for unit in range(count)]
    everything = (1 << count) - 1

    behind = {above[unit] | 1 << unit for unit in range(count) if unordered[unit] == 0}
    cuts = sorted({0, everything} | behind, key=int.bit_count)
    for unit in sorted(range(count), key=lambda unit: (unordered[unit], unit)):
        sizes = [later.bit_count() - earlier.bit_count() for earlier, later in pairwise(cuts)]
        if max(sizes, default=0) <= largest:
            break
        closed = above[unit] | 1 << unit
        place = next((i for i, cut in enumerate(cuts) if closed & ~cut == 0 and cut != 0), None)
        if place is None or cuts[place].bit_count() - cuts[place - 1].bit_count() <= largest:
            continue
        inside = closed | cuts[place - 1]
        if inside not in (cuts[place - 1], cuts[place]):
            cuts.insert(place, inside)
    return tuple(tuple(bits(later & ~earlier)) for earlier, later in pairwise(cuts) if later != earlier)
