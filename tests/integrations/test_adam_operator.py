"""The update of a parameter as one operator: equal to `torch.optim`, and to the graph that the compiler makes of it."""

import random

import pytest

torch = pytest.importorskip("torch")

from downset.integrations.adam_operator import _formulas, adam  # noqa: E402
from tests.effort import cases  # noqa: E402


def problem(seed):
    """(optimiser's class, its options, shape, dtype) at random."""
    rng = random.Random(seed)
    kind = rng.choice([torch.optim.Adam, torch.optim.AdamW])
    options = {
        "lr": rng.choice([0.0, 0.03]),
        "betas": (rng.choice([0.5, 0.9]), 0.99),
        "weight_decay": rng.choice([0.0, 0.1]),
        "amsgrad": rng.random() < 0.5,
        "maximize": rng.random() < 0.5,
    }
    return kind, options, rng.choice([(), (3,), (2, 3)]), rng.choice([torch.float32, torch.float64])


@pytest.mark.parametrize("seed", range(cases(120)))
def test_the_operator_updates_as_the_optimiser_does(seed):
    kind, options, shape, dtype = problem(seed)
    torch.manual_seed(seed)
    theirs = torch.randn(shape, dtype=dtype, requires_grad=True)
    optimizer = kind([theirs], **options)
    of = [theirs.detach().clone(), None, *(torch.zeros_like(theirs).detach() for _ in range(2)), torch.tensor(0.0)]
    of += [torch.tensor(options["lr"]), *([torch.zeros_like(theirs).detach()] if options["amsgrad"] else [])]
    numbers = [*options["betas"], options["weight_decay"], 1e-8]
    flags = [options["maximize"], bool(options["weight_decay"]), kind is torch.optim.AdamW]
    for step in range(3):
        theirs.grad = torch.randn(shape, dtype=dtype)
        of[1] = theirs.grad.clone()
        moving = [torch.tensor(number, dtype=torch.float64) if step == 2 else None for number in numbers[:3]]
        new = adam()(of, moving, numbers, flags)
        given = [*of, *(tensor for tensor in moving if tensor is not None)]
        forms = tuple((bool(tensor.dim()), tensor.dtype) for tensor in given)
        moves = tuple(tensor is not None for tensor in moving)
        recorded = _formulas(len(of), forms, moves, (tuple(numbers), tuple(flags)))
        for one, other in zip(new, torch.fx.Interpreter(torch.nn.Module(), graph=recorded).run(*given), strict=True):
            torch.testing.assert_close(one, other)
        for number, value in zip((0, 2, 3, 4, 6), new, strict=False):
            of[number] = value
        optimizer.step()
        torch.testing.assert_close(of[0], theirs.detach())
