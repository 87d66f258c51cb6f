"""A step within a limit updates some parameters at a time where PyTorch would update all of them at once behind the
backward pass: the update is PyTorch's, and its results in between are as large as one portion."""

import inspect
import warnings

import pytest
import torch
from torch import nn

import downset as ds
from downset.integrations import update_portions
from downset.integrations.call_workspaces import most_allocated
from downset.integrations.early_updates import EarlyUpdates
from downset.integrations.update_portions import update_ahead
from tests.integrations.test_ladder import APART, MSE, Printing, both
from tests.integrations.test_whole_step import assert_same, batches

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

MADE = {
    **APART,
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "adafactor": torch.optim.Adafactor,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:3]}, {"params": p[3:], "lr": 0.1}]),
}


def with_lists(name):
    def make(parameters):
        optimizer = MADE[name](parameters)
        for group in optimizer.param_groups:
            group.update({"foreach": True} if "foreach" in group else {})
        return optimizer

    return make


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_updates_by_portion_are_the_plain_update(name, scheduled, monkeypatch):
    monkeypatch.setattr(update_portions, "_LEAST_PORTION", 1)
    torch.manual_seed(0)
    mine, plain = both(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), with_lists(name))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(of[1], 0.9) for of in (mine, plain)] if scheduled else []
    left = []
    for number in range(4):
        for of in (mine, plain):
            of[1].zero_grad()
            of[0](torch.full((2, 4), number + 1.0)).square().sum().backward()
        update_ahead(mine[1], 0)
        left.append(sum(parameter.grad is not None for parameter in mine[0].parameters()))
        mine[1].step()
        plain[1].step()
        for schedule in schedules:
            schedule.step()
    assert_same(mine, plain, rtol=0.0)
    own = "torch.optim" in type(mine[1]).__module__ and "foreach" in mine[1].param_groups[0]
    assert left == [1 if own else 10] * 4


def listed_twice(model):
    (weight, bias), other = model[0].parameters(), model[1].weight
    return torch.optim.SGD([weight, weight, bias, other], lr=0.1, foreach=True)


@pytest.mark.filterwarnings("ignore:optimizer contains")
@pytest.mark.parametrize("case", ["twice", "sparse", "hook", "replaced", "for loops"])
def test_what_portions_would_change_or_not_make_smaller_is_updated_as_a_whole(case, monkeypatch):
    monkeypatch.setattr(update_portions, "_LEAST_PORTION", 1)
    torch.manual_seed(0)
    first = nn.Embedding(8, 4, sparse=True) if case == "sparse" else nn.Linear(4, 4)
    model = nn.Sequential(first, nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=case != "for loops")
    if case == "twice":
        optimizer = listed_twice(model)
    elif case == "hook":
        optimizer.register_step_pre_hook(lambda *_: None)
    elif case == "replaced":
        optimizer.step = lambda: None
    model(torch.arange(4) if case == "sparse" else torch.ones(2, 4)).sum().backward()
    before = [parameter.grad is not None for parameter in model.parameters()]
    update_ahead(optimizer, 0)
    assert [parameter.grad is not None for parameter in model.parameters()] == before


def test_a_step_that_fails_in_a_portion_leaves_the_gradients_that_it_has_not_used(monkeypatch):
    monkeypatch.setattr(update_portions, "_LEAST_PORTION", 1)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.param_groups[0]["lr"] = "a tenth"
    with pytest.raises(TypeError):
        update_ahead(optimizer, 0)
    assert sum(parameter.grad is not None for parameter in model.parameters()) == 6


def linears(limit, model, batch, monkeypatch, kind=torch.optim.AdamW):
    """The bytes of gradients that each call of the optimiser gets within the limit, in two updates that are the plain
    ones."""
    calls = []
    theirs = kind.step

    def noting(optimizer, closure=None):
        every = [of for group in optimizer.param_groups for of in group["params"] if of.grad is not None]
        calls.append(sum(of.grad.nbytes for of in every))
        return theirs(optimizer, closure)

    with monkeypatch.context() as patched:
        patched.setattr(update_portions, "_LEAST_PORTION", 1)
        patched.setattr(torch, "compile", lambda function, **_: function)
        patched.setattr(kind, "step", noting)
        mine, plain = both(model, lambda p: kind(p, foreach=True))
        step = ds.inductor.compile_step(mine[0], MSE, mine[1], peak_bytes=limit, accumulate=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step._fall_back("gradients are to lie behind the backward pass")
            for index, (x, y) in enumerate(batch):
                loss = step(x, y)
                expected = MSE(plain[0](x), y)
                expected.backward()
                torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
                if index % 2:
                    theirs(plain[1])
                    plain[1].zero_grad()
        assert_same(mine, plain, rtol=0.0)
    return calls


@pytest.mark.parametrize(("kind", "results"), [(torch.optim.AdamW, 1), (torch.optim.Adadelta, 3)])
def test_within_a_limit_a_call_of_the_optimiser_gets_what_the_limit_leaves(kind, results, monkeypatch):
    """And no less than a sixteenth of the gradients, or one parameter, because each call takes time."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(19)), Printing())
    batch = batches(4)
    parameters = [of for of in model.parameters() if of.requires_grad]
    whole = sum(of.nbytes for of in parameters) - sum(of.nbytes for of in model[-1].idle.parameters())
    largest = max(of.nbytes for of in parameters)
    assert linears(None, model, batch, monkeypatch, kind) == [whole] * 2
    counts = []
    for limit in (1, whole, *(whole + results * whole // part for part in (4, 2, 1))):
        calls = linears(limit, model, batch, monkeypatch, kind)
        counts.append(len(calls))
        assert sum(calls) == 2 * whole
        assert max(calls) <= max(whole // 16, largest, (limit - whole) // results)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-2] > counts[-1] == 2


BY_LISTS = sorted(
    name
    for name, of in vars(torch.optim).items()
    if isinstance(of, type) and "foreach" in inspect.signature(of).parameters
)
SETTINGS = (
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "maximize": True},
    {"weight_decay": 0.1, "amsgrad": True},
    {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.1, "momentum": 0.9, "centered": True},
)


@pytest.mark.parametrize("name", BY_LISTS)
def test_an_update_holds_no_more_results_than_portions_count(name):
    of = getattr(torch.optim, name)
    known = update_portions._RESULTS.get(name, update_portions._MOST_RESULTS)
    for settings in ({}, *SETTINGS):
        if {*settings} <= {*inspect.signature(of).parameters}:
            parameters = [nn.Parameter(torch.randn(64, 64)) for _ in range(20)]
            optimizer = of(parameters, foreach=True, **settings)
            for _ in range(2):  # the first update makes the states
                for parameter in parameters:
                    parameter.grad = torch.randn_like(parameter)
                _, held = most_allocated(optimizer.step)
            assert held <= known * 1.1 * sum(parameter.nbytes for parameter in parameters)


def test_a_traced_optimiser_of_pytorch_is_updated_by_portion_once_its_step_has_fallen(monkeypatch):
    """A trace watches the steps of its optimiser with a hook, which is not there on lower rungs."""
    monkeypatch.setattr(update_portions, "_LEAST_PORTION", 1)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    left = []
    monkeypatch.setattr("downset.integrations.lower_rungs.update_ahead", lambda of, _: (update_ahead(of, 0), count(of)))

    def count(optimizer):
        left.append(sum(of.grad is not None for group in optimizer.param_groups for of in group["params"]))

    torch.manual_seed(0)
    (model, optimizer), _ = both(Printing(), lambda p: torch.optim.RMSprop(p, foreach=True))
    step = ds.inductor.compile_step(model, MSE, optimizer, peak_bytes=10**9, accumulate=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step._fall_back("gradients are to lie behind the backward pass")
        for x, y in batches(4):
            step(x, y)
    assert left == [1, 1]


class Shared(torch.optim.SGD):
    """Stands for another optimiser, whose parameters and states it shows as its own."""

    def __init__(self, base):
        self.base, self.state, self.defaults = base, base.state, base.defaults
        self.param_groups, self._optimizer_step_pre_hooks = base.param_groups, {}
        self._optimizer_step_post_hooks = {}

    def step(self, closure=None):
        return self.base.step(closure)


def test_an_optimiser_that_stands_for_another_one_updates_no_parameter_early():
    torch.manual_seed(0)
    mine, plain = both(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), lambda p: APART["lion"](p))
    shared = Shared(mine[1])
    early = EarlyUpdates(shared, least_bytes=1)
    for _ in range(3):
        for model, optimizer in (mine, plain):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            with early.around(loss, watch=False) if model is mine[0] else warnings.catch_warnings():
                loss.backward()
        shared.step()
        plain[1].step()
        early.decide()
    assert_same(mine, plain, rtol=0.0)
