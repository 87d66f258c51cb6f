"""Which rows of which tensors a strip needs."""

from __future__ import annotations

from downset.pipelines.drafts import Split
from downset.pipelines.problem import SplitProblem, SplitTensor

__all__ = ["hull", "needs", "rows_of"]


def needs(problem: SplitProblem, split: Split, lo: int, hi: int, rows: int) -> dict[int, tuple[int, int]]:
    """By tensor (the block's inputs, its own and its outputs): the rows that the strip [lo, hi) needs, unless none."""
    if not split.halo:
        return _needs(problem, split, lo, hi, rows)
    key = (split.start, split.stop, lo, hi, rows)  # planners of halos ask for the same few strips again and again
    if key not in problem._needs:
        problem._needs[key] = _needs(problem, split, lo, hi, rows)
    return problem._needs[key]


def _needs(problem: SplitProblem, split: Split, lo: int, hi: int, rows: int) -> dict[int, tuple[int, int]]:
    ops = [op for unit in problem.units[split.start : split.stop] for op in unit]
    sinks = problem.sinks(split.start, split.stop)
    need: dict[int, tuple[int, int]] = {}
    for op in reversed(ops):
        described = problem.ops[op]
        for tensor in described.outputs:
            if tensor in sinks:
                own = rows_of(problem.tensors[tensor], lo, hi, rows)
                if own[0] < own[1]:
                    need[tensor] = hull(need.get(tensor), own)
        made = [need[tensor] for tensor in described.outputs if tensor in need]
        if not made:
            continue
        low, high = min(pair[0] for pair in made), max(pair[1] for pair in made)
        if described.whole:
            low, high = 0, problem.tensors[described.outputs[0]].rows
        for tensor in described.outputs:
            need[tensor] = (0, problem.tensors[tensor].rows) if described.whole else (low, high)
        for position, tensor in enumerate(described.inputs):
            pair = (int(described.first[position][low]), int(described.last[position][high]))
            need[tensor] = hull(need.get(tensor), pair)
    return need


def hull(first: tuple[int, int] | None, second: tuple[int, int]) -> tuple[int, int]:
    return second if first is None else (min(first[0], second[0]), max(first[1], second[1]))


def rows_of(tensor: SplitTensor, lo: int, hi: int, rows: int) -> tuple[int, int]:
    return (lo * tensor.rows // rows, hi * tensor.rows // rows)
