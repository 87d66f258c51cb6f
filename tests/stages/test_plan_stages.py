from dataclasses import replace

import pytest

import downset as ds
from downset.errors import InvalidPlan, UsageError
from downset.formats.plan_json import decode_plan, encode_plan
from downset.graph.core import fingerprint
from downset.results.plans import Stage
from downset.stages.check import verify_schedule, verify_stages
from downset.stages.problem import FoundStages, StageProblem
from downset.stages.unit_graph import group_units
from tests.command import output_of
from tests.networks import branchy


def test_plan_stages_of_a_graph_and_of_a_problem(tmp_path):
    graph = ds.load(branchy(tmp_path / "m.onnx"))
    found = ds.plan_stages(graph, lambda stage: 1.0)
    assert found.evidence.value == len(found.stages)
    for method in ("sequential", "greedy", "ios", "lazy"):
        plan = ds.plan_stages(StageProblem((0, 0, 0b11)), lambda stage: float(len(stage.groups)), method=method)
        assert sorted(unit for stage in plan.stages for unit in stage.units) == [0, 1, 2]
    with pytest.raises(UsageError, match="sequential, greedy"):
        ds.plan_stages(StageProblem((0,)), lambda stage: 1.0, method="fastest")


def test_a_plan_from_prices_is_a_stage_plan_of_no_device(tmp_path):
    graph = ds.load(branchy(tmp_path / "m.onnx"))
    plan = ds.plan_stages(graph, lambda stage: float(max(map(len, stage.groups))), max_ops=2)
    assert (plan.device, plan.device_name, plan.versions, plan.dtype, plan.threads) == ("", "", "", "", 0)
    assert (plan.units, plan.model, plan.batch) == (group_units(graph).units, fingerprint(graph), 1)
    assert plan.evidence.value == sum(max(map(len, stage.groups)) for stage in plan.stages)
    assert plan.evidence.bound <= plan.evidence.value
    assert decode_plan(encode_plan(plan)) == plan
    verify_stages(graph, plan)
    for broken in (replace(plan, threads=2), replace(plan, device="cpu"), replace(plan, stages=plan.stages[::-1])):
        with pytest.raises(InvalidPlan):
            verify_stages(graph, broken)
    (tmp_path / "plan.json").write_bytes(encode_plan(plan))
    with pytest.raises(UsageError, match="from prices"):
        output_of("run", tmp_path / "m.onnx", "--plan", tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((Stage(((0,),)), Stage(((1,), (2,)))), "unit 3 is in no stage"),
        ((Stage(((0, 1), (2,))), Stage(((3,),))), "unit 2 of stage 0 waits for unit 0 of stage 0"),
        ((Stage(((0,),)), Stage(((1,), (2,)), merged=True), Stage(((3,),))), "not of one family"),
        ((Stage(((0,),)), Stage(((1, 2),)), Stage(((1,), (3,)))), "names unit 1, which does not exist or ran before"),
        ((Stage(((0,),)), Stage(()), Stage(((1, 2, 3),))), "stage 1 or a group of it is empty"),
    ],
)
def test_what_a_planner_returns_is_checked(stages, message):
    problem = StageProblem((0, 1, 1, 6))

    def wrong(problem, price):
        return FoundStages(stages, 1.0, 0.0, proven=False, timings=0)

    with pytest.raises(InvalidPlan, match=message):
        ds.plan_stages(problem, lambda stage: 1.0, method=wrong)
    merged = (Stage(((0,),)), Stage(((1,), (2,)), merged=True), Stage(((3,),)))
    verify_schedule(replace(problem, families=(0b110,)), merged)


def test_analytic_prices(tmp_path):
    from downset.graph.cost import macs
    from downset.stages.price import analytic, table
    from downset.stages.problem import Stage
    from downset.stages.unit_graph import group_units

    graph = ds.load(branchy(tmp_path / "m.onnx"))
    units = group_units(graph)
    price = analytic(graph, units, macs_per_s=1.0, bytes_per_s=1e30)
    alone = [Stage(((unit,),)) for unit in range(len(units.units))]
    assert sum(map(price, alone)) == pytest.approx(macs(graph))
    side_by_side = Stage(((0,), (1,)))
    assert price(side_by_side) == max(price(alone[0]), price(alone[1]), (price(alone[0]) + price(alone[1])) / 2)
    traffic = analytic(graph, units, macs_per_s=1e30, bytes_per_s=1.0, launch_s=5.0)
    relu = next(unit for unit, ops in enumerate(units.units) if graph.ops[ops[-1]].kind == "MaxPool")
    tensor = graph.tensors[graph.ops[units.units[relu][0]].inputs[0]]
    assert traffic(alone[relu]) == 2 * tensor.nbytes + 5
    assert table({side_by_side: 2.0})(side_by_side) == 2.0
    with pytest.raises(KeyError):
        table({})(side_by_side)


@pytest.mark.parametrize(("family", "says"), [(0b101, "unit 2 waits for another"), (0b1010, "a family names unit 3")])
def test_a_family_that_cannot_be_merged_is_refused(family, says):
    problem = StageProblem((0, 0, 1), (family,))
    for method in ("ios", "lazy"):
        with pytest.raises(UsageError, match=says):
            ds.plan_stages(problem, lambda stage: 0.1 if stage.merged else 1.0, method=method)
