"""Calls of what stages run, as programs make them: from several threads, inside other compiled modules, after failures,
in all modes of PyTorch, from copies and pickles; and graphs that nearly are of inference. Eager PyTorch is the
oracle."""

import copy
import pickle
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn import functional

import downset as ds
from downset.errors import InvalidPlan, UnsupportedError
from downset.formats.torch.read import load_exported
from downset.integrations import stage_backend
from downset.stages.prepared import prepare
from tests.integrations.test_stage_backend import QUICK, fresh, staged  # noqa: F401 - a fixture

PATIENCE_S = 120.0
"""For what takes a second or two."""


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.wide(x)).relu() + self.narrow(x).sigmoid()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Branches().eval()


def module_of(model, shape=(1, 3, 6, 7)):
    program = torch.export.export(model, (torch.randn(shape),))
    return ds.stage_module(program, limits=QUICK["limits"], runs=1)


def near(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def in_threads(work, count):
    """The failures of calls `work(number)` on threads of their own."""
    failures = []

    def guarded(number):
        try:
            with torch.no_grad():
                work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    return failures


@pytest.mark.parametrize("form", ["compiled", "module"])
def test_threads_that_call_one_module_at_once_get_their_own_results(model, caplog, form):
    compiled = staged(model, caplog, strict=True)[0] if form == "compiled" else module_of(model)
    values = [torch.randn(1, 3, 6, 7) for _ in range(4)]
    with torch.no_grad():
        expected = [model(value) for value in values]

    def work(number):
        for _ in range(20):
            near(compiled(values[number]), expected[number])

    assert in_threads(work, 4) == []


def test_weights_change_while_threads_call(model, caplog):
    """Each output is that of one of the states, or of a mixture that a write made; the last is the last state's."""
    compiled, told = staged(model, caplog, strict=True)
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        compiled(x)
    begun, ended = threading.Barrier(4), threading.Event()

    def work(number):
        begun.wait(PATIENCE_S)
        if number:
            while not ended.is_set():
                assert compiled(x).isfinite().all()
            return
        try:
            for factor in (2.0, 0.5, 3.0, 0.25):
                for _ in range(2):
                    model.wide.weight.mul_(factor)
                    compiled(x)
        finally:
            ended.set()

    assert in_threads(work, 4) == []
    with torch.no_grad():
        near(compiled(x), model(x))
    assert not torch.compiler.is_exporting()  # else every later torch.compile of the process would do nothing
    assert told() == []


def test_a_change_is_staged_once_however_many_threads_see_it(model, caplog, monkeypatch):
    compiled, _ = staged(model, caplog, strict=True)
    x, real, made = torch.randn(1, 3, 6, 7), stage_backend.stage_module, []

    def slowly(*arguments, **options):
        made.append(threading.current_thread())
        time.sleep(0.2)
        return real(*arguments, **options)

    with torch.no_grad():
        compiled(x)
        model.wide.weight.mul_(-3.0)
        expected = model(x)
    monkeypatch.setattr(stage_backend, "stage_module", slowly)
    begun = threading.Barrier(4)

    def work(number):
        begun.wait(PATIENCE_S)
        near(compiled(x), expected)

    assert in_threads(work, 4) == []
    assert len(made) == 1


def test_a_staging_that_fails_is_done_again(model, caplog, monkeypatch):
    compiled, _ = staged(model, caplog, strict=True)
    x, real = torch.randn(1, 3, 6, 7), stage_backend.stage_module

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with torch.no_grad():
        compiled(x)
        model.wide.weight.mul_(-3.0)
        monkeypatch.setattr(stage_backend, "stage_module", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled(x)
        monkeypatch.setattr(stage_backend, "stage_module", real)
        near(compiled(x), model(x))


@pytest.mark.parametrize("outer", ["inductor", "aot_eager", "downset"])
@pytest.mark.parametrize("form", ["compiled", "module"])
def test_a_call_inside_another_compiled_module(model, caplog, recwarn, form, outer):
    inner = staged(model, caplog, strict=True)[0] if form == "compiled" else module_of(model)
    whole = nn.Sequential(nn.Identity(), inner, nn.Tanh()).eval()
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        compiled = torch.compile(whole, backend=outer, options=QUICK if outer == "downset" else None)
        for value in (x, 2 * x):
            near(compiled(value), model(value).tanh())
    assert not [one for one in recwarn if "Dynamo" in str(one.message)]  # it is not traced into


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Embedding(5, 4), nn.Embedding(5, 4)

    def forward(self, index, x):
        return self.one(index) * x + self.two(index).sin() * x.cos()


def test_a_call_behind_one_that_failed(caplog):
    model, x = Picks().eval(), torch.randn(3, 4)
    compiled, _ = staged(model, caplog, strict=True)
    right, wrong = torch.tensor([0, 4, 2]), torch.tensor([0, 7, 2])
    with torch.no_grad():
        near(compiled(right, x), model(right, x))
        for _ in range(3):
            with pytest.raises(UnsupportedError, match="cannot be computed: index out of range"):
                compiled(wrong, x)
            near(compiled(right, x), model(right, x))


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_the_caller(model, caplog, first):
    compiled, _ = staged(model, caplog)
    x = torch.randn(1, 3, 6, 7)
    for mode in (first, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            ours, theirs = compiled(x), model(x)
        near(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad and ours.is_inference() == theirs.is_inference()


def test_weights_made_in_inference_mode_go_to_pytorch(caplog):
    with torch.inference_mode():
        model, x = Branches().eval(), torch.randn(1, 3, 6, 7)
        compiled, told = staged(model, caplog)
        for _ in range(2):
            near(compiled(x), model(x))
            model.wide.weight.mul_(2)
    assert "a weight was made in inference mode" in told()[0]


def test_two_shapes_in_turn(model, caplog):
    compiled, told = staged(model, caplog, strict=True)
    with torch.no_grad():
        for shape in 3 * [(1, 3, 6, 7), (2, 3, 5, 5)]:
            x = torch.randn(shape)
            near(compiled(x), model(x))
    assert told() == []


def test_copies_and_pickles(model, caplog):
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        expected = model(x)
        module = module_of(model)
        compiled, _ = staged(model, caplog, strict=True)
        near(compiled(x), expected)
        for _ in range(2):  # before and behind a call
            for again in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
                near(again(x), expected)
                again.close()
            near(module(x), expected)
        other = copy.deepcopy(compiled)
        other._orig_mod.wide.weight.mul_(3.0)
        near(other(x), other._orig_mod(x))
        near(compiled(x), expected)
        near(pickle.loads(pickle.dumps(compiled))(x), expected)
    made, arguments = module.__reduce__()
    program, plan, device, views = arguments
    with pytest.raises(InvalidPlan, match="was made for device"):
        made(program, plan, ds.open_device("cpu", threads=device.threads + 1), views)


def test_state_that_is_loaded_is_seen(model, caplog):
    compiled, told = staged(model, caplog, strict=True)
    x = torch.randn(1, 3, 6, 7)

    def state():
        return {name: torch.rand_like(value.float()).to(value.dtype) for name, value in model.state_dict().items()}

    with torch.no_grad():
        for load in (
            lambda: None,
            lambda: model.load_state_dict(state()),
            lambda: model.load_state_dict(state(), assign=True),
            lambda: compiled.load_state_dict({f"_orig_mod.{name}": value for name, value in state().items()}),
            lambda: setattr(model.narrow, "weight", nn.Parameter(torch.randn(4, 3, 1, 1))),
        ):
            load()
            near(compiled(x), model(x))
    with torch.inference_mode():
        model.wide.weight.mul_(1.5)
        near(compiled(x), model(x))
    assert told() == []


class Statistics(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x):
        return self.compute(x, self.mean, self.var)


WRITING = {
    "batch norm": lambda x, mean, var: functional.batch_norm(x, mean, var, training=True),
    "instance norm": lambda x, mean, var: functional.instance_norm(x, mean, var, use_input_stats=True),
    "by keywords": lambda x, mean, var: torch.ops.aten.batch_norm.default(
        x, None, None, running_mean=mean, running_var=var, training=True, momentum=0.1, eps=1e-5, cudnn_enabled=False
    ),
    "native": lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0],
}


@pytest.mark.parametrize("name", WRITING)
def test_a_norm_that_writes_its_running_statistics_goes_to_pytorch(caplog, name):
    model = Statistics(WRITING[name])
    reference = copy.deepcopy(model)
    compiled, told = staged(model, caplog)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 4, 4)
            near(compiled(x), reference(x))
            near(dict(model.named_buffers()), dict(reference.named_buffers()))
    assert told()
    with pytest.raises(UnsupportedError):
        module_of(Statistics(WRITING[name]), (2, 3, 4, 4))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_a_norm_that_tracks_nothing_runs_by_stages_in_training(caplog, norm):
    model = norm(3, track_running_stats=False).train()
    compiled, told = staged(model, caplog, strict=True)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, 4, 4)
            near(compiled(x), model(x))
    assert told() == []


COMPLEX = {
    "through": (lambda z: (z * 2 + z, z.clone(), z[1:], z), True),
    "mixed": (lambda z: (z * torch.ones(4), z.abs()), True),
    "spectrum": (lambda z: (torch.fft.fft(z),), False),
    "parts": (lambda z: (torch.view_as_real(z.resolve_conj()), z.conj() * 2), False),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_outputs(caplog, name):
    function, runs = COMPLEX[name]
    compiled, told = staged(function, caplog)
    with torch.no_grad():
        for _ in range(2):
            z = torch.randn(4, dtype=torch.complex64)
            for given in (z, z.conj(), z.resolve_conj()):
                for one, other in zip(compiled(given), function(given), strict=True):
                    near(one.resolve_conj(), other.resolve_conj())
                    assert one.dtype == other.dtype
    assert not told() if runs else told()


FACTORIES = {
    "positions": lambda x: x + functional.embedding(torch.arange(3), torch.eye(5, 4)),
    "mask": lambda x: (x @ x.t()).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -9.0).softmax(-1),
    "joined": lambda x: torch.cat([x, torch.zeros(3, 1), torch.full((3, 2), 0.5)], 1).relu(),
    "like": lambda x: x.relu() + torch.ones_like(x) - x.new_full((4,), 2.0),
    "returned": lambda x: (x + 1, torch.zeros(3), torch.arange(5), torch.full((2,), True)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_run_by_stages(caplog, name):
    function = FACTORIES[name]
    compiled, told = staged(function, caplog, strict=True)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(3, 4)
            ours, theirs = compiled(x), function(x)
            if isinstance(ours, torch.Tensor):
                ours, theirs = (ours,), (theirs,)
            for one, other in zip(ours, theirs, strict=True):
                near(one, other)
                one.zero_()  # a caller may write to what it got
    assert told() == []


def test_values_of_numbers_alone_are_for_their_batch():
    """A factory may make as many values as there are inputs, which its arguments do not tell."""
    model = nn.Identity()
    model.forward = lambda x: x + torch.arange(x.shape[0])[:, None]
    program = torch.export.export(model, (torch.randn(1, 4),))
    graph = load_exported(program)
    prepare(graph)
    with pytest.raises(UnsupportedError, match=r"makes its values of numbers alone, which may be for batch 1 only"):
        prepare(graph, batch=8)
