"""`verify` and `report` take any plan: each law that a family checks is checked through the one name."""

from dataclasses import replace

import pytest

import downset as ds
from downset.graph.core import fingerprint
from downset.stages.prepared import prepare
from downset.text import format_seconds
from tests.models import branchy_model
from tests.networks import branchy


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return ds.load(branchy_model(tmp_path_factory.mktemp("any") / "m.onnx"))


@pytest.fixture(scope="module")
def tuned(graph):
    return ds.tune_stages(graph, ds.open_device("cpu", threads=1), limits=ds.StageLimits(timings=1), runs=1)


@pytest.fixture(scope="module")
def pipeline(graph):
    return ds.plan_pipeline(graph, ds.load_cluster("pico_1mac"), method="pico")


def wrong(plan, **changes):
    return replace(plan, evidence=replace(plan.evidence, **changes))


def refused(*given, says):
    with pytest.raises(ds.InvalidPlan, match=says):
        ds.verify(*given)


def test_an_order_with_and_without_its_arena(graph):
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    ds.verify(graph, order)
    ds.verify(graph, order, arena)
    ds.verify(graph, ds.Together(order, arena))
    ds.verify(arena)
    refused(graph, replace(order, steps=order.steps[::-1]), says="runs before")
    refused(graph, wrong(order, value=order.peak_bytes + 1), says="states a peak")
    moved = replace(arena, offsets=(0,) * len(arena.offsets))
    refused(graph, order, moved, says="offset")
    refused(graph, ds.Together(order, moved), says="offset")
    refused(moved, says="overlap")
    refused(graph, ds.plan_order(graph, method="kahn"), replace(arena, records=arena.records[1:]), says="lifetimes")


def test_bare_records():
    records = [ds.Record("a", 0, 2, 100), ds.Record("b", 1, 3, 50), ds.Record("c", 2, 4, 100)]
    arena, shared = ds.plan_arena(records), ds.plan_shared(records)
    ds.verify(arena)
    ds.verify(shared)
    refused(wrong(arena, value=arena.arena_bytes + 1, proven=False), says="state 151 bytes, but take 150")
    refused(wrong(arena, value=arena.arena_bytes - 1), says="above the capacity")
    refused(wrong(arena, bound=1, proven=True), says="called proven")
    refused(wrong(shared, bound=10**6), says="above the value")
    refused(replace(shared, object_of=(0, 0, 0)), says="share object 0")
    refused(replace(shared, object_bytes=(1, *shared.object_bytes[1:])), says="larger than its object")


def test_stages_of_the_models_graph_and_of_the_prepared_one(graph, tuned):
    plan = tuned.plan
    ds.verify(graph, plan)
    ds.verify(prepare(graph), plan)
    assert plan.model == fingerprint(prepare(prepare(graph))), "preparing twice is preparing once"
    refused(graph, replace(plan, stages=plan.stages[1:]), says="in no stage")
    refused(graph, replace(plan, model="0" * 32), says="another model")


def test_a_pipeline_with_and_without_its_graph(graph, pipeline):
    ds.verify(graph, pipeline)
    ds.verify(pipeline)
    refused(replace(pipeline, period_s=pipeline.period_s / 2), says="the period")
    first, *others = pipeline.stages
    lighter = replace(pipeline, stages=(replace(first, redundant_macs=first.redundant_macs + 1), *others))
    ds.verify(lighter)  # only the graph says what is redundant
    refused(graph, lighter, says="redundant")


def test_a_fit(graph):
    found = ds.fit(graph.source.path, time_limit_s=2.0)
    ds.verify(found)
    order = replace(found.together.order, steps=found.together.order.steps[::-1])
    refused(replace(found, together=replace(found.together, order=order)), says="runs before")


def test_what_is_asked_wrongly(graph, tuned, pipeline):
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    for given in ((graph,), (order,), (graph, arena), (arena, order), (tuned.plan,), (graph, pipeline, arena), (3,)):
        with pytest.raises(ds.UsageError):
            ds.verify(*given)
    for given in ((graph,), (arena, order), (graph, pipeline, arena), (3,)):
        with pytest.raises(ds.UsageError):
            ds.report(*given)


def test_a_report_of_any_plan(graph, tuned, pipeline):
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    shared = ds.plan_shared(arena.records)
    assert ds.report(graph, ds.Together(order, arena)) == ds.report(graph, order, arena)
    assert "the peak is at step" in ds.report(graph, order)
    figures = {
        f"{order.peak_bytes:,} B": [(order,), (graph, order), (ds.Together(order, arena),)],
        f"{arena.arena_bytes:,} B": [(arena,), (ds.Together(order, arena),), (graph, order, arena)],
        f"{shared.total_bytes:,} B": [(shared,)],
        f"in {len(tuned.plan.stages)} stages": [(tuned.plan,), (graph, tuned.plan)],
        f"{tuned.candidates[0].name}": [(tuned,)],
        f"a frame every {format_seconds(pipeline.period_s)}": [(pipeline,), (graph, pipeline)],
    }
    for figure, reports in figures.items():
        for given in reports:
            assert figure in ds.report(*given)
    found = ds.fit(graph.source.path, time_limit_s=2.0)
    text = ds.report(found)
    for figure in (found.peak.after, found.arena.before, found.arena.after, found.measured.after):
        assert f"{figure:,}" in text
    assert "outputs: " in text or "optimal" in text


def test_a_name_from_a_file_stays_on_its_line():
    def reported(ending):
        tensors = tuple(ds.Tensor(f"{name}{ending}", (10,), "uint8", 10) for name in "xy")
        graph = ds.Graph(f"net{ending}", tensors, (ds.Op(f"A{ending}", "Relu", (0,), (1,)),), (0,), (1,))
        order = ds.plan_order(graph)
        return ds.report(graph, order, ds.plan_arena(graph, order))

    text = reported("\x1b[2J\nmore")
    assert len(text.splitlines()) == len(reported("").splitlines())
    assert "\x1b" not in text


def test_running_stages_and_being_told_what_does_not_fit(graph, tuned):
    import numpy as np

    given = [np.ones((1, 3, 8, 8), np.float32)]
    ran = ds.run_stages(graph, tuned.plan, given, runs=2, compare=True)
    assert ran.agrees
    assert ran.max_relative_error < ran.allowed_error
    assert (list(ran.outputs), len(ran.seconds)) == (["flat", "joined"], 2)
    again = ds.run_stages(graph, tuned.plan, given, runs=1)
    assert again.max_relative_error is None
    assert all(np.array_equal(ran.outputs[name], again.outputs[name]) for name in ran.outputs)
    assert not replace(ran, max_relative_error=1.0).agrees
    with pytest.raises(ds.UsageError, match=r"takes shape \[1, 3, 8, 8\]; given \[2\]"):
        ds.run_stages(graph, tuned.plan, [np.ones(2)])
    with pytest.raises(ds.UsageError, match="1 inputs; 2 were given"):
        ds.run_stages(graph, tuned.plan, given * 2)
    with pytest.raises(ds.UsageError, match="runs must be at least 1"):
        ds.run_stages(graph, tuned.plan, runs=0)
    with pytest.raises(ds.UsageError, match=r"runs \.onnx files"):
        ds.run_stages(replace(graph, source=replace(graph.source, format="built")), tuned.plan, compare=True)
    with pytest.raises(ds.InvalidPlan, match="another model"):
        ds.run_stages(graph, replace(tuned.plan, model="0" * 32))


def test_an_order_of_another_network_is_refused(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "m.onnx"))
    order = ds.plan_order(graph, method="kahn")
    other = ds.load(branchy(tmp_path / "other.onnx"))
    with pytest.raises(ds.InvalidPlan, match="belongs to another network"):
        ds.report(other, order)
