"""Merges through average pools and of separable convolutions, and the sites that a network offers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.errors import UsageError
from downset.rewrites.merge.convolutions import mergeable
from downset.rewrites.merge.pools import merge_through_pools, mergeable_through_pools, pool_swappable, swap_pool
from downset.rewrites.merge.separable import merge_separables, mergeable_separables
from downset.rewrites.merge.sites import MERGES, merge_groups, merge_kind, merge_sites, swap_merging_pools
from tests.effort import cases
from tests.rewrites.test_merge import (
    Build,
    assert_same,
    convolutions,
    evaluate,
    given_inputs,
    in_onnx_runtime,
)


def average_pool(build, source, kernel, pads, strides=(1, 1), **attrs):
    batch, channels, *size = build.tensors[source].shape
    ceil = attrs.get("ceil_mode", 0) * (np.array(strides) - 1)
    shape = [(size[a] + pads[a] + pads[a + 2] - kernel[a] + ceil[a]) // strides[a] + 1 for a in (0, 1)]
    return build.op(
        "AveragePool",
        [source],
        (batch, channels, *shape),
        kernel_shape=list(kernel),
        pads=list(pads),
        strides=list(strides),
        **attrs,
    )


@st.composite
def pooled_branches(draw, dtype="float64"):
    """1x1 convolutions behind average pools of any window, and convolutions on the pools' input."""
    size = [draw(st.integers(3, 6)) for _ in range(2)]
    build = Build(draw(st.integers(0, 99)), (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size), dtype)
    ends, ops = [], []
    for _ in range(draw(st.integers(1, 2))):
        kernel = [draw(st.integers(1, 3)) for _ in range(2)]
        pads = [draw(st.integers(0, kernel[axis % 2] - 1)) for axis in range(4)]
        strides = [draw(st.integers(1, 2)) for _ in range(2)]
        include = draw(st.sampled_from([0, 1]))
        pool = average_pool(build, build.x, kernel, pads, strides, count_include_pad=include)
        ops.append(len(build.ops))
        ends.append(build.conv(pool, draw(st.integers(1, 3)), (1, 1), bias=draw(st.booleans())))
    for _ in range(draw(st.integers(0, 2))):
        kernel = draw(st.sampled_from([1, 1, 3]))
        ops.append(len(build.ops))
        pads = [kernel // 2] * 4
        ends.append(build.conv(build.x, draw(st.integers(1, 3)), (kernel, kernel), pads, bias=draw(st.booleans())))
    activation = draw(st.sampled_from([None, "Relu"]))
    outputs = [build.same(activation, end) if activation else end for end in ends]
    return build.graph(*outputs), draw(st.permutations(ops))


def random_inputs(graph, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(graph.tensors[t].shape).astype(graph.tensors[t].dtype) for t in graph.inputs]


def assert_close(merged, graph, tolerance, run=evaluate):
    inputs = random_inputs(graph)
    for ours, before in zip(run(merged, inputs), run(graph, inputs), strict=True):
        np.testing.assert_allclose(ours, before, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(before).max())))


@given(drawn=pooled_branches())
@settings(max_examples=cases(80))
def test_a_pool_and_a_pointwise_convolution_commute(drawn):
    graph, ops = drawn
    swapped = graph
    for op in [graph.ops[index].name for index in ops]:
        at = next(index for index, other in enumerate(swapped.ops) if other.name == op)
        if pool_swappable(swapped, at) is None:
            swapped = swap_pool(swapped, at)
    made_by = swapped.producers()
    assert all(made_by[op.inputs[0]] < 0 for op in swapped.ops if op.kind == "Conv")
    assert_close(swapped, graph, 1e-12)
    if len(ops) > 1:
        merged = merge_through_pools(graph, ops)
        assert len(convolutions(merged)) == 1
        assert_close(merged, graph, 1e-12)


@given(drawn=pooled_branches("float32"))
@settings(max_examples=20)
def test_onnx_runtime_agrees_on_swapped_pools(drawn):
    graph, ops = drawn
    if len(ops) > 1:
        assert_close(merge_through_pools(graph, ops), graph, 1e-5, in_onnx_runtime)


def test_a_bias_is_added_behind_a_pool_that_counts_its_pads():
    for include, kinds in ((1, ["Conv", "AveragePool", "Add"]), (0, ["Conv", "AveragePool"])):
        build = Build(0, (1, 2, 4, 4), "float64")
        pool = average_pool(build, build.x, (3, 3), (1, 1, 1, 1), count_include_pad=include)
        graph = build.graph(build.conv(pool, 2, (1, 1)))
        swapped = swap_pool(graph, 1)
        assert [op.kind for op in swapped.ops] == kinds
        assert_close(swapped, graph, 1e-12)


@pytest.mark.parametrize("include", [0, 1])
def test_a_pool_that_hangs_over_the_edge_and_a_fused_activation(include):
    build = Build(0, (1, 2, 5, 5), "float64")
    pool = average_pool(build, build.x, (2, 2), (0, 0, 0, 0), (2, 2), ceil_mode=1, count_include_pad=include)
    graph = build.graph(build.conv(pool, 2, (1, 1), activation="Relu"))
    swapped = swap_pool(graph, 1)
    assert [op.kind for op in swapped.ops[-1:]] == ["Relu"]
    assert_close(swapped, graph, 1e-12)


def test_what_cannot_change_places_says_why():
    build = Build(0, (1, 2, 4, 4))
    shared = average_pool(build, build.x, (2, 2), (0, 0, 0, 0))
    maximum = build.op("MaxPool", [build.x], (1, 2, 3, 3), kernel_shape=[2, 2])
    wide = average_pool(build, build.x, (2, 2), (0, 0, 0, 0))
    clipped = average_pool(build, build.x, (2, 2), (0, 0, 0, 0))
    ends = [
        build.conv(shared, 2, (1, 1)),
        build.conv(shared, 1, (1, 1)),
        build.conv(maximum, 1, (1, 1)),
        build.conv(wide, 1, (2, 1)),
        build.conv(clipped, 1, (1, 1), activation="Relu6"),
    ]
    graph = build.graph(*ends)
    reasons = ["has other readers", "has other readers", "does not read an AveragePool", "is not 1x1", "fused Relu6"]
    for index, reason in zip(convolutions(graph), reasons, strict=True):
        assert reason in pool_swappable(graph, index)
        with pytest.raises(UsageError, match=reason):
            swap_pool(graph, index)
    first, second, *_ = convolutions(graph)
    assert "different inputs" in mergeable_through_pools(graph, [first, convolutions(graph)[2]])
    assert mergeable(graph, [first, second]) is None  # two on one pool merge as they are
    assert "none of them" in mergeable_through_pools(graph, [first, second])
    with pytest.raises(UsageError, match="none of them"):
        merge_through_pools(graph, [first, second])


@st.composite
def separables(draw):
    """Separable convolutions of one shape with different inputs, or parts of one Split; with or without an activation
    before, shared or not; of different depthwise kernels."""
    channels, out = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    size = [draw(st.integers(3, 6)) for _ in range(2)]
    count = draw(st.integers(2, 3))
    build = Build(draw(st.integers(0, 99)), (draw(st.integers(1, 2)), channels * count, *size))
    shape = (build.tensors[build.x].shape[0], channels, *size)
    sources = [build.tensor(shape) for _ in range(count)]
    graph_inputs = [build.x, *sources]
    if draw(st.booleans()):
        graph_inputs, sizes = [build.x], build.tensor((count,), [channels] * count, "int64")
        build.ops.append(_split(build, sources, sizes))
        sources = draw(st.sampled_from([sources, sources[::-1]]))
    elif draw(st.booleans()):
        sources[1] = sources[0]
        graph_inputs = list(dict.fromkeys([build.x, *sources]))
    first = draw(st.sampled_from([None, "Relu", "Relu", "Sigmoid"]))
    if first == "Sigmoid":  # not on whole numbers
        first = "Relu"
        sources = [build.same("Relu", source) for source in sources]
    begun = {source: build.same(first, source) if first else source for source in dict.fromkeys(sources)}
    multiple, stride = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    largest = draw(st.sampled_from([1, 2, 3]))
    ends, ops = [], []
    for source in sources:
        radius = draw(st.integers(0, largest - 1))
        kernel = (2 * radius + 1,) * 2
        middle = build.conv(
            begun[source],
            channels * multiple,
            kernel,
            [radius] * 4,
            [stride] * 2,
            group=channels,
            bias=draw(st.booleans()),
        )
        ops.append(len(build.ops))
        end = build.conv(middle, out, (1, 1), bias=draw(st.booleans()))
        ends.append(build.same("Relu", end) if draw(st.booleans()) else end)
    also = [begun[sources[0]]] if first and draw(st.integers(0, 3)) == 0 else []
    outputs = [build.concat(ends)] if draw(st.booleans()) else ends
    return build.graph(*outputs, *also, inputs=graph_inputs), draw(st.permutations(ops))


def _split(build, parts, sizes):
    from downset.graph.core import Op

    return Op("split", "Split", (build.x, sizes), tuple(parts), {"axis": 1})


@given(drawn=separables())
@settings(max_examples=cases(120))
def test_merged_separable_convolutions_compute_the_same_to_the_bit(drawn):
    graph, ops = drawn
    assert mergeable_separables(graph, ops) is None
    merged = merge_separables(graph, ops)
    assert len(convolutions(merged)) == 2
    assert_same(merged, graph)


@given(drawn=separables())
@settings(max_examples=15)
def test_onnx_runtime_agrees_on_separables(drawn):
    graph, ops = drawn
    assert_same(merge_separables(graph, ops), graph, given_inputs(graph), in_onnx_runtime)


def twice_separable(build, sources, kernel=3):
    """NASNet's: (ReLU, depthwise, pointwise) twice, on each of these."""
    ends, pointwise = [], []
    for source in sources:
        channels = build.tensors[source].shape[1]
        for _ in range(2):
            middle = build.conv(
                build.same("Relu", source), channels, (kernel, kernel), [kernel // 2] * 4, group=channels
            )
            pointwise.append(len(build.ops))
            source = build.conv(middle, channels, (1, 1))
        ends.append(source)
    return ends, pointwise


def test_separables_in_a_row_merge_stage_by_stage_without_copies_between():
    build = Build(0, (1, 2, 4, 4))
    sources = [build.x, build.same("Sigmoid", build.x)]
    ends, ops = twice_separable(build, sources)
    graph = build.graph(build.op("Add", ends, build.tensors[ends[0]].shape))
    sites = [site for site in merge_sites(graph) if site.kind == "separables"]
    assert [set(site.ops) for site in sites] == [{ops[0], ops[2]}, {ops[1], ops[3]}]
    assert all(site.macs_before == site.macs_after for site in sites)
    assert "waits for another" in mergeable_separables(graph, [ops[0], ops[1]])
    merged, origin = merge_groups(graph, [site.ops for site in sites])
    kinds = Counter(op.kind for op in merged.ops)
    assert kinds == {"Sigmoid": 1, "Concat": 1, "Relu": 2, "Conv": 4, "Split": 1, "Add": 1}
    assert_close(merged, graph, 1e-6)
    for op, old in zip(merged.ops, origin, strict=True):
        assert old < 0 or op.kind == graph.ops[old].kind
    assert sorted(index for index in origin if graph.ops[index].kind == "Conv" and index >= 0)[1::2] == [ops[0], ops[1]]


def test_separables_of_different_shape_are_refused_with_the_reason():
    build = Build(0, (1, 2, 4, 4))
    other = build.conv(build.x, 4, (1, 1))
    ends, ops = twice_separable(build, [build.x, other])
    plain = build.conv(build.x, 2, (3, 3), [1] * 4)
    graph = build.graph(*ends, plain)
    assert "different shapes" in mergeable_separables(graph, [ops[0], ops[2]])
    assert "not pointwise" in mergeable_separables(graph, [ops[0], len(graph.ops) - 1])
    assert "not behind a depthwise" in mergeable_separables(graph, [ops[0], 0])
    with pytest.raises(UsageError, match="different shapes"):
        merge_separables(graph, [ops[0], ops[2]])


def inception_block(build):
    """Pointwise branches, larger kernels behind two of them, and a pooled one, as in Inception's first block."""
    relu = lambda tensor: build.same("Relu", tensor)  # noqa: E731
    first = relu(build.conv(build.x, 3, (1, 1)))
    five = relu(build.conv(relu(build.conv(build.x, 2, (1, 1))), 3, (5, 5), [2] * 4))
    three = relu(build.conv(relu(build.conv(build.x, 2, (1, 1))), 3, (3, 3), [1] * 4))
    pool = average_pool(build, build.x, (3, 3), (1, 1, 1, 1), count_include_pad=1)
    pooled = relu(build.conv(pool, 2, (1, 1)))
    return build.concat([first, five, three, pooled])


def test_sites_of_an_inception_block():
    build = Build(0, (1, 3, 6, 6), "float64")
    graph = build.graph(inception_block(build))
    first, five, _, three, _, pooled = convolutions(graph)
    sites = {(site.kind, site.ops): site for site in merge_sites(graph)}
    assert set(sites) == {("convolutions", (first, five, three)), ("pools", (first, five, three, pooled))}
    macs = 6 * 6 * 3 * (3 + 2 + 2)
    assert sites["convolutions", (first, five, three)].macs_after == macs
    together = sites["pools", (first, five, three, pooled)]
    assert (together.macs_before, together.macs_after) == (macs + 6 * 6 * 3 * 2,) * 2
    merged, _ = merge_groups(graph, [together.ops])
    assert Counter(op.kind for op in merged.ops)["Conv"] == 3
    assert_close(merged, graph, 1e-12)
    with pytest.raises(UsageError, match="two groups"):
        merge_groups(graph, [(first, five), (five, three)])
    with pytest.raises(UsageError, match="cannot merge"):
        merge_groups(graph, [(first, graph.producers()[graph.outputs[0]] - 1)])


@given(drawn=st.one_of(pooled_branches(), separables()), data=st.data())
@settings(max_examples=cases(60))
def test_every_part_of_a_site_can_merge(drawn, data):
    graph, _ = drawn
    for site in merge_sites(graph):
        assert site.ops == tuple(sorted(set(site.ops)))
        assert MERGES[site.kind].why_not(graph, site.ops) is None
        part = data.draw(st.lists(st.sampled_from(site.ops), min_size=2, unique=True))
        assert merge_kind(graph, part) is not None
        merged, origin = merge_groups(graph, [part])
        assert len(convolutions(merged)) < len(convolutions(graph))
        assert len(origin) == len(merged.ops)
        assert not any("\N{SYMBOL FOR UNIT SEPARATOR}" in op.name for op in merged.ops)
        assert_close(merged, graph, 1e-9 if graph.tensors[0].dtype == "float64" else 1e-5)


def test_all_classes_of_a_network_with_separables_in_a_row():
    build = Build(0, (1, 2, 4, 4))
    ends, ops = twice_separable(build, [build.x, build.same("Sigmoid", build.x)])
    graph = build.graph(*ends)
    assert merge_kind(graph, [ops[0], ops[3]]) is not None
    assert merge_kind(graph, [ops[0], ops[1]]) is None


def test_pools_give_way_where_that_lets_convolutions_merge():
    build = Build(0, (1, 3, 6, 6), "float64")
    graph = build.graph(inception_block(build))
    swapped = swap_merging_pools(graph)
    assert [site.kind for site in merge_sites(swapped)] == ["convolutions"]
    assert len(merge_sites(swapped)[0].ops) == 4
    assert_close(swapped, graph, 1e-12)
    assert swap_merging_pools(swapped) is swapped
    build = Build(0, (1, 3, 6, 6), "float64")
    alone = build.graph(build.conv(average_pool(build, build.x, (3, 3), (1, 1, 1, 1)), 2, (1, 1)))
    assert swap_merging_pools(alone) is alone


def test_merging_nothing_changes_nothing():
    build = Build(0, (1, 3, 6, 6))
    graph = build.graph(inception_block(build))
    merged, origin = merge_groups(graph, [])
    assert merged.ops == graph.ops and origin == tuple(range(len(graph.ops)))
    named = replace(graph, ops=tuple(replace(op, name="same") for op in graph.ops))
    assert_close(merge_groups(named, [site.ops for site in merge_sites(named)][:1])[0], named, 1e-5)
