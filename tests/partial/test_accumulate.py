"""What adds up strip by strip, to the bit, in TFLite Micro and LiteRT, as docs/decisions/0029 says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from downset import load
from downset.partial.rewrite import InStrips
from downset.runtimes import tflm
from experiments.partial import accumulate, last_map
from tests.effort import cases

SPELLED = {
    "int8 pool": ("int8", accumulate.pool, accumulate.divided),
    "int8 mean": ("int8", accumulate.mean, accumulate.mean_checked),
    "float pool": ("float32", accumulate.pool, accumulate.divided),
    "float mean": ("float32", accumulate.mean, accumulate.mean_scaled),
    "float layer": ("float32", accumulate.connected, accumulate.connected_joined),
}


def network(seed: int) -> accumulate.Case:
    random = np.random.default_rng(seed)
    return accumulate.Case(*map(int, random.integers(2, 8, 2)), int(random.integers(1, 9)), seed)


def equal(dtype, makes, folder, seed):
    pair = accumulate.compared(makes, network(seed), dtype, folder)
    return accumulate.same(pair) if pair else None


@pytest.mark.parametrize("spelled", SPELLED)
def test_maps_add_up_strip_by_strip_to_the_bit(spelled, tmp_path):
    dtype, *makes = SPELLED[spelled]
    answers = [equal(dtype, makes, tmp_path, seed) for seed in range(cases(40))]
    assert answers.count(True) >= len(answers) / 4
    assert False not in answers


@pytest.mark.parametrize(
    ("spelled", "exact"), [("int8 pool", True), ("float pool", True), ("float mean", True), ("float layer", False)]
)
def test_litert_adds_pools_alike_and_layers_otherwise(spelled, exact, tmp_path):
    dtype, *makes = SPELLED[spelled]
    answers = [accumulate.same_in_litert(makes, network(seed), dtype, tmp_path) for seed in range(cases(8))]
    assert all(answers) if exact else not all(answers)


def test_a_network_that_ends_in_a_pool_computes_the_same_with_its_map_added_up(tmp_path):
    """Of the prototype that decision 29 measures, and its head is lower than with the map whole."""
    original = last_map.ds_cnn(tmp_path / "ds_cnn.tflite")
    graph = load(original)
    pool = last_map.last_pool(graph)
    parts = [InStrips(0, pool, 9)]
    (whole, *_), (added, *_) = (
        list(last_map.Files(graph, pool, tmp_path).measured(parts, added=one)) for one in (False, True)
    )
    assert all(np.array_equal(*pair) for pair in zip(added.outputs, tflm.measure(original).outputs, strict=True))
    assert added.head_bytes < whole.head_bytes - 4000


@pytest.mark.parametrize(
    ("dtype", "makes"),
    [
        ("int8", (accumulate.pool, accumulate.pool_scaled)),
        ("int8", (accumulate.connected, accumulate.connected_parts)),
        ("float32", (accumulate.connected, accumulate.connected_parts)),
    ],
)
def test_other_spellings_do_not(dtype, makes, tmp_path):
    """So that the outputs above are compared, and shown that a rounding of parts is not that of the whole."""
    assert any(answer is False for answer in map(partial(equal, dtype, makes, tmp_path), range(40)))


def test_a_factor_of_mean_is_refused_where_a_sum_is_rounded_otherwise():
    """By the kernels' formulas in whole numbers of any size."""

    def scaled(value: int, multiplier: int, shift: int) -> int:
        product = (value << max(shift, 0)) * multiplier
        nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
        high = abs(product + nudge) >> 31
        high = high if product + nudge >= 0 else -high
        right = max(-shift, 0)
        rest, half = high & ((1 << right) - 1), (1 << right) - 1 >> 1
        return (high >> right) + (rest > half + (high < 0))

    found = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        scale, result = np.float32(random.uniform(0.05, 0.2)), np.float32(random.uniform(0.05, 0.2))
        count = int(random.integers(2, 8) * random.integers(2, 8))
        multiplier, shift = accumulate.quantised(float(scale) / float(result))
        more = min(count.bit_length() - 1, 32, 31 + shift)
        by = accumulate.factor(scale, result, count)
        ratio = float(np.float32(float(scale) / count / (by or 1))) / float(result)
        same = all(
            scaled(value * (by or 1), *accumulate.quantised(ratio))
            == scaled(value, (multiplier << more) // count, shift - more)
            for value in range(-255 * count, 255 * count + 1)
        )
        assert same is bool(by)
        found.append(same)
    assert {True, False} == set(found)
