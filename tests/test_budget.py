"""Budgets and their clocks: parts stay within the whole, every state counts, and a limit of states knows no load."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.arenas.plan import plan_arena
from downset.budget import BUSY, MANY, STATES_A_SECOND, Budget
from downset.errors import UsageError
from downset.fitting.job import SearchTime
from downset.memory.records import Record

ROOT = Path(__file__).resolve().parents[1]

LIMITS = st.none() | st.integers(0, 10**6)
STEPS = st.lists(
    st.sampled_from(["count", "late", "left", "within", "part", "share", "up"]).flatmap(
        lambda step: st.tuples(st.just(step), st.integers(0, 60_000))
    ),
    max_size=25,
)


@given(limit=LIMITS, steps=STEPS)
def test_parts_count_on_the_whole_and_end_within_it(limit, steps):
    """Against a plain model: the sum of what was counted, and the least end of all enclosing parts."""
    clocks, counted, ends, begins = [Budget(math.inf, limit).start()], 0, [math.inf if limit is None else limit], [0]
    for step, amount in steps:
        clock, look = clocks[-1], 0 if ends[-1] == math.inf else 500
        if step == "count":
            clock.count(amount)
            counted += amount
        elif step == "late":
            counted += look
            assert clock.late() == (counted >= ends[-1])
        elif step == "left":
            counted += look
            assert clock.left() == max(ends[-1] - counted, 0) / STATES_A_SECOND
        elif step == "up":
            if len(clocks) > 1:
                for stack in (clocks, ends, begins):
                    stack.pop()
        else:
            counted += look if step == "within" else 0
            if step == "part":
                clocks.append(clock.part(states=amount))
                ends.append(min(ends[-1], counted + amount))
            elif step == "share":
                share = (1 + amount) / 60_001
                clocks.append(clock.share(share))
                ends.append(counted + int(share * max(ends[-1] - counted, 0)) if ends[-1] < math.inf else math.inf)
            elif ends[-1] < math.inf:
                clocks.append(clock.within(amount / STATES_A_SECOND))
                ends.append(min(ends[-1], counted + int(amount / STATES_A_SECOND * STATES_A_SECOND)))
            else:
                continue
            begins.append(counted)
            ends[-1] = max(ends[-1], counted)
        for clock, end, begin in zip(clocks, ends, begins, strict=True):
            assert clock.states == counted - begin
            assert clock.left_states() == (MANY if end == math.inf else max(end - counted, 0))
            assert clock.over() == (counted >= end)
            assert clock.stopped_by() == ("work" if counted >= end else "")
            assert clock.native(10)[1] == min(10, clock.left_states())


@pytest.mark.parametrize(("real_time", "name"), [(False, "process_time"), (True, "monotonic")])
def test_time_ends_a_clock_also_under_a_limit_of_states(real_time, name, monkeypatch):
    now = [100.0]
    for passing in {name, "monotonic"}:  # real time passes no slower than that of a processor
        monkeypatch.setattr(time, passing, lambda: now[0])
    whole, free = Budget(5.0, 10**6).start(real_time=real_time), Budget(5.0).start(real_time=real_time)
    half = free.part(seconds=2.0)
    assert whole.left_s() == 5.0 and half.left_s() == 2.0 and free.within(9.0).left_s() == 5.0
    now[0] = 102.5
    assert half.over() and half.stopped_by() == "time" and not free.over() and free.left() == 2.5
    assert half.at_least(1.0).left_s() == 1.0 and free.at_least(1.0) is free
    now[0] = 105.0
    assert whole.over() and whole.stopped_by() == "time" and whole.left() == 0 and whole.native(9)[0] == 0
    assert whole.at_least(10.0).over()
    assert free.states == 0 and whole.rest().seconds == 0 and whole.rest().states < 10**6


RECORDS = [Record(f"r{index}", (7 * index) % 40, (7 * index) % 40 + 9, 100 + 37 * index % 91) for index in range(60)]
"""Of these no placement is proven least before a search has taken much longer than these tests."""


def placed(seconds):
    """(processor time, real time) of a search in the compiled module that takes as long as it is allowed to."""
    begin = time.process_time(), time.monotonic()
    arena = plan_arena(RECORDS, method="local_search", time_limit_s=seconds)
    assert arena.evidence.stopped_by == "time"
    return time.process_time() - begin[0], time.monotonic() - begin[1]


def test_a_search_that_gets_no_processor_loses_no_time(tmp_path):
    """The process is stopped for most of the time, as if others had the processor."""
    script = tmp_path / "search.py"
    script.write_text(
        "from tests.test_budget import placed\nprint('begun', flush=True)\nprint(*placed(0.3), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"begun\n"
        for _ in range(4):
            time.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            process.send_signal(signal.SIGCONT)
        processor_s, real_s = map(float, process.stdout.readline().split())
    assert processor_s >= 0.29 or real_s >= 0.95 * BUSY * 0.3  # the second on a very busy machine


def test_a_search_that_gets_hardly_any_processor_ends_after_some_times_its_limit(monkeypatch):
    real = [50.0]
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    monkeypatch.setattr(time, "monotonic", lambda: real[0])
    clock, searches = Budget(2.0).start(), SearchTime(2.0)
    with searches.running():
        real[0] += 2.0 * BUSY - 0.6
        assert 0 < clock.left_s() <= 0.6 + 1e-9 and searches.left_s == pytest.approx(0.6 / BUSY)
        part = clock.part()
        real[0] += 0.7
        assert (
            part.over() and clock.over() and clock.stopped_by() == "time" and searches.over == "the time limit was over"
        )


def test_where_states_are_unlimited_looks_count_nothing():
    clock = Budget(math.inf).start()
    assert not clock.late() and clock.left() == math.inf and clock.within(1.0).budget.states is None
    assert clock.states == 0


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ((-1.0,), "time_limit_s"),
        ((math.nan,), "time_limit_s"),
        ((True,), "time_limit_s"),
        (("3",), "time_limit_s"),
        ((1.0, -1), "work_limit"),
        ((1.0, 2.5), "work_limit"),
        ((1.0, True), "work_limit"),
        ((1.0, None, -1), "seed"),
        ((1.0, None, 0.5), "seed"),
    ],
)
def test_what_is_no_limit_is_named_as_users_know_it(limits, name):
    with pytest.raises(UsageError, match=name):
        Budget(*limits)


def test_the_text_of_a_budget_is_the_limit_that_holds():
    assert str(Budget(2.5)) == "2.5 s"
    assert str(Budget(math.inf, 200_000)) == "200,000 states"
