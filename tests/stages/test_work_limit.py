"""Stages under a limit of work: the same prices give the same stages whatever the clock says."""

import math
import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.errors import LimitReached, UsageError
from downset.stages.plan import plan_stages
from downset.stages.problem import StageProblem
from downset.tuning.search import StageLimits
from tests.strategies import precedences

pytestmark = pytest.mark.native
LIMITS = st.sampled_from([0, 20, 700, 3_000, 10**6])


def price(stage):
    """Any positive price that is the same again."""
    return 1e-3 * sum((7 * unit + 3 * len(group)) % 11 + 1 for group in stage.groups for unit in group)


def planned(problem, limit, method):
    """The stages with what is known of them; or why there are none."""
    try:
        plan = plan_stages(problem, price, method=method, time_limit_s=math.inf, work_limit=limit)
    except LimitReached as error:
        return str(error)
    return plan.stages, plan.evidence.value, plan.evidence.bound, plan.evidence.states


@pytest.mark.parametrize("method", ["lazy", "ios"])
@given(predecessors=precedences(7, 1), limit=LIMITS)
def test_the_clock_has_no_part_in_it(method, predecessors, limit):
    problem = StageProblem(predecessors)
    plain = planned(problem, limit, method)
    with pytest.MonkeyPatch.context() as patch:
        ticks = count(0, 1000)
        patch.setattr(time, "process_time", lambda: float(next(ticks)))
        assert planned(problem, limit, method) == plain


def test_a_limit_that_ended_the_search_is_told():
    wide = StageProblem((0,) * 12)
    assert "within 20 states" in planned(wide, 20, "ios")
    assert planned(wide, 10**6, "ios")[0]


@pytest.mark.parametrize("limit", [-1, 1.5])
def test_a_work_limit_is_a_number_of_states(limit):
    with pytest.raises(UsageError, match="states from 0"):
        StageLimits(work=limit)
    with pytest.raises(UsageError, match="states from 0"):
        plan_stages(StageProblem((0,)), price, work_limit=limit)
