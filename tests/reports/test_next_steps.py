"""What could be done next: ranked, with numbers that hold against definitions written out here."""

import random
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from downset.pipelines.replan import plan_upgraded, upgrades
from downset.reports.fit_steps import fit_next_steps, without_small
from downset.reports.json_form import json_of
from downset.reports.next_steps import (
    arena_next_steps,
    listed,
    objects_next_steps,
    order_next_steps,
    ranked,
    remedy_lines,
)
from downset.reports.pipeline_documents import served_document
from downset.reports.pipeline_sentences import SLOWER, one_device_line, period_claim, space_line
from downset.reports.plan_documents import arena_document
from downset.reports.time_steps import pipeline_next_steps, served_next_steps
from downset.results.fit import Figure, Measured, RamVerdict
from downset.results.next_step import NextStep
from downset.results.plans import Arena, Evidence
from downset.results.policy import Policy
from downset.results.serving import DeviceUse, Served
from downset.results.sessions import DEFAULT, FILE_ORDER, Latency, SessionTaken
from downset.results.task_times import plan_seconds
from downset.text import format_seconds, parse_seconds
from tests.command import typed
from tests.models import branchy_model
from tests.plain_graphs import random_graph

STEPS = st.builds(
    NextStep, st.just("Do it."), st.none() | st.integers(0, 99), st.none() | st.floats(0, 9), st.booleans()
)


@given(st.lists(STEPS, max_size=9))
def test_what_suffices_comes_first_and_then_the_largest_gain(steps):
    found = ranked(steps)
    assert sorted(map(id, found)) == sorted(map(id, steps))
    for one, other in pairwise(found):
        assert (one.suffices, one.gained_bytes or 0, one.gained_s or 0) >= (
            other.suffices,
            other.gained_bytes or 0,
            other.gained_s or 0,
        )


def test_a_message_says_what_makes_it_fit_and_what_only_helps():
    steps = [NextStep("Buy more.", 0, suffices=True), NextStep("Halve it.", 5)]
    assert listed(steps) == "to make it fit: (1) Buy more; to need less: (2) Halve it"
    assert listed(steps[1:]) == "to need less: (1) Halve it"
    assert remedy_lines(steps) == ["to make it fit:", "  1. Buy more.", "to need less:", "  2. Halve it."]
    assert remedy_lines(steps[1:]) == ["to need less:", "  1. Halve it."]


def test_steps_that_gain_next_to_nothing_are_left_out_where_bytes_are_missing():
    ram, exact, less, unknown = (
        NextStep("Give it more.", 0, suffices=True),
        NextStep("A.", 1458),
        NextStep("B.", 1457),
        NextStep("C."),
    )
    assert without_small([ram, exact, less, unknown], 145_800) == [ram, exact, unknown]
    assert without_small([ram], 145_800) == [ram]
    kept = without_small([ram, less, less], 145_800)
    assert kept[0] == ram and [step.text for step in kept[1:]] == [
        "Nothing else that was computed gains 1% of the 145,800 B missing."
    ]


def most_live(records):
    last = max(record.stop for record in records)
    return max(sum(one.nbytes for one in records if one.start <= step < one.stop) for step in range(last))


def test_halving_a_record_leaves_the_live_bytes_that_are_told():
    graph = random_graph(random.Random(5), 12)
    arena = ds.plan_arena(graph, ds.plan_order(graph))
    told = [step for step in arena_next_steps(arena) if step.text.startswith("Halve record ")]
    assert told and arena.arena_bytes == most_live(arena.records)
    for step in told:
        name = step.text.removeprefix("Halve record ").split(" (")[0]
        smaller = [replace(one, nbytes=one.nbytes - one.nbytes // 2 * (one.id == name)) for one in arena.records]
        assert most_live(arena.records) - most_live(smaller) == step.gained_bytes > 0


@pytest.mark.parametrize("bound", [8, 16])
def test_more_search_is_offered_where_there_is_a_gap_and_only_there(bound):
    arena = Arena((ds.Record("a", 0, 1, 8), ds.Record("b", 1, 2, 8)), (0, 8), Evidence("naive", 16, bound, bound == 16))
    gained = [step.gained_bytes for step in arena_next_steps(arena)]
    assert gained == ([8] if bound == 8 else [])
    assert ("capacity_bytes=None" in arena_next_steps(arena, 99)[0].text) if bound == 8 else True


@pytest.fixture(scope="module")
def original_shipped(tmp_path_factory):
    """A fit that ships the original with an arena of 10 B more than the best plan has."""
    model = branchy_model(tmp_path_factory.mktemp("original") / "net.onnx")
    fitted = ds.fit(model, target="torch", rewrite="off", time_limit_s=2)
    arena = fitted.together.arena.arena_bytes
    return replace(fitted, shipped="original", arena=Figure(arena + 10, arena + 10, arena, False))


def test_no_more_search_is_offered_where_a_plan_has_the_bytes_of_the_bound(original_shipped):
    """The runtime may take less memory in all for a file without that plan."""
    assert not any("Search longer" in step.text for step in fit_next_steps(original_shipped))
    figure = replace(original_shipped.arena, bound=original_shipped.arena.bound - 1)
    open_yet = replace(original_shipped, arena=figure)
    assert not any("Search longer" in step.text for step in fit_next_steps(open_yet)), "no limit ended the search"
    (step,) = (step for step in fit_next_steps(_stopped(open_yet, "time")) if "Search longer" in step.text)
    assert step.gained_bytes == 11 and "(time_limit_s=60)" in step.text


def _stopped(fitted, limit, **limits):
    order = fitted.together.order
    order = replace(order, evidence=replace(order.evidence, stopped_by=limit))
    return replace(fitted, together=replace(fitted.together, order=order), **limits)


@pytest.mark.parametrize(
    ("limit", "given", "proposed"),
    [
        ("time", {"time_limit_s": 60.0}, "--time-limit 4min"),
        ("time", {"time_limit_s": 1800.0}, "--time-limit 2h"),
        ("work", {"work_limit": 5000}, "--work-limit 50000"),
        ("memory", {"time_limit_s": 60.0}, None),
    ],
)
def test_a_longer_search_is_longer_than_the_one_that_was_ended(original_shipped, limit, given, proposed):
    """Each proposed limit is one that the command takes, and is above the limit that ended the search."""
    figure = replace(original_shipped.arena, bound=original_shipped.arena.bound - 1)
    steps = fit_next_steps(_stopped(replace(original_shipped, arena=figure), limit, **given))
    told = [typed(step.text) for step in steps if "Search longer" in step.text]
    assert [text.split("(")[1].split(")")[0] for text in told] == ([] if proposed is None else [proposed])
    if limit == "time" and proposed is not None:
        assert parse_seconds(proposed.split()[1]) >= 4 * given["time_limit_s"]


def test_a_method_that_does_not_search_is_told_the_one_that_does():
    records = [ds.Record("a", 0, 2, 8), ds.Record("b", 2, 4, 8)]
    for plan, steps in ((ds.plan_arena, arena_next_steps), (ds.plan_shared, objects_next_steps)):
        (step, *_) = steps(plan(records, method="naive"))
        assert step.text.startswith("Search for the least (method='best'): at most 8 B") and step.gained_bytes == 8
        assert plan(records, method="best").evidence.value == 8


@pytest.mark.parametrize(
    ("limit", "state", "settings", "offered"),
    [
        (None, None, DEFAULT, True),
        (None, None, FILE_ORDER, True),
        (300, "fits", FILE_ORDER, True),
        (300, "fits", DEFAULT, False),
        (299, "fits", FILE_ORDER, False),
        (1, "does not fit", FILE_ORDER, False),
    ],
)
def test_faster_settings_are_offered_only_where_they_keep_the_limit_at_every_load(
    original_shipped, limit, state, settings, offered
):
    shipped = SessionTaken("original", FILE_ORDER, 200, 200, latency=Latency(0.02, 5, 1.2, 1.1, 1.3, 0.01))
    faster = SessionTaken("optimised", settings, 300, 300, latency=Latency(0.01, 5, 0.9, 0.8, 1.0, 0.01))
    measured = Measured("ort", 400, 200, rows=(shipped,), front=(faster, shipped))
    ram = None if limit is None else RamVerdict(state, limit, 200, 100)
    fitted = replace(original_shipped, measured=measured, session=FILE_ORDER, ram=ram)
    told = [step.text for step in fit_next_steps(fitted) if "Where time counts more" in step.text]
    assert bool(told) == offered
    assert all(("other loads may hold more" in text) == (settings == DEFAULT) for text in told)


@pytest.mark.parametrize(("high", "offered"), [(1.3, True), (1.011, True), (1.01, False), (1.0, False)])
def test_faster_settings_are_offered_only_where_the_named_ratio_leaves_out_what_holds_less(
    original_shipped, high, offered
):
    """`slower` leaves out what may be slower, by the upper end of the interval, and ships the least left."""
    shipped = SessionTaken("original", FILE_ORDER, 200, 200, latency=Latency(0.02, 7, 1.2, 0.9, high, 0.01))
    faster = SessionTaken("optimised", DEFAULT, 300, 300, latency=Latency(0.01, 7, 1.002, 0.99, 1.01, 0.01))
    measured = Measured("ort", 400, 200, rows=(shipped,), front=(faster, shipped))
    fitted = replace(original_shipped, measured=measured, session=FILE_ORDER)
    told = [step.text for step in fit_next_steps(fitted) if "Where time counts more" in step.text]
    assert len(told) == offered and all("(slower=1.01)" in text for text in told)


@pytest.mark.parametrize(("high", "held", "offered"), [(1.3, 100, True), (1.1, 100, False), (1.3, 199, False)])
def test_what_the_limit_of_time_left_out_is_offered_with_a_limit_that_ships_it(original_shipped, high, held, offered):
    shipped = SessionTaken("original", FILE_ORDER, 200, 200, latency=Latency(0.01, 7, 1.0, 0.9, 1.05, 0.01))
    smaller = SessionTaken("order", FILE_ORDER, held, held, latency=Latency(0.012, 7, 1.2, 1.0, high, 0.01))
    measured = Measured("ort", 400, 200, rows=(shipped,), front=(shipped, smaller))
    fitted = replace(original_shipped, measured=measured, session=FILE_ORDER, policy=Policy())
    told = [step.text for step in fit_next_steps(fitted) if "allow more time" in step.text]
    assert len(told) == offered and all("(slower=1.3): order, file order, holds 100 B" in text for text in told)


def test_an_order_that_is_not_searched_for_is_told_how():
    graph = random_graph(random.Random(3), 14)
    order = ds.plan_order(graph, method="kahn")
    best = ds.plan_order(graph)
    assert order.peak_bytes > best.peak_bytes
    (first,) = (step for step in order_next_steps(order, graph) if "method='optimal'" in step.text)
    assert order.peak_bytes - first.gained_bytes <= best.peak_bytes
    assert not any("method" in step.text for step in order_next_steps(best, graph))


def test_offsets_are_offered_where_objects_take_more_than_lives():
    records = [ds.Record("a", 0, 1, 100), ds.Record("b", 1, 3, 10), ds.Record("c", 2, 4, 90)]
    shared = ds.plan_shared(records)
    assert [step.gained_bytes for step in objects_next_steps(shared)] == [shared.total_bytes - most_live(records)]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    graph = ds.load(branchy_model(tmp_path_factory.mktemp("planned") / "net.onnx"))
    cluster = Cluster((Device("d0", 2e6), Device("d1", 1e6)), Network("links", 1e7, overlap=True))
    return graph, cluster, ds.plan_pipeline(graph, cluster, time_limit_s=5)


def test_the_busiest_resource_bounds_what_is_gained(planned):
    """Seconds of computing by device from the tasks alone, with the busiest device at twice its speed."""
    _, _, plan = planned
    (step,) = (step for step in pipeline_next_steps(plan) if step.text.startswith("Make "))
    took = plan_seconds(plan)
    computes = [
        sum(took[at] for at, task in enumerate(plan.tasks) if task.transfer is None and task.device == device)
        for device in range(2)
    ]
    transfers = sum(took[at] for at, task in enumerate(plan.tasks) if task.transfer is not None)
    busiest = computes.index(max(computes))
    assert f"Make {plan.cluster.devices[busiest].name} twice as fast" in step.text
    computes[busiest] /= 2
    assert step.gained_s == pytest.approx(plan.period_s - max(*computes, transfers))


def test_what_a_cluster_with_more_gains_is_what_it_is_planned_to(planned):
    graph, cluster, plan = planned
    slow = cluster.devices[1].name
    found = plan_upgraded(graph, cluster, faster=slow, method="exact", time_limit_s=5)
    assert found.keys() == upgrades(cluster, faster=slow).keys()
    assert [len(one.devices) for one in upgrades(cluster, faster=slow).values()] == [3, 2, 2]
    assert upgrades(cluster, faster=slow)["links twice as fast"].network.bytes_per_s == 2e7
    faster = upgrades(cluster, faster=slow)[f"{slow} twice as fast"]
    assert [one.mac_per_s / old.mac_per_s for one, old in zip(faster.devices, cluster.devices, strict=True)] == [1, 2]
    limited = replace(cluster, devices=(replace(cluster.devices[0], memory_bytes=5), cluster.devices[1]))
    roomy = upgrades(limited, faster=slow)["twice the memory on each device"]
    assert [one.memory_bytes for one in roomy.devices] == [10, None]
    assert all(other.period_s <= plan.period_s * (1 + 1e-9) for other in found.values())
    told = {step.gained_s for step in pipeline_next_steps(plan, found) if step.text.startswith("With ")}
    assert told == {plan.period_s - other.period_s for other in found.values() if other.period_s < plan.period_s}
    assert told


def served_as(plan, ratio, *uses):
    """A run whose period is so many times the planned one, with (name, computing, sending, receiving) by device."""
    devices = tuple(DeviceUse(*use, 1.0, 0.1, 0.43, 9, 1) for use in uses)
    period = plan.period_s
    return Served(9, 9, 1.0, ratio * period, period, period, None, plan.latency_s, 0, devices, ())


def test_steps_after_a_run_go_by_what_was_measured(planned):
    """Planned: a processor that is full all the time. Measured: links that are full, and processors at rest."""
    _, _, plan = planned
    assert any(step.text.startswith(("Make d0 ", "Make d1 ")) for step in pipeline_next_steps(plan))
    served = served_as(plan, 2.91, ("d0", 0.5, 0.2, 0.1), ("d1", 0.04, 0.1, 0.74))
    first, second, *others = served_next_steps(served, plan)
    assert first.text.startswith("Measure the devices") and "2.91x the planned" in first.text
    assert second.text.startswith(
        "Make the links of d1 twice as fast: receiving took 74% of the time of d1 (measured; planned 43%)"
    )
    assert second.gained_s == pytest.approx(2.91 * plan.period_s * 0.84 / 2)
    assert not any(step.text.startswith("Make ") for step in others)
    computing = served_as(plan, 1.0, ("d0", 0.5, 0.2, 0.1), ("d1", 0.9, 0.6, 0.6))
    first = served_next_steps(computing, plan)[0]
    assert first.text.startswith("Make d1 twice as fast: computing took 90% of the time of d1")
    assert first.gained_s == pytest.approx(plan.period_s * 0.45)
    # Sending and receiving of one device may overlap: no more than half of a period is gained.
    both = served_as(plan, 1.0, ("d0", 0.5, 0.8, 0.7))
    assert served_next_steps(both, plan)[0].gained_s == pytest.approx(plan.period_s / 2)


def test_a_run_on_this_machine_says_nothing_of_the_devices(planned):
    _, _, plan = planned
    served = served_as(plan, 2.91, ("d0", 0.5, 0.2, 0.1), ("d1", 0.04, 0.1, 0.74))
    first, *others = served_next_steps(served, plan, local=True)
    start = "Run it on the devices: start downset worker on each, then "
    assert first.text.startswith(f"{start}downset.serve with head and keys. What")
    assert typed(first.text).startswith(f"{start}downset serve with --head and --keys. What")
    assert not any(step.text.startswith(("Make ", "Measure ")) for step in others)
    assert json_of(served_document(plan, served, rates_of="plan.json"))["next_steps"][0]["text"] == first.text
    assert json_of(served_document(plan, served))["next_steps"][0]["text"].startswith("Measure the devices")


def test_a_run_that_measured_nothing_has_the_steps_of_its_plan(planned):
    _, _, plan = planned
    nothing = served_as(plan, 1.0)
    assert served_next_steps(nothing, plan) == pipeline_next_steps(plan)
    idle = replace(served_as(plan, 1.0, ("d0", 0.5, 0.2, 0.1)), period_s=None)
    assert served_next_steps(idle, plan) == pipeline_next_steps(plan)


@pytest.mark.parametrize(("ratio", "told"), [(SLOWER - 0.01, False), (SLOWER + 0.01, True)])
def test_devices_are_to_be_measured_where_the_period_is_not_as_planned(planned, ratio, told):
    _, _, plan = planned
    steps = served_next_steps(served_as(plan, ratio, ("d0", 0.5, 0.2, 0.1)), plan)
    assert any(step.text.startswith("Measure the devices") for step in steps) == told


def test_a_plan_of_one_device_says_how_it_is_known_that_no_split_is_faster(planned):
    graph, _, several = planned
    assert one_device_line(several) is None
    slow = Cluster((Device("d0", 1e9), Device("d1", 1e9)), Network("links", 1e3, overlap=True))
    proven = ds.plan_pipeline(graph, slow, time_limit_s=5)
    assert proven.evidence.proven and [stage.devices for stage in proven.stages] == [(0,)]
    assert "no split of the searched kind over several devices is faster than d0 alone" in one_device_line(proven)
    floor = format_seconds(proven.floor_s)
    others = f"a plan of any other kind takes {floor} or more"
    assert space_line(proven).startswith(f"proven among: {proven.space}; {others}")
    open_ = replace(proven, evidence=replace(proven.evidence, proven=False, bound=proven.period_s / 2))
    assert "exact found no split over several devices that is faster than d0 alone" in one_device_line(open_)
    assert period_claim(open_).startswith(f"bound {format_seconds(proven.period_s / 2)}, gap 100.0% among")
    none = replace(open_, evidence=replace(open_.evidence, bound=0.0))
    assert period_claim(none).startswith("no bound is known")
    assert one_device_line(ds.plan_pipeline(graph, slow, method="single")) is None
    alone = Cluster((Device("d0", 1e9),), Network("links", 1e3))
    assert one_device_line(ds.plan_pipeline(graph, alone, time_limit_s=5)) is None


def test_a_gap_that_is_only_rounding_is_not_named():
    from downset.reports.time_steps import _leaves_room

    assert not _leaves_room(0.00125 * (1 - 2e-7), 0.00125) and not _leaves_room(0.00125, 0.00125)
    assert not _leaves_room(1.23412, 1.23414)  # both are 1.234 s
    assert _leaves_room(0.00124, 0.00125)


def test_the_document_of_many_records_holds_little_for_each():
    """What JSON alone has is made for JSON; live bytes are swept once."""
    count = 20_000
    records = [ds.Record(str(index), index, index + 2, 64) for index in range(count)]
    arena = ds.plan_arena(records)
    tracemalloc.start()
    document = arena_document(arena)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20 * count
    assert peak < 200 * count
    assert json_of(document)["offsets"][7] == {"id": "7", "offset": arena.offsets[7]}
