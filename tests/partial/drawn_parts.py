"""Segments in strips as hypothesis draws them."""

from hypothesis import assume
from hypothesis import strategies as st

from downset.partial.rewrite import InStrips
from downset.partial.segments import find_segments
from downset.partial.strip_program import most_strips


def drawn_parts(data, graph, form, *, crossing, strips):
    """Segments that do not overlap, each with at most so many strips, a pace and operators that recompute. `crossing`:
    the most tensors that may cross a cut."""
    found = list(find_segments(graph, form, most_crossing=crossing))
    assume(found)
    parts, at = [], 0
    while left := [segment for segment in found if segment.first >= at]:
        segment = data.draw(st.sampled_from(left))
        even = data.draw(st.booleans())
        recomputed = data.draw(st.sets(st.sampled_from(list(segment.operators))))
        count = data.draw(st.integers(1, min(most_strips(form, segment, even=even), strips)))
        parts.append(InStrips(segment.first, segment.stop, count, frozenset(recomputed), even))
        at = segment.stop
    return parts
