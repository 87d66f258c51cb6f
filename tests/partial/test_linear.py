"""The search for strips: its work grows with the operators, its bound holds for what it leaves out, a limit ends it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.budget import Budget
from downset.graph.core import ABSENT
from downset.graph.cost import row_form
from downset.memory.models import memory_model
from downset.partial import segment_bounds
from downset.partial import segments as segments_module
from downset.partial.front import Option
from downset.partial.least_peak import least_peak
from downset.partial.price import Price, Pricing
from downset.partial.rewrite import InStrips
from downset.partial.search import PartialLimits, partial_front
from downset.partial.segments import computed_whole, computing, find_cuts, find_segments
from tests.effort import cases
from tests.partial.drawn_parts import composed
from tests.spatial import Builder, spatial_graphs


def diamonds(count: int):
    build = Builder(last=False, seed=1)
    x = first = build.tensor((2, 4, 3))
    for _ in range(count):
        shape = build.sizes[x]
        x = build.op("Add", [build.op("Relu", [x], shape), build.op("Sigmoid", [x], shape)], shape)
    return build.graph((first,))


def every_segment(graph, form, most):
    """All pairs of cuts, with new sets for each."""
    whole = computed_whole(graph, form)
    found = set()
    for first, stop in itertools.combinations(range(len(graph.ops) + 1), 2):
        ends = []
        for cut in (first, stop):
            before = {t for op in graph.ops[:cut] for t in op.outputs} | set(graph.inputs)
            later = {t for op in graph.ops[cut:] for t in op.inputs} | set(graph.outputs)
            ends.append({t for t in before & later if t != ABSENT and graph.tensors[t].role == "activation"})
        made = {t for op in graph.ops[first:stop] for t in op.outputs}
        read = {t for op in graph.ops[first:stop] for t in op.inputs}
        segment = segments_module.find_segment(graph, first, stop)
        if (
            all(0 < len(crossing) <= most for crossing in ends)
            and not any(first <= index < stop for index in whole)
            and {first, stop - 1} <= {*computing(graph, segment)}
            and any(form.rows[t] > 1 for index in range(first, stop) for t in form.ops[index].outputs)
            and ends[1] & made
        ):
            found.add((first, stop, tuple(sorted(ends[0] & read)), tuple(sorted(ends[1] & made))))
    return found


@given(spatial_graphs(), st.integers(1, 3))
@settings(max_examples=cases(60))
def test_the_segments_of_short_runs_are_all_pairs_of_cuts(graph, most):
    form = row_form(graph)
    listed = [(s.first, s.stop, s.inputs, s.results) for s in find_segments(graph, form, most_crossing=most)]
    assert len(set(listed)) == len(listed)
    assert set(listed) == every_segment(graph, form, most)
    for first, stop, inputs, results in listed:
        one = segments_module.find_segment(graph, first, stop)
        assert (set(inputs), set(results)) == (set(one.inputs), set(one.results))


@pytest.mark.parametrize("count", [20, 200, 800])
def test_segments_are_at_most_linear_in_cuts(count, monkeypatch):
    """Counted: segments that are listed, and steps along chains that their bounds take."""
    graph = diamonds(count)
    form = row_form(graph)
    taken = []
    one_step = segment_bounds.next_demand
    monkeypatch.setattr(
        segment_bounds, "next_demand", lambda *given, **named: taken.append(1) or one_step(*given, **named)
    )
    cuts = find_cuts(graph, form)
    segments = list(find_segments(graph, form, cuts=cuts))
    assert len(cuts.crossing) == count + 1
    assert len(segments) <= segments_module.EVERY_PAIR // 2 * len(cuts.crossing)
    assert {(s.first, s.stop) for s in segments} >= {(3 * at, 3 * at + 3) for at in range(count)} | {(0, 3 * count)}
    least_peak(form, Pricing(graph, form, memory_model("live")), segments, cuts)
    assert len(taken) <= 1000 * len(
        graph.ops
    )  # of each tensor with the 96 before it, by 10 prices, wanted rows, and kinds


@given(spatial_graphs(), st.sampled_from(["live", "tflm", "ort"]), st.booleans())
@settings(max_examples=cases(60))
def test_the_bound_holds_for_segments_that_are_left_out(graph, memory, listed):
    form = row_form(graph)
    pricing = Pricing(graph, form, memory_model(memory))
    cuts = find_cuts(graph, form)
    every = list(find_segments(graph, form, cuts=cuts))
    assume(every)
    bound = least_peak(form, pricing, every, cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_module, "EVERY_PAIR", 2)
        patch.setattr(segments_module, "_NEAR", 1)
        some = list(find_segments(graph, form, cuts=cuts)) if listed else []
        assert least_peak(form, pricing, some, replace(cuts, listed=listed)) <= bound
        found = partial_front(graph, memory=memory, limits=PartialLimits(time_limit_s=math.inf, work_limit=20))
        assert found.bound_bytes <= bound
        assert not (found.complete and cuts.long_runs)


def test_past_its_deadline_the_front_is_the_network_without_strips():
    whole, parts = [8, 9, 8], [InStrips(0, 1, 2), InStrips(0, 3, 2), InStrips(1, 2, 2)]
    options = [Option(part, Price(4 + number, extra_macs=number + 1)) for number, part in enumerate(parts)]
    late, at_leisure = composed(whole, options, Budget(0.0).start()), composed(whole, options)
    assert [plan.segments for plan in late] == [()]
    assert late[0].price.peak_bytes == max(whole)
    assert late[0] in at_leisure
    assert len(at_leisure) > 1


class Clock:
    """A clock that moves by a second at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def process_time(self) -> float:
        self.looks += 1
        return float(self.looks)

    def monotonic(self) -> float:
        return float(self.looks)


@pytest.mark.parametrize("seconds", [1.0, 10.0, 40.0, 200.0])
def test_every_phase_looks_at_the_clock(seconds, monkeypatch):
    """A limit of n looks at the clock ends the search after little more than n looks, with a bound that holds, and a
    larger limit gives no worse plan."""
    graph = diamonds(60)
    exact = partial_front(graph, memory="live", limits=PartialLimits(time_limit_s=math.inf, work_limit=1))
    clocks, peaks = [], []
    for limit in (seconds, 4 * seconds):
        clocks.append(Clock())
        monkeypatch.setattr("downset.budget.time", clocks[-1])
        found = partial_front(graph, memory="live", limits=PartialLimits(time_limit_s=limit))
        assert found.stopped_by == "time"
        assert not found.complete
        assert found.plans
        assert found.bound_bytes <= exact.bound_bytes
        peaks.append(found.least.price.peak_bytes)
        # After the end: one more look for each cut of the last paths, and for each step of work that was kept.
        assert clocks[-1].looks <= limit + len(find_cuts(graph, row_form(graph)).crossing) + 20
    assert peaks[1] <= peaks[0]
