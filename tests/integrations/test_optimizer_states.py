"""What an optimiser holds has the form that plain PyTorch gives it, at every step and behind every checkpoint: the same
states of the same parameters, their types and devices, the flags of groups, the methods of the optimiser."""

import copy
import inspect
import io
import warnings

import pytest
import torch
from torch.nn import functional

import downset as ds
from tests.effort import LONG
from tests.integrations.test_whole_step import Net, batches, graphs, plain_step

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]
__all__ = ["graphs"]  # a fixture

OTHERS = {"LBFGS", "Muon", "Optimizer", "SparseAdam"}
"""Those that take no dense gradients of vectors, and those whose step no graph can be."""
OPTIONS = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.5}],
    "Adam": [{}, {"amsgrad": True}, {"lr": torch.tensor(0.01)}],
    "RMSprop": [{"momentum": 0.5, "centered": True}],
}


def cases():
    """Each class with its options and its flags; a short run takes one of the flags for each."""
    for name, kind in sorted(vars(torch.optim).items()):
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name not in OTHERS:
            takes = inspect.signature(kind).parameters
            flags = [*({flag: True} for flag in ("foreach", "fused") if flag in takes), {}]
            for at, options in enumerate(OPTIONS.get(name, [{}])):
                for flag in flags if LONG else [flags[at % len(flags)]]:
                    yield name, {**options, **flag}


def form(optimizer):
    """All that it holds but the numbers in tensors."""

    def of(value):
        if isinstance(value, torch.Tensor):
            return type(value), value.dtype, value.device, value.shape, value.requires_grad, value.stride()
        if isinstance(value, dict):
            return {key: of(one) for key, one in value.items()}
        return [*map(of, value)] if isinstance(value, list | tuple) else value

    attributes = {name: getattr(value, "__name__", type(value)) for name, value in vars(optimizer).items()}
    return of(optimizer.state_dict()), {name: attributes[name] for name in attributes if name != "_opt_called"}


def assert_same_form(mine, plain):
    for one, other in zip(form(mine), form(plain), strict=True):
        assert one == other


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize(("name", "options"), cases(), ids=str)
def test_states_have_the_form_that_plain_pytorch_gives_them(name, options, graphs):
    """Before a first step, behind each, behind a checkpoint that comes before a first step, and one between steps."""
    torch.manual_seed(0)
    models = [Net()]
    models.append(copy.deepcopy(models[0]))
    mine, plain = (getattr(torch.optim, name)(model.parameters(), **options) for model in models)
    step = ds.inductor.compile_step(models[0], functional.mse_loss, mine)
    schedules = [torch.optim.lr_scheduler.StepLR(of, 1, 0.9) for of in (mine, plain)]
    data = batches(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an optimiser that runs on a lower rung
        for at, (x, y) in enumerate(data):
            assert_same_form(mine, plain)
            torch.testing.assert_close(step(x, y), plain_step(models[1], plain, x, y), rtol=1e-3, atol=1e-5)
            for schedule in schedules:
                schedule.step()
            if at == 2:
                saved = through_a_file(mine.state_dict()), through_a_file(plain.state_dict())
            if at == 3:
                mine.load_state_dict(saved[0])
                plain.load_state_dict(saved[1])
    assert_same_form(mine, plain)
    fresh, other = (getattr(torch.optim, name)(model.parameters(), **options) for model in models)
    step = ds.inductor.compile_step(models[0], functional.mse_loss, fresh)
    fresh.load_state_dict(through_a_file(plain.state_dict()))
    other.load_state_dict(through_a_file(mine.state_dict()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y in data[:2]:
            assert_same_form(fresh, other)
            torch.testing.assert_close(step(x, y), plain_step(models[1], other, x, y), rtol=1e-3, atol=1e-5)
    assert_same_form(fresh, other)
