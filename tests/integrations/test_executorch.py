"""The algorithm inside ExecuTorch itself: its pass runs it, its verifier accepts it, its runtime computes the same.

ExecuTorch is no dependency: `pip install executorch==1.4.1 --no-deps` beside torch 2.13, and what it then asks for.
Without it tests/integrations/test_executorch_specs.py holds the claims on bytes, on specs that were recorded here.
"""

import pytest

try:
    import executorch.exir.memory_planning as planning
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.runtime import Runtime
except ImportError as error:
    pytest.skip(f"ExecuTorch is not installed ({error}): nothing here ran", allow_module_level=True)

from downset.integrations.executorch import algorithm, suite_member
from tests.executorch_specs import load_programs, modules, record_programs

MODULES = modules()


def build(module, inputs, algo, **options):
    edge = to_edge(torch.export.export(module, inputs))
    passed = MemoryPlanningPass(memory_planning_algo=algo)
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=passed, **options))


def planned_bytes(program):
    return sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes)


def verify(program):
    exported = program.exported_program()
    verifier = planning.Verifier(exported.graph_module, True, True, True, exported.graph_signature)
    verifier.verify_storage_reuse()
    verifier.verify_graph_input_output()


def test_the_recorded_specs_are_those_that_this_executorch_hands_over():
    """tests/integrations/test_executorch_specs.py replays them where it is not installed."""
    assert record_programs() == load_programs()


@pytest.mark.parametrize("reinplace", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_executorch_runs_what_was_planned(name, reinplace):
    module, shape = MODULES[name]
    inputs = (torch.randn(shape),)
    expected = module.eval()(*inputs)
    theirs = build(module, inputs, None, run_reinplace_pass=reinplace)
    ours = build(module, inputs, algorithm(), run_reinplace_pass=reinplace)
    verify(ours)
    assert planned_bytes(ours) <= planned_bytes(theirs)
    (result,) = Runtime.get().load_program(ours.buffer).load_method("forward").execute(inputs)
    torch.testing.assert_close(result, expected)


def test_branches_take_less_than_with_executorchs_own_planner():
    module, inputs = MODULES["two branches"][0], (torch.randn(1, 3, 32, 32),)
    assert planned_bytes(build(module, inputs, algorithm())) < 0.8 * planned_bytes(build(module, inputs, None))


def test_a_suite_keeps_the_least_of_its_members():
    module, inputs = MODULES["two branches"][0], (torch.randn(1, 3, 32, 32),)
    suite = planning.MemoryPlanningAlgorithmSuite([planning.greedy, suite_member()])
    both = build(module, inputs, suite)
    verify(both)
    assert planned_bytes(both) == planned_bytes(build(module, inputs, algorithm()))
    worse = planning.MemoryPlanningAlgorithmSuite([planning.greedy, suite_member(method="naive")])
    assert planned_bytes(build(module, inputs, worse)) == planned_bytes(build(module, inputs, None))
