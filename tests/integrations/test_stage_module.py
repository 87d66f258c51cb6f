"""`stage_module`: an exported program as a module that runs a plan of stages gives eager PyTorch's outputs."""

import pytest
import torch
from torch import nn

import downset as ds
from downset.errors import InvalidPlan, LoadError, UnsupportedError, UsageError


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Conv2d(3, 4, size, padding=size // 2) for size in (1, 3))
        self.register_buffer("offset", torch.ones(1))

    def forward(self, x, *, scale):
        left, right = torch.relu(self.left(x)), torch.relu(self.right(x))
        return {"sum": left + right * scale, "both": (left.mean((2, 3)), self.offset)}


@pytest.fixture(scope="module")
def case():
    """A module, its exported program, a plan, and the staged module."""
    torch.manual_seed(0)
    module, x, scale = Branches().eval(), torch.randn(1, 3, 8, 8), torch.tensor(2.0)
    program = torch.export.export(module, (x,), {"scale": scale})
    staged = ds.stage_module(program, limits=ds.StageLimits(timings=8), runs=1)
    yield module, program, staged
    staged.close()


def same(ours, theirs):
    assert set(ours) == set(theirs) == {"sum", "both"}
    for one, other in zip([ours["sum"], *ours["both"]], [theirs["sum"], *theirs["both"]], strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-5)
        assert one.stride() == other.stride()


def test_it_computes_what_the_program_does_on_any_values(case):
    module, _, staged = case
    assert isinstance(staged, nn.Module)
    assert not list(staged.parameters())
    first = None
    for seed in range(3):
        torch.manual_seed(seed)
        x, scale = torch.randn(1, 3, 8, 8), torch.rand(())
        ours = staged(x, scale=scale)
        same(ours, module(x, scale=scale))
        first = first or (x, scale, ours)
    x, scale, ours = first
    same(ours, module(x, scale=scale))  # later calls leave earlier results alone
    ours["both"][1].zero_()
    same(staged(x, scale=scale), module(x, scale=scale))
    x[0, 1, 2, 3] = float("nan")
    assert staged(x, scale=scale)["sum"].isnan().any()
    same(staged(x, scale=scale), module(x, scale=scale))


def test_a_plan_that_was_made_before_is_taken(case):
    module, program, staged = case
    again = ds.stage_module(program, plan=staged.plan)
    assert again.plan is staged.plan
    x, scale = torch.randn(1, 3, 8, 8), torch.tensor(0.5)
    same(again(x, scale=scale), module(x, scale=scale))
    again.close()
    same(again(x, scale=scale), module(x, scale=scale))
    again.close()
    with pytest.raises(InvalidPlan, match="was made for device"):
        ds.stage_module(program, ds.open_device("cpu", threads=staged.plan.threads + 1), plan=staged.plan)


def test_what_does_not_fit_is_named(case):
    _, _, staged = case
    x, scale = torch.randn(1, 3, 8, 8), torch.tensor(1.0)
    with pytest.raises(UsageError, match="was exported for arguments"):
        staged(x)
    with pytest.raises(UsageError, match=r"given torch.float32 of shape \[2, 3, 8, 8\]"):
        staged(x.repeat(2, 1, 1, 1), scale=scale)
    with pytest.raises(UsageError, match=r"given torch\.float64"):
        staged(x.double(), scale=scale)

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen.add_(1.0)
            return x + self.seen

    class Number(nn.Module):
        def forward(self, x, power):
            return x * power

    counter = torch.export.export(Counter(), (torch.ones(2),))
    with pytest.raises(UnsupportedError, match="no kernel for operator 'add_'"):
        ds.stage_module(counter)
    with pytest.raises(UnsupportedError, match="writes to 'seen'"):
        ds.stage_module(counter.run_decompositions({}))
    with pytest.raises(UnsupportedError, match="only programs of tensors"):
        ds.stage_module(torch.export.export(Number(), (torch.ones(2), 3)))
    open_sizes = torch.export.export(nn.ReLU(), (torch.ones(4),), dynamic_shapes=({0: torch.export.Dim("n")},))
    with pytest.raises(LoadError, match="symbolic"):
        ds.stage_module(open_sizes)
