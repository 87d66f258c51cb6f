"""The problem that planners of pipelines solve: a network as a chain of cuts.

A unit is a set of operators that are planned together. Cut c lies behind unit c - 1, so units [i, j) lie between cuts i
and j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["Ints", "SplitOp", "SplitProblem", "SplitTensor", "chain_problem", "joined", "window_tables"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """`rows`: rows that can be cut (1: none can). `row_bytes`: the bytes of one row."""

    rows: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class SplitOp:
    """`first[k][lo]` and `last[k][hi]`: output rows [lo, hi), not empty, need rows [first[k][lo], last[k][hi]) of input
    k. Both tables ascend. `weights`: (tensor, bytes) of each constant that it reads."""

    macs_per_row: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    first: tuple[Ints, ...]
    last: tuple[Ints, ...]
    weights: tuple[tuple[int, int], ...] = ()
    whole: bool = False
    """Whether it makes all its rows or none."""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SplitProblem:
    """A network as a chain of `len(units)` units over `ops`."""

    tensors: tuple[SplitTensor, ...]
    ops: tuple[SplitOp, ...]
    units: tuple[tuple[int, ...], ...]
    """The operators of each unit, in an order in which they can run. All units together hold every operator once."""
    kept: frozenset[int] = frozenset()
    """The tensors that are outputs of the network."""
    across: SplitProblem | None = None
    """The same network along the other axis, for tiles; None if that is not known."""
    source_ops: tuple[tuple[int, ...], ...] = ()
    """The graph's operators that each operator of `ops` stands for; empty: each stands for itself."""
    axis: int = 0
    """The axis along which rows lie: 0, the graph's rows or its length; 1, its columns."""
    baseline_cuts: tuple[int, ...] | None = None
    """The cuts, with 0 and the end, that planners may use which do not relay tensors; None: all."""

    @property
    def cuts(self) -> int:
        """The number of units; cuts are 0 … cuts."""
        return len(self.units)


def joined(problem: SplitProblem, cuts: Sequence[int]) -> SplitProblem:
    """The same network with the units between consecutive `cuts` joined into one. `cuts` ascend from 0 to the end."""
    units = tuple(tuple(op for unit in problem.units[start:stop] for op in unit) for start, stop in pairwise(cuts))
    across = None if problem.across is None else joined(problem.across, cuts)
    return SplitProblem(problem.tensors, problem.ops, units, problem.kept, across, problem.source_ops, problem.axis)


def chain_problem(layers: Sequence[tuple[int, int, int, int]], *, rows: int, row_bytes: int) -> SplitProblem:
    """A chain of layers, each one unit: (MACs per output row, kernel, stride, bytes per output row). Pads keep the rows
    of a layer of stride 1. For tests and synthetic networks."""
    tensors, ops = [SplitTensor(rows, row_bytes)], []
    for macs_per_row, kernel, stride, out_row_bytes in layers:
        extent = tensors[-1].rows
        output_rows = max(1, -(-extent // stride))
        first, last = window_tables(output_rows, extent, kernel=kernel, stride=stride, pad=(kernel - 1) // 2)
        tensors.append(SplitTensor(output_rows, out_row_bytes))
        ops.append(SplitOp(macs_per_row, (len(tensors) - 2,), (len(tensors) - 1,), (first,), (last,)))
    units = tuple((op,) for op in range(len(ops)))
    return SplitProblem(tuple(tensors), tuple(ops), units, frozenset({len(tensors) - 1}))


def window_tables(output_rows: int, extent: int, *, kernel: int, stride: int, pad: int) -> tuple[Ints, Ints]:
    """The tables of a sliding window from `extent` input rows to `output_rows`, clipped at the borders."""
    rows = np.arange(output_rows + 1, dtype=np.int64)
    first = np.clip(rows * stride - pad, 0, extent - 1)
    last = np.clip((rows - 1) * stride - pad + kernel, 1, extent)
    return first, np.maximum(last, 1)
