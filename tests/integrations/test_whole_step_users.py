"""What users do between and within steps: a whole step leaves what the eager loop leaves, as one graph or told and
plainly. Every story is played twice, with `compile_step` and with the loop that is written out here."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import downset as ds
from downset.errors import UsageError
from tests.effort import LONG
from tests.integrations.test_whole_step import batches

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

COMPILE, MSE = torch.compile, functional.mse_loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16, bias=False), nn.Linear(16, 4)
        self.idle = nn.Linear(3, 3)  # the loss does not depend on it

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Loop:
    """The eager loop, called like a compiled step."""

    def __init__(self, model, loss_fn, optimizer, *, accumulate=1):
        self.model, self.loss_fn, self.optimizer, self.accumulate, self.calls = model, loss_fn, optimizer, accumulate, 0

    def __call__(self, inputs, *targets):
        if isinstance(inputs, dict):
            output = self.model(**inputs)
        else:
            output = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        loss = self.loss_fn(output, *targets)
        loss.backward()
        self.calls += 1
        if self.calls % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, **options})


def steps(step, count, seed=1):
    for x, y in batches(count, seed):
        yield step(x, y)


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def triple(parameter):
    parameter.grad.mul_(3)


STORIES = {}


def story(told="", *, traced=False, rare=False):
    """A generator of what is observed. `told`: what the one warning says where the step runs plainly; `traced`: that
    this lies with the tracing of gradients, behind Dynamo; `rare`: that only a long run plays it."""

    def add(function):
        if LONG or not rare:
            STORIES[function.__name__] = (function, told, traced)
        return function

    return add


@story()
def a_parameter_is_frozen_and_thawed(compiled):
    model = Net()
    optimizer = sgd(model)
    step = compiled(model, MSE, optimizer)
    yield from steps(step, 2)
    model.first.weight.requires_grad_(False)
    yield from steps(step, 2)
    yield model.state_dict()
    model.first.weight.requires_grad_(True)
    yield from steps(step, 2)
    yield model.state_dict()


@story()
def a_frozen_parameter_of_the_optimizer_is_thawed(compiled):
    model = Net()
    model.first.weight.requires_grad_(False)
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 2)
    model.first.weight.requires_grad_(True)
    yield from steps(step, 2)
    yield model.state_dict()


@story()
def a_group_is_added(compiled):
    model = Net().requires_grad_(False)
    model.last.requires_grad_(True)
    optimizer = torch.optim.SGD(model.last.parameters(), lr=0.1)
    step = compiled(model, MSE, optimizer)
    yield from steps(step, 1)
    model.first.requires_grad_(True)
    optimizer.add_param_group({"params": model.first.parameters(), "lr": 0.05, "momentum": 0.5})
    yield from steps(step, 2)
    yield model.state_dict()


@story()
def groups_have_lists_for_betas_and_one_is_empty(compiled):
    model = Net()
    optimizer = torch.optim.AdamW(
        [{"params": [], "weight_decay": 0.0}, {"params": list(model.parameters())}], lr=0.02, betas=[0.8, 0.9]
    )
    yield from steps(compiled(model, MSE, optimizer), 2)
    yield model.state_dict()


@story("hook")
def an_optimizer_has_hooks(compiled):
    model = Net()
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda *_: clip(model))
    yield from steps(compiled(model, MSE, optimizer), 2)
    yield model.state_dict()


@story("hook")
def a_parameter_has_a_hook(compiled):
    model = Net()
    model.first.weight.register_hook(lambda gradient: gradient * 3)
    yield from steps(compiled(model, MSE, sgd(model)), 2)
    yield model.state_dict()


@story("hook")
def a_parameter_gets_a_hook_after_its_gradient(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 1)
    model.first.weight.register_post_accumulate_grad_hook(triple)
    yield from steps(step, 2)
    yield model.state_dict()


@story(rare=True)
def a_module_has_a_forward_hook(compiled):
    model = Net()
    model.first.register_forward_hook(lambda module, given, made: made * 2)
    yield from steps(compiled(model, MSE, sgd(model)), 2)
    yield model.state_dict()


@story("backwards hooks")
def a_module_has_a_backward_hook(compiled):
    model = Net()
    model.last.register_full_backward_hook(lambda module, given, made: tuple(of * 2 for of in given))
    yield from steps(compiled(model, MSE, sgd(model)), 2)
    yield model.state_dict()


class Hooked(Net):
    def forward(self, x):
        hidden = self.first(x)
        hidden.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return self.last(hidden)


@story(traced=True)
def a_tensor_has_a_hook(compiled):
    model = Hooked()
    yield from steps(compiled(model, MSE, sgd(model)), 2)
    yield model.state_dict()


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


class Signs(Net):
    def forward(self, x):
        return self.last(Through.apply(self.first(x)))


@story(traced=True)
def a_function_has_a_gradient_of_its_own(compiled):
    model = Signs()
    yield from steps(compiled(model, MSE, sgd(model)), 2)
    yield model.state_dict()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(checkpoint(self.inner, x, use_reentrant=False))

    def inner(self, x):
        return functional.dropout(self.first(x), 0.5, training=self.training).tanh()


@story("Activation checkpoint", traced=True)
def a_model_recomputes_what_it_dropped_out(compiled):
    model = Checkpointed()
    step = compiled(model, MSE, sgd(model))
    for seed in range(3):
        torch.manual_seed(seed)
        yield from steps(step, 1)
        yield model.state_dict()


class Dropping(Net):
    def forward(self, x):
        return self.last(functional.dropout(self.first(x), 0.5, training=self.training))


@story(traced=True)
def dropout_draws_by_the_seed_and_ends_in_eval(compiled):
    model = Dropping()
    step = compiled(model, MSE, sgd(model))
    for seed in range(3):
        torch.manual_seed(seed)
        yield from steps(step, 1)
        model.train(seed % 2 == 1)
        yield model.state_dict()


@story()
def statistics_stand_still_in_eval(compiled):
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 2)
    model.eval()
    with torch.no_grad():
        yield model(batches(1)[0][0])
    yield from steps(step, 1)
    model.train()
    yield from steps(step, 1)
    yield model.state_dict()


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embed, self.last = nn.Embedding(6, 4, padding_idx=2, **options), nn.Linear(4, 4)

    def forward(self, words):
        return self.last(self.embed(words)).sum(1)


def words(step):
    yield step(torch.tensor([[1, 2, 3], [2, 2, 5]]), torch.ones(2, 4))
    yield step(torch.tensor([[0, 2, 3], [1, 2, 1]]), torch.ones(2, 4))


@story()
def an_embedding_is_padded(compiled):
    model = Words()
    yield from words(compiled(model, MSE, torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)))
    yield model.state_dict()


@story(traced=True, rare=True)
def an_embedding_is_kept_small(compiled):
    model = Words(max_norm=0.5)
    yield from words(compiled(model, MSE, sgd(model)))
    yield model.state_dict()


@story("Could not guard", traced=True)
def an_embedding_has_sparse_gradients(compiled):
    model = Words(sparse=True)
    yield from words(compiled(model, MSE, torch.optim.SGD(model.parameters(), lr=0.1)))
    yield model.state_dict()


@story()
def a_model_runs_twice_in_a_loss(compiled):
    model = Net()
    other = batches(1, seed=9)[0][0]
    step = compiled(model, lambda made, y: MSE(made, y) + model(other).square().mean(), sgd(model))
    yield from steps(step, 3)
    yield model.state_dict()


class Options(Net):
    def forward(self, x, scale, how, table=None):
        made = super().forward(x) * scale
        return made.relu() if how == "relu" else made + table["shift"]


@story()
def inputs_are_no_tensors(compiled):
    model = Options()
    step = compiled(model, MSE, sgd(model))
    x, y = batches(1)[0]
    for scale, how, table in ((1, "relu", None), (0.5, "relu", None), (0.25, "add", {"shift": 2.0}), (2, "relu", None)):
        yield step({"x": x, "scale": scale, "how": how, "table": table}, y)
    yield model.state_dict()


class Branching(Net):
    def forward(self, x):
        made = super().forward(x)
        return torch.cond(x.sum() > 0, lambda of: of.sin() * 2, lambda of: of.cos() + 1, (made,))


@story(traced=True)
def a_model_branches_by_its_data(compiled):
    model = Branching()
    step = compiled(model, MSE, sgd(model))
    for shift in (-2.0, 2.0):
        x, y = batches(1)[0]
        yield step(x + shift, y)
    yield model.state_dict()


@story(rare=True)
def batches_have_many_sizes(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model))
    for size in (6, 6, 3, 5, 7, 2, 9, 4, 8, 10, 11, 12):
        x = torch.linspace(-1, 1, size * 8).reshape(size, 8)
        yield step(x, x[:, :4].square())
    yield model.state_dict()


@story()
def a_checkpoint_is_loaded_midway(compiled):
    model = Net()
    optimizer = sgd(model)
    step = compiled(model, MSE, optimizer)
    yield from steps(step, 2)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    yield from steps(step, 2, seed=3)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    yield from steps(step, 2, seed=5)
    yield model.state_dict(), optimizer.state[model.first.weight]


@story()
def a_copy_of_the_model_stays_as_it_was(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 2)
    twin = copy.deepcopy(model)
    yield from steps(step, 2, seed=3)
    yield twin.state_dict()
    yield from steps(compiled(twin, MSE, sgd(twin)), 2)
    yield twin.state_dict(), model.state_dict()


def one_bad_batch(compiled, model, batch, error, says):
    """A batch between others that is an error."""
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 1)
    with pytest.raises(error, match=says):
        step(*batch)
    yield from steps(step, 2)
    yield model.state_dict()


@story()
def a_batch_of_a_wrong_shape_is_an_error_and_the_next_is_none(compiled):
    yield from one_bad_batch(compiled, Net(), (torch.ones(6, 9), torch.ones(6, 4)), RuntimeError, "shape")


class Refusing(Net):
    def forward(self, x):
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return super().forward(x)


@story()
def a_model_raises_an_error_of_its_own(compiled):
    yield from one_bad_batch(compiled, Refusing(), (torch.ones(3, 8), torch.ones(3, 4)), ValueError, "three rows")


@story()
def gradients_are_off_around_a_step(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 1)
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        step(*batches(1)[0])
    yield from steps(step, 1)
    yield model.state_dict()


@story("not guard on data")
def accumulating_falls_back_and_idle_parameters_stay(compiled):
    class Deciding(Net):
        def forward(self, x):
            return super().forward(x if float(x.sum()) > 0 else -x)

    model = Deciding()
    step = compiled(model, MSE, sgd(model), accumulate=2)
    yield from steps(step, 4)
    yield model.state_dict()


@story("adds to the gradients already in")
def gradients_lie_there_before_a_step(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model))
    yield from steps(step, 1)
    model(torch.ones(6, 8)).sum().backward()
    model.idle(torch.ones(2, 3)).sum().backward()
    yield from steps(step, 2)
    yield model.state_dict()


@story("an input requires a gradient")
def an_input_wants_its_gradient(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model))
    x = torch.linspace(-1, 1, 48).reshape(6, 8).requires_grad_()
    yield step(x, torch.ones(6, 4))
    yield x.grad
    yield model.state_dict()


@story("does not hold 'first.weight'")
def another_optimizer_holds_the_rest(compiled):
    model = Net()
    rest = torch.optim.SGD(model.first.parameters(), lr=0.1)
    step = compiled(model, MSE, torch.optim.SGD(model.last.parameters(), lr=0.1))
    for x, y in batches(2):
        yield step(x, y)
        rest.step()
        rest.zero_grad()
    yield model.state_dict()


class Remembering(Net):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        self.hidden = self.first(x)
        return self.last(self.hidden)


@story("consumed returned tensor")
def a_model_keeps_what_it_computed(compiled):
    model = Remembering()
    step = compiled(model, MSE, sgd(model))
    for loss in steps(step, 3):
        yield loss, model.hidden.detach().clone(), model.calls
    yield model.state_dict()


@story(traced=True, rare=True)
def a_loss_has_a_penalty_of_gradients(compiled):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    point = torch.linspace(-1, 1, 8)

    def loss(made, y):
        at = point.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
        return MSE(made, y) + slope.square().sum()

    yield from steps(compiled(model, loss, sgd(model)), 2)
    yield model.state_dict()


@story(traced=True, rare=True)
def weights_are_parametrized(compiled):
    model = Net()
    nn.utils.parametrizations.weight_norm(model.first)
    nn.utils.parametrizations.spectral_norm(model.last)
    yield from steps(compiled(model, MSE, sgd(model)), 3)
    yield model.state_dict()


@story()
def weights_are_doubles(compiled):
    model = Net().double()
    step = compiled(model, MSE, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for x, y in batches(3):
        yield step(x.double(), y.double())
    yield model.state_dict()


@story(rare=True)
def weights_are_clamped_between_steps(compiled):
    model = Net()
    step = compiled(model, MSE, sgd(model, lr=torch.tensor(0.02)))
    for loss in steps(step, 3):
        yield loss
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)
        model.first.weight.data = model.first.weight.data * 0.5
    yield model.state_dict()


@story()
def a_loss_has_parameters_of_its_own(compiled):
    model, share = Net(), nn.Parameter(torch.tensor(0.5))
    optimizer = torch.optim.SGD([*model.parameters(), share], lr=0.1)
    step = compiled(model, lambda made, y: MSE(made, y) * share.exp() - share, optimizer)
    yield from steps(step, 3)
    yield model.state_dict(), share


@pytest.mark.parametrize("name", STORIES)
def test_it_ends_as_the_eager_loop_does(name, monkeypatch):
    tell, told, traced = STORIES[name]
    torch.manual_seed(0)
    theirs = [copy.deepcopy(seen) for seen in tell(Loop)]
    made = []

    def compiled(*parts, **options):
        made.append(ds.inductor.compile_step(*parts, **options))
        return made[-1]

    def compile_(function, *, options, fullgraph=False):
        return COMPILE(function, fullgraph=fullgraph, backend="aot_eager" if traced else "eager")

    monkeypatch.setattr(torch, "compile", compile_)
    torch.manual_seed(0)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as heard:
        warnings.filterwarnings("always", message="downset")
        ours = [copy.deepcopy(seen) for seen in tell(compiled)]
    said = [str(of.message) for of in heard if str(of.message).startswith("downset")]
    assert len(said) == bool(told)
    assert all(told in line and line.count("\n") == 0 for line in said)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_ranks_that_meet_in_backward_run_plainly():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
        with pytest.warns(UserWarning, match="DistributedDataParallel sums gradients over ranks in hooks"):
            step = ds.inductor.compile_step(model, MSE, sgd(model))
    finally:
        dist.destroy_process_group()
    assert "DistributedDataParallel" in step.fallback


def test_partial_gradients_go_when_a_checkpoint_comes(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: COMPILE(function, fullgraph=True, backend="eager"))
    model = Net()
    step = ds.inductor.compile_step(model, MSE, sgd(model), accumulate=2)
    state = copy.deepcopy(step.state_dict())
    list(steps(step, 1))
    assert model.first.weight.grad is not None
    step.load_state_dict(state)
    assert model.first.weight.grad is None
    assert set(step.state_dict()) == {"model", "optimizer"}


def test_what_is_no_loss_and_no_copy_is_named(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: COMPILE(function, fullgraph=True, backend="eager"))
    model = Net()
    step = ds.inductor.compile_step(model, lambda made, y: (MSE(made, y), made, y), sgd(model))
    with pytest.raises(ds.UsageError, match="loss_fn returned a tuple; it returns the loss, one tensor"):
        list(steps(step, 1))
    with pytest.raises(ds.UsageError, match="neither copied nor saved"):
        copy.deepcopy(step)


@pytest.mark.parametrize("peak_bytes", ["4MB", 4e6, 0, -5, True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(peak_bytes):
    model = Net()
    optimizer = sgd(model)
    for asked in (
        lambda: ds.inductor.options(peak_bytes=peak_bytes),
        lambda: ds.inductor.compile_step(model, MSE, optimizer, peak_bytes=peak_bytes),
    ):
        with pytest.raises(UsageError, match=r"give a whole number of bytes above 0, such as 4_000_000"):
            asked()


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [("report", True, "report is True; give a function"), ("autocast", "bf16", "autocast is 'bf16'; give a dtype")],
)
def test_an_argument_of_another_kind_is_refused(argument, value, says):
    model = Net()
    with pytest.raises(UsageError, match=says):
        ds.inductor.compile_step(model, MSE, sgd(model), **{argument: value})
    if argument == "report":
        with pytest.raises(UsageError, match=says):
            ds.inductor.options(report=value)


def test_arguments_in_another_order_are_told():
    model = Net()
    optimizer = sgd(model)
    with pytest.raises(UsageError, match="a model, a loss function and an optimiser, in this order"):
        ds.inductor.compile_step(model, optimizer, MSE)


def test_a_fallback_says_that_the_limit_is_not_kept():
    model = Net()
    other = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="4,000,000 B is the limit of each of these graphs") as told:
        ds.inductor.compile_step(model, MSE, other, peak_bytes=4_000_000)
    assert told[0].filename == __file__  # the user's line, not ours
