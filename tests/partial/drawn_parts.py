"""Segments in strips as hypothesis draws them, and plans composed of options."""

from itertools import groupby

from hypothesis import assume
from hypothesis import strategies as st

from downset.partial.front import compose, useful
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


def composed(whole, options, clock=None):
    """`compose` of options in any sequence."""

    def segment(option):
        return option.part.first, option.part.stop

    alike = groupby(sorted(options, key=segment), segment)
    each = [useful([*listed], max(whole[first:stop])) for (first, stop), listed in alike]
    return compose(whole, [one for options_of_segment in each for one in options_of_segment], clock)
