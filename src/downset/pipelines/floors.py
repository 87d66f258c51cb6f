"""Lower bounds for all pipelines, on the period and on the weights of one device, and the rows that any plan reads.

Complexity: O(rows of all operators), or O(units · log rows) prices of strips.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from downset.clusters.model import Cluster
from downset.pipelines.accounting import CommName
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import Mask, either
from downset.pipelines.strips import balanced_rows, slowest_strip_s

__all__ = ["Reads", "least_weights", "slowest_unit_s", "total_bound_s"]


def total_bound_s(problem: PricedChain, cluster: Cluster, *, comm: CommName) -> float:
    """A lower bound of period and latency, in seconds: a frame's work at the speed of all devices together. The work is
    the MACs for rows that are read, and by resources also the bytes that operators without MACs move for them, each
    weighed as on the device where it costs least."""
    work = float(problem.least_macs_before()[-1])
    if comm == "resources":
        work += least_moved_bytes(problem) * min(one.peak_speed / one.moved_per_s for one in cluster.devices)
    return work / sum(device.peak_speed for device in cluster.devices)


def least_moved_bytes(problem: PricedChain) -> int:
    """Bytes that operators without MACs read and write in any plan, also one of tiles: those of rows and columns that
    are read."""
    if "moved" not in problem.facts:
        rows = Reads(problem)
        columns = None if problem.across is None else Reads(problem.across)
        total = 0.0
        for op in (op for unit in problem.units for op in unit if not problem.ops[op].macs_per_row):
            moved = rows.moved(op)
            across = [1.0] * len(moved) if columns is None else [share for _, share in columns.moved(op)]
            total += sum(
                one * other * problem.tensors[tensor].nbytes for (tensor, one), other in zip(moved, across, strict=True)
            )
        problem.facts["moved"] = (int(total * (1 - 1e-12)),)
    return problem.facts["moved"][0]


def slowest_unit_s(problem: PricedChain, cluster: Cluster) -> float:
    """A lower bound of the period of pipelines of strips: the time in which all devices together compute one unit,
    whose strips cover the unit in any block. Two kinds of units are left out because a block may divide them
    differently: units of which a stride skips rows, and units that make several tensors."""
    speeds = sorted((device.peak_speed for device in cluster.devices), reverse=True)
    slowest = 0.0
    macs, least = problem.macs_before(), problem.least_macs_before()
    for unit in range(problem.cuts):
        whole = macs[unit + 1] - macs[unit] == least[unit + 1] - least[unit]
        if whole and len(problem.sinks(unit, unit + 1)) == 1:
            segment = problem.segment(unit, unit + 1)
            bounds = balanced_rows(segment, speeds)
            slowest = max(slowest, slowest_strip_s(segment, speeds, bounds))
    return slowest * (1 - 1e-10)


def least_weights(problem: PricedChain, devices: int) -> int:
    """A lower bound on the weights of the device that holds most, for any division of the chain into stages."""
    best = [0] + [1 << 62] * problem.cuts
    for _ in range(devices):
        best = [
            min(
                best[stop],
                *(max(best[start], problem.weight_bytes(start, stop)) for start in range(stop)),
            )
            if stop
            else 0
            for stop in range(problem.cuts + 1)
        ]
    return best[problem.cuts]


class Reads:
    """`rows[tensor]`: the rows that are read on the way to a result; all rows of a tensor without readers, because it
    is computed anyway. `by[tensor]`: pairs (unit, the rows that it reads)."""

    def __init__(self, problem: PricedChain) -> None:
        self.problem = problem
        inputs = {tensor for op in problem.ops for tensor in op.inputs}
        tensors = inputs | {tensor for op in problem.ops for tensor in op.outputs}
        self.rows: dict[int, Mask] = {t: problem.mask(t, of_all=t in problem.kept or t not in inputs) for t in tensors}
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
            return self.problem.mask(described.outputs[0], of_all=of_all)
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
