"""Pipelines under a limit of work: the same plan again whatever the clock says, and told where the limit ended it."""

import math
import re
import time
from dataclasses import FrozenInstanceError, replace
from itertools import count
from random import Random

import pytest

from downset.errors import DownsetError, UsageError
from downset.pipelines.plan import plan_pipeline
from downset.reports.time_steps import pipeline_next_steps
from tests.effort import cases
from tests.pipeline_generators import KINDS, random_chain, random_cluster, random_graph

pytestmark = pytest.mark.native
LIMITS = (0, 300, 20_000)


def planned(problem, cluster, limit, **asked):
    """The plan but for the seconds that it took; or why there is none."""
    try:
        plan = plan_pipeline(problem, cluster, time_limit_s=math.inf, work_limit=limit, **asked)
    except DownsetError as error:
        return str(error)
    return replace(plan, evidence=replace(plan.evidence, seconds=0.0))


def racing(monkeypatch):
    """Every look at the clock says that much time has gone by."""
    ticks = count(10**12, 1000)
    for name in ("monotonic", "perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: float(next(ticks)))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("links", {}),
        ("pairs", {"max_latency_s": 400.0}),
        ("shared", {"comm": "paper"}),
        ("overlapping links", {"topology": "direct"}),
        ("links", {"method": "exhaustive"}),
        ("links", {"method": "pico"}),
    ],
)
def test_the_clock_has_no_part_in_it(monkeypatch, kind, asked, limit):
    instances = []
    for seed in range(2):
        random = Random(f"{kind}/{seed}")
        problem = random_chain(random, layers=4, rows=9) if seed % 2 else random_graph(random, units=4, rows=8)
        instances.append((problem, random_cluster(random, kind)))
    plain = [planned(problem, cluster, limit, **asked) for problem, cluster in instances]
    racing(monkeypatch)
    assert [planned(problem, cluster, limit, **asked) for problem, cluster in instances] == plain


def test_more_work_finds_more_and_the_limit_is_told():
    random = Random(3)
    problem, cluster = random_chain(random, layers=9, rows=30), random_cluster(random, "links", devices=5)
    stopped, whole = planned(problem, cluster, 0), planned(problem, cluster, 10**7)
    assert stopped.stopped and "stopped at the limit of 0 states" in stopped.note and not stopped.evidence.proven
    assert not whole.stopped
    assert whole.period_s <= stopped.period_s
    assert stopped.evidence.stopped_by == "work" and not whole.evidence.stopped_by
    by_time = plan_pipeline(problem, cluster, time_limit_s=0)
    assert by_time.evidence.proven or by_time.evidence.stopped_by == "time"


def test_what_a_limit_ended_is_told_to_search_further_with_a_larger_one():
    random = Random(3)
    problem, cluster = random_chain(random, layers=9, rows=30), random_cluster(random, "links", devices=5)
    for limit in (0, 300):
        stopped = planned(problem, cluster, limit)
        told = [step.text for step in pipeline_next_steps(stopped) if step.text.startswith("Search further")]
        assert bool(told) != stopped.evidence.proven
        for text in told:
            larger = int(re.search(r"work_limit=(\d+)", text)[1])
            assert larger > limit
            assert planned(problem, cluster, larger).period_s <= stopped.period_s


def test_another_method_that_is_faster_is_named():
    random = Random(3)
    problem, cluster = random_chain(random, layers=9, rows=30), random_cluster(random, "links", devices=5)
    best, alone = planned(problem, cluster, 10**7), planned(problem, cluster, 10**7, method="single")
    assert best.period_s < alone.period_s
    (step,) = [
        one
        for one in pipeline_next_steps(alone, compared={"exact": best, "single": alone, "pico": None})
        if "method='exact': a period" in one.text
    ]
    assert step.gained_s == alone.period_s - best.period_s
    assert not any("a period of" in one.text for one in pipeline_next_steps(best, compared={"single": alone}))


def test_the_time_limit_holds_beside_it():
    random = Random(3)
    problem, cluster = random_chain(random, layers=9, rows=30), random_cluster(random, "links", devices=5)
    plan = plan_pipeline(problem, cluster, time_limit_s=0, work_limit=10**12)
    assert plan.stopped or plan.evidence.proven


def test_a_problem_is_a_value_and_prices_that_were_computed_before_change_no_plan():
    """Neither prices from other accountings nor from other clusters."""
    for seed in range(cases(40)):
        random = Random(f"value/{seed}")
        chain = random_chain(random, layers=4, rows=9) if seed % 2 else random_graph(random, units=4, rows=8)
        clusters = [random_cluster(random, random.choice(KINDS)) for _ in range(2)]
        assert not hasattr(chain.problem, "__dict__")
        with pytest.raises(FrozenInstanceError):
            chain.problem.units = ()
        for topology, comm in (("leader", "resources"), ("direct", "resources"), ("leader", "paper")):
            options = {"topology": topology, "comm": comm}
            first = [planned(chain, cluster, 20_000, **options) for cluster in clusters]
            assert first == [planned(chain, cluster, 20_000, **options) for cluster in clusters], (seed, options)
            assert first == [planned(chain.problem, cluster, 20_000, **options) for cluster in clusters], (
                seed,
                options,
            )


@pytest.mark.parametrize("limit", [-1, 1.5, "many"])
def test_a_work_limit_is_a_number_of_states(limit):
    random = Random(0)
    with pytest.raises(UsageError, match="states from 0"):
        plan_pipeline(random_chain(random), random_cluster(random, "links"), work_limit=limit)
