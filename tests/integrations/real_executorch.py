"""Inside one version of ExecuTorch: its verifier accepts our plans, and its runtime computes what eager PyTorch does.

Run by test_executorch.py, which installs ExecuTorch; $EXECUTORCH is its version.
"""

import copy
import os
import warnings
from importlib.metadata import version
from itertools import pairwise
from types import SimpleNamespace

import executorch.exir.memory_planning as planning
import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.memory import alloc
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch import nn

from downset.integrations.executorch import algorithm, memories_pass, order_pass, planning_pass, suite_member
from experiments.memories.executorch import banked, slow_bytes
from experiments.memories.executorch_networks import networks
from tests.executorch_specs import edge_program, load_programs, modules, record_programs

warnings.simplefilter("ignore")
HAS_OFFSETS = os.environ["EXECUTORCH"] != "1.4.1"
"""Whether a tensor may lie inside another at an offset."""
NAMES = (
    ("two branches", "condition", "keeper", "U-Net", "inception blocks")
    if HAS_OFFSETS
    else ("two branches", "condition")
)
"""What is cheap to export; the newer version has more of it."""


class Reader(nn.Module):
    """Reads a buffer, writes to it, reads it again: three wide branches that another order would narrow."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8))

    def forward(self, x):
        old = (self.state + x).repeat(64)
        self.state.add_(x)
        new = (self.state * 2.0).repeat(64)
        self.state.mul_(3.0)
        last = (self.state - x).repeat(64)
        return old.sum() + new.mean() - last.max() + self.state


class FourConvolutions(nn.Module):
    """Two wide, each read by a narrow one; written so that both wide results live at a time."""

    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(3, 64, 3, padding=1) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Conv2d(64, 2, 1) for _ in range(2))

    def forward(self, x):
        first, second = [wide(x) for wide in self.wide]
        return self.narrow[0](first) + self.narrow[1](second)


def lowered(edge, pass_=None, **options):
    config = {} if pass_ is None else {"memory_planning_pass": pass_}
    return edge.to_executorch(ExecutorchBackendConfig(**config, **options))


def planned_bytes(program):
    return sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes)


def check(program, module, inputs, runs=1):
    """ExecuTorch's verifier, and its runtime against eager PyTorch."""
    exported = program.exported_program()
    verifier = planning.Verifier(exported.graph_module, True, True, True, exported.graph_signature)
    verifier.verify_storage_reuse()
    verifier.verify_graph_input_output()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    for _ in range(runs):
        (result,) = method.execute(inputs)
        torch.testing.assert_close(result, module(*inputs))


EXPORTED = {}
"""By a module: what it was exported to. Several programs are made of copies of it."""


def exported(module, *inputs):
    if module not in EXPORTED:
        EXPORTED[module] = to_edge(torch.export.export(module.eval(), inputs))
    return copy.deepcopy(EXPORTED[module])


def test_this_is_the_version_that_is_meant():
    assert version("executorch") == os.environ["EXECUTORCH"]


def test_the_recorded_specs_are_those_that_this_executorch_hands_over():
    """tests/integrations/test_executorch_specs.py replays them where it is not installed."""
    recorded = load_programs()
    assert record_programs(*NAMES) == {name: recorded[name] for name in NAMES}


@pytest.mark.parametrize(("name", "reinplace"), [(name, at % 2 == 1) for at, name in enumerate(NAMES)])
def test_ordered_and_planned_it_takes_what_is_reported_and_computes_the_same(name, reinplace):
    module, shape = modules()[name]
    inputs, told = (torch.randn(shape),), []
    edge = edge_program(name)
    program = lowered(edge, planning_pass(report=told.append), run_reinplace_pass=reinplace)
    if name == "keeper":
        module.seen.zero_()
    check(program, module, inputs)
    calls = load_programs()[name]
    assert planned_bytes(program) <= sum(calls[-1]["greedy_bytes"])
    assert planned_bytes(program) == min(told[0].given_bytes, told[0].ordered_bytes) + sum(calls[-1]["reserved"])
    if not reinplace:
        assert told[0].own_bytes == sum(calls[-1]["greedy_bytes"]) - sum(calls[-1]["reserved"])
    nodes = list(program.exported_program().graph.nodes)
    for node, following in pairwise(nodes):
        if node.target is alloc:
            assert following.target is alloc or node in following.all_input_nodes


def test_the_order_is_what_offsets_alone_cannot_gain():
    module, inputs = FourConvolutions(), (torch.randn(1, 3, 16, 16),)
    plain = planned_bytes(lowered(exported(module, *inputs)))
    placed = MemoryPlanningPass(memory_planning_algo=algorithm())
    assert planned_bytes(lowered(exported(module, *inputs), placed)) == plain
    both = lowered(exported(module, *inputs), planning_pass())
    ordered = lowered(exported(module, *inputs), passes=[order_pass()])
    for program in (both, ordered):
        assert planned_bytes(program) < 0.6 * plain
        check(program, module, inputs)


def test_what_is_left_beside_delegates_is_ordered_behind_the_delegation():
    """XNNPACK takes the convolutions, in two parts; what stands between them is ordered once they are cut out."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.ModuleList(nn.Conv2d(3, 4, 3, padding=1) for _ in range(2))
            self.last = nn.Conv2d(1, 2, 1)

        def forward(self, x):
            wide = [torch.cumsum(conv(x).repeat(1, 16, 1, 1), 3) for conv in self.first]
            return self.last(wide[0].var(1, keepdim=True) + wide[1].var(1, keepdim=True))

    module, inputs, told = Between().eval(), (torch.randn(1, 3, 16, 16),), []
    edge = to_edge_transform_and_lower(torch.export.export(module, inputs), partitioner=[XnnpackPartitioner()])
    plain, ours = (lowered(copy.deepcopy(edge), pass_) for pass_ in (None, planning_pass(report=told.append)))
    assert [made.id for made in ours.executorch_program.execution_plan[0].delegates] == ["XnnpackBackend"] * 2
    (report,) = told
    assert report.chosen and report.order.evidence.proven
    assert planned_bytes(ours) < 0.8 * planned_bytes(plain)
    (result,) = Runtime.get().load_program(ours.buffer).load_method("forward").execute(inputs)
    torch.testing.assert_close(result, module(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["edge", "last"])
def test_what_is_written_twice_is_read_in_between(how):
    module, inputs = Reader(), (torch.arange(8.0),)  # whole numbers: sums are exact in any order
    told = []
    config = (
        {"passes": [order_pass(report=told.append)]} if how == "edge" else {"pass_": planning_pass(report=told.append)}
    )
    program = lowered(exported(module, *inputs), **config)
    assert told[0].chosen
    check(program, module, inputs, runs=3)


class ReadAgain(nn.Module):
    """A wide result that is read again at the end, behind a chain that does not fit beside it; then a view."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(3, 16, 3, padding=1)
        self.chain = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
        self.last = nn.Linear(16 * 64, 10)

    def forward(self, x):
        wide = torch.relu(self.wide(x))
        y = wide
        for convolution in self.chain:
            y = torch.relu(convolution(y))
        return self.last((y + wide).flatten(1))


class SeveralResults(nn.Module):
    """A call of two results, one of them unread."""

    def forward(self, x):
        pooled, _ = torch.nn.functional.max_pool2d(torch.relu(x), 2, return_indices=True)
        return torch.tanh(pooled) + pooled


@pytest.mark.parametrize("fast_bytes", [9_000, 1 << 16])
def test_clones_between_two_memories_are_those_of_the_plan(fast_bytes):
    module, inputs, told = ReadAgain().eval(), (torch.randn(1, 3, 8, 8),), []
    ours = memories_pass(fast_bytes=fast_bytes, slow_bytes=1 << 20, time_limit_s=2, report=told.append)
    program = lowered(exported(module, *inputs), ours)
    check(program, module, inputs, runs=2)
    assert slow_bytes(program) == (told[0].moved_bytes, told[0].direct_bytes)
    sizes = program.executorch_program.execution_plan[0].non_const_buffer_sizes
    assert sizes[1] <= fast_bytes and sum(sizes[2:]) <= 1 << 20
    assert (told[0].moves > 0) == (fast_bytes == 9_000)
    if HAS_OFFSETS:
        from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap, banked_memory_planning_pass

        banks = TargetMemoryMap([Bank("fast", fast_bytes, 1), Bank("slow", 1 << 20, 2)])
        theirs = sum(slow_bytes(lowered(exported(module, *inputs), banked_memory_planning_pass(banks))))
        assert sum(slow_bytes(program)) <= theirs
        assert fast_bytes > 9_000 or sum(slow_bytes(program)) < theirs


@pytest.mark.parametrize("name", ["U-Net", "transformer layer", "inception blocks"][: 3 if HAS_OFFSETS else 2])
def test_views_and_parts_of_results_are_not_calls_and_the_plan_counts_what_the_program_does(name):
    """max_pool2d and layer norms have several results, the transformer's heads are views."""
    module, shape = networks()[name]
    inputs, told = (torch.randn(shape),), []
    fast = planned_bytes(lowered(exported(module, *inputs))) // 2 // 16 * 16
    ours = memories_pass(fast_bytes=fast, slow_bytes=1 << 20, work_limit=20_000, report=told.append)
    program = lowered(exported(module, *inputs), ours)
    check(program, module, inputs)
    assert slow_bytes(program) == (told[0].moved_bytes, told[0].direct_bytes)
    if HAS_OFFSETS:
        assert sum(slow_bytes(program)) < sum(slow_bytes(lowered(exported(module, *inputs), banked(fast))))


def test_no_plan_of_two_memories_has_more_slow_bytes_than_that_of_executorch():
    """A buffer that calls write to has no moves; `banked_greedy` has room for it in fast memory."""
    module, inputs, told = Reader(), (torch.arange(8.0),), []
    ours = memories_pass(fast_bytes=1 << 16, slow_bytes=1 << 16, work_limit=1, report=told.append)
    program = lowered(exported(module, *inputs), ours)
    assert slow_bytes(program) == (told[0].moved_bytes, told[0].direct_bytes)
    check(program, module, inputs, runs=3)
    if HAS_OFFSETS:
        theirs = sum(slow_bytes(lowered(exported(module, *inputs), banked(1 << 16))))
        assert sum(slow_bytes(program)) <= theirs
        assert told[0].plan is None and "banked_greedy" in str(told[0])


@pytest.mark.parametrize("fast_bytes", [64, 4096])
def test_the_graph_is_as_before_where_the_plan_of_executorch_is_not_taken(fast_bytes, monkeypatch):
    """A call with several results among them: the program is that of a run that asks for no other plan."""

    def programs(module, inputs):
        ours = memories_pass(fast_bytes=fast_bytes, slow_bytes=1 << 20, work_limit=2_000, report=told.append)
        return lowered(exported(module, *inputs), ours)

    module, inputs, told = SeveralResults(), (torch.randn(1, 3, 8, 8),), []
    with_banked = programs(module, inputs)
    monkeypatch.setattr("downset.integrations.executorch.banked_algorithm", lambda _: None)
    alone = programs(module, inputs)
    if told[0].plan is not None:
        assert with_banked.buffer == alone.buffer
    assert sum(slow_bytes(with_banked)) <= sum(slow_bytes(alone))
    check(with_banked, module, inputs)


def test_sizes_that_change_are_counted_at_their_largest():
    module, inputs = FourConvolutions().eval(), (torch.randn(2, 3, 8, 8),)
    shapes = ({0: torch.export.Dim("batch", min=1, max=4)},)
    edge = to_edge(torch.export.export(module, inputs, dynamic_shapes=shapes))
    told = []
    check(lowered(edge, planning_pass(report=told.append)), module, inputs)
    assert told[0].ordered_bytes < 0.6 * told[0].given_bytes
    with pytest.warns(UserWarning, match="downset leaves a graph in its order: .*symbolic"):
        lowered(to_edge(torch.export.export(module, inputs, dynamic_shapes=shapes)), passes=[order_pass()])


def test_a_tensor_inside_another_lies_there():
    class Part(nn.Module):
        def forward(self, x):
            return torch.tanh((x * 2.0)[1:2]) + 1.0

    def inside(graph_module):
        for node in graph_module.graph.nodes:
            if "slice_copy" in str(node.target):
                node.meta["_share_alloc_with_arg_idx"] = 0
                if HAS_OFFSETS:
                    node.meta["_shared_alloc_offset"] = 256
        return SimpleNamespace(graph_module=graph_module)

    module, inputs = Part(), (torch.randn(4, 64),)
    marked = lowered(exported(module, *inputs), planning_pass(alloc_graph_input=False), passes=[inside])
    placed = {}
    for node in marked.exported_program().graph.nodes:
        if node.op == "call_function" and node.target is not alloc:
            placed[str(node.target)] = node.meta["spec"].mem_offset
    assert placed["aten.slice_copy.Tensor_out"] == placed["aten.mul.out"] + (256 if HAS_OFFSETS else 0)
    if HAS_OFFSETS:
        method = Runtime.get().load_program(marked.buffer).load_method("forward")
        torch.testing.assert_close(method.execute(inputs)[0], module(*inputs))


def test_a_suite_keeps_the_least_of_its_members():
    ours = planned_bytes(lowered(edge_program("two branches"), MemoryPlanningPass(memory_planning_algo=algorithm())))
    greedy = sum(load_programs()["two branches"][-1]["greedy_bytes"])
    for member, expected in ((suite_member(), ours), (suite_member(method="naive"), greedy)):
        suite = planning.MemoryPlanningAlgorithmSuite([planning.greedy, member])
        passed = MemoryPlanningPass(memory_planning_algo=suite)
        assert planned_bytes(lowered(edge_program("two branches"), passed)) == expected
    assert ours < 0.8 * greedy
