"""A step within a limit updates some parameters at a time where gradients lie behind the backward pass: the update of
plain PyTorch, and its results in between are as large as one portion."""

import warnings

import pytest
import torch
from torch import nn

import downset as ds
from downset.integrations import early_updates
from downset.integrations.early_updates import UpdatesByPortion
from tests.integrations.test_ladder import APART, MSE, TOGETHER, Printing, both
from tests.integrations.test_whole_step import assert_same, batches

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", APART)
def test_updates_by_portion_are_the_plain_update(name, scheduled, monkeypatch):
    monkeypatch.setattr(early_updates, "_LEAST_PORTION", 1)
    torch.manual_seed(0)
    mine, plain = both(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), APART[name])
    portions, left = UpdatesByPortion(mine[1]), []
    schedules = [torch.optim.lr_scheduler.ExponentialLR(of[1], 0.9) for of in (mine, plain)] if scheduled else []
    for number in range(4):
        for of in (mine, plain):
            of[1].zero_grad()
            of[0](torch.full((2, 4), number + 1.0)).square().sum().backward()
        portions.ahead()
        left.append(sum(parameter.grad is not None for parameter in mine[0].parameters()))
        mine[1].step()
        plain[1].step()
        for schedule in schedules:
            schedule.step()
    assert_same(mine, plain, rtol=0.0)
    assert left[-1] == (10 if name in TOGETHER else 1)


def test_within_a_limit_a_call_of_the_optimiser_gets_a_sixteenth_of_the_gradients(monkeypatch):
    calls, seen, theirs = [], {}, early_updates._step_of

    def noting(optimizer, number, parameters):
        calls.append(sum(parameter.grad.nbytes for parameter in parameters))
        theirs(optimizer, number, parameters)

    monkeypatch.setattr(early_updates, "_LEAST_PORTION", 1)
    monkeypatch.setattr(early_updates, "_step_of", noting)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for limit in (None, 10**9):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(19)), Printing())
        mine, plain = both(model)
        step = ds.inductor.compile_step(mine[0], MSE, mine[1], peak_bytes=limit, accumulate=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step._fall_back("gradients are to lie behind the backward pass")
            for index, (x, y) in enumerate(batches(4)):
                loss = step(x, y)
                expected = MSE(plain[0](x), y)
                expected.backward()
                torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
                if index % 2:
                    plain[1].step()
                    plain[1].zero_grad()
        assert_same(mine, plain, rtol=0.0)
        seen[limit] = [*calls]
        calls.clear()
    parameters = [*model.parameters()]
    assert seen[None] == []
    assert seen[10**9]
    assert max(seen[10**9]) <= max(sum(of.nbytes for of in parameters) // 16, *(of.nbytes for of in parameters))
