"""Sums with a factor, compiled by Inductor itself: its pattern for a matrix product and a sum leaves the factor out."""

import copy
import pickle

import pytest
import torch

import downset as ds
from downset.integrations.factor_pass import factor_options

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

DECAYING = {
    "sgd": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, maximize=True
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01, amsgrad=True),
}


@pytest.mark.parametrize("name", DECAYING)
def test_weights_decay_by_their_factor(name):
    """The gradient of a layer's weights is a matrix product, and decay adds the weights with a factor. A factor that is
    left out changes weights by a thousandth and more."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10)).double()
    plain = copy.deepcopy(model)
    optimizer, other = DECAYING[name](model.parameters()), DECAYING[name](plain.parameters())
    step = ds.inductor.compile_step(model, torch.nn.functional.cross_entropy, optimizer)
    for _ in range(3):
        x, y = torch.randn(8, 16).double(), torch.randint(10, (8,))
        torch.nn.functional.cross_entropy(plain(x), y).backward()
        other.step()
        other.zero_grad()
        step(x, y)
    assert step.fallback == ""
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-9, atol=1e-12)


def test_sums_of_products_keep_their_factor():
    def function(a, b, c):
        return (a @ b).add(c, alpha=0.25), c.add(a @ b, alpha=3)

    given = [torch.randn(8, 8).double() for _ in range(3)]
    compiled = torch.compile(function, options=ds.inductor.options())
    torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-9, atol=1e-12)


def test_the_pass_has_one_name_in_every_process():
    """PyTorch's caches know a graph by the names of its passes."""
    (own,) = factor_options().values()
    assert pickle.loads(pickle.dumps(own)).uuid() == own.uuid() != ""
