"""Rewriting a network must not change what it computes: held against the original on random networks, run for real."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.arenas.plan import plan_arena
from downset.executor.arena import run_in_arena, seeded_inputs
from downset.graph.core import Graph, Op, Tensor, tensor_bytes
from downset.orders.plan import plan_order
from downset.rewrites.concat.partition import concat_partition, partition_sites
from experiments.serenity.traffic import off_chip_traffic
from tests.effort import cases
from tests.strategies import graphs, orders_of


class Builder:
    """A float network put together operator by operator, with seeded weights."""

    def __init__(self, seed, layout, exact=False):
        self.exact = exact  # small whole numbers, on which float arithmetic does not round
        self.random = np.random.default_rng(seed)
        self.layout = layout
        self.tensors, self.ops, self.constants = [], [], {}

    def tensor(self, shape, value=None):
        role = "activation" if value is None else "constant"
        index = len(self.tensors)
        shape = tuple(shape)
        self.tensors.append(Tensor(f"t{index}", shape, "float32", tensor_bytes(shape, "float32"), role))
        if value is not None:
            self.constants[index] = lambda: value.astype(np.float32)
        return index

    def image(self, channels, size=5):
        return self.tensor((1, size, size, channels) if self.layout == "NHWC" else (1, channels, size, size))

    def channels(self, tensor):
        return self.tensors[tensor].shape[3 if self.layout == "NHWC" else 1]

    def weights(self, *shape):
        drawn = self.random.standard_normal(shape)
        return self.tensor(shape, np.round(drawn) if self.exact else drawn)

    def op(self, kind, inputs, made, **attrs):
        if self.layout == "NHWC":
            attrs["layout"] = "NHWC"
        self.ops.append(Op(f"{kind}{len(self.ops)}", kind, tuple(inputs), (made,), attrs))
        return made

    def conv(self, source, out, kernel=1, group=1, bias=True, **attrs):
        inside = self.channels(source)
        pads = [kernel // 2] * 4
        if self.layout == "NHWC" and group == inside and group > 1:
            weights, attrs = self.weights(1, kernel, kernel, out), {**attrs, "depthwise": 1}
        elif self.layout == "NHWC":
            weights = self.weights(out, kernel, kernel, inside // group)
        else:
            weights = self.weights(out, inside // group, kernel, kernel)
        inputs = [source, weights, *([self.weights(out)] if bias else [])]
        return self.op("Conv", inputs, self.image(out), kernel_shape=[kernel, kernel], pads=pads, group=group, **attrs)

    def concat(self, parts, negative=False):
        made = self.image(sum(map(self.channels, parts)))
        axis = (3 if self.layout == "NHWC" else 1) - (4 if negative else 0)
        return self.op("Concat", parts, made, axis=axis)

    def graph(self, inputs, outputs):
        graph = Graph("net", tuple(self.tensors), tuple(self.ops), tuple(inputs), tuple(outputs), self.constants)
        return graph.check()


@st.composite
def networks(draw, exact=False):
    """One or two concatenations, each read through chains of activations, normalisation and convolutions."""
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    build = Builder(draw(st.integers(0, 99)), layout, exact)
    x = build.image(3)
    current, also = x, []
    for _ in range(draw(st.integers(1, 2))):
        parts = [build.conv(current, draw(st.sampled_from([2, 4]))) for _ in range(draw(st.integers(2, 3)))]
        if draw(st.integers(0, 4)) == 0:
            parts[-1] = parts[0]  # the same tensor twice
        current = build.concat(parts, negative=draw(st.booleans()))
        if draw(st.integers(0, 3)) == 0:
            also.append(current)  # read outside as well: must be left alone
        for _ in range(draw(st.integers(0, 3))):
            rounding = [] if exact else ["Sigmoid", "BatchNormalization"]
            step = draw(st.sampled_from(["Relu", "depthwise", "Relu6", *rounding]))
            width = build.channels(current)
            if step == "depthwise":
                multiple = 1 if layout == "NHWC" else draw(st.sampled_from([1, 2]))
                current = build.conv(
                    current, width * multiple, 3, group=width, activation=draw(st.sampled_from([None, "Relu"]))
                )
            elif step == "BatchNormalization":
                scale = [build.weights(width) for _ in range(3)]
                scale.append(build.tensor((width,), np.abs(build.random.standard_normal(width)) + 0.5))
                current = build.op("BatchNormalization", [current, *scale], build.image(width))
            elif step == "Relu6":
                current = build.op("Clip", [current], build.image(width), min=0.0, max=6.0)
            else:
                current = build.op(step, [current], build.image(width))
        group = draw(st.sampled_from([1, 1, 1, 2]))
        fused = draw(st.sampled_from([None, "Relu"]))
        kernel, bias = draw(st.sampled_from([1, 3])), draw(st.booleans())
        current = build.conv(current, 4, kernel, group, bias, activation=fused)
    return build.graph([x], [current, *dict.fromkeys(also)])


def outputs_of(graph, *, whole_numbers=False):
    order = plan_order(graph, memory="live")
    inputs = seeded_inputs(graph)
    inputs = [np.round(value) for value in inputs] if whole_numbers else inputs
    return run_in_arena(graph, order, plan_arena(graph, order), inputs).outputs


@given(graph=networks(), accumulate=st.sampled_from(["sum", "chain"]), data=st.data())
@settings(max_examples=cases(100))
def test_channel_wise_partitioning_computes_the_same(graph, accumulate, data):
    sites = partition_sites(graph)
    chosen = [site for site in sites if data.draw(st.booleans())]
    rewritten = concat_partition(graph, chosen, accumulate=accumulate)
    assert (rewritten.ops == graph.ops) == (not chosen)
    for ours, original in zip(outputs_of(rewritten), outputs_of(graph), strict=True):
        np.testing.assert_allclose(ours, original, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(original).max())))


@given(graph=networks(exact=True), accumulate=st.sampled_from(["sum", "chain"]))
@settings(max_examples=cases(80))
def test_on_whole_numbers_it_is_equal_to_the_bit(graph, accumulate):
    sites = partition_sites(graph)
    assume(sites)
    rewritten = concat_partition(graph, sites, accumulate=accumulate)
    assert len(rewritten.ops) > len(graph.ops)
    ours, original = (outputs_of(item, whole_numbers=True) for item in (rewritten, graph))
    for one, other in zip(ours, original, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_concatenation_into_a_convolution_needs_less_when_sums_accumulate():
    build = Builder(0, "NCHW")
    x = build.image(2, size=5)
    parts = [build.conv(x, 16) for _ in range(6)]
    y = build.conv(build.concat(parts), 4, 3)
    graph = build.graph([x], [y])
    (site,) = partition_sites(graph)
    before = plan_order(graph, memory="serenity")
    after = plan_order(concat_partition(graph, [site], accumulate="sum"), memory="serenity")
    image = 5 * 5 * 4
    # all six parts, x and y, against x, y and one part at a time
    assert before.peak_bytes == image * (6 * 16 + 4)
    assert after.peak_bytes == image * (2 + 4 + 16)
    assert before.evidence.proven and after.evidence.proven


def test_what_must_not_be_touched_is_no_site():
    build = Builder(0, "NCHW")
    x = build.image(2)
    parts = [build.conv(x, 4), build.conv(x, 4)]
    shared, out, unread, free = (build.concat(parts) for _ in range(4))
    one, other, third, last = (build.conv(joined, 2) for joined in (shared, shared, out, free))
    soft = build.op("Softmax", [shared], build.image(8), axis=1)  # one of its readers cannot be split
    graph = build.graph([x], [one, other, third, last, out, soft])
    assert [graph.ops[site].outputs[0] for site in partition_sites(graph)] == [free]
    assert unread not in graph.outputs
    weights = graph.ops[-2].inputs[1]
    computed = replace(graph, constants={k: v for k, v in graph.constants.items() if k != weights})
    assert partition_sites(computed) == ()
    quantised = tuple(replace(t, dtype="int8") for t in graph.tensors)
    assert partition_sites(replace(graph, tensors=quantised)) == ()
    assert len(partition_sites(replace(graph, tensors=quantised), inexact=True)) == 1


@given(data=st.data())
def test_traffic_vanishes_where_everything_fits_and_never_grows_with_the_chip(data):
    graph = data.draw(graphs())
    steps = data.draw(orders_of(graph.predecessors()))
    total = sum(t.nbytes for t in graph.tensors if t.role == "activation") + 64 * len(graph.tensors)
    assert off_chip_traffic(graph, steps, total, block_bytes=8).total_bytes == 0
    taken = [off_chip_traffic(graph, steps, size, block_bytes=8).read_bytes for size in (8, 32, 64, 128, 256)]
    assert taken == sorted(taken, reverse=True)


def fewest_fetches(accesses, capacity):
    """Brute force over every choice of victim: (fetches) of blocks that were read while not on chip."""
    best = {frozenset(): 0}
    for block, writes in accesses:
        following = {}
        for held, cost in best.items():
            if block in held:
                options = [(held, cost)]
            else:
                fetched = cost + (not writes)
                room = [held] if len(held) < capacity else [held - {victim} for victim in held]
                options = [(chosen | {block}, fetched) for chosen in room]
            for state, total in options:
                if total < following.get(state, 1 << 30):
                    following[state] = total
        best = following
    return min(best.values(), default=0)


@given(data=st.data(), capacity=st.integers(1, 4))
@settings(max_examples=cases(60))
def test_clairvoyant_replacement_fetches_as_few_blocks_as_possible(data, capacity):
    graph = data.draw(graphs(most_ops=4))
    small = tuple(replace(t, nbytes=min(t.nbytes, 16)) if t.role == "activation" else t for t in graph.tensors)
    graph = replace(graph, tensors=small)
    steps = data.draw(orders_of(graph.predecessors()))
    blocks = [range(-(-t.nbytes // 8) if t.role == "activation" else 0) for t in graph.tensors]
    accesses = [((t, b), True) for t in graph.inputs for b in blocks[t]]
    for operator in steps:
        op = graph.ops[operator]
        accesses += [((t, b), False) for t in dict.fromkeys(op.inputs) if t >= 0 for b in blocks[t]]
        accesses += [((t, b), True) for t in op.outputs for b in blocks[t]]
    found = off_chip_traffic(graph, steps, 8 * capacity, block_bytes=8)
    assert found.read_bytes == 8 * fewest_fetches(accesses, capacity)


@pytest.mark.parametrize(("size", "block"), [(0, None), (-1, None), (64, 0), (64, 128)])
def test_a_memory_that_holds_nothing_is_refused(size, block):
    from downset.errors import UsageError

    graph = Graph("g", (Tensor("x", (1,), "uint8", 1),), (), (0,), (0,))
    with pytest.raises(UsageError):
        off_chip_traffic(graph, (), size, block_bytes=block)


@given(graph=graphs(most_ops=9), inexact=st.booleans())
@settings(max_examples=cases(200))
def test_any_lawful_graph_can_be_asked_and_keeps_its_interface(graph, inexact):
    sites = partition_sites(graph, inexact=inexact)
    rewritten = concat_partition(graph, sites, inexact=inexact)
    for ours, theirs in ((rewritten.inputs, graph.inputs), (rewritten.outputs, graph.outputs)):
        assert [rewritten.tensors[t] for t in ours] == [graph.tensors[t] for t in theirs]
    # what is taken apart is there no more, and what has side effects still is
    gone = {graph.tensors[graph.ops[site].outputs[0]].name for site in sites}
    assert not gone & {tensor.name for tensor in rewritten.tensors}
    assert sum(bool(op.after) for op in rewritten.ops) == sum(bool(op.after) for op in graph.ops)


@pytest.mark.parametrize("shapes", [((), ()), ((4,), (6,)), ((2, 2), (4, 2, 1)), ((2, 3), (2, 4))])
def test_concatenations_whose_shapes_do_not_add_up_are_left_alone(shapes):
    part, whole = shapes
    tensors = [Tensor(f"t{i}", shape, "float32", 64) for i, shape in enumerate([part, part, whole, whole])]
    ops = (Op("c", "Concat", (0, 1), (2,), {"axis": 0}), Op("r", "Relu", (2,), (3,)))
    assert partition_sites(Graph("g", tuple(tensors), ops, (0, 1), (3,)).check()) == ()
