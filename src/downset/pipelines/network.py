"""Turns a graph into the chain of cuts on which planners of pipelines work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from downset.budget import Budget, Clock
from downset.errors import InfeasibleError, LimitReached, UnsupportedError
from downset.graph.core import ABSENT, Graph
from downset.graph.cost import longest_axis, op_macs, row_form
from downset.graph.halos import extent
from downset.graph.kinds import kind_of
from downset.graph.row_form import AxisMap, RowForm
from downset.pipelines.cuts import refined_cuts, thinned
from downset.pipelines.pieces import PieceChain, PieceProblem, piece_problem, pieces
from downset.pipelines.problem import Ints, SplitOp, SplitProblem, SplitTensor

__all__ = [
    "UnitChain",
    "block_units",
    "layer_units",
    "pipeline_chain",
    "pipeline_units",
    "priced_chain",
    "split_problem",
]


def split_problem(graph: Graph, units: Sequence[Iterable[int]], *, halos_required: bool = True) -> SplitProblem:
    """The graph as a chain of units, along the longer of its axes that can be cut. Each unit is a set of operators;
    together they hold all operators, each after those it needs.

    `halos_required`: raise UnsupportedError for an operator whose halo is not known; otherwise it is computed whole."""
    chain = tuple(tuple(sorted(unit)) for unit in units)
    if sorted(op for unit in chain for op in unit) != list(range(len(graph.ops))):
        raise UnsupportedError("the units of a pipeline must hold every operator of the graph once")
    empty = next((op.name for op in graph.ops if all(tensor == ABSENT for tensor in op.outputs)), None)
    if empty is not None:
        raise UnsupportedError(f"{graph.name}: operator {empty!r} makes nothing, so no device can be given rows of it")
    _check_rows(graph)
    computing, sources = _without_constants(graph, chain)
    axis = longest_axis(graph)
    across = _problem(graph, row_form(graph, axis=1 - axis, halos_required=halos_required), computing, None)
    problem = _problem(graph, row_form(graph, axis=axis, halos_required=halos_required), computing, across)
    return replace(problem, source_ops=sources)


_MOST_ROWS = 1 << 20
"""The most rows of a tensor: rows that are read are counted one by one, and every stage has prices for each row."""
_MOST_ROWS_TOGETHER = 1 << 25
"""The most rows of all tensors together."""


def _check_rows(graph: Graph) -> None:
    """Raise UnsupportedError for a tensor with too many rows or columns."""
    for axis in (0, 1):
        together = 0
        for index, tensor in enumerate(graph.tensors):
            rows = extent(graph, index, axis) if tensor.role == "activation" else 0
            together += rows
            if rows > _MOST_ROWS:
                raise UnsupportedError(
                    f"{graph.name}: tensor {tensor.name!r} is {rows:,} rows or columns long; pipelines divide up to "
                    f"{_MOST_ROWS:,}"
                )
        if together > _MOST_ROWS_TOGETHER:
            raise UnsupportedError(
                f"{graph.name}: its tensors have {together:,} rows or columns together; pipelines divide up to "
                f"{_MOST_ROWS_TOGETHER:,}"
            )


def _without_constants(
    graph: Graph, chain: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Two things: the units without operators whose results are constants (such as computed weights), which belong to
    every shard that reads them; and for each remaining operator the operators that it stands for, because a unit's
    constant operators go with its first remaining one."""
    fixed = {
        index
        for index, op in enumerate(graph.ops)
        if all(graph.tensors[t].role == "constant" for t in op.outputs if t != ABSENT)
    }
    sources: list[tuple[int, ...]] = [(index,) for index in range(len(graph.ops))]
    units = []
    for unit in chain:
        stays = [op for op in unit if op not in fixed] or list(unit[:1])
        sources[stays[0]] = tuple(sorted({stays[0], *(set(unit) - set(stays))}))
        units.append(tuple(stays))
    return tuple(units), tuple(sources)


def _problem(
    graph: Graph, form: RowForm, units: tuple[tuple[int, ...], ...], across: SplitProblem | None
) -> SplitProblem:
    tensors = tuple(
        SplitTensor(1, 0) if described.role == "constant" else SplitTensor(max(rows, 1), row_bytes)
        for described, rows, row_bytes in zip(graph.tensors, form.rows, form.bytes_per_row, strict=True)
    )
    ops = []
    cached: dict[tuple[int, int, AxisMap | None], tuple[Ints, Ints]] = {}
    for index, described in enumerate(form.ops):
        output_rows = max(described.rows, 1)
        tables: list[tuple[Ints, Ints]] = []
        for item in described.inputs:
            key = (output_rows, max(form.rows[item.tensor], 1), None if described.whole else item.map)
            if key not in cached:
                cached[key] = _row_tables(*key)
            tables.append(cached[key])
        weights = tuple(
            (tensor, graph.tensors[tensor].nbytes)
            for tensor in dict.fromkeys(graph.ops[index].inputs)
            if tensor != ABSENT and graph.tensors[tensor].role == "constant"
        )
        inputs = tuple(item.tensor for item in described.inputs)
        ops.append(
            SplitOp(
                described.macs_per_row,
                inputs,
                described.outputs,
                tuple(first for first, _ in tables),
                tuple(last for _, last in tables),
                weights,
                described.whole,
                graph.ops[index].kind,
            )
        )
    return SplitProblem(tensors, tuple(ops), units, frozenset(graph.outputs), across, axis=form.axis)


def _row_tables(output_rows: int, extent: int, mapped: AxisMap | None) -> tuple[Ints, Ints]:
    """The tables `first` and `last` of an operator of `output_rows` rows for an input of `extent` rows. Without a map
    the input is read whole."""
    if mapped is None:
        return np.zeros(output_rows + 1, np.int64), np.full(output_rows + 1, extent, np.int64)
    rows = np.arange(output_rows + 1, dtype=np.int64)
    scale, per, low, high = mapped
    return (
        np.clip((scale * rows + low) // per, 0, extent - 1),
        np.clip((scale * (rows - 1) + high) // per + 1, 1, extent),
    )


@dataclass(frozen=True, slots=True)
class UnitChain:
    """Units of operators in order. `baseline_cuts`: the cuts, with 0 and the end, that planners may use which do not
    relay tensors."""

    units: tuple[tuple[int, ...], ...]
    baseline_cuts: tuple[int, ...]


_MOST_UNITS, _LEAST_UNITS = 256, 4
_SWEPT = 60_000
"""The most units times operators: the prices of a cut look at every operator before it, about 10 µs each."""
_PRICED = 1 << 24
"""The most rows times pairs of cuts: each has a table of prices, of 96 bytes a row."""


def priced_chain(graph: Graph, chain: UnitChain) -> UnitChain:
    """The chain; if it has more units than can be priced in short time, neighbouring units are joined into parts of
    about equal work, between the cuts of baselines. The number of units depends on the network alone and not on the
    time limit: more time searches the same plans for longer."""
    rows = max(row_form(graph, axis=longest_axis(graph), halos_required=False).rows, default=1)
    most = min(_MOST_UNITS, max(_LEAST_UNITS, min(_SWEPT // len(graph.ops), math.isqrt(2 * _PRICED // max(rows, 1)))))
    if len(chain.units) <= most:
        return chain
    steps = [[op for unit in chain.units[start:stop] for op in unit] for start, stop in pairwise(chain.baseline_cuts)]
    work = list(accumulate(sum(op_macs(graph, graph.ops[op]) for op in step) for step in steps))
    count = list(accumulate(map(len, steps)))
    units: dict[int, list[int]] = {}
    for step, macs, ops in zip(steps, work, count, strict=True):
        share = (macs / work[-1] + ops / count[-1]) / 2 if work[-1] else ops / count[-1]
        units.setdefault(min(int(share * most), most - 1), []).extend(step)
    return UnitChain(tuple(map(tuple, units.values())), tuple(range(len(units) + 1)))


def pipeline_units(graph: Graph, *, clock: Clock | None = None) -> tuple[tuple[int, ...], ...]:
    """The chain of the paper, the pieces of Algorithm 1; blocks if there is no such chain within the diameter or the
    clock (default: 10 s)."""
    return _pieces(graph, clock or Budget().start())[2]


def pipeline_chain(graph: Graph, *, clock: Clock | None = None, most: int = 40) -> UnitChain:
    """The refined chain: the cuts of pieces and of blocks, and further cuts that need relays, up to `most` cuts in all
    unless pieces and blocks have more. Where there is no chain of pieces, the whole network is one piece."""
    clock = clock or Budget().start()
    problem, chain, units = _pieces(graph, clock)
    if problem is None:
        return UnitChain(units, tuple(range(len(units) + 1)))
    refined = refined_cuts(problem, None if chain is None else chain.pieces, state_limit=_ORDER_STATES, clock=clock)
    room = most - sum(refined.of_pieces)
    refined = thinned(problem, refined, max(room, 1)) if len(refined.cuts) > most else refined
    masks = _downsets(refined.units(problem))
    kept = {masks[place] for place, of_pieces in enumerate(refined.of_pieces) if of_pieces} | set(_downsets(units))
    # A cut that one tensor crosses contains, or is contained in, every other downset, so it fits into any chain.
    masks = sorted({*masks, *_downsets(block_units(graph))}, key=int.bit_count)
    if any(before & ~after for before, after in pairwise(masks)):
        masks = _downsets(refined.units(problem))
    return UnitChain(layer_units(masks[1:]), tuple(place for place, mask in enumerate(masks) if mask in kept))


_ORDER_STATES = 5_000
"""The most states for the order inside a piece; past them the order is greedy. NASNet-A Large takes 2 s with this many.
"""


def _downsets(units: Iterable[Iterable[int]]) -> list[int]:
    """The cuts of a chain as masks of operators, from none to all."""
    masks = [0]
    for unit in units:
        masks.append(masks[-1] | sum(1 << op for op in unit))
    return masks


def _pieces(graph: Graph, clock: Clock) -> tuple[PieceProblem | None, PieceChain | None, tuple[tuple[int, ...], ...]]:
    problem = None
    try:
        _check_rows(graph)
        problem = piece_problem(graph, axis=longest_axis(graph), halos_required=False)
        chain = pieces(problem, clock=clock)
    except (InfeasibleError, LimitReached, UnsupportedError):
        return problem, None, block_units(graph)
    return problem, chain, chain.operators(problem)


def layer_units(cuts: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """The units between downsets. `cuts`: masks of operators, each containing the one before; the last holds all
    operators."""
    units, before = [], 0
    for mask in cuts:
        unit = tuple(op for op, digit in enumerate(reversed(f"{mask & ~before:b}")) if digit == "1")
        if unit:
            units.append(unit)
        before = mask
    return tuple(units)


def block_units(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The coarsest chain, on which earlier work plans: cuts where a single tensor crosses, with pointwise operators
    joined to the layer before them. A residual or inception block is one unit; outside of blocks every convolution or
    pool is."""
    made_by, read_by = graph.producers(), graph.consumers()
    count = len(graph.ops)
    last_read = [max(read_by[t], default=-1) for t in range(len(graph.tensors))]
    for tensor in graph.outputs:
        last_read[tensor] = count
    crossing: set[int] = {t for t in graph.inputs if last_read[t] >= 0}
    begin, units = 0, []
    for index, op in enumerate(graph.ops):
        crossing |= {
            t for t in op.outputs if t != ABSENT and last_read[t] > index and graph.tensors[t].role != "constant"
        }
        crossing -= {t for t in op.inputs if t != ABSENT and last_read[t] <= index}
        alone = next(iter(crossing)) if len(crossing) == 1 else -1
        follows = index + 1 < count and _joins(graph, index + 1)
        if index == count - 1 or (alone >= 0 and made_by[alone] == index and not follows):
            units.append(tuple(range(begin, index + 1)))
            begin = index + 1
    return tuple(units)


def _joins(graph: Graph, op: int) -> bool:
    """Whether an operator belongs to the layer before it: it computes no MACs, and one of its inputs is computed."""
    described = graph.ops[op]
    read = [t for t in described.inputs if t != ABSENT and graph.tensors[t].role == "activation"]
    return not kind_of(described.kind).layer and len(set(read)) == 1
