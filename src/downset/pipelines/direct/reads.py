"""The rows that are read in any plan: by tensor and reader, and those that cross the ends of a segment."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from downset.pipelines.problem import SplitProblem
from downset.pipelines.segment_prices import Mask, either

__all__ = ["Reads"]


class Reads:
    """`rows[tensor]`: the rows that are read on the way to a result; all rows of a tensor without readers, because it
    is computed anyway. `by[tensor]`: pairs (unit, the rows that it reads)."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        inputs = {tensor for op in problem.ops for tensor in op.inputs}
        tensors = inputs | {tensor for op in problem.ops for tensor in op.outputs}
        self.rows: dict[int, Mask] = {
            t: problem.rows_of(t, of_all=t in problem.kept or t not in inputs) for t in tensors
        }
        self.by: dict[int, list[tuple[int, Mask]]] = {}
        for place in reversed(range(problem.cuts)):
            for op in reversed(problem.units[place]):
                output = self.made(op)
                for position, tensor in enumerate(problem.ops[op].inputs):
                    rows = self._read_for(op, position, output)
                    self.rows[tensor] = either([self.rows[tensor], rows])
                    self.by.setdefault(tensor, []).append((place, rows))

    def made(self, op: int) -> Mask:
        """The rows that an operator must make, once its readers are known. If it is computed whole: all rows of its
        first output, or none."""
        described = self.problem.ops[op]
        read = [self.rows[tensor] for tensor in described.outputs]
        if described.whole:  # the heights of its outputs may differ
            of_all = any(self.problem.count(rows) for rows in read)
            return self.problem.rows_of(described.outputs[0], of_all=of_all)
        return either(read)

    def read_by(self, op: int, position: int) -> Mask:
        """The rows of an input that an operator reads to make its rows."""
        return self._read_for(op, position, self.made(op))

    def _read_for(self, op: int, position: int, output_mask: Mask) -> Mask:
        """The rows of an input that an operator reads to make the rows `output_mask`."""
        described = self.problem.ops[op]
        rows = self.problem.tensors[described.inputs[position]].rows
        return self.problem.rows_read(described.first[position], described.last[position], output_mask, rows)

    def moved(self, op: int) -> list[tuple[int, float]]:
        """(tensor, share of its rows) for each tensor that an operator writes, then for each that it reads, to make its
        rows."""
        described, output = self.problem.ops[op], self.made(op)
        share = self._share(output)
        written = [(tensor, share) for tensor in described.outputs]
        return written + [
            (tensor, self._share(self._read_for(op, position, output)))
            for position, tensor in enumerate(described.inputs)
        ]

    def _share(self, rows: Mask) -> float:
        return self.problem.count(rows) / len(rows)

    def moved_bytes(self, op: int) -> int:
        """The bytes that an operator reads and writes to make its rows."""
        return round(sum(share * self.problem.tensors[tensor].nbytes for tensor, share in self.moved(op)))

    def came(self, start: int, stop: int, *, left_out: Collection[int] = ()) -> int:
        """The bytes of rows that units [start, stop) read and that earlier units make or the network is given."""
        total = 0
        for tensor in self.problem.crossing(start):
            inside = [rows for unit, rows in self.by.get(tensor, ()) if start <= unit < stop]
            if inside and tensor not in left_out:
                total += int(np.logical_or.reduce(inside).sum()) * self.problem.tensors[tensor].row_bytes
        return total

    def goes(self, start: int, stop: int, *, left_out: Collection[int] = ()) -> int:
        """The bytes of rows that units [start, stop) make and that later units read or that are results, without
        `left_out`."""
        total = 0
        results = {
            tensor for unit in self.problem.units[start:stop] for op in unit for tensor in self.problem.ops[op].outputs
        }
        for tensor in results.intersection(self.problem.crossing(stop)):
            after = [rows for unit, rows in self.by.get(tensor, ()) if unit >= stop]
            if tensor in self.problem.kept and tensor not in left_out:
                total += self.problem.tensors[tensor].nbytes
            elif after:
                total += int(np.logical_or.reduce(after).sum()) * self.problem.tensors[tensor].row_bytes
        return total
