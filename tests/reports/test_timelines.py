"""Timelines and traces: what a lane does at a time is one thing, and adds up to what the plan says."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from downset.reports.arena_view import arena_view
from downset.reports.fit_steps import fit_next_steps
from downset.reports.page.render import render
from downset.reports.pipeline_documents import served_document, simulation_document, split_document
from downset.reports.pipeline_sentences import SLOWER, device_loads
from downset.reports.stages import peer_lines, stage_document
from downset.reports.time_steps import stage_next_steps
from downset.reports.timeline import busiest_resource, planned_timeline, simulated_timeline, stage_timeline
from downset.reports.trace import arena_trace, timeline_trace
from downset.results.plans import Evidence, Stage, StagePlan
from downset.results.serving import DeviceUse, Served
from downset.results.stages import StageCandidate, StageResult
from tests.models import branchy_model
from tests.plain_graphs import random_graph


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    graph = ds.load(branchy_model(tmp_path_factory.mktemp("net") / "net.onnx"))
    found = []
    for overlap in (False, True):
        devices = (Device("fast", 2e6), Device("<slow>", 1e6), Device("third", 5e5))
        cluster = Cluster(devices, Network("links", 1e6, 1e-4, overlap=overlap))
        found += [ds.plan_pipeline(graph, cluster, method=method, time_limit_s=2) for method in ("exact", "pico")]
        found.append(ds.plan_pipeline(graph, cluster, method="pico", comm="paper"))
    return found


def by_lane(timeline):
    lanes = [[] for _ in timeline.lanes]
    for item in timeline.slices:
        assert 0 <= item.start_s < item.stop_s <= timeline.end_s * (1 + 1e-9)
        lanes[item.lane].append((item.start_s, item.stop_s))
    return [sorted(lane) for lane in lanes]


def test_a_lane_does_one_thing_at_a_time_and_every_period_the_plans_work(plans):
    for plan in plans:
        timeline = planned_timeline(plan)
        busy = {}
        for name, lane in zip(timeline.lanes, by_lane(timeline), strict=True):
            assert all(one[1] <= two[0] + 1e-9 * timeline.end_s for one, two in pairwise(lane))
            busy[name] = sum(stop - start for start, stop in lane)
        periods = timeline.end_s / plan.period_s if plan.schedule is not None else 1
        for device, load in zip(plan.cluster.devices, device_loads(plan), strict=True):
            wanted = (("", load.computing), (" out", load.sending), (" in", load.receiving))
            for what, seconds in wanted:
                assert busy.get(f"{device.name}{what}", 0.0) == pytest.approx(periods * seconds, rel=1e-6, abs=1e-9)


def test_devices_that_do_one_thing_at_a_time_do_so_in_the_picture(plans):
    """Without overlap a device computes, sends or receives."""
    plan = plans[0]
    assert not plan.cluster.network.overlap and plan.schedule is not None
    timeline = planned_timeline(plan)
    for device in plan.cluster.devices:
        lanes = {
            lane
            for lane, name in enumerate(timeline.lanes)
            if name.removesuffix(" out").removesuffix(" in") == device.name
        }
        slices = sorted((item.start_s, item.stop_s) for item in timeline.slices if item.lane in lanes)
        assert all(one[1] <= two[0] + 1e-9 * timeline.end_s for one, two in pairwise(slices))


def test_the_busiest_resource_sets_the_load_bound(plans):
    for plan in plans:
        found = busiest_resource(plan)
        assert (found is None) == (plan.schedule is None)
        if found is not None:
            assert found[1] <= plan.period_s * (1 + 1e-9)
            assert found[1] <= plan.schedule.load_bound_s * (1 + 1e-9)


def test_a_simulation_observed_is_drawn_as_it_ran(plans):
    plan = plans[0]
    ran = []
    ds.simulate(plan, frames=40, observe=lambda *item: ran.append(item))
    assert {task for _, task, _, _ in ran} == set(range(len(plan.tasks)))
    assert sorted(frame for frame, task, _, _ in ran if task == 0) == list(range(40))
    timeline = simulated_timeline(plan, ran)
    for lane in by_lane(timeline):
        assert all(one[1] <= two[0] + 1e-9 * timeline.end_s for one, two in pairwise(lane))
    found = ds.simulate(plan, frames=40)
    page = render(simulation_document(plan, found, model="<b>", timelines=[timeline]))
    assert "&lt;slow&gt;" in page and "<slow>" not in page
    assert "Busiest resource" in page


def test_a_page_of_a_run_leads_with_what_was_measured(plans):
    plan = plans[0]
    served = Served(9, 8, 1.0, 0.0125, plan.period_s, plan.period_s, (0.1, 0.2, 0.3, 0.4), 0.05, 0, (), ())
    page = served_document(plan, served, model="net")
    verdict = page.verdict
    assert verdict.headline.startswith("8 of 9 frames: a frame every 12.5 ms, 80 frames/s, measured; planned ")
    assert verdict.state == "bad"  # a frame is missing
    whole = replace(served, completed=9)
    for ratio, state, said in ((SLOWER - 0.01, "good", ""), (SLOWER + 0.01, "plain", "(1.16x the planned)")):
        verdict = served_document(plan, replace(whole, period_s=ratio * plan.period_s), model="net").verdict
        assert (
            verdict.state == state and verdict.headline.endswith(said) and ("x the" in verdict.headline) == bool(said)
        )
    few = served_document(plan, replace(served, period_s=None), model="net").verdict
    assert few.headline.startswith("8 of 9 frames: too few frames to tell a period; planned ")


def test_a_page_of_a_run_says_what_is_planned_and_what_is_measured(plans):
    plan = plans[0]
    (said,) = split_document(plan).sections[0].parts[0].lines
    assert said.startswith("Busiest resource, planned: ")
    uses = (DeviceUse("fast", 0.3, 0, 0, 1, 0, 0, 9, 1), DeviceUse("<slow>", 0.04, 0.1, 0.74, 1.0, 0.2, 0.43, 9, 1))
    served = Served(9, 9, 1.0, 0.1, plan.period_s, plan.period_s, None, 0.05, 0, uses, ())
    measured, planned = served_document(plan, served).sections[0].parts[0].lines
    assert measured == "Busiest, measured: receiving of <slow>, 74% of the time (planned 43%)."
    assert planned == said


def test_a_page_of_a_plan_on_one_device_says_so_first(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    cluster = Cluster((Device("d0", 1e9), Device("d1", 1e9)), Network("links", 1e3))
    plan = ds.plan_pipeline(graph, cluster, time_limit_s=5)
    verdict = split_document(plan, model="net").verdict
    assert verdict.headline.startswith("one device computes everything: no split of the searched kind")
    assert "faster than d0 alone" in verdict.headline and "proven least" in verdict.detail


def test_the_slowest_unit_is_named_by_its_operators():
    candidate = StageCandidate("sequential", (), barriers=False, seconds=(4.0,))
    plan = StagePlan(((0,), (1, 2)), (Stage(((0, 1),)),), True, "", "", "", "", 1, 0, "", Evidence("m", 1, 1, True))
    result = StageResult(plan, (candidate,), 1, 3.0, 1.0, "", unit_s=(1.0, 3.0), unit_names=("stem", "conv … relu"))
    (step,) = stage_next_steps(result)
    assert step.text.startswith("Make 'conv … relu' cheaper: alone it takes 3 s, 75%") and step.gained_s == 1.5
    (step,) = stage_next_steps(replace(result, bound_s=None))  # the units were measured too slow
    assert step.text.startswith("Make 'conv … relu' cheaper: alone it takes 75%") and step.gained_s is None
    names = [piece.name for piece in stage_timeline(plan, result.unit_s, result.unit_names).slices]
    assert names == ["stage 0: unit 0 (stem)", "stage 0: unit 1 (conv … relu)"]


@pytest.mark.parametrize("steady", [True, False])
def test_a_faster_runtime_is_a_step_only_where_that_is_known(steady):
    candidate = StageCandidate("sequential", (), barriers=False, seconds=(4.0,))
    plan = StagePlan(((0,),), (Stage(((0,),)),), True, "", "", "", "", 1, 0, "", Evidence("m", 1, 1, True))
    times = {"downset": (4.0, 4.1, 4.0), "ONNX Runtime": (3.0, 3.1, 3.0 if steady else 9.0)}  # 9: the times overlap
    result = StageResult(plan, (candidate,), 1, None, 1.0, "", unit_s=(1.0,), unit_names=("stem",), peer_s=times)
    assert any(step.text.startswith("Run it in ONNX Runtime") for step in stage_next_steps(result)) == steady
    assert any("not known whether ONNX Runtime" in line for line in peer_lines(times)) != steady


@pytest.mark.parametrize("kept", [True, False])
def test_a_page_of_stages_says_first_whether_anything_is_faster(kept):
    slow = StageCandidate("sequential", (), barriers=False, seconds=(4.0,))
    fast = StageCandidate("ios", (), barriers=False, seconds=(2.0,))
    evidence = Evidence("sequential" if kept else "ios", 4 if kept else 2, 1, False)
    plan = StagePlan(((0,),), (Stage(((0,),)),), True, "cpu", "", "", "", 1, 0, "", evidence)
    result = StageResult(plan, (slow, fast), 1, None, 1.0 if kept else 2.0, "", unit_s=(1.0,), unit_names=("stem",))
    document = stage_document(result)
    verdict = document.verdict
    assert verdict.headline.startswith("One after another is kept" if kept else "ios chosen: 2.00x")
    assert document.figures[0].text == ("4 s" if kept else "4 s → 2 s")
    asked = stage_document(replace(result, asked=True)).verdict
    assert asked.state == "plain" and asked.headline.startswith(plan.evidence.method + " taken, as asked for")


@pytest.mark.parametrize("seconds", [(4.0,) * 9, (1.0, 4.0, 25.0) * 3])
@pytest.mark.parametrize("others", [(1.0,), (30.0,)])
def test_a_page_of_stages_says_what_its_latency_is_and_what_is_faster(seconds, others):
    """A runtime that is known to be faster is in the verdict, without a ratio of medians where times vary too much."""
    one = StageCandidate("sequential", (), barriers=False, seconds=seconds)
    evidence = Evidence("sequential", 4, 1, False)
    plan = StagePlan(((0,),), (Stage(((0,),)),), True, "cpu", "", "", "", 1, 0, "", evidence)
    peers = {"downset": tuple(2 * value for value in seconds), "ONNX Runtime": others * 9}
    result = StageResult(plan, (one,), 1, None, 1.0, "", unit_s=(1.5,), unit_names=("stem",), peer_s=peers)
    page, steady, faster = stage_document(result), len(set(seconds)) == 1, others == (1.0,)
    head, latency = page.verdict.headline, page.figures[0]
    remark = latency.remark
    assert head.startswith("One after another: there is no other schedule")
    assert (latency.title, latency.text) == ("latency, measured", "4 s") and remark.startswith("median of 9 runs, p10 ")
    assert ("vary too much" in remark) != steady
    assert ("ONNX Runtime is faster than this plan" in head) == faster
    assert page.verdict.state == ("plain" if faster else "good" if steady else "unknown")
    below = page.sections[0].parts[0].draw().note
    assert below == (
        "The figure lays out units as timed alone, 1.5 s in all; a whole run took 4 s in the median (measured)."
    )
    steps = [step for step in stage_next_steps(result) if step.text.startswith("Run it in")]
    assert len(steps) == faster
    for step in steps:
        assert (step.gained_s is not None) == steady and ("less than this plan" in step.text) == steady
        assert ("x or more (the p10" in head) != steady


def test_stages_follow_each_other_and_groups_run_side_by_side():
    stages = (Stage(((0,), (1, 2))), Stage(((3,), (4,)), merged=True), Stage(((5,),)))
    plan = StagePlan(
        tuple((unit,) for unit in range(6)), stages, True, "", "", "", "", 1, 0, "", Evidence("m", 1, 1, True)
    )
    seconds = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    timeline = stage_timeline(plan, seconds)
    where = {item.task: (item.lane, item.start_s, item.stop_s) for item in timeline.slices}
    assert where == {0: (0, 0, 1), 1: (1, 0, 2), 2: (1, 2, 5), 3: (0, 5, 10), 5: (0, 10, 16)}
    assert timeline.end_s == 16 and stage_timeline(plan).end_s == 4


def test_a_trace_of_an_arena_has_every_tensor_once_and_the_live_bytes():
    graph = random_graph(random.Random(7), 9)
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    events = json.loads(arena_trace([arena_view("x", graph, order.steps, arena)]))["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X" and event["tid"] > 0}
    assert len(slices) == len(arena.records)
    for record, offset in zip(arena.records, arena.offsets, strict=True):
        event = slices[record.id]
        assert (event["dur"], event["args"]["bytes"]) == (record.stop - record.start, record.nbytes)
        assert event["args"]["offset"] == offset and event["ts"] >= 0
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(counted) == order.peak_bytes and counted[-1] == 0
    operators = [event["name"] for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert operators == [graph.ops[step].name for step in order.steps]


def test_a_trace_of_a_pipeline_has_a_track_a_lane(plans):
    timeline = planned_timeline(plans[0])
    events = json.loads(timeline_trace([timeline]))["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == dict(enumerate(timeline.lanes))
    assert sum(event["ph"] == "X" for event in events) == len(timeline.slices)


def test_halving_a_tensor_leaves_the_peak_that_is_told(tmp_path):
    """Against liveness of the network with that tensor halved."""
    from dataclasses import replace

    fitted = ds.fit(branchy_model(tmp_path / "net.onnx"), target="torch", rewrite="off", time_limit_s=1)
    told = [step for step in fit_next_steps(fitted) if step.text.startswith("Halve tensor ")]
    assert told
    for step in told:
        name = step.text.removeprefix("Halve tensor ").split(" (")[0]
        graph = fitted.graph
        smaller = tuple(
            replace(tensor, nbytes=tensor.nbytes // 2) if tensor.name == name else tensor for tensor in graph.tensors
        )
        steps = fitted.together.order.steps if fitted.ships_plan else tuple(range(len(graph.ops)))
        before, after = (
            ds.peak_bytes(ds.order_problem(one, "torch"), steps) for one in (graph, replace(graph, tensors=smaller))
        )
        assert before - after == step.gained_bytes > 0
