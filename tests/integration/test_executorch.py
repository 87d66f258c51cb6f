"""The algorithm inside ExecuTorch itself: its pass runs it, its verifier accepts it, its runtime computes the same.

ExecuTorch is no dependency: `pip install executorch==1.4.1 --no-deps` beside torch 2.13, and what it then asks for.
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

from downset.executorch import algorithm, suite_member

torch.manual_seed(0)


class Branches(torch.nn.Module):
    """Two branches that meet: 16 x 32 x 32 in front, narrow behind."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.left = torch.nn.Conv2d(16, 24, 3, padding=1, stride=2)
        self.deep = torch.nn.Conv2d(24, 24, 3, padding=1)
        self.narrow = torch.nn.Conv2d(24, 8, 1)
        self.right = torch.nn.Conv2d(16, 8, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        left = torch.relu(self.left(x))
        left = torch.relu(self.deep(left)) + left
        right = torch.nn.functional.avg_pool2d(self.right(x), 2)
        return (torch.sigmoid(self.narrow(left)) * right).mean((2, 3))


class Condition(torch.nn.Module):
    def forward(self, x):
        y = x * 2.0
        return torch.cond(x.sum() > 0, lambda y: (y + 1.0) * y, lambda y: y - 1.0, (y,)) + y


class Keeper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x):
        self.seen.copy_(x * 3.0)
        return torch.tanh(self.seen * 2.0) + x


CASES = {"branches": (Branches, (1, 3, 32, 32)), "condition": (Condition, (5, 7)), "keeper": (Keeper, (64,))}


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


@pytest.mark.parametrize("reinplace", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_executorch_runs_what_was_planned(name, reinplace):
    kind, shape = CASES[name]
    inputs = (torch.randn(shape),)
    theirs = build(kind().eval(), inputs, None, run_reinplace_pass=reinplace)
    torch.manual_seed(1)
    module = kind().eval()
    expected = module(*inputs)
    torch.manual_seed(1)
    ours = build(kind().eval(), inputs, algorithm(), run_reinplace_pass=reinplace)
    verify(ours)
    assert planned_bytes(ours) <= planned_bytes(theirs)
    (result,) = Runtime.get().load_program(ours.buffer).load_method("forward").execute(inputs)
    torch.testing.assert_close(result, expected)


def test_branches_take_less_than_with_executorchs_own_planner():
    module, inputs = Branches().eval(), (torch.randn(1, 3, 32, 32),)
    assert planned_bytes(build(module, inputs, algorithm())) < 0.8 * planned_bytes(build(module, inputs, None))


def test_a_suite_keeps_the_least_of_its_members():
    module, inputs = Branches().eval(), (torch.randn(1, 3, 32, 32),)
    suite = planning.MemoryPlanningAlgorithmSuite([planning.greedy, suite_member()])
    both = build(module, inputs, suite)
    verify(both)
    assert planned_bytes(both) == planned_bytes(build(module, inputs, algorithm()))
    worse = planning.MemoryPlanningAlgorithmSuite([planning.greedy, suite_member(method="naive")])
    assert planned_bytes(build(module, inputs, worse)) == planned_bytes(build(module, inputs, None))
