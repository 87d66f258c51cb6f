"""Any optimiser is part of a whole step, as in plain PyTorch over several steps; one that counts in Python is not."""

import copy
import warnings

import pytest
import torch
from torch.nn import functional

import downset as ds
from downset.errors import UnsupportedError
from downset.integrations.optimizer_trace import trace_step
from tests.integrations.test_whole_step import Net, assert_same, batches, graphs, plain_step

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]
__all__ = ["graphs"]  # a fixture


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                first, second = group["betas"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["mean"].mul(first).add(parameter.grad, alpha=1 - first)
                parameter.add_(update.sign(), alpha=-group["lr"])
                state["mean"].mul_(second).add_(parameter.grad, alpha=1 - second)


class Replacing(Lion):
    """Makes a new tensor for its state at each step."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for state in self.state.values():
            state["mean"] = state["mean"] * 0.5


class Counting(Lion):
    """Counts in a number of Python, and updates by it."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter, state in self.state.items():
            state["count"] = state.get("count", 0) + 1
            parameter.mul_(1 - 0.01 / state["count"])


class Lookahead(Lion):
    """Goes back half of the way at every second step, by an attribute of its own."""

    calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.calls += 1
        for state in self.state.values() if self.calls % 2 == 0 else ():
            state["mean"].mul_(0.5)


OPTIMIZERS = {
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.02),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.02),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "lion": Lion,
    "replacing": Replacing,
}
COUNTING = {
    "state": (Counting, r"Counting counts in Python, in state 'count'"),
    "attribute": (Lookahead, r"Lookahead counts in Python, in its attribute 'calls'"),
    "number": (lambda p: torch.optim.Adafactor(p, lr=0.01), "Adafactor is not a function of tensors"),
}


def pair(make):
    torch.manual_seed(0)
    one = Net()
    two = copy.deepcopy(one)
    return (one, make([*one.parameters()])), (two, make([*two.parameters()]))


def options(optimizer):
    """Those of its groups, but for what a schedule writes there."""
    return [
        {k: v for k, v in group.items() if k not in ("params", "lr", "initial_lr")} for group in optimizer.param_groups
    ]


def computing(graphs):
    """Graphs that compute something: Dynamo also captures an empty one where it inlines a recorded step."""
    return sum(bool(len(graph.graph.nodes)) for graph in graphs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_plain_step(name, graphs):
    """With a learning rate that changes at every step, in one graph; the optimiser's own options stay as they were."""
    mine, plain = pair(OPTIMIZERS[name])
    before = options(mine[1])
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1])
    schedules = [torch.optim.lr_scheduler.ExponentialLR(of, 0.8) for of in (mine[1], plain[1])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in batches(6):
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
            for schedule in schedules:
                schedule.step()
    assert_same(mine, plain, rtol=1e-3)
    assert computing(graphs) == 1
    assert step.fallback == ""
    assert options(mine[1]) == before


def test_a_checkpoint_is_loaded_into_it(graphs):
    mine, plain = pair(Lion)
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1])
    data = batches(6)
    for x, y in data[:3]:
        step(x, y)
        plain_step(*plain, x, y)
    step.load_state_dict(copy.deepcopy({"model": plain[0].state_dict(), "optimizer": plain[1].state_dict()}))
    for x, y in data[3:]:
        torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert_same(mine, plain)
    assert computing(graphs) == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parts_of_a_batch_and_scaled_losses(accumulate, graphs):
    mine, plain = pair(Lion)
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1) for _ in range(2))
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1], accumulate=accumulate, scaler=scaler)
    for at, (x, y) in enumerate(batches(6), 1):
        loss = functional.mse_loss(plain[0](x), y)
        torch.testing.assert_close(step(x, y), loss.detach(), rtol=1e-4, atol=1e-5)
        other.scale(loss).backward()
        if at % accumulate == 0:
            other.step(plain[1])
            other.update()
            plain[1].zero_grad()
    assert scaler.get_scale() == other.get_scale()
    assert_same(mine, plain)
    assert step.fallback == ""


@pytest.mark.parametrize("case", COUNTING)
def test_what_counts_in_python_runs_plainly_and_says_so(case, graphs):
    make, why = COUNTING[case]
    mine, plain = pair(make)
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1])
    with pytest.warns(UserWarning, match=f"not as one graph: .*{why}") as told:
        for x, y in batches(4):
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y))
    assert len([one for one in told if "downset" in str(one.message)]) == 1
    assert computing(graphs) == 1
    assert step.rung == "forward and backward graphs in our order"
    assert_same(mine, plain)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_traces_at_two_steps_agree(name):
    parameters = [torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(5))]
    optimizer = OPTIMIZERS[name](parameters)
    codes, rates = [], [torch.zeros((), dtype=torch.float64)]
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        codes.append(trace_step(optimizer, parameters, [0, 1], rates).graph.code)
    assert len(set(codes)) == 1


def test_a_trace_changes_nothing():
    parameters = [torch.nn.Parameter(torch.ones(4, 3))]
    optimizer = Counting(parameters)
    parameters[0].grad = torch.ones(4, 3)
    optimizer.step()
    before = copy.deepcopy((parameters, optimizer.state_dict()))
    with pytest.raises(UnsupportedError):
        trace_step(optimizer, parameters, [0], [torch.zeros((), dtype=torch.float64)])
    torch.testing.assert_close((parameters, optimizer.state_dict()), before)
    assert not torch.compiler.is_compiling()
