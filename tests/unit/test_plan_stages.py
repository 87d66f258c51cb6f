import pytest

import downset as ds
from downset.errors import UsageError
from downset.stages import StageProblem
from tests.networks import branchy


def test_plan_stages_of_a_graph_and_of_a_problem(tmp_path):
    graph = ds.load(branchy(tmp_path / "m.onnx"))
    found = ds.plan_stages(graph, lambda stage: 1.0)
    assert found.cost_s == len(found.stages)
    for method in ("sequential", "greedy", "ios", "lazy"):
        plan = ds.plan_stages(StageProblem((0, 0, 0b11)), lambda stage: float(len(stage.groups)), method=method)
        assert sorted(unit for stage in plan.stages for unit in stage.units) == [0, 1, 2]
    with pytest.raises(UsageError, match="sequential, greedy"):
        ds.plan_stages(StageProblem((0,)), lambda stage: 1.0, method="fastest")
