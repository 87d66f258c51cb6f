"""Rewriting under a limit of work: repeatable, and never a higher peak with more."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.rewrites.concat import choose
from downset.rewrites.concat.choose import choose_rewrites
from tests.effort import cases
from tests.rewrites.test_rewrite import networks

LIMITS = st.sampled_from([0, 1, 2, 3, 5, 9, 30, 200, 5000])


@given(graph=networks(), memory=st.sampled_from(["live", "tflm"]), limits=st.tuples(LIMITS, LIMITS).map(sorted))
@settings(max_examples=cases(40))
def test_more_work_never_gives_a_higher_peak(graph, memory, limits):
    """With four states for each set, so that searches end early too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "_SET_STATES", 4)
        less, again, further = (
            choose_rewrites(graph, memory=memory, time_limit_s=math.inf, work_limit=limit)
            for limit in (limits[0], *limits)
        )
    assert (less.order.steps, less.rewrites) == (again.order.steps, again.rewrites)
    assert [op.name for op in less.graph.ops] == [op.name for op in again.graph.ops]
    assert further.order.peak_bytes <= less.order.peak_bytes <= less.before.peak_bytes
