"""What a call of a captured program does, on a stand-in for torch.cuda: it waits for nothing, calls on several streams
come one after another, and inputs that are not finite are noted where that changes values.

`python -m experiments.ios.gpu_calls` holds the same on a GPU, where PyTorch raises at whatever waits."""

import warnings

import pytest
import torch
from torch import nn

import downset as ds
from downset.executor.arena import seeded_inputs
from downset.formats.reading import load
from downset.stages.prepared import prepare
from tests.cuda_stand_in import standing_in
from tests.executor.test_cuda_capture import all_at_once, engine_of, merged
from tests.integrations.test_stage_backend import IN_MEMORY, sharing
from tests.networks import branchy


@pytest.fixture
def stand_in(monkeypatch):
    with standing_in(monkeypatch) as made:
        yield made


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return torch.relu(self.wide(x)), self.narrow(x).mean((2, 3))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Branches().eval()


def staged(model, **options):
    program = torch.export.export(model, (torch.randn(1, 3, 6, 6),))
    return ds.stage_module(program, "cuda", limits=ds.StageLimits(timings=4), runs=1, **options)


def test_a_call_waits_for_nothing(tmp_path, stand_in):
    path = branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, all_at_once)
    values = [torch.from_numpy(value) for value in seeded_inputs(prepare(load(path)), seed=3)]
    waits, pinned = stand_in.waits, stand_in.pinned
    for _ in range(3):
        engine(values)
    assert stand_in.waits == waits
    assert stand_in.pinned == pinned + 3 * len(values)  # values in the CPU's memory may change behind the call
    assert not engine.met_nonfinite


def test_a_call_of_a_module_waits_for_nothing(model, stand_in):
    module = staged(model)
    x = torch.randn(1, 3, 6, 6)
    module(x)  # makes the engine
    waits = stand_in.waits
    results = [module(x * factor) for factor in (1.0, -1.0)]
    assert stand_in.waits == waits
    for factor, ours in zip((1.0, -1.0), results, strict=True):
        for one, other in zip(ours, model(x * factor), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()


def test_a_call_on_another_stream_comes_behind_the_call_before(tmp_path, stand_in):
    path = branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, all_at_once)
    values = [torch.from_numpy(value) for value in seeded_inputs(prepare(load(path)))]
    stand_in.tail.clear()
    engine(values)
    first = stand_in.tail[stand_in.default]
    other, copies = torch.cuda.Stream(), []

    def copied(position, value):
        copies.append(stand_in.add(stand_in.current))

    with torch.cuda.stream(other):
        engine(values, copied)
    assert first in stand_in.behind(copies[0])
    engine(values)
    assert copies[-1] in stand_in.behind(stand_in.tail[stand_in.default])


@pytest.mark.parametrize("where", ["copying in", "copying out"])
def test_a_call_comes_behind_one_that_failed_on_another_stream(tmp_path, stand_in, monkeypatch, where):
    path = branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, all_at_once)
    values = [torch.from_numpy(value) for value in seeded_inputs(prepare(load(path)))]
    expected, begun = [value.clone() for value in engine(values)], []

    def failing(*_):
        begun.append(stand_in.add(stand_in.current))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, torch.cuda.stream(torch.cuda.Stream()):
        if where == "copying in":
            patch.setattr(engine, "_bring", failing)
        with pytest.raises(KeyboardInterrupt):
            engine(values, failing)
    ours = engine(values)
    assert begun[0] in stand_in.behind(stand_in.tail[stand_in.default])
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_modes_and_gradients_of_the_caller_change_nothing(model, stand_in, device):
    program = torch.export.export(model, (torch.randn(1, 3, 6, 6),))
    module = ds.stage_module(program, device, limits=ds.StageLimits(timings=4), runs=1)
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        expected = model(x)
    modes = (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode)
    for mode in modes:
        with mode():
            ours = module(x.clone().requires_grad_(mode is torch.enable_grad))
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert not one.requires_grad
    module.close()


def test_outputs_are_views_on_request_alone(model, stand_in):
    x = torch.randn(1, 3, 6, 6)
    for views in (False, True):
        module = staged(model, views=views)
        first, second = module(x), module(2 * x)
        assert (first[1].data_ptr() == second[1].data_ptr()) == views


@pytest.mark.parametrize("name", IN_MEMORY)
def test_outputs_lie_in_memory_as_the_program_makes_them(stand_in, name):
    function, x = IN_MEMORY[name]
    model = nn.Identity()
    model.forward = function
    program = torch.export.export(model, (x,))
    module = ds.stage_module(program, "cuda", limits=ds.StageLimits(timings=4), runs=1)
    first, second, theirs = module(x), module(x), function(x)
    for one, later, other in zip(first, second, theirs, strict=True):
        assert torch.equal(one, other) and (one.stride() == other.stride() or not one.numel())
        assert torch.equal(later, other)
    assert sharing([x], first) == sharing([x], second) == sharing([x], theirs)
    given = x.untyped_storage().data_ptr()
    storages = [
        {one.untyped_storage().data_ptr() for one in outputs if one.numel()} - {given} for outputs in (first, second)
    ]
    assert not storages[0] & storages[1]  # a later call writes to no earlier result


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_of_the_caller_changes_nothing(stand_in, device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = torch.randn(5, 8)
    program = torch.export.export(model, (x,))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        module = ds.stage_module(program, device, limits=ds.StageLimits(timings=4), runs=1)
        ours = module(x)
    with torch.no_grad():
        torch.testing.assert_close(ours, model(x), rtol=1e-6, atol=1e-6)
    module.close()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite_are_noted_and_told(model, stand_in, broken):
    module = staged(model)
    x = torch.randn(1, 3, 6, 6)
    module(x)
    assert not module.met_nonfinite()
    x[0, 1, 2, 3] = broken
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x)
    assert module.met_nonfinite()
    with pytest.warns(RuntimeWarning, match="an earlier call had NaN or infinity among its inputs"):
        ours = module(x)
    for _ in range(2):
        for one, other in zip(ours, model(x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # told once
            ours = module(x)


def test_a_program_that_fuses_and_merges_nothing_watches_nothing(tmp_path, stand_in, monkeypatch):
    def no_engine(*_):
        raise RuntimeError("no engine for it")

    monkeypatch.setattr(torch, "cudnn_convolution_relu", no_engine)
    path = branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, all_at_once)
    assert engine._watch is None
    values = [torch.full_like(torch.from_numpy(value), float("nan")) for value in seeded_inputs(prepare(load(path)))]
    engine(values)
    assert not engine.met_nonfinite
    assert engine_of(path, merged)[0]._watch is not None
