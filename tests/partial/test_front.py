"""The front of segments in strips: held to brute force on small networks, and never worse with more of anything."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.graph.cost import macs, row_form
from downset.memory.liveness import order_problem, peak_bytes, profile
from downset.memory.models import memory_model, without_overlaps
from downset.memory.overlaps import KERNELS
from downset.partial import search
from downset.partial.front import Option
from downset.partial.memory_form import Persistent
from downset.partial.price import Price
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.search import PartialLimits, partial_front
from tests.effort import cases
from tests.partial.drawn_parts import composed
from tests.spatial import Builder, in_int8, spatial_graphs
from zoo import graph as zoo

NO_TIME_LIMIT = PartialLimits(time_limit_s=math.inf)


@st.composite
def small_networks(draw, most=3):
    """A chain of convolutions, and sometimes a shortcut around the last."""
    build = Builder(draw(st.booleans()), draw(st.integers(0, 99)))
    x = first = build.tensor((draw(st.integers(1, 2)), draw(st.integers(4, 6)), 3))
    for _ in range(draw(st.integers(1, most - 1))):
        channels, *size = build.sizes[x]
        kernel, stride, out = draw(st.sampled_from([1, 3])), draw(st.integers(1, 2)), draw(st.integers(1, 4))
        pad, shape = kernel // 2, (kernel, kernel)
        weights = build.weights(*((out, *shape, channels) if build.last else (out, channels, *shape)))
        made = tuple((extent + 2 * pad - kernel) // stride + 1 for extent in size)
        before, x = x, build.op("Conv", [x, weights], (out, *made), strides=[stride, stride], pads=[pad] * 4)
    if build.sizes[before] == build.sizes[x]:
        build.op("Add", [before, x], build.sizes[x])
    return build.graph((first,))


def brute_force(graph: Graph):
    """(peak, MACs, operators) of every sequence of segments in strips, each priced by what `in_strips` makes of it."""
    live = profile(order_problem(graph, "live"), range(len(graph.ops)))
    options: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
    for first in range(len(graph.ops)):
        for stop in range(first + 1, len(graph.ops) + 1):
            for price in every_price(graph, first, stop):
                options.setdefault(first, []).append((stop, price))

    def after(at):
        if at == len(graph.ops):
            return {(0, 0, 0)}
        found = {(max(live[at], peak), extra, more) for peak, extra, more in after(at + 1)}
        for stop, (peak, extra, more) in options.get(at, ()):
            found |= {(max(peak, one), extra + two, more + three) for one, two, three in after(stop)}
        return found

    return after(0)


def crosses_once(graph: Graph, position: int) -> bool:
    made = {*graph.inputs, *(t for op in graph.ops[:position] for t in op.outputs)}
    read = {*graph.outputs, *(t for op in graph.ops[position:] for t in op.inputs)}
    return len(made & read) == 1


def every_price(graph: Graph, first: int, stop: int):
    if not (crosses_once(graph, first) and crosses_once(graph, stop)):
        return
    rows = 1 if graph.tensors[0].shape[-1] != 3 else 2
    highest = [max(graph.tensors[op.outputs[0]].shape[rows] for op in graph.ops[at:stop]) for at in (first, stop - 1)]
    inner = range(first, stop - 1)
    for even, most in ((True, highest[0]), (False, graph.tensors[graph.ops[stop - 1].outputs[0]].shape[rows])):
        for strips in {math.ceil(most / height) for height in range(1, most + 1)}:
            for chosen in range(1 << len(inner)):
                recomputed = frozenset(index for place, index in enumerate(inner) if chosen >> place & 1)
                try:
                    striped = in_strips(graph, [InStrips(first, stop, strips, recomputed, even)])
                except UnsupportedError:
                    continue
                more = len(striped.ops) - len(graph.ops)
                inside = profile(order_problem(striped, "live"), range(len(striped.ops)))[first : stop + more]
                yield max(inside), macs(striped) - macs(graph), more


@given(small_networks())
@settings(max_examples=25)
def test_the_front_is_that_of_brute_force(graph):
    every = Persistent((1,) * len(graph.ops), 1)
    front = partial_front(graph, memory="live", limits=NO_TIME_LIMIT, persistent=every)
    assert front.complete
    found = {(plan.price.peak_bytes, plan.price.extra_macs, plan.price.persistent_bytes) for plan in front.plans}
    tried = brute_force(graph)
    assert found <= tried
    for one in tried:
        assert one[0] >= front.bound_bytes
        assert any(all(mine <= its for mine, its in zip(plan, one, strict=True)) for plan in found), one
    assert not any(one != other and all(map(int.__le__, one, other)) for one in found for other in found)


@st.composite
def priced_options(draw):
    """Bytes of some operators as they are, and options between them; few values, so that many are equal."""
    whole = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    keeps, small, options = draw(st.booleans()), st.integers(0, 3), []
    for first, stop in combinations(range(len(whole) + 1), 2):
        for strips in range(2, 2 + draw(st.integers(0, 3))):
            peak, more, copied = draw(st.integers(0, 9)), draw(st.integers(-1, 3)), draw(small)
            kept = [draw(small) + 1 for _ in range(2)] if keeps else [0, 0]
            options.append(Option(InStrips(first, stop, strips), Price(peak, more, copied, draw(small), *kept, peak)))
    return whole, options


@given(priced_options())
@settings(max_examples=cases(60))
def test_composed_plans_are_the_front_of_all_sequences(network):
    whole, options = network

    def after(at):
        if at == len(whole):
            yield Price(0), ()
            return
        ways = [
            (Price(whole[at]), at + 1, ()),
            *((o.price, o.part.stop, (o.part,)) for o in options if o.part.first == at),
        ]
        for price, stop, part in ways:
            yield from ((price.beside(rest), (*part, *parts)) for rest, parts in after(stop))

    every = {parts: price for price, parts in after(0)}
    found = composed(whole, options)
    for plan in found:
        assert every[plan.segments] == plan.price
    values = [measures(plan.price) for plan in found]
    for price in every.values():
        assert any(all(map(int.__le__, one, measures(price))) for one in values), price
    for one, other in permutations(values, 2):
        assert not all(map(int.__le__, one, other))


def measures(price: Price) -> tuple[int, ...]:
    return price.peak_bytes, price.extra_macs, price.persistent_bytes, price.narrow_bytes or price.copied_bytes


def test_rows_that_nobody_reads_are_left_out_where_strips_save_no_bytes():
    """The second convolution reads rows 0, 2 and 4 of five; the third needs the most bytes, however it is cut."""
    build = Builder(False, 0)
    first = build.tensor((2, 5, 3))
    x = build.op("Conv", [first, build.weights(4, 2, 1, 1)], (4, 5, 3), strides=[1, 1], pads=[0] * 4)
    x = build.op("Conv", [x, build.weights(1, 4, 1, 1)], (1, 3, 2), strides=[2, 2], pads=[0] * 4)
    build.op("Conv", [x, build.weights(40, 1, 1, 1)], (40, 3, 2), strides=[1, 1], pads=[0] * 4)
    graph = build.graph((first,))
    front = partial_front(graph, memory="live", limits=NO_TIME_LIMIT)
    assert front.least.price.peak_bytes == peak_bytes(order_problem(graph, "live"), range(3))
    assert front.least.price.extra_macs == -2 * 3 * 2 * 4
    assert front.plans[0] == front.least


@pytest.mark.parametrize("start", [0, 4, -1])
def test_one_strip_makes_only_the_row_that_a_slice_takes(start):
    """As the last token's logits: a wide layer whose result is cut to one row, and others behind it."""
    build = Builder(False, 0)
    first = build.tensor((2, 9, 3))
    wide = build.op("Conv", [first, build.weights(40, 2, 1, 1)], (40, 9, 3), strides=[1, 1], pads=[0] * 4)
    parts = [build.constant(np.array([value], np.int64)) for value in (start, start + 1 or 1 << 31, 2)]
    x = build.op("Slice", [wide, *parts], (40, 1, 3))
    build.op("Conv", [x, build.weights(2, 40, 1, 1)], (2, 1, 3), strides=[1, 1], pads=[0] * 4)
    graph = build.graph((first,))
    least = partial_front(graph, memory="live", limits=NO_TIME_LIMIT).least
    row = 3 * 4
    assert (
        least.price.peak_bytes == 40 * row + 40 * row
    )  # the row made and the row cut out, without the network's input
    assert least.price.extra_macs == -8 * 3 * 2 * 40


@given(spatial_graphs(), st.sampled_from(["live", "tflm", "ort"]))
@settings(max_examples=cases(30))
def test_plans_are_what_the_rewritten_network_takes(graph, memory):
    form = row_form(graph)
    front = partial_front(graph, memory=memory, limits=PartialLimits(work_limit=300), form=form)
    assert front.plans[0].price.extra_macs <= 0  # the network as it is, or strips that need less for as little work
    for plan in front.plans[-3:]:
        striped = in_strips(graph, plan.segments, form=form)
        assert plan.price.peak_bytes == max(profile(order_problem(striped, memory), range(len(striped.ops))))
        assert plan.price.extra_macs == macs(striped) - macs(graph)
        assert front.bound_bytes <= plan.price.peak_bytes


@given(spatial_graphs(), st.lists(st.integers(0, 400), min_size=2, max_size=2).map(sorted))
@settings(max_examples=cases(30))
def test_more_work_never_gives_a_worse_front(graph, limits):
    less, again, more = (
        partial_front(graph, memory="live", limits=PartialLimits(time_limit_s=math.inf, work_limit=limit))
        for limit in (limits[0], *limits)
    )
    assert less.plans == again.plans
    for plan in less.plans:
        assert any(
            other.price.peak_bytes <= plan.price.peak_bytes and other.price.extra_macs <= plan.price.extra_macs
            for other in more.plans
        )


@given(spatial_graphs(), st.sampled_from(KERNELS), st.integers(0, 300), st.sampled_from([1, 2, 32]))
@settings(max_examples=cases(60))
def test_overlaps_never_give_a_worse_front(graph, kernels, limit, far):
    """With the same work and scratch, for each plan without overlaps there is one with them that is as good in
    everything. `far`: the operators between two cuts from which on other cuts are looked for."""
    graph, model = in_int8(graph), memory_model(f"tflm-{kernels}")
    limits = PartialLimits(time_limit_s=math.inf, work_limit=limit)
    persistent = Persistent((50,) * len(graph.ops), 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_APART", far)
        apart, over = (
            partial_front(graph, memory=memory, limits=limits, persistent=persistent)
            for memory in (without_overlaps(model), model)
        )
    assert over.bound_bytes <= apart.bound_bytes
    assert over.bound_bytes <= over.least.price.peak_bytes
    for plan in apart.plans:
        assert any(
            other.price.peak_bytes <= plan.price.peak_bytes
            and other.price.extra_macs <= plan.price.extra_macs
            and other.price.persistent_bytes <= plan.price.persistent_bytes
            for other in over.plans
        )


def test_overlaps_change_which_plan_is_best():
    """Three pointwise convolutions in a row: results lie over inputs, so that no strips are worth their copies."""
    build = Builder(True, 0)
    first = x = build.tensor((16, 8, 8))
    for _ in range(3):
        x = build.op("Conv", [x, build.weights(16, 1, 1, 16)], (16, 8, 8), kernel_shape=[1, 1], group=1)
    graph = in_int8(build.graph((first,)))
    apart, over = (partial_front(graph, memory=memory, limits=NO_TIME_LIMIT) for memory in ("tflm", "tflm-reference"))
    assert apart.plans[0].price.peak_bytes == 2 * 16 * 8 * 8
    assert over.least.price.peak_bytes == over.plans[0].price.peak_bytes == 16 * 8 * 8 + 16
    assert over.least.segments == ()


@given(spatial_graphs())
@settings(max_examples=cases(30))
def test_more_recomputing_strips_or_memory_never_give_a_worse_plan(graph):
    def least(**limits):
        found = partial_front(graph, memory="live", limits=PartialLimits(time_limit_s=math.inf, **limits))
        return found.least.price.peak_bytes

    shares = [least(max_recompute=share) for share in (0.0, 0.1, 0.5, None)]
    assert shares == sorted(shares, reverse=True)
    counts = [least(max_strips=count) for count in (2, 3, 5, None)]
    assert counts == sorted(counts, reverse=True)
    plans = partial_front(graph, memory="live", limits=NO_TIME_LIMIT).plans
    costs = [
        next((plan.cost for plan in plans if plan.price.peak_bytes <= ram), (math.inf,))
        for ram in sorted({plan.price.peak_bytes for plan in plans})
    ]
    assert costs == sorted(costs, reverse=True)


def test_several_segments_with_nothing_recomputed():
    graph = zoo("mobilenet_v2", weights=False, image=96)
    limits = PartialLimits(0.0, time_limit_s=math.inf, work_limit=3000)
    front = partial_front(graph, memory="live", limits=limits)
    before = peak_bytes(order_problem(graph, "live"), range(len(graph.ops)))
    assert front.least.price.extra_macs <= 0
    assert 4 * front.least.price.peak_bytes < before
    assert max(len(plan.segments) for plan in front.plans) > 1
    striped = in_strips(graph, front.least.segments)
    assert peak_bytes(order_problem(striped, "live"), range(len(striped.ops))) == front.least.price.peak_bytes


def test_a_tenth_of_a_second_gives_what_is_known_by_then():
    graph = zoo("mobilenet_v2", weights=False, image=96)
    front = partial_front(graph, memory="tflm", limits=PartialLimits(time_limit_s=0.1))
    assert not front.complete
    assert front.plans
    assert front.bound_bytes <= front.least.price.peak_bytes


def test_models_in_which_joins_cost_nothing_are_refused():
    with pytest.raises(UnsupportedError, match="serenity"):
        partial_front(zoo("mobilenet_v2", weights=False, image=32), memory="serenity")
