import pytest

import downset as ds
from downset.errors import UsageError
from downset.stages.problem import StageProblem
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
