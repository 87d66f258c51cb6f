"""An update is recorded only where the record computes what `step` does, wherever an optimiser keeps what it needs; a
record leaves no trace in the optimiser. Held to the optimiser itself, over several steps."""

import copy
import itertools
import sys
import threading
import types
import weakref

import pytest
import torch

import downset as ds
from downset.errors import UnsupportedError
from downset.integrations import early_updates, optimizer_trace
from downset.integrations.early_updates import EarlyUpdates, updates_apart
from downset.integrations.optimizer_parts import parts_of
from downset.integrations.optimizer_trace import trace_step
from downset.integrations.optimizer_update import trained, update_of
from tests.integrations.test_optimizer_trace import Lion

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


class Own(torch.optim.Optimizer):
    """An optimiser as others write them: `update(optimizer, group, parameter)` for every parameter, `held` attributes,
    `options` of groups."""

    def __init__(self, parameters, update, begin=lambda of: None, options=None, **held):
        super().__init__(parameters, {"lr": 0.1, **(options or {})})
        self.update, self.begin = update, begin
        vars(self).update(held)
        self.held = [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.begin(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(self, group, parameter)


class Around(Own):
    """Holds a second optimiser of the same groups, as Lookahead and SAM do."""

    def __init__(self, parameters):
        super().__init__(parameters, None)
        self.inner = torch.optim.SGD(self.held, lr=0.1, momentum=0.9)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.held:
            parameter.mul_(0.9)
        self.inner.step()


def by(factor):
    """A plain update with the gradient times a factor."""
    return lambda of, group, p: p.sub_(group["lr"] * factor(of) * p.grad)


def counted(of):
    of.count = of.count + 1


def twice(of, group, p):
    state = of.state[p]
    state.setdefault("two", [torch.zeros_like(p), torch.zeros_like(p)])[1].add_(p.grad)
    p.sub_(group["lr"] * state["two"][1])


def by_groups_tensor(of, group, p):
    group["d"].mul_(0.9)
    p.sub_(group["lr"] * group["d"] * p.grad)


def foreach(of):
    for group in of.param_groups:
        of_group = [p for p in group["params"] if p.grad is not None]
        torch._foreach_add_(of_group, [p.grad for p in of_group], alpha=-group["lr"])


def whole(of):
    for p, one in zip(of.held, of.ones, strict=True):
        if p.grad is not None:
            p.sub_(one.mul_(0.9).add_(p.grad))


def skipping(key):
    def update(of, group, p):
        p.sub_(p.grad if key(p) in of.at else 2 * p.grad)

    return update


def swapped(of, group, p):
    state = of.state[p]
    one, two = (state.get(name, torch.zeros_like(p)) for name in ("one", "two"))
    state.update(one=two, two=one)
    p.sub_(two.mul_(0.5).add_(p.grad))


def counter():
    count = 0

    def following(*_):
        nonlocal count
        count += 1
        return 1 / count

    return following


class Slots:
    __slots__ = ("t",)

    def __init__(self, t):
        self.t = t


def decaying(of):
    for p in of.held:
        p.mul_(0.9)


RECORDED = {
    "lion": lambda p: Lion(p, lr=0.1),
    "around": Around,
    "tensor": lambda p: Own(p, by(lambda of: 1 / of.count), counted, count=torch.zeros(())),
    "inplace": lambda p: Own(p, by(lambda of: 1 / of.count), lambda of: of.count.add_(1), count=torch.zeros(())),
    "lists": lambda p: Own(p, twice),
    "group": lambda p: Own(p, by_groups_tensor, options={"d": torch.tensor(1.0)}),
    "foreach": lambda p: Own(p, lambda *_: None, foreach),
    "attributes": lambda p: Own(p, lambda *_: None, whole, ones=[torch.zeros_like(of) for of in p]),
    "without gradients": lambda p: Own(p, by(lambda of: 1), decaying),
    "asked": lambda p: Own(p, lambda of, group, p: p.sub_(p.grad) if p.requires_grad else None),
    "parameters": lambda p: Own(p, skipping(lambda of: of), at={p[0]}),
    "ids": lambda p: Own(p, skipping(id), at={id(p[0]): 1}),
    "set of ids": lambda p: Own(p, skipping(id), at=frozenset([id(p[0])])),
    "closure": lambda p: Own(p, (lambda of: lambda _, group, q: q.sub_(q.grad if q is of else 2 * q.grad))(p[0])),
    "swapped": lambda p: Own(p, swapped),
    "slots": lambda p: Own(p, by(lambda of: of.at.t), at=Slots(2)),
    "namespace": lambda p: Own(p, by(lambda of: of.at.t), at=types.SimpleNamespace(t=torch.ones(2)[0])),
}
REFUSED = {
    "dict": lambda p: Own(p, by(lambda of: 1 / of.at["t"]), lambda of: of.at.update(t=of.at["t"] + 1), at={"t": 0}),
    "list": lambda p: Own(p, by(lambda of: len(of.at)), lambda of: of.at.append(1), at=[]),
    "object": lambda p: Own(
        p, by(lambda of: of.at.t), lambda of: vars(of.at).update(t=of.at.t + 1), at=types.SimpleNamespace(t=0)
    ),
    "iterator": lambda p: Own(
        p, by(lambda of: of.t), lambda of: setattr(of, "t", 1 / next(of.at)), at=iter([1, 2, 3, 4, 5, 6]), t=0.0
    ),
    "silent iterator": lambda p: Own(p, by(lambda of: 1 / next(of.at)), at=itertools.count(1)),
    "generator": lambda p: Own(p, by(lambda of: next(of.at)), at=(1 / t for t in range(1, 99))),
    "closure": lambda p: Own(p, by(counter())),
    "slots": lambda p: Own(p, by(lambda of: of.at.t), lambda of: setattr(of.at, "t", of.at.t + 1), at=Slots(0)),
    "weak": lambda p: Own(p, lambda of, group, q: q.sub_(q.grad if q is of.at() else 2 * q.grad), at=weakref.ref(p[0])),
    "lock": lambda p: Own(p, by(lambda of: of.at.locked()), at=threading.Lock()),
    "file": lambda p: Own(p, by(lambda of: of.at.closed), at=sys.stdout),
    "state": lambda p: Own(p, lambda of, group, p: of.state[p].setdefault("at", []).append(p.sub_(p.grad).sum())),
    "rate": lambda p: Own(p, by(lambda of: 1), lambda of: of.param_groups[0].update(lr=of.param_groups[0]["lr"] * 0.9)),
    "rate in place": lambda p: Own(
        p, by(lambda of: 1), lambda of: of.param_groups[0]["lr"].mul_(0.9), {"lr": torch.tensor(0.1)}
    ),
    "data": lambda p: Own(p, lambda of, group, p: setattr(p, "data", p.data - p.grad)),
    "nothing": lambda p: Own(p, lambda *_: None),
}


def weights():
    torch.manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(4, 3)),
        torch.nn.Parameter(torch.randn(5)),
        torch.nn.Parameter(torch.ones(2)),
    ]


def gradients(parameters, seed):
    """Of all but the last one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def values(optimizer, parameters):
    held = parts_of(optimizer, parameters)
    return copy.deepcopy((parameters, held.tensors, [group["lr"] for group in optimizer.param_groups])), held.facts


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_computes_what_the_step_does(name):
    mine, plain = weights(), weights()
    optimizer, other = (RECORDED[name]([*of]) for of in (mine, plain))
    rates = [torch.tensor(0.1, dtype=torch.float64)]
    gradients(mine, 0), gradients(plain, 0)
    optimizer.step(), other.step()
    before = values(optimizer, mine)
    trace = trace_step(optimizer, mine, [0, 1], rates)
    assert values(optimizer, mine)[1] == before[1]
    torch.testing.assert_close(values(optimizer, mine)[0], before[0], rtol=0, atol=0)
    for seed in range(1, 4):
        gradients(mine, seed), gradients(plain, seed)
        held = parts_of(optimizer, mine).tensors
        with torch.no_grad():
            trace.graph(mine, [p.grad for p in mine[:2]], [held[place] for place in trace.places], rates)
        other.step()
        torch.testing.assert_close(values(optimizer, mine)[0], values(other, plain)[0])


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_a_record_would_change_is_refused_and_stays_as_it_was(name):
    mine, plain = weights(), weights()
    optimizer, other = (REFUSED[name]([*of]) for of in (mine, plain))
    for seed in range(4):
        gradients(mine, seed), gradients(plain, seed)
        optimizer.step(), other.step()
        with pytest.raises(UnsupportedError):
            trace_step(optimizer, mine, [0, 1], [torch.tensor(0.1, dtype=torch.float64)])
        assert not updates_apart(optimizer, mine[:2])
    one, two = values(optimizer, mine), values(other, plain)
    torch.testing.assert_close(one[0], two[0], rtol=0, atol=0)


def test_what_an_optimizer_reads_is_part_of_the_settings_of_a_record():
    """An attribute, an option or a number of a state that a user changes makes another record."""
    parameters = weights()
    optimizer = Own(parameters, by(lambda of: of.rho), rho=1.0, options={"nested": {"k": 1}})
    optimizer.state[parameters[0]]["w"] = 1.0
    seen = [parts_of(optimizer, parameters).settings()]
    optimizer.rho = 0.5
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.param_groups[0]["nested"]["k"] = 2
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.state[parameters[0]]["w"] = 2.0
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.at = Slots(1)
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.at.t = 2
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.one = optimizer.two = torch.ones(2)
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.two = torch.ones(2)
    seen.append(parts_of(optimizer, parameters).settings())
    optimizer.two = torch.ones(3)
    seen.append(parts_of(optimizer, parameters).settings())
    assert len({*seen}) == 9


@pytest.mark.parametrize("name", ["around", "attributes", "without gradients", "inplace"])
def test_what_reaches_other_parameters_is_not_updated_early(name):
    parameters = weights()
    optimizer = RECORDED[name]([*parameters])
    gradients(parameters, 0)
    optimizer.step()
    assert not updates_apart(optimizer, parameters[:2])


def test_an_optimizer_is_listed_once_to_decide_whether_its_updates_are_apart(monkeypatch):
    parameters = weights()
    optimizer = RECORDED["lion"]([*parameters])
    gradients(parameters, 0)
    optimizer.step()
    listed = []

    def counted(of, every):
        listed.append(of is optimizer)
        return parts_of(of, every)

    for module in (early_updates, optimizer_trace):
        monkeypatch.setattr(module, "parts_of", counted)
    updates_apart(optimizer, parameters[:2])
    assert sum(listed) == 1 < len(listed)


def test_what_a_user_changes_between_two_steps_counts():
    """A replaced `step`, and dampening, which a checkpoint may set: the formulas of a graph have neither."""
    optimizer = torch.optim.SGD(weights(), lr=0.1, momentum=0.9)
    update = update_of(optimizer)
    update.prepare()
    optimizer.param_groups[0]["dampening"] = 0.5
    with pytest.raises(UnsupportedError, match="its dampening has become other than 0"):
        update.prepare()
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trained(optimizer)
    optimizer.step = lambda *_: None
    with pytest.raises(UnsupportedError, match="`step` was replaced"):
        trained(optimizer)


def test_a_step_replaced_after_early_updates_is_called():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    early = EarlyUpdates(optimizer, least_bytes=1)
    seen = []
    for replaced in (False, False, True):
        if replaced:
            optimizer.step = lambda: seen.append(all(of.grad is not None for of in model.parameters()))
        loss = model(torch.ones(2, 3)).sum()
        with early.around(loss, watch=False):
            loss.backward()
        optimizer.step()
        early.decide()
    assert early.possible
    assert seen == [True]


@pytest.mark.parametrize("kind", [torch.optim.SGD, Lion])
def test_a_step_that_a_user_replaced_is_called(kind):
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    own, calls = optimizer.step, []
    optimizer.step = lambda *_: (calls.append(1), own())
    with pytest.warns(UserWarning, match="the optimiser's `step` was replaced"):
        step = ds.inductor.compile_step(model, torch.nn.functional.mse_loss, optimizer)
    assert step.rung == "forward and backward graphs in our order"
    parameters = [*model.parameters()]
    with pytest.raises(UnsupportedError, match="replaced"):
        trace_step(optimizer, parameters, [0, 1], [torch.tensor(0.1)])
