"""A step that cannot be one graph runs on the highest rung that holds it, as the eager loop does, and says which."""

import contextvars
import copy
import logging
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import downset as ds
from downset.integrations import lower_rungs
from downset.integrations.early_updates import EarlyUpdates, updates_apart
from tests.integrations.test_optimizer_trace import OPTIMIZERS, Counting, Lion, Lookahead
from tests.integrations.test_whole_step import Net, assert_same, batches, graphs, plain_step

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]
__all__ = ["graphs"]  # a fixture

MSE = functional.mse_loss


def both(model, make=torch.optim.AdamW):
    other = copy.deepcopy(model)
    return (model, make([*model.parameters()])), (other, make([*other.parameters()]))


LOGGER = logging.getLogger("a model's")


class Logging(Net):
    def forward(self, x):
        LOGGER.warning("a batch of %d", len(x))
        return super().forward(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.last = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.inside(x.unsqueeze(1))[0].squeeze(1))


class Printing(Net):
    """A model with a place that no graph holds."""

    def forward(self, x):
        hidden = super().forward(x)
        torch._dynamo.graph_break()
        return hidden * 2


class Reentrant(nn.Module):
    """The gradients of its weights arrive twice, from two passes, of which one runs within the other."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return checkpoint(self.inside, x.clone().requires_grad_(), use_reentrant=True) + self.inside(x)


WHOLE, DIVIDED = "one graph", "forward and backward graphs in our order"


@pytest.mark.parametrize(
    ("make", "rung"), [(Logging, WHOLE), (Recurrent, DIVIDED), (Printing, DIVIDED), (Reentrant, WHOLE)]
)
def test_the_highest_rung_that_holds_a_model_is_the_plain_step(make, rung, graphs, monkeypatch):
    monkeypatch.setattr(lower_rungs, "LEAST_BYTES", 1)
    torch.manual_seed(0)
    mine, plain = both(make())
    step = ds.inductor.compile_step(mine[0], MSE, mine[1])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for x, y in batches(5):
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    said = [str(of.message) for of in heard if "downset" in str(of.message)]
    assert step.rung == rung
    assert len(said) == (rung != WHOLE)
    assert all(f"as {rung}, not as one graph: {step.fallback}" in line for line in said)
    assert graphs
    assert_same(mine, plain)


def test_loggers_divide_no_step_that_is_in_graphs(graphs):
    torch.manual_seed(0)
    mine, plain = both(Logging())
    step = ds.inductor.compile_step(mine[0], MSE, mine[1])
    with pytest.warns(UserWarning, match="counted"):
        step._fall_back("graphs are counted")
    for x, y in batches(2):
        torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert_same(mine, plain)


def clipping_inside(parameters):
    """An optimiser in whose step every gradient counts for every parameter."""

    class Clipping(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            gradients = [p.grad for group in self.param_groups for p in group["params"]]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad / (norm + 1), alpha=1.0)

    return Clipping(parameters, lr=0.1)


APART = {**OPTIMIZERS, "adamw": torch.optim.AdamW, "clipping": clipping_inside, "counting": Counting, "own": Lookahead}
TOGETHER = ("clipping", "counting", "own", "replacing")
"""Those whose steps change one parameter by another's gradient, count, or go through the states of all parameters."""


@pytest.mark.parametrize("name", APART)
def test_updates_are_apart_only_where_no_gradient_changes_another_parameter(name):
    """Held to what happens when one gradient changes. One that counts or goes through all states is refused."""
    torch.manual_seed(0)
    weights = [torch.randn(3, 2), torch.randn(4)]
    ends = []
    for change in (1.0, 3.0):
        parameters = [nn.Parameter(weight.clone()) for weight in weights]
        optimizer = APART[name](parameters)
        for _ in range(2):
            parameters[0].grad, parameters[1].grad = torch.full((3, 2), change), torch.ones(4)
            optimizer.step()
        ends.append(parameters[1].detach())
        said = updates_apart(optimizer, parameters)
    assert said is torch.equal(*ends) or name in ("counting", "own", "replacing")
    assert not (said and not torch.equal(*ends))
    assert said is (name not in TOGETHER)


@pytest.mark.parametrize("make", [torch.optim.AdamW, Lion])
def test_each_gradient_is_gone_before_the_next_is_complete(make):
    torch.manual_seed(0)
    mine, plain = both(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), make)
    early, alive = EarlyUpdates(mine[1], least_bytes=1), []
    parameters = [*mine[0].parameters()]
    for number in range(4):
        x = torch.randn(4, 8)
        loss = mine[0](x).square().sum()
        with early.around(loss, watch=False):
            handles = [
                parameter.register_hook(lambda _: alive.append(sum(p.grad is not None for p in parameters)))
                for parameter in (parameters if number == 3 else ())
            ]
            loss.backward()
        for handle in handles:
            handle.remove()
        assert all(p.grad is None for p in parameters) is (number > 0)
        mine[1].step()
        early.decide()
        mine[1].zero_grad()
        plain[0](x).square().sum().backward()
        plain[1].step()
        plain[1].zero_grad()
    assert early.possible
    assert max(alive) <= 1
    assert_same(mine, plain)


def test_gradients_that_arrive_in_two_passes_are_updated_behind_both():
    torch.manual_seed(0)
    mine, plain = both(Reentrant())
    early = EarlyUpdates(mine[1], least_bytes=1)
    for x, y in batches(3):
        loss = MSE(mine[0](x), y)
        with early.around(loss, watch=False):
            loss.backward()
        mine[1].step()
        early.decide()
        mine[1].zero_grad()
        torch.testing.assert_close(loss.detach(), plain_step(*plain, x, y))
    assert early.possible is False
    assert_same(mine, plain)


class Drawing(nn.Module):
    """Counts batches, and drops out."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return functional.dropout(self.norm(self.first(x)), 0.5)


@pytest.mark.parametrize("at", ["forward", "backward"])
def test_a_compile_that_fails_leaves_nothing_and_runs_plainly(at, monkeypatch):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, loss):
            return loss.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no compiler here")

    def compile_(function, **_):
        def call(*batch):
            loss, aux = function(*batch)  # buffers and generators change
            if at == "forward":
                raise RuntimeError("no compiler here")
            return Failing.apply(loss), aux

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    torch.manual_seed(0)
    mine, plain = both(Drawing())
    mine[1].register_step_post_hook(lambda *_: None)
    losses = []
    with pytest.warns(UserWarning, match="downset") as told:
        step = ds.inductor.compile_step(mine[0], MSE, mine[1])
        torch.manual_seed(1)
        losses += [step(x, y) for x, y in batches(4)]
    torch.manual_seed(1)
    assert losses == [plain_step(*plain, x, y) for x, y in batches(4)]
    assert step.rung == lower_rungs.EAGER
    assert "as plain PyTorch, not as one graph: no compiler here" in str(told[-1].message)
    assert_same(mine, plain)


def test_a_users_own_error_costs_no_rung(graphs):
    torch.manual_seed(0)
    mine, plain = both(Printing())
    step = ds.inductor.compile_step(mine[0], MSE, mine[1])
    with pytest.warns(UserWarning, match="downset"):
        step(*batches(1)[0])
    plain_step(*plain, *batches(1)[0])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            step(torch.randn(4, 5), torch.randn(4, 4))
    assert step.rung == DIVIDED
    for x, y in batches(2):
        torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert_same(mine, plain)


def test_gradients_that_are_left_to_add_up_are_compiled_from_the_second_batch(graphs):
    torch.manual_seed(0)
    mine, plain = both(Net())
    step = ds.inductor.compile_step(mine[0], MSE, mine[1])
    with pytest.warns(UserWarning, match="it adds to the gradients already in") as told:
        for x, y in batches(3):
            for of in (mine, plain):
                of[0](x).sum().backward()
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert len([of for of in told if "downset" in str(of.message)]) == 1
    assert graphs
    assert_same(mine, plain)


def test_clipping_after_a_step_is_told_and_before_it_is_not(graphs):
    from torch.nn.utils import clip_grad_norm_

    torch.manual_seed(0)
    (model, optimizer), _ = both(Net())
    step = ds.inductor.compile_step(model, MSE, optimizer)
    step(*batches(1)[0])
    with pytest.warns(UserWarning, match="finds no gradients: the compiled step has already updated") as told:
        assert float(clip_grad_norm_(model.parameters(), 1.0)) == 0.0
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = Net()
        assert float(clip_grad_norm_(other.parameters(), 1.0)) == 0.0  # no parameters of a step
        model(batches(1)[0][0]).sum().backward()
        assert float(clip_grad_norm_(model.parameters(), 1.0)) > 0.0


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("whole", [True, False])
def test_a_step_that_is_not_finite_changes_nothing(whole, clip, graphs):
    torch.manual_seed(0)
    mine, plain = both(Net() if whole else Printing())
    step = ds.inductor.compile_step(mine[0], MSE, mine[1], clip_grad_norm=clip, skip_nonfinite=True)
    norms = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (x, y) in enumerate(batches(5)):
            y = y * (float("inf") if number == 2 else 1.0)
            loss = MSE(plain[0](x), y)
            torch.testing.assert_close(step(x, y), loss.detach(), equal_nan=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(plain[0].parameters(), clip or 1e9)
            torch.testing.assert_close(step.grad_norm, norm, equal_nan=True)
            norms.append(bool(step.grad_norm.isfinite()))
            if norm.isfinite():
                plain[1].step()
            plain[1].zero_grad()
    assert norms == [True, True, False, True, True]
    assert step.rung == (WHOLE if whole else DIVIDED)
    assert_same(mine, plain)


def test_a_scaler_and_skipping_are_not_asked_for_together():
    model = Net()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ds.UsageError, match="a scaler skips what is not finite by itself"):
        ds.inductor.compile_step(model, MSE, torch.optim.SGD(model.parameters()), scaler=scaler, skip_nonfinite=True)


@pytest.mark.parametrize("divided", [False, True])
def test_a_step_leaves_nothing_in_the_context_of_its_thread(divided, graphs):
    """Where what was set once stays for ever, and makes each later look-up slower."""
    torch.manual_seed(0)
    (model, optimizer), _ = both(Net())
    step = ds.inductor.compile_step(model, MSE, optimizer)
    if divided:
        with pytest.warns(UserWarning, match="counted"):
            step._fall_back("this rung is counted")
    (x, y), *_ = batches(1)
    step(x, y)
    step(x, y)
    before = len(contextvars.copy_context())
    for _ in range(3):
        step(x, y)
    assert len(contextvars.copy_context()) == before


def test_a_step_in_graphs_costs_no_more_frames_than_the_compiler_alone():
    """PyTorch checks every frame above a place without a graph at each call."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    mine, plain = both(Printing())
    step = ds.inductor.compile_step(mine[0], MSE, mine[1])
    with pytest.warns(UserWarning, match="counted"):
        step._fall_back("this rung is counted")
    x, y = batches(1)[0]
    compiled = torch.compile(lambda x, y: MSE(plain[0](x), y), backend="eager")
    counts = []
    for run in (lambda: step(x, y), lambda: compiled(x, y)):
        torch._dynamo.reset()
        counters.clear()
        run()
        counts.append(counters["frames"]["ok"])
    assert 0 < counts[0] <= counts[1]
