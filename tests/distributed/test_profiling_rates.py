"""Rates from timings: what was put into synthetic timings comes out, and a measured cluster reads back as written.

The oracle of the regression is the generator of the timings; that of its constraint is a search over a grid.
"""

import itertools
import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.clusters.model import MessageCosts, ProcessorCost
from downset.clusters.toml_file import parse_cluster
from downset.distributed.profiling.costs import (
    ComputeSample,
    DeviceRates,
    LinkRates,
    device_rates,
    link_rates,
    processor_cost,
    takes_turns,
    with_occupancy,
)
from downset.distributed.profiling.measure import Effort, Measuring, check_devices
from downset.distributed.profiling.measured import MeasuredCluster, MeasuredDevice, cluster_text, measured_cluster
from downset.distributed.profiling.message_rounds import rounds_of_pairs, seconds_a_message
from downset.errors import UsageError

rates = st.floats(1e6, 1e12)


def timed(work, mac_per_s, bytes_per_s, noise=lambda: 1.0):
    """Samples of a device whose rates by kind are known. `work`: (MACs by kind, bytes)."""
    return [
        ComputeSample(
            macs, moved, noise() * (sum(count / mac_per_s[kind] for kind, count in macs.items()) + moved / bytes_per_s)
        )
        for macs, moved in work
    ]


@given(conv=rates, gemm=rates, moved=rates, weight_rate=st.none() | rates, seed=st.integers(0, 10_000))
def test_the_rates_that_made_the_times_are_found(conv, gemm, moved, weight_rate, seed):
    draw = random.Random(seed)
    work = [
        ({"Conv": draw.randrange(1, 10**9), "Gemm": draw.randrange(10**8)}, draw.randrange(10**8)) for _ in range(6)
    ]
    work += [({"Conv": 10**8}, 0), ({"Gemm": 10**8}, 0), ({}, 10**8)]
    weights = [draw.randrange(10**8) for _ in work]
    timed_work = timed(work, {"Conv": conv, "Gemm": gemm}, moved)
    if weight_rate is not None:
        timed_work = [
            replace(sample, seconds=sample.seconds + nbytes / weight_rate, weight_bytes=nbytes)
            for sample, nbytes in zip(timed_work, weights, strict=True)
        ]
    found = device_rates(timed_work)
    if weight_rate is None:
        assert found.weight_bytes_per_s is None
    else:
        assert found.weight_bytes_per_s == pytest.approx(weight_rate, rel=1e-3)
    of = {kind: found.mac_per_s / found.alpha_of.get(kind, 1.0) for kind in ("Conv", "Gemm")}
    assert of["Conv"] == pytest.approx(conv, rel=1e-3)
    assert of["Gemm"] == pytest.approx(gemm, rel=1e-3)
    assert found.bytes_per_s == pytest.approx(moved, rel=1e-3)
    assert found.spread < 1e-3
    assert len(found.alpha_of) == 1
    assert found.samples == 9


def test_noise_moves_the_rates_little_and_shows_in_the_spread():
    draw = random.Random(1)
    work = [({"Conv": draw.randrange(10**6, 10**9)}, draw.randrange(10**7)) for _ in range(400)]
    found = device_rates(timed(work, {"Conv": 2e9}, 1e9, lambda: draw.uniform(0.8, 1.2)))
    assert found.mac_per_s == pytest.approx(2e9, rel=0.03)
    assert found.spread == pytest.approx(0.1, abs=0.03)


def test_predictions_add_up_to_the_time_that_was_taken():
    """Of one kind alone: a plan adds predictions up, so the sum matters and not each."""
    samples = [ComputeSample({"Conv": macs}, 0, seconds) for macs, seconds in ((10, 3.0), (100, 7.0), (1000, 91.0))]
    found = device_rates(samples)
    assert sum(sample.macs_of["Conv"] / found.mac_per_s for sample in samples) == pytest.approx(101.0, rel=0.2)


def test_no_rate_is_negative_and_none_is_better():
    """Times that fall with the bytes would have a negative price of a byte: the best without one, by a grid search."""
    samples = [ComputeSample({"Conv": 1000 + 10 * k}, 100 * (10 - k), 1.0 + 0.3 * k) for k in range(10)]
    found = device_rates(samples)
    assert found.bytes_per_s is None or found.bytes_per_s > 0

    def loss(per_mac, per_byte):
        return sum(
            (s.seconds - per_mac * s.macs_of["Conv"] - per_byte * s.moved_bytes) ** 2 / s.seconds for s in samples
        )

    ours = loss(1 / found.mac_per_s, 1 / found.bytes_per_s if found.bytes_per_s else 0.0)
    grid = itertools.product(np.linspace(0, 4e-3, 81), np.linspace(0, 2e-3, 41))
    assert ours <= min(loss(*one) for one in grid) * (1 + 1e-9)


@given(latency=st.floats(1e-4, 0.1), rate=st.floats(1e5, 1e9))
def test_a_link_gives_its_rate_and_its_latency(latency, rate):
    found = link_rates([(n, latency + n / rate) for n in (16_384, 131_072, 524_288, 2_097_152)])
    assert found.latency_s == pytest.approx(latency, rel=1e-3)
    assert found.bytes_per_s == pytest.approx(rate, rel=1e-3)


def test_the_papers_quotient_drops_what_every_message_costs():
    """Section 6.1: two messages' difference in size over that in time. 100 kB take twice what that predicts."""
    latency, rate = 0.016, 6.25e6
    sizes = (100_000, 2_000_000)
    seconds = [latency + n / rate for n in sizes]
    quotient = (sizes[1] - sizes[0]) / (seconds[1] - seconds[0])
    assert quotient == pytest.approx(rate)
    assert seconds[0] / (sizes[0] / quotient) == pytest.approx(2.0)
    found = link_rates(list(zip(sizes, seconds, strict=True)))
    assert found.latency_s + sizes[0] / found.bytes_per_s == pytest.approx(seconds[0])


@given(each=st.floats(1e-6, 0.1), byte=st.just(0.0) | st.floats(1e-12, 1e-6), quick=st.floats(-0.1, 0))
def test_the_cost_that_made_the_messages_is_found(each, byte, quick):
    sizes = (16 << 10, 64 << 10, 1 << 20)
    found = processor_cost([(nbytes, each + byte * nbytes) for nbytes in sizes])
    for nbytes in sizes:
        assert found.of(nbytes) == pytest.approx(each + byte * nbytes, rel=1e-6, abs=1e-15)
    assert processor_cost([(nbytes, quick) for nbytes in sizes]) == ProcessorCost()


@given(alone=st.lists(st.floats(0.1, 0.2), min_size=2, max_size=4), noise=st.floats(0.9, 1.1))
def test_turns_show(alone, noise):
    assert takes_turns(alone, noise * sum(alone))
    assert not takes_turns(alone, noise * max(alone))


@given(alone=st.floats(0.1, 0.2), part=st.floats(0, 1.6) | st.floats(2, 3), noise=st.floats(0.95, 1.05))
def test_works_that_a_processor_holds_up_do_not_take_turns_at_a_link(alone, part, noise):
    """Two messages, one each way, between processors that need `part` of one's time for both: they are there when the
    link and the processors are done. A link that carries one way at a time needs both their times."""
    processors_s = part * alone
    assert not takes_turns([alone, alone], noise * max(alone, processors_s), least_s=processors_s)
    if part < 1.6:
        assert takes_turns([alone, alone], noise * max(2 * alone, processors_s), least_s=processors_s)


class OnPaper(Measuring):
    """Messages of a link that carries a byte a second each way; processors take a part of that for every message that
    they send or receive, one after another. What asks for rows goes behind rows that travel the same way."""

    def __init__(self, parts, duplex):
        super().__init__(None, [f"d{k}" for k in range(len(parts))], Effort(sizes=(1, 100)))
        self.parts, self.duplex = parts, duplex

    def messages(self, pairs, nbytes):
        radios = [[nbytes for pair in pairs if end in pair] for end in range(len(self.parts))]
        processors = [self.parts[end] * sum(used) for end, used in enumerate(radios)]
        link = max(map(sum, radios)) if self.duplex == "half" or {pair[::-1] for pair in pairs} & set(pairs) else nbytes
        return [max(link, *processors)] * len(pairs)

    def costs(self):
        each = [ProcessorCost(0.0, part) for part in self.parts]
        return [MessageCosts(send=one, receive=one) for one in each]


@given(parts=st.lists(st.floats(0, 0.9), min_size=2, max_size=6), duplex=st.sampled_from(["half", "full"]))
def test_slow_processors_do_not_make_a_link_half_duplex(parts, duplex):
    at = OnPaper(parts, duplex)
    assert at.full_duplex(at.costs()) == (duplex == "full" and len(parts) > 2)


def test_what_cannot_be_fitted_is_refused():
    for samples in ([], [ComputeSample({}, 10, 1.0)], [ComputeSample({"Conv": 1}, 0, 0.0)]):
        with pytest.raises(UsageError):
            device_rates(samples)
    for messages in ([], [(100, 1.0), (100, 2.0)], [(1, 1.0), (2, math.inf)]):
        with pytest.raises(UsageError):
            link_rates(messages)
    with pytest.raises(UsageError):
        takes_turns([1.0], 1.0)
    for messages in ([], [(1, math.nan)]):
        with pytest.raises(UsageError):
            processor_cost(messages)


@pytest.mark.parametrize("count", range(1, 10))
def test_rounds_hold_every_pair_once_and_no_device_twice(count):
    rounds = list(rounds_of_pairs(count))
    for pairs in rounds:
        ends = [end for pair in pairs for end in pair]
        assert len(ends) == len(set(ends))
    every = sorted(pair for pairs in rounds for pair in pairs)
    assert every == list(itertools.combinations(range(count), 2))


@given(st.floats(0, 0.2), st.floats(1e4, 1e9), st.floats(0, 2), st.floats(0, 2))
def test_what_a_message_occupies_is_found_and_never_more_than_it_takes(latency, rate, fixed_part, byte_part):
    sizes = (16_384, 1 << 20)
    seconds = [fixed_part * latency + byte_part * n / rate + 1e-9 for n in sizes]
    found = with_occupancy(LinkRates(rate, latency, 0.01, 8), list(zip(sizes, seconds, strict=True)))
    assert (found.bytes_per_s, found.latency_s) == (rate, latency)
    assert found.occupied_bytes_per_s >= rate
    assert found.occupied_latency_s <= latency
    for n, taken in zip(sizes, seconds, strict=True):
        if fixed_part <= 1 and byte_part <= 1:
            assert found.occupied_latency_s + n / found.occupied_bytes_per_s == pytest.approx(taken, rel=1e-3, abs=2e-5)


@pytest.mark.parametrize(("at_once", "wanted"), [(1, 5.0), (2, 2.5), (3, 2.0), (9, 2.0)])
def test_messages_that_follow_one_another_show_what_each_occupies(monkeypatch, at_once, wanted):
    """A link that a message occupies for 2 s, and on which it is under way for 5 s, on a clock of its own; each group
    has one to itself, of which the second is half as fast."""
    now, free, arrives = [0.0], [0.0, 0.0], {}
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def send(pair):
        link = pair[0]
        begin = max(now[0], free[link])
        free[link] = begin + 2.0 * (1 + link)
        arrives[len(arrives)] = begin + 5.0 * (1 + link)
        return len(arrives) - 1

    def first_of(references):
        first = min(references, key=arrives.__getitem__)
        now[0] = arrives[first]
        return [first]

    came = []
    groups = [[(0, 1)] * at_once, [(1, 0)] * at_once]
    found = seconds_a_message(groups, send=send, first_of=first_of, arrived=lambda one, pair: came.append((one, pair)))
    assert found == pytest.approx([wanted, 2 * wanted], rel=0.15)
    assert sorted(one for one, _ in came) == sorted(arrives)


@given(
    name=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8),
    mac_per_s=rates,
    alpha=st.floats(0.1, 50),
    moved=st.none() | rates,
    rate=st.floats(1e4, 1e9),
    latency=st.floats(0, 0.1),
    shared=st.booleans(),
    cost=st.floats(0, 1),
    part=st.none() | st.floats(0, 1),
)
def test_a_measured_cluster_reads_back(name, mac_per_s, alpha, moved, rate, latency, shared, cost, part):
    one = DeviceRates(mac_per_s, {"Gemm": alpha}, moved, 0.034, 57, moved and 2 * moved)
    link = LinkRates(rate, latency, 0.01, 8)
    if part is not None:
        link = with_occupancy(link, [(n, part * latency + 0.7 * part * n / rate + 1e-12) for n in (1 << 14, 1 << 20)])
    costs = MessageCosts(*(ProcessorCost(cost * k, cost * 1e-6 / k) for k in (1, 2, 3, 4)), others_s=cost / 9)
    measured = MeasuredCluster(
        (MeasuredDevice(name, one, 2 << 30, 300 << 20, 1, costs), MeasuredDevice(name + "'", one, 1 << 30, 0)),
        "shared" if shared else "links",
        "full",
        link,
        {} if shared else {(0, 1): link},
        1.7e9,
        "probes of\nm.onnx",
    )
    text = cluster_text(measured)
    assert "2023-11-14" in text
    assert "spread 3.4% of 57" in text
    read, meant = parse_cluster(text), measured_cluster(measured)
    assert [device.name for device in read.devices] == [device.name for device in meant.devices]
    for ours, theirs in zip(read.devices, meant.devices, strict=True):
        assert ours.speed == pytest.approx(theirs.speed, rel=1e-5)
        assert ours.alpha_of == pytest.approx(theirs.alpha_of, rel=1e-5)
        assert ours.moved_per_s == pytest.approx(theirs.moved_per_s, rel=1e-5)
        assert ours.weight_byte_s == pytest.approx(theirs.weight_byte_s, rel=1e-5)
        assert ours.memory_bytes == theirs.memory_bytes
        for what in ("send", "receive", "frame", "result"):
            assert getattr(ours.messages, what).of(1 << 20) == pytest.approx(
                getattr(theirs.messages, what).of(1 << 20), rel=1e-5
            )
    assert read.devices[0].messages.others_s == pytest.approx(cost / 9, rel=1e-5)
    assert read.devices[0].messages.send.each_s == pytest.approx(cost, rel=1e-5)
    assert (read.network.kind, read.network.overlap) == (meant.network.kind, True)
    assert read.link(0, 1) == pytest.approx(meant.link(0, 1), rel=1e-5)
    assert read.occupied.link(0, 1) == pytest.approx(meant.occupied.link(0, 1), rel=1e-5, abs=1e-11)


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a\x1b[2J",), ("a", ""), ("n" * 64,)])
def test_devices_that_no_cluster_file_can_name_are_refused_before_one_is_started(names):
    with pytest.raises(UsageError, match="name"):
        check_devices(names)
