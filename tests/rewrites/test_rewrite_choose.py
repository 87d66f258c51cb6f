"""Choosing rewritings: never worse than the original, nothing superfluous, and the best set where all can be tried."""

from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from downset.memory.models import MEMORY_MODELS
from downset.orders.plan import plan_order
from downset.rewrites.concat import choose
from downset.rewrites.concat.choose import accumulation, choose_rewrites
from downset.rewrites.concat.partition import concat_partition, partition_sites
from tests.effort import cases
from tests.rewrites.test_rewrite import Builder, networks

MODELS = ["live", "tflm", "ort", "serenity"]


def peak_with(graph, sites, memory):
    rewritten = concat_partition(graph, sites, accumulate=accumulation(memory))
    return plan_order(rewritten, memory=memory).peak_bytes


@given(graph=networks(), memory=st.sampled_from(MODELS), few=st.sampled_from([0, 4]))
@settings(max_examples=cases(60))
def test_the_choice_is_the_best_of_all_sets_and_needs_every_site(graph, memory, few):
    sites = partition_sites(graph)
    assume(sites)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "_FEW", few)
        chosen = choose_rewrites(graph, memory=memory)
    by_name = {graph.ops[site].name: site for site in sites}
    taken = [by_name[rewrite.name] for rewrite in chosen.rewrites]
    assert chosen.order.peak_bytes == peak_with(graph, taken, memory) <= chosen.before.peak_bytes
    if few:
        subsets = [subset for size in range(len(sites) + 1) for subset in combinations(sites, size)]
        assert chosen.order.peak_bytes == min(peak_with(graph, subset, memory) for subset in subsets)
    for rewrite, site in zip(chosen.rewrites, taken, strict=True):
        without = peak_with(graph, [other for other in taken if other != site], memory)
        assert rewrite.bytes_gained == without - chosen.order.peak_bytes > 0


def grown(parts):
    """Concatenations one behind the other, of which only the widest makes the peak."""
    build = Builder(0, "NCHW")
    x = current = build.image(2)
    for count in parts:
        current = build.conv(build.concat([build.conv(current, 8) for _ in range(count)]), 4)
    return build.graph([x], [build.conv(current, 40)])  # which needs 44 images, a concatenation of two parts 32


def test_only_what_makes_the_peak_is_rewritten():
    chosen = choose_rewrites(grown([2, 2, 9, 2, 2, 2]), memory="tflm")
    assert len(partition_sites(grown([2, 2, 9, 2, 2, 2]))) == 6
    assert [(rewrite.kind, len(rewrite.readers)) for rewrite in chosen.rewrites] == [("channel-wise", 1)]
    (rewrite,) = chosen.rewrites
    assert rewrite.bytes_gained == chosen.before.peak_bytes - chosen.order.peak_bytes > 0


def test_what_does_not_pay_is_left_alone():
    """Adding up costs two sums and a part: more than a small concatenation."""
    build = Builder(0, "NCHW")
    x = build.image(2)
    y = build.conv(build.concat([build.conv(x, 1), build.conv(x, 1)]), 64)
    chosen = choose_rewrites(build.graph([x], [y]), memory="tflm")
    assert chosen.rewrites == () and chosen.order.peak_bytes == chosen.before.peak_bytes
    assert len(chosen.graph.ops) == 4


def test_every_memory_model_has_its_way_to_add_up():
    ways = {name: accumulation(name) for name in MEMORY_MODELS}
    assert ways == {**dict.fromkeys(ways, "chain"), "serenity": "sum", "ort": "fused"}
