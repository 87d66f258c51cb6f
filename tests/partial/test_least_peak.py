"""The lower bound of plans in strips: below every plan of small networks, and false as soon as a term of it counts more
than it may."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from downset import load
from downset.errors import UnsupportedError
from downset.graph.cost import row_form
from downset.graph.row_form import AxisMap
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MemoryModel, memory_model
from downset.partial import row_cuts, segment_bounds
from downset.partial.least_peak import least_peak
from downset.partial.price import Pricing
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segment_bounds import SegmentBounds
from downset.partial.segments import find_cuts, find_segments
from downset.rewrites.tflite_form import tflite_forms, writable_rows
from tests.effort import cases
from tests.partial.oracles.least import Counting, SmallNetwork, small_network, some_plan_fits
from tests.strip_networks import strip_networks

OVER = frozenset({"Add", "MaxPool"}), frozenset({"Conv"})
COUNTED = {
    "live": (MemoryModel("counted", ""), Counting()),
    "inputs to the end": (MemoryModel("counted", "", inputs="to the end"), Counting(input_kept=True)),
    "between inputs and outputs": (
        MemoryModel("counted", "", inputs="not counted", outputs_counted=False),
        Counting(input_counts=False, outputs_count=False),
    ),
    "pointwise in place": (MemoryModel("counted", "", in_place=OVER[0]), Counting(over=OVER[0])),
    "convolutions in place": (MemoryModel("counted", "", in_place=OVER[1]), Counting(over=OVER[1])),
}


def bound_of(net: SmallNetwork, model: MemoryModel) -> int:
    graph = net.graph()
    form = row_form(graph)
    cuts = find_cuts(graph, form)
    return least_peak(form, Pricing(graph, form, model), list(find_segments(graph, form, cuts=cuts)), cuts)


@pytest.mark.parametrize("counted", COUNTED)
def test_no_plan_of_a_small_network_is_below_the_bound(counted):
    model, counting = COUNTED[counted]
    tight = 0
    for seed in range(cases(800)):
        net = small_network(Random(f"{counted} {seed}"), most_rows=9)
        bound = bound_of(net, model)
        assert not some_plan_fits(net, counting, bound - 1), (seed, bound, net)
        tight += seed % 5 == 0 and some_plan_fits(net, counting, bound)
    assert tight >= 0.4 * (cases(800) // 5)  # of every fifth network


def test_no_plan_of_longer_networks_is_below_the_bound():
    model, counting = COUNTED["live"]
    for seed in range(cases(200)):
        net = small_network(Random(f"longer {seed}"), most_rows=14)
        assert not some_plan_fits(net, counting, bound_of(net, model) - 1), (seed, net)


def read_twice(patch):
    first = segment_bounds.SegmentBounds._read_bytes
    patch.setattr(segment_bounds.SegmentBounds, "_read_bytes", lambda *given, **named: 2 * first(*given, **named))


def rows_twice(patch):
    first = segment_bounds.SegmentBounds._row_bytes
    patch.setattr(segment_bounds.SegmentBounds, "_row_bytes", lambda *given: 2 * first(*given))


def input_twice(patch):
    first = segment_bounds._Ends
    patch.setattr(segment_bounds, "_Ends", lambda nbytes, *given: first(2 * nbytes, *given))


def result_twice(patch):
    first = segment_bounds.SegmentBounds.whole_bytes
    patch.setattr(segment_bounds.SegmentBounds, "whole_bytes", lambda *given: 2 * first(*given))


def windows_twice(patch):
    first = segment_bounds.SegmentBounds._reading

    def reading(*given):
        rows, scale, low = first(*given)
        return row_cuts.Reading(2 * rows, 2 * scale, 2 * low)

    patch.setattr(segment_bounds.SegmentBounds, "_reading", reading)


def nothing_saved(patch):
    patch.setattr(segment_bounds, "_most_saved", lambda before, reading, step, price, count: -step)


def every_row_needed(patch):
    patch.setattr(segment_bounds.SegmentBounds, "_needed", lambda self, chain: (True,) * len(chain))


def borders_read_all(patch):
    patch.setattr(segment_bounds, "clipped", lambda how, rows, made: row_cuts.inner(how, rows))


def never_settled(patch):
    first = segment_bounds.next_demand
    patch.setattr(segment_bounds, "next_demand", lambda *given, settled: first(*given))


def input_never_dropped(patch):
    first = segment_bounds._Ends
    patch.setattr(segment_bounds, "_Ends", lambda nbytes, stays, *given: first(nbytes, True, *given))


@pytest.mark.parametrize(
    "broken",
    [
        read_twice,
        rows_twice,
        input_twice,
        result_twice,
        windows_twice,
        nothing_saved,
        every_row_needed,
        borders_read_all,
        never_settled,
        input_never_dropped,
    ],
)
def test_a_bound_of_which_a_term_counts_more_is_above_some_plan(broken, monkeypatch):
    """So that the laws above hold each term of the bound."""
    broken(monkeypatch)
    model, counting = COUNTED["live"]
    for seed in range(3000):
        net = small_network(Random(f"live {seed}"), most_rows=9)
        if some_plan_fits(net, counting, bound_of(net, model) - 1):
            return
    raise AssertionError("no network shows it")


@given(st.integers(1, 3), st.integers(1, 4), st.integers(-6, 3), st.integers(0, 5), st.integers(1, 8), st.data())
@settings(max_examples=cases(400))
def test_readings_are_at_most_what_any_rows_read(scale, per, low, reach, rows, data):
    how = AxisMap(scale, per, low, low + reach)
    made = data.draw(st.integers(1, 8))
    chosen = data.draw(st.sets(st.integers(0, made - 1), min_size=1))
    read = {row for one in chosen for row in range(*how((one, one + 1), rows))}
    reading = row_cuts.clipped(how, rows, made)
    assert reading.rows(len(chosen)) <= len(read)
    start, stop = row_cuts.inner_rows(how, (0, rows), rows, made)
    for one in range(made):
        first, last = (how.scale * one + how.low) // how.per, (how.scale * one + how.high) // how.per
        assert (start <= one < stop) == (first >= 0 and last < rows)
    if chosen <= set(range(start, stop)):
        assert row_cuts.inner(how, rows).rows(len(chosen)) <= len(read)


@pytest.mark.parametrize("memory", ["tflm", "litert", "tflm-reference", "tflm-cmsis-nn-dsp"])
@given(strip_networks("int8"), st.data())
@settings(max_examples=cases(60))
def test_no_written_form_of_a_plan_is_below_the_bound(tmp_path_factory, memory, drawn, data):
    """Of a segment with copies in place, in each form that a .tflite file can state."""
    net, outputs = drawn
    graph = load(net.save(tmp_path_factory.mktemp("net") / "m.tflite", outputs))
    form = writable_rows(graph, row_form(graph, halos_required=False))
    segments = list(find_segments(graph, form))
    assume(segments)
    segment = data.draw(st.sampled_from(segments))
    recomputed = data.draw(st.sets(st.sampled_from(list(segment.operators))))
    strips, even = data.draw(st.integers(2, 14)), data.draw(st.booleans())
    part = InStrips(segment.first, segment.stop, strips, frozenset(recomputed), even)
    try:
        striped = in_strips(graph, [part], form=form)
    except UnsupportedError:  # fewer rows than strips
        reject()
    bound = SegmentBounds(form, Pricing(graph, form, memory_model(memory))).least(segment)
    for written in tflite_forms(striped):
        live = profile(order_problem(written, memory), range(len(written.ops)))
        stop = segment.stop + len(written.ops) - len(graph.ops)
        assert max(live[segment.first : stop]) >= bound
