"""Lower bounds for all pipelines: on the period, and on the weights of one device.

Complexity: O(rows of all operators), or O(units · log rows) prices of strips.
"""

from __future__ import annotations

from downset.clusters.model import Cluster
from downset.pipelines.direct.reads import Reads
from downset.pipelines.paper_timing import CommName
from downset.pipelines.problem import SplitProblem
from downset.pipelines.strips import balanced_rows, slowest_strip_s

__all__ = ["least_weights", "slowest_unit_s", "total_bound_s"]


def total_bound_s(problem: SplitProblem, cluster: Cluster, *, comm: CommName) -> float:
    """A lower bound of period and latency, in seconds: a frame's work at the speed of all devices together. The work is
    the MACs for rows that are read, and by resources also the bytes that operators without MACs move for them, each
    weighed as on the device where it costs least."""
    work = float(problem.least_macs_before()[-1])
    if comm == "resources":
        work += least_moved_bytes(problem) * min(one.peak_speed / one.moved_per_s for one in cluster.devices)
    return work / sum(device.peak_speed for device in cluster.devices)


def least_moved_bytes(problem: SplitProblem) -> int:
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


def slowest_unit_s(problem: SplitProblem, cluster: Cluster) -> float:
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


def least_weights(problem: SplitProblem, devices: int) -> int:
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
