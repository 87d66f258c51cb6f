"""Exported programs: read, planned, executed in an arena, and written in another order."""

import numpy as np
import pytest
import torch

from downset.arenas.plan import plan_arena
from downset.errors import LoadError
from downset.executor.arena import run_in_arena
from downset.formats.reading import load
from downset.formats.torch.exported import reordered
from downset.formats.torch.read import load_exported
from downset.formats.writing import export
from downset.graph.cost import row_form
from downset.orders.plan import plan_order


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        y = torch.nn.functional.silu(self.norm(self.first(x)))
        joined = torch.cat([torch.relu(y), torch.nn.functional.max_pool2d(y, 3, 1, 1)], 1)
        one, other = torch.split(joined, 8, 1)
        mean = (one * torch.sigmoid(other)).mean((2, 3))
        return self.last(torch.flatten(mean, 1)), torch.nn.functional.hardtanh(mean, 0, 6)


@pytest.fixture
def program():
    torch.manual_seed(0)
    return torch.export.export(Network().eval(), (torch.randn(1, 3, 8, 8),))


def test_known_operators_get_onnx_words_and_run_in_an_arena(program):
    graph = load_exported(program)
    assert not [op.kind for op in graph.ops if "::" in op.kind]
    assert next(op for op in graph.ops if op.kind == "Split").outputs[1] > 0
    value = torch.randn(1, 3, 8, 8)
    expected = [item.detach().numpy() for item in program.module()(value)]
    for memory in ("torch", "live"):
        order = plan_order(graph, memory=memory)
        arena = plan_arena(graph, order)
        ran = run_in_arena(graph, order, arena, [value.numpy()])
        assert ran.high_water_bytes == arena.arena_bytes
        for ours, theirs in zip(ran.outputs, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (torch.nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1), (1, 8, 32, 32)),
        (torch.nn.ConvTranspose2d(4, 6, (3, 5), (2, 3), (1, 2), (1, 0), 2, dilation=(1, 2)), (1, 4, 7, 6)),
        (torch.nn.ConvTranspose1d(4, 6, 5, stride=3, padding=2, output_padding=1), (1, 4, 12)),
        (
            torch.nn.Sequential(torch.nn.Conv1d(3, 4, 5, 2, 2), torch.nn.MaxPool1d(3, 2, 1), torch.nn.AvgPool1d(2)),
            (1, 3, 40),
        ),
    ],
)
def test_layers_of_one_axis_and_transposed_ones_are_known_cut_and_run(network, shape):
    program = torch.export.export(network.eval(), (torch.randn(shape),))
    graph = load_exported(program)
    assert not any(op.whole for op in row_form(graph).ops)
    value = torch.randn(shape)
    order = plan_order(graph, memory="torch")
    ran = run_in_arena(graph, order, plan_arena(graph, order), [value.numpy()])
    np.testing.assert_allclose(ran.outputs[0], program.module()(value).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_a_reordered_program_computes_the_same(program, tmp_path):
    graph = load_exported(program)
    value = torch.randn(1, 3, 8, 8)
    expected = program.module()(value)
    for method in ("dfs", "kahn", "optimal"):
        order = plan_order(graph, method=method, memory="torch")
        again = reordered(program, order.steps)
        names = [graph.ops[v].name for v in order.steps]
        assert [op.name for op in load_exported(again).ops] == names
        for one, other in zip(expected, again.module()(value), strict=True):
            assert torch.equal(one, other)
    torch.export.save(program, tmp_path / "m.pt2")
    loaded = load(tmp_path / "m.pt2")
    export(tmp_path / "r.pt2", loaded, plan_order(loaded, method="kahn", memory="torch"))
    for one, other in zip(expected, torch.export.load(tmp_path / "r.pt2").module()(value), strict=True):
        assert torch.equal(one, other)


def test_unknown_operators_stay_opaque_and_plannable():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.cumsum(x, 0) + 1

    graph = load_exported(torch.export.export(Odd(), (torch.randn(4),)))
    assert [op.kind for op in graph.ops] == ["aten::cumsum.default", "aten::add.Tensor"]
    assert plan_order(graph, memory="torch").evidence.proven


def test_symbolic_sizes_and_damaged_files_are_one_line(tmp_path):
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(Network().eval(), (torch.randn(4, 3, 8, 8),), dynamic_shapes=({0: batch},))
    with pytest.raises(LoadError, match="fixed sizes"):
        load_exported(program)
    (tmp_path / "m.pt2").write_bytes(b"no archive at all, not even close")
    with pytest.raises(LoadError, match="not an exported program"):
        load(tmp_path / "m.pt2")
