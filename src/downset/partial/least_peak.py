"""A lower bound on the peak of every plan that computes segments in strips, whatever rows are kept or recomputed."""

from __future__ import annotations

from collections.abc import Sequence

from downset.budget import Clock
from downset.graph.row_form import RowForm
from downset.partial.price import Pricing
from downset.partial.segment_bounds import SegmentBounds
from downset.partial.segments import Cuts, Segment

__all__ = ["least_peak"]


def least_peak(
    form: RowForm, pricing: Pricing, segments: Sequence[Segment], cuts: Cuts, clock: Clock | None = None
) -> int:
    """Bytes below which no plan has its peak that runs the operators in the graph's order: each as a whole, or in a
    segment between two of these cuts, which is computed in strips along the rows of `form` by any steps in the space of
    `segment_bounds`.

    It is the least of all sequences of segments, by dynamic programming over the cuts: the peak of a sequence is the
    largest of its parts. A segment of a long run, of which most are not listed, needs at least the bytes of its two
    ends, and so does any segment once the time of the `clock` is up. O(edges + segments) and the bounds of the segments
    that may be in the least sequence."""
    bounds = SegmentBounds(form, pricing)
    ending: dict[int, list[Segment]] = {}
    for segment in segments:
        ending.setdefault(segment.stop, []).append(segment)
    run_of = {position: number for number, run in enumerate(cuts.long_runs) for position in run}
    reached: dict[int, int] = {}
    """By long run: the least peak of a path up to one of its cuts so far, with the bytes that are live there."""
    peaks = [0]
    for stop, whole in enumerate((0, *pricing.around.transient)):
        run = run_of.get(stop)
        if stop:
            least = max(peaks[stop - 1], whole)
            if run in reached:
                ends = min(map(bounds.whole_bytes, cuts.crossing[stop]), default=0)
                least = min(least, max(reached[run], ends))
            ways = [(max(peaks[one.first], bounds.ends_bytes(one)), -one.first, one) for one in ending.get(stop, ())]
            for way, _, segment in sorted(ways, key=lambda way: way[:2]):
                if way >= least:
                    break
                late = clock is not None and clock.left_s() == 0
                least = min(least, way if late else max(way, bounds.least(segment, least)))
            peaks.append(least)
        if run is not None:
            here = max(peaks[stop], pricing.around.live[stop])
            reached[run] = min(reached.get(run, here), here)
    return peaks[-1]
