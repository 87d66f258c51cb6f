"""`torch.compile(model, backend=stage_backend)` computes what eager PyTorch computes: by stages, or as PyTorch compiles
what stages do not run."""

import gc
import logging
import threading
from importlib.metadata import entry_points

import pytest
import torch
from torch import nn

import downset as ds
from downset.errors import UnsupportedError, UsageError

QUICK = {"limits": ds.StageLimits(timings=4), "runs": 1}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.register_buffer("offset", torch.ones(1))

    def forward(self, x, factor):
        both = self.norm(self.wide(x)).relu(), nn.functional.silu(self.narrow(x))[:, :, 1:-1] * 0.5
        return {"sum": both[0] + self.offset * factor, "part": both[1], "same": x, "number": 3}


def staged(model, caplog, **options):
    """The model compiled by the backend, and a function that tells the lines that it logged since the last call."""
    compiled = torch.compile(model, backend=ds.stage_backend, dynamic=False, options={**QUICK, **options})
    caplog.set_level(logging.WARNING, "downset")

    def told():
        lines = [record.getMessage() for record in caplog.records if record.name == "downset"]
        caplog.clear()
        return lines

    return compiled, told


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            within = 2e-2 if value.dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(ours[name], value, rtol=within, atol=within / 10)
            assert ours[name].stride() == value.stride()
        else:
            assert ours[name] == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_of_inference_runs_by_stages(caplog, dtype):
    torch.manual_seed(0)
    model = Branches().eval().to(dtype)
    compiled, told = staged(model, caplog, strict=True)
    with torch.no_grad():
        for factor in (2.0, 3.0, 2.0):
            x = torch.randn(1, 3, 6, 7, dtype=dtype)
            same(compiled(x, factor), model(x, factor))
    assert told() == []


def test_weights_that_change_are_read_again(caplog):
    model = Branches().eval()
    compiled, told = staged(model, caplog, strict=True)
    x = torch.randn(1, 3, 6, 7)
    with torch.no_grad():
        before = compiled(x, 1.0)
        for change in (
            lambda: model.wide.weight.mul_(-2.0),
            lambda: model.norm.running_mean.add_(0.5),
            lambda: model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()}),
            lambda: setattr(model.narrow.weight, "data", torch.randn_like(model.narrow.weight)),
        ):
            change()
            after = compiled(x, 1.0)
            same(after, model(x, 1.0))
            assert not all(torch.equal(after[name], before[name]) for name in ("sum", "part"))
            before = after
    assert told() == []


def dropped(x):
    return nn.functional.dropout(x, training=True) + 1


def counted(x):
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (dropped, "no kernel for operator 'dropout'"),
        (counted, "no kernel for operator 'add_'"),
        (lambda x: x + torch.rand_like(x), "no kernel for operator 'rand_like'"),
    ],
)
def test_what_stages_do_not_run_is_compiled_by_pytorch_and_named(caplog, function, why):
    compiled, told = staged(function, caplog)
    x = torch.randn(2, 5)
    with torch.no_grad():
        mine, theirs = x.clone(), x.clone()
        torch.manual_seed(1)
        ours = compiled(mine)
        torch.manual_seed(1)
        expected = function(theirs)
    assert ours.shape == expected.shape
    if function is counted:
        assert torch.equal(ours, expected)
        assert torch.equal(mine, theirs)
    (line,) = told()
    assert line.startswith("PyTorch compiles a graph of ")
    assert why in line
    strict = torch.compile(function, backend=ds.stage_backend, options={**QUICK, "strict": True})
    with torch.no_grad(), pytest.raises(Exception, match="stages do not run this graph"):
        strict(x)


def test_gradients_and_open_sizes_go_to_pytorch(caplog):
    model = nn.Linear(3, 2)
    compiled, told = staged(model, caplog)
    compiled(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None
    assert "it computes gradients" in told()[0]
    opened = torch.compile(nn.ReLU(), backend=ds.stage_backend, dynamic=True, options=QUICK)
    with torch.no_grad():
        for count in (3, 4, 5):
            assert opened(torch.ones(count, 2)).shape == (count, 2)
    assert all("not fixed; compile with dynamic=False" in line for line in told())


def test_a_wrong_option_is_one_line():
    with pytest.raises(UsageError, match="backend downset has no option 'timings'; it has limits, runs, views, strict"):
        ds.stage_backend(None, [], options={"timings": 3})


def test_tensors_of_other_devices_are_named():
    with pytest.raises(UnsupportedError, match="its tensors lie on cpu, meta; stages run on one device: "):
        ds.stage_backend(None, [torch.ones(1), torch.ones(1, device="meta")], options={"strict": True})


def test_lanes_end_with_the_compiled_function(caplog):
    model = Branches().eval()
    before = threading.active_count()
    compiled, _ = staged(model, caplog, strict=True)
    with torch.no_grad():
        compiled(torch.randn(1, 3, 6, 7), 1.0)
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert threading.active_count() <= before


def test_pytorch_finds_it_by_its_name():
    (found,) = entry_points(group="torch_dynamo_backends", name="downset")
    assert found.load() is ds.stage_backend


Y = torch.arange(12.0).reshape(3, 4)
IMAGE = torch.arange(48.0).reshape(1, 2, 4, 6)
LAST = torch.channels_last
IN_MEMORY = {
    "views of an input": (lambda x: (x[1], x.t(), x.view(-1)[3:], x + 1, x.expand(2, 3, 4)), Y),
    "copies": (lambda x: (x.clone(), x.to(torch.float32, copy=True), torch.cat([x]), x * 1, x.contiguous()), Y),
    "views of a result": (lambda x: (lambda y: (y[1:], y.t(), y.clone(), y[0], y.view(-1)))(x + 1), Y),
    "halves": (lambda x: (*(x + 1).split(2, 1), (x + 2)[:, :1].expand(3, 5)), Y),
    "channels last": (lambda x: (nn.functional.max_pool2d(x, 2), x * 2), IMAGE.contiguous(memory_format=LAST)),
    "another layout": (lambda x: (x.permute(0, 2, 3, 1), (x * 2).permute(0, 2, 3, 1)), IMAGE),
    "a part": (lambda x: (x.relu(), x[:, 1:]), torch.randn(2, 5, 4, 6)[:, 1:4, ::2]),
    "nothing": (lambda x: (x[:0], x[:0] + 1, x + 1), Y),
}


def sharing(inputs, outputs):
    """By output: the tensors with whose memory it shares, and where in it it lies."""
    tensors = [*inputs, *outputs]
    return [
        [
            (place, output.storage_offset() - other.storage_offset())
            for place, other in enumerate(tensors)
            if other.numel()
            and output.numel()
            and other.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
        ]
        for output in outputs
    ]


@pytest.mark.parametrize("name", IN_MEMORY)
def test_outputs_lie_in_memory_as_those_of_eager_pytorch(caplog, name):
    function, x = IN_MEMORY[name]
    compiled, told = staged(function, caplog, strict=True)
    with torch.no_grad():
        for given in (x, x.clone(memory_format=torch.preserve_format)):
            ours, theirs = compiled(given), function(given)
            for one, other in zip(ours, theirs, strict=True):
                assert torch.equal(one, other) and (one.stride() == other.stride() or not one.numel())
            assert sharing([given], ours) == sharing([given], theirs)
    assert told() == []


def test_a_view_of_a_weight_goes_to_pytorch(caplog):
    model = nn.Linear(3, 2)
    model.forward = lambda x: (model.weight.t(), x @ model.weight.t())
    compiled, told = staged(model, caplog)
    with torch.no_grad():
        first, _ = compiled(torch.ones(1, 3))
    assert "it returns a view of a weight" in told()[0]
    assert first.untyped_storage().data_ptr() == model.weight.untyped_storage().data_ptr()


def test_autocast_goes_to_pytorch(caplog):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    compiled, told = staged(model, caplog)
    x = torch.randn(5, 8)
    with torch.no_grad():
        for auto, within in ((False, 1e-6), (True, 2e-2), (False, 1e-6)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=auto):
                ours, theirs = compiled(x), model(x)
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=within, atol=within)
    (line,) = told()
    assert "autocast is on" in line
