"""A training step as one graph is the step that plain PyTorch takes, and leaves everything where PyTorch has it."""

import copy
import io
import warnings
from collections import UserDict
from types import MappingProxyType

import pytest
import torch
from torch.nn import functional

import downset as ds
from downset.integrations import whole_step
from tests.fresh_graphs import fresh_graphs

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16, bias=False)
        self.norm = torch.nn.BatchNorm1d(16)  # has buffers that change
        self.last = torch.nn.Linear(16, 4)
        self.idle = torch.nn.Linear(3, 3)  # the loss does not depend on it
        self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x)))) * self.frozen


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd_nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "sgd_up": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5, maximize=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02, weight_decay=0.1),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.02, amsgrad=True, betas=(0.8, 0.95)),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.2),
    "groups": lambda parameters: torch.optim.AdamW(
        [{"params": list(parameters)[:2], "weight_decay": 0.0}, {"params": list(parameters)[2:], "lr": 0.05}]
    ),
}


def pair(optimizer, seed=0):
    """The same model twice, each with its optimiser."""
    torch.manual_seed(seed)
    one = Net()
    two = copy.deepcopy(one)
    make = OPTIMIZERS[optimizer]
    return (one, make(list(one.parameters()))), (two, make(list(two.parameters())))


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)) for _ in range(count)]


def plain_step(model, optimizer, x, y, *, autocast=None, update=True):
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        loss = functional.mse_loss(model(x), y)
    loss.backward()
    if update:
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def assert_same(one, two, rtol=1e-4):
    (model, optimizer), (other, other_optimizer) = one, two
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()), rtol=rtol, atol=1e-5)
    mine, theirs = optimizer.state_dict()["state"], other_optimizer.state_dict()["state"]
    for index, state in theirs.items():
        held = {name: value for name, value in state.items() if value is not None}
        torch.testing.assert_close({name: mine[index][name] for name in held}, held, rtol=rtol, atol=1e-5)


@pytest.fixture
def graphs(monkeypatch):
    """Compiles without Inductor, which takes seconds a graph: what is captured is run as it is. Lists the graphs."""
    captured = []
    compiles = torch.compile

    def backend(graph, inputs):
        captured.append(graph)
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    def compile_(function, *, options, fullgraph=False):
        ours = ["_post_fusion_custom_pass", "reorder_for_peak_memory"]
        if not fullgraph:
            assert list(options) == ["post_grad_custom_pre_pass", *ours]
            return compiles(function, backend=backend)
        again = ["joint_custom_post_pass", "_pre_fusion_custom_pass"]
        assert list(options) == [*again, "post_grad_custom_pre_pass", "layout_optimization", *ours]
        assert options["layout_optimization"] is False
        return compiles(function, fullgraph=True, backend=backend)

    monkeypatch.setattr(torch, "compile", compile_)
    return captured


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_the_plain_step(optimizer, accumulate, graphs):
    """With a learning rate that changes at every update, in no more graphs than there are kinds of calls."""
    mine, plain = pair(optimizer)
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1], accumulate=accumulate)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(of, 0.8) for of in (mine[1], plain[1])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at, (x, y) in enumerate(batches(9), 1):
            update = at % accumulate == 0
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y, update=update), rtol=1e-4, atol=1e-5)
            for schedule in schedules if update else ():
                schedule.step()
    assert_same(mine, plain)
    assert len(graphs) == (1 if accumulate == 1 else 3)  # the first part finds no gradients that are used yet
    assert step.fallback == ""


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad", "adamw"])
def test_a_learning_rate_of_zero_changes_no_weight(optimizer, graphs):
    """As a linear warm-up begins. Rows of the embedding that a batch does not use have a second moment of zero."""
    torch.manual_seed(0)
    mine = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
    plain = copy.deepcopy(mine)
    pair_of = [(model, OPTIMIZERS[optimizer](list(model.parameters()))) for model in (mine, plain)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(of, lambda step: min(1, step / 2)) for _, of in pair_of]
    step = ds.inductor.compile_step(mine, functional.cross_entropy, pair_of[0][1])
    for batch in range(4):
        words = torch.tensor([batch, batch + 1])
        functional.cross_entropy(plain(words), words).backward()
        pair_of[1][1].step()
        pair_of[1][1].zero_grad()
        step(words, words)
        assert_same(*pair_of)
        for schedule in schedules:
            schedule.step()
    assert step.fallback == ""


def test_mixed_precision(graphs):
    mine, plain = pair("adamw")
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1], autocast=torch.bfloat16)
    full = []
    for x, y in batches(4):
        loss = step(x, y)
        torch.testing.assert_close(loss, plain_step(*plain, x, y, autocast=torch.bfloat16), rtol=1e-3, atol=1e-3)
        full.append(loss)
    assert_same(mine, plain, rtol=1e-2)
    other, _ = pair("adamw")
    assert [plain_step(*other, x, y) for x, y in batches(4)] != full  # it was not in full precision


@pytest.mark.parametrize(
    ("optimizer", "accumulate", "autocast"), [("adamw", 1, torch.float16), ("sgd_nesterov", 2, None)]
)
def test_loss_scaling_is_that_of_the_eager_loop(optimizer, accumulate, autocast, graphs):
    """Scale, unscale, a step that is skipped for a gradient that is not finite, and growth: as GradScaler has them."""
    mine, plain = pair(optimizer)
    made = {"init_scale": 1024.0, "growth_interval": 2}
    scaler, other = (torch.amp.GradScaler("cpu", **made) for _ in range(2))
    step = ds.inductor.compile_step(
        mine[0], scaled_loss, mine[1], autocast=autocast, scaler=scaler, accumulate=accumulate
    )
    scales = []
    for at, (x, y) in enumerate(batches(6 * accumulate)):
        factor = torch.tensor(3e38 if at == 3 * accumulate else 1.0)  # times the scale it is infinite
        before = copy.deepcopy(mine[0].first.weight.detach())
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = scaled_loss(plain[0](x), y, factor)
        torch.testing.assert_close(step(x, y, factor), loss.detach(), rtol=1e-3, atol=1e-3)
        other.scale(loss).backward()
        if (at + 1) % accumulate == 0:
            other.step(plain[1])
            other.update()
            plain[1].zero_grad()
            assert scaler.state_dict() == other.state_dict()
            scales.append(scaler.get_scale())
            skipped = at // accumulate == 3
            assert torch.equal(mine[0].first.weight, before) is skipped
        assert_same(mine, plain, rtol=1e-2)
    assert scales == [1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0]
    assert len(graphs) == accumulate
    assert step.fallback == ""
    assert step.state_dict()["scaler"] == other.state_dict()


def scaled_loss(output, y, factor):
    return functional.mse_loss(output, y) * factor


def test_loss_scaling_where_the_step_is_no_graph(graphs):
    (model, _), (twin, _) = pair("sgd")
    optimizer, theirs = (torch.optim.RMSprop(of.parameters(), lr=0.1) for of in (model, twin))
    optimizer.register_step_pre_hook(lambda *_: None)
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1) for _ in range(2))
    with pytest.warns(UserWarning, match="the optimiser's steps have hooks"):
        step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, scaler=scaler)
    for x, y in batches(2):
        loss = functional.mse_loss(twin(x), y)
        assert torch.equal(step(x, y), loss.detach())
        other.scale(loss).backward()
        other.step(theirs)
        other.update()
        theirs.zero_grad()
    assert scaler.get_scale() == other.get_scale() == 32.0
    step.load_state_dict({**step.state_dict(), "scaler": {**scaler.state_dict(), "scale": 4.0}})
    assert scaler.get_scale() == 4.0
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    assert (
        "scaler"
        not in ds.inductor.compile_step(
            twin, functional.mse_loss, OPTIMIZERS["sgd"](twin.parameters()), scaler=disabled
        ).state_dict()
    )


def test_the_compilers_caches_take_the_graph(graphs):
    """PyTorch keeps none that enters autocast, on or off; an autocast around the call is the user's."""
    for dtype, around in ((None, False), (torch.bfloat16, True)):
        (model, optimizer), plain = pair("sgd")
        step = ds.inductor.compile_step(model, functional.mse_loss, optimizer)
        x, y = batches(1)[0]
        with torch.autocast("cpu", dtype=dtype, enabled=around):
            loss = step(x, y)
        torch.testing.assert_close(loss, plain_step(*plain, x, y, autocast=dtype), rtol=1e-3, atol=1e-3)
        assert not any("autocast" in str(node.target) for node in graphs[-1].graph.nodes)
    assert len(graphs) == 2


def test_everything_stays_in_the_users_objects(graphs):
    mine, _ = pair("adamw")
    model, optimizer = mine
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    before = copy.deepcopy(model.state_dict())
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer)
    step(*batches(1)[0])
    state = optimizer.state[model.first.weight]["exp_avg"]
    kept = state.clone()
    step(*batches(2)[1])
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert optimizer.state[model.first.weight]["exp_avg"] is state
    assert not torch.equal(state, kept)
    assert not torch.equal(model.first.weight, before["first.weight"])
    assert torch.equal(model.idle.weight, before["idle.weight"])
    assert model.first.weight.grad is None


def test_a_checkpoint_goes_on_in_plain_pytorch_and_back(graphs):
    mine, plain = pair("adam")
    data = batches(6)
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1])
    for x, y in data[:2]:
        step(x, y)
        plain_step(*plain, x, y)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    other, _ = pair("adam", seed=5)
    other[0].load_state_dict(checkpoint["model"])
    other[1].load_state_dict(checkpoint["optimizer"])
    for x, y in data[2:4]:
        torch.testing.assert_close(plain_step(*other, x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    step.load_state_dict({"model": other[0].state_dict(), "optimizer": other[1].state_dict()})
    for x, y in data[4:]:
        torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert_same(mine, plain)


def test_between_parts_of_a_batch_there_is_no_checkpoint(graphs):
    mine, _ = pair("sgd")
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1], accumulate=2)
    (x, y), (x2, y2) = batches(2)
    step(x, y)
    with pytest.raises(ds.UsageError, match="after part 2"):
        step.state_dict()
    step(x2, y2)
    assert set(step.state_dict()) == {"model", "optimizer"}
    with pytest.raises(ds.UsageError, match="at least 1"):
        ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1], accumulate=0)


def test_inputs_and_targets_of_every_shape(graphs):
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, one, two=0.0):
            return self.scale * one + two

    by_name = {"one": torch.ones(3), "two": torch.ones(3)}
    for inputs in (
        torch.ones(3),
        (torch.ones(3), torch.ones(3)),
        by_name,
        UserDict(by_name),
        MappingProxyType(by_name),
    ):
        model = Pair()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        step = ds.inductor.compile_step(model, torch.sum, optimizer)
        assert float(step(inputs)) == (3.0 if isinstance(inputs, torch.Tensor) else 6.0)
        assert model.scale.tolist() == [0.5, 0.5, 0.5]


def hooked(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (torch.optim.LBFGS, "LBFGS computes the loss several times"),
        (torch.optim.SparseAdam, "SparseAdam takes sparse gradients"),
        (lambda p: torch.optim.SGD(p, differentiable=True), "differentiable"),
        (lambda p: torch.optim.Adam([*p, *p]), "a group of the optimiser has a parameter twice"),
    ],
)
def test_an_optimiser_of_which_no_graph_is_possible_is_told_at_once(make, why):
    (model, _), _ = pair("sgd")
    with pytest.warns(UserWarning, match=f"not as one graph: .*{why}"):
        assert why in ds.inductor.compile_step(model, functional.mse_loss, make([*model.parameters()])).fallback


@pytest.mark.parametrize(("make", "why"), [(hooked, "steps have hooks")])
def test_an_optimiser_that_is_no_graph_runs_plainly_and_says_so(make, why, graphs):
    (model, _), (other, _) = pair("sgd")
    with pytest.warns(UserWarning, match=f"not as one graph: .*{why}") as told:
        step = ds.inductor.compile_step(model, functional.mse_loss, make(list(model.parameters())))
    optimizer = make(list(other.parameters()))
    for x, y in batches(3):
        torch.testing.assert_close(step(x, y), plain_step(other, optimizer, x, y))
    assert len(told) == 1
    assert why in step.fallback
    assert step.rung == "forward and backward graphs in our order"
    assert len(graphs) == 1


def test_a_model_that_decides_by_its_data_runs_plainly_and_says_so(graphs):
    class Deciding(Net):
        def forward(self, x):
            return super().forward(x if float(x.sum()) > 0 else -x)

    torch.manual_seed(0)
    model = Deciding()
    other = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(of.parameters()) for of in (model, other)]
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizers[0])
    x, y = batches(1)[0]
    with pytest.warns(UserWarning, match="not as one graph") as told:
        losses = [step(x, y), step(-x, y)]
    assert "\n" not in str(next(w for w in told if "downset" in str(w.message)).message)
    assert losses == [plain_step(other, optimizers[1], x, y), plain_step(other, optimizers[1], -x, y)]


@pytest.mark.parametrize(("optimizer", "option"), [("sgd_nesterov", "momentum"), ("adamw", "betas")])
def test_options_that_a_schedule_changes_are_inputs_of_the_graph(optimizer, option, graphs):
    """From their first change on; zero is another graph, as it has another state."""
    mine, plain = pair(optimizer)
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1])
    for at, (x, y) in enumerate(batches(6)):
        for _, of in (mine, plain):
            value = 0.9 - at / 100
            of.param_groups[0].update({option: (value, 0.99) if option == "betas" else value})
            of.param_groups[0]["weight_decay"] = (at + 1) / 100 if at < 5 else 0.0
        torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 4  # one may be traced twice
    assert_same(mine, plain)
    assert step.fallback == ""


def test_an_option_that_changes_at_every_step_is_not_compiled_for_ever(graphs, monkeypatch):
    monkeypatch.setattr(whole_step, "_MOST_SETTINGS", 3)
    mine, plain = pair("adam")
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1])
    with pytest.warns(UserWarning, match="change again and again"):
        for at, (x, y) in enumerate(batches(5)):
            for _, optimizer in (mine, plain):
                optimizer.param_groups[0]["eps"] = 1e-8 * (1 + at)
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 3 + 1  # and forward and backward apart
    assert_same(mine, plain)


def test_many_steps_in_one_process_do_not_share_a_limit(graphs):
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=3):
        warnings.simplefilter("error")
        for _ in range(5):
            (model, optimizer), _ = pair("sgd")
            ds.inductor.compile_step(model, functional.mse_loss, optimizer)(*batches(1)[0])
    assert len(graphs) == 5


def test_compiled_by_inductor_in_our_order():
    """The real compiler: the same losses, one graph, and a report that names the model's lines."""
    mine, plain = pair("adamw")
    reports = []
    step = ds.inductor.compile_step(mine[0], functional.mse_loss, mine[1], report=reports.append)
    with fresh_graphs():
        for x, y in batches(3):
            torch.testing.assert_close(step(x, y), plain_step(*plain, x, y), rtol=1e-4, atol=1e-5)
    assert_same(mine, plain)
    (report,) = reports
    assert report.order.peak_bytes <= report.inductor_bytes
    assert any(buffer.source.startswith(__file__) for buffer in report.peak_live)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_clipped_by_their_norm(accumulate, scaled, graphs):
    """With a limit that some steps reach and some do not; the norm is that before clipping."""
    mine, plain = pair("sgd")
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=8.0) if scaled else None for _ in range(2))
    step = ds.inductor.compile_step(
        mine[0], functional.mse_loss, mine[1], accumulate=accumulate, clip_grad_norm=1.0, scaler=scaler
    )
    clipped = []
    for at, (x, y) in enumerate(batches(8), 1):
        factor = 4.0 if at > 4 else 0.05
        loss = functional.mse_loss(plain[0](x), y * factor)
        torch.testing.assert_close(step(x, y * factor), loss.detach(), rtol=1e-4, atol=1e-5)
        (other.scale(loss) if scaled else loss).backward()
        if at % accumulate == 0:
            if scaled:
                other.unscale_(plain[1])
            norm = torch.nn.utils.clip_grad_norm_(plain[0].parameters(), 1.0)
            torch.testing.assert_close(step.grad_norm, norm, rtol=1e-4, atol=1e-5)
            clipped.append(bool(norm > 1.0))
            if scaled:
                other.step(plain[1])
                other.update()
            else:
                plain[1].step()
            plain[1].zero_grad()
    assert {*clipped} == {True, False}
    assert_same(mine, plain)
    assert step.fallback == ""


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_a_loss_function_returns_metrics_too(optimizer, graphs):
    """Also from the first step of an optimiser that is traced, which is plain."""

    def loss_fn(output, y):
        return functional.mse_loss(output, y), {"mean": output.mean(), "rows": len(y)}

    (model, _), (twin, _) = pair("sgd")
    make = torch.optim.SGD if optimizer == "sgd" else torch.optim.RMSprop
    step = ds.inductor.compile_step(model, loss_fn, make(model.parameters(), lr=0.01))
    plain = make(twin.parameters(), lr=0.01)
    for x, y in batches(3):
        loss, metrics = step(x, y)
        mean = twin(x).mean().detach()
        twin.norm.running_mean.copy_(model.norm.running_mean)
        torch.testing.assert_close(metrics["mean"], mean, rtol=1e-3, atol=1e-4)
        assert metrics["rows"] == len(y)
        torch.testing.assert_close(loss, plain_step(twin, plain, x, y), rtol=1e-3, atol=1e-4)
        assert not loss.requires_grad and not metrics["mean"].requires_grad
    assert step.fallback == ""


def test_a_norm_that_is_not_above_zero_is_refused():
    (model, optimizer), _ = pair("sgd")
    with pytest.raises(ds.UsageError, match="clip_grad_norm is 0"):
        ds.inductor.compile_step(model, functional.mse_loss, optimizer, clip_grad_norm=0)
