"""Work and bytes of all devices of a stage together: lower bounds for any blocks, and values for equal strips of one
block.

Names: n strips → the upper, lower and final tables of a segment, summed over n strips one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.direct.limits import DeviceType
from downset.pipelines.floors import Reads
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import SegmentPrices, sweeps
from downset.pipelines.strips import equal_rows

__all__ = ["EqualStrips", "SegmentSums", "least_fetched_s", "sums_suffice"]


class SegmentSums:
    """By segment: MACs whose rows are read (plus moved bytes, if on every device a byte takes as long as a MAC), bytes
    from other stages, and bytes for other stages. The input of the first stage and the output of the last count 0,
    because they may be in place already."""

    def __init__(
        self, problem: PricedChain, cluster: Cluster, kinds: Sequence[DeviceType], reads: Reads, accounting: Accounting
    ) -> None:
        self.network, self.kinds = cluster.network.occupied, kinds
        alike = all(device.moved_per_s == device.peak_speed for device in cluster.devices)
        work = [
            sum(0 if problem.ops[op].macs_per_row else reads.moved_bytes(op) * alike for op in unit)
            for unit in problem.units
        ]
        done = np.concatenate(([0], np.cumsum(work))) + np.array(problem.least_macs_before())
        frame = problem.crossing(0) if accounting.source is not None else ()
        results = problem.kept if accounting.sink is not None else ()
        self.work: dict[tuple[int, int], float] = {}
        self.came: dict[tuple[int, int], float] = {}
        self.goes: dict[tuple[int, int], float] = {}
        for start in range(problem.cuts):
            for stop in range(start + 1, problem.cuts + 1):
                ends, last = (start, stop), stop == problem.cuts
                self.work[ends] = float(done[stop] - done[start])
                self.came[ends] = float(reads.came(start, stop, left_out=frame)) if start else 0.0
                self.goes[ends] = 0.0 if last else float(reads.goes(start, stop, left_out=results))

    def medium_s(self) -> dict[tuple[int, int], float]:
        return {ends: nbytes / self.network.bytes_per_s for ends, nbytes in self.came.items()}


def sums_suffice(sums: SegmentSums, segments: Sequence[tuple[int, int]], period: float) -> npt.NDArray[np.bool_]:
    """Whether the time of the devices is enough for the sums, by segment and multiset of devices."""
    counts = [len(kind.devices) for kind in sums.kinds]
    states = np.array(list(product(*(range(count + 1) for count in counts))), np.int64)
    work, came, goes = (
        np.array([table[ends] for ends in segments])[:, None] for table in (sums.work, sums.came, sums.goes)
    )
    speeds = [kind.mac_per_s for kind in sums.kinds]
    whole = states @ np.array(speeds) * period  # MACs of all devices that compute all the time
    per_byte = min(kind.per_byte for kind in sums.kinds)
    if sums.network.overlap:
        enough = work <= whole
        if sums.network.kind == "links":
            ports = states.sum(axis=1) * period
            full = any(kind.full_duplex for kind in sums.kinds)
            moved = np.maximum(came, goes) if full else came + goes
            enough &= per_byte * moved <= ports
        return np.asarray(enough)
    left, capacity = per_byte * (came + goes), np.broadcast_to(whole, (len(segments), len(states))).copy()
    for kind in sorted(range(len(counts)), key=lambda one: speeds[one]):  # the slowest lose least
        taken = np.minimum(left, states[:, kind] * period)
        left = left - taken
        capacity -= taken * speeds[kind]
    return np.asarray((left <= 1e-12 * period) & (work <= capacity))


def least_fetched_s(
    problem: PricedChain, cluster: Cluster, many: npt.NDArray[np.int64], accounting: Accounting
) -> npt.NDArray[np.float64]:
    """A lower bound on the seconds of a shared medium for what the strips of a multiset of devices fetch, by start,
    stop and multiset. `many`: the number of devices of each multiset."""
    most, cuts = int(many.max()), problem.cuts
    fetched = np.zeros((cuts + 1, cuts + 1, most + 1))
    frame = set(problem.crossing(0)) if accounting.source is not None else set()
    for start in range(1, cuts):
        for stop in range(start + 1, cuts + 1):
            if not frame.intersection(
                t for unit in problem.units[start:stop] for op in unit for t in problem.ops[op].inputs
            ):
                fetched[start, stop] = _least_of_strips(problem.segment(start, stop), most)
    least = np.minimum.accumulate(fetched[..., ::-1], axis=2)[..., ::-1]  # that many strips, or more
    least = np.maximum.accumulate(np.where(np.isfinite(least), least, -np.inf), axis=2)  # at most one a row
    return np.asarray(least[..., many] / cluster.network.occupied.bytes_per_s)


def _least_of_strips(segment: SegmentPrices, most: int) -> npt.NDArray[np.float64]:
    """The fewest bytes that n strips fetch, none of them empty, by n; infinite for more strips than rows."""
    upper, lower, final = (table[1].astype(np.float64) for table in (segment.upper, segment.lower, segment.final))
    least = np.full(most + 1, np.inf)
    least[0], least[1:2] = 0.0, final[0]
    if segment.rows > 1:
        halos, last = np.sort((upper - lower)[1:-1]), (upper + final)[1:-1].min()
        halos = np.concatenate(([0.0], np.cumsum(halos)))[: min(most, segment.rows) - 1]
        least[2 : len(halos) + 2] = last - lower[0] + halos
    return least


class EqualStrips:
    """Figures of equal strips, by start, stop and number of strips: what they compute, what they fetch, and the part of
    it that the previous unit made, which the previous stage sends. A guide to plans, not a bound."""

    def __init__(
        self, problem: PricedChain, cluster: Cluster, kinds: Sequence[DeviceType], accounting: Accounting
    ) -> None:
        self.network, self.kinds = cluster.network.occupied, kinds
        counts = [len(kind.devices) for kind in kinds]
        self.sets = np.array(list(product(*(range(count + 1) for count in counts))), np.int64)
        self.many = self.sets.sum(axis=1)
        most, cuts = int(self.many.max()), problem.cuts
        self.work, self.fetched, self.sent = (np.zeros((cuts + 1, cuts + 1, most + 1)) for _ in range(3))
        alike = all(device.moved_per_s == device.peak_speed for device in cluster.devices)
        for stop in range(1, cuts + 1):
            for start, sweep in sweeps(problem.problem, stop):
                segment = problem.segment(start, stop)
                work, moved = (np.stack([t[q] for t in (segment.upper, segment.lower, segment.final)]) for q in (0, 3))
                self.work[start, stop] = _of_equal_strips(work + moved * alike, most)
                read = [tensor for tensor in sweep.whole if tensor not in sweep.made]
                self.fetched[start, stop] = _of_equal_strips(sweep.read_bytes(read), most)
                if start:
                    before = {tensor for op in problem.units[start - 1] for tensor in problem.ops[op].outputs}
                    self.sent[start, stop] = _of_equal_strips(sweep.read_bytes(before.intersection(read)), most)
                elif accounting.source is None:  # the entry has its rows and sends the others'
                    self.fetched[start, stop] *= 2 * (1 - 1 / np.maximum(np.arange(most + 1), 1))

    def fetched_s(self) -> npt.NDArray[np.float64]:
        """Seconds of the medium, by start, stop and multiset."""
        least = np.where(np.isfinite(self.fetched), self.fetched, 0.0)
        return np.asarray(least[..., self.many] / self.network.bytes_per_s)

    def sending_s(
        self, period: float
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Three tables by start, stop and multiset, each device with a strip: the seconds that its devices have left to
        send; the seconds that the previous stage must send; and whether the segment has that many strips and the
        devices time to compute them."""
        per_byte = min(kind.per_byte for kind in self.kinds)
        work, fetched, sent = (table[..., self.many] for table in (self.work, self.fetched, self.sent))
        exists = np.isfinite(work)
        needs = np.where(exists, sent, 0.0) * per_byte
        offers = np.broadcast_to(self.many * period, work.shape).copy()
        if not (self.network.overlap and any(kind.full_duplex for kind in self.kinds)):
            offers -= np.where(exists, fetched, 0.0) * per_byte
        if not self.network.overlap:
            left = np.where(exists, work, 0.0)
            for kind in sorted(range(len(self.kinds)), key=lambda one: -self.kinds[one].mac_per_s):
                speed = self.kinds[kind].mac_per_s  # the fastest devices spend least on it
                taken = np.minimum(left, self.sets[:, kind] * period * speed)
                offers -= taken / speed
                left = left - taken
            exists &= left <= 1e-9 * np.where(exists, work, 0.0)
        return offers, needs, exists


def _of_equal_strips(tables: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.float64]:
    upper, lower, final = tables.astype(np.float64)
    rows, least = len(upper) - 1, np.full(most + 1, np.inf)
    least[0] = 0.0
    for strips in range(1, min(most, rows) + 1):
        bounds = np.array(equal_rows(rows, strips))
        least[strips] = upper[bounds[1:-1]].sum() - lower[bounds[:-2]].sum() + final[bounds[-2]]
    return least
