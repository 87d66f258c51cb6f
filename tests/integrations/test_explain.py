"""What `explain` says of a step's peak is what PyTorch's own profiler measures, and it changes nothing."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import downset as ds
from experiments.inductor.measure import peak_bytes

pytestmark = pytest.mark.xdist_group("inductor")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 300), nn.Linear(300, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(torch.tanh(self.first(x)).square())


@pytest.mark.parametrize("rows", [2, 400])
@pytest.mark.parametrize("updating", [False, True])
def test_the_peak_is_that_of_the_profiler(rows, updating):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters()) if updating else None
    before = copy.deepcopy(model.state_dict())
    batch = (torch.randn(rows, 8), torch.randn(rows, 4))
    report = ds.inductor.explain(model, batch, functional.mse_loss, optimizer)
    torch.testing.assert_close(model.state_dict(), before)
    assert model.calls == 0
    assert optimizer is None or not optimizer.state

    def step():
        loss = functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad()

    step()
    assert abs(report.peak_bytes - peak_bytes(step)) <= 64  # numbers inside the optimiser's operators
    assert sum(of.nbytes for of in report.modules) == report.peak_bytes
    names = {of.module for of in report.modules}
    assert names <= {"", "first", "last", *(f"gradient of {name}" for name, _ in model.named_parameters())}
    if rows == 400:  # what `tanh` and `square` make belongs to the module that calls them
        held = {(of.module, of.kind, of.part): of.nbytes for of in report.modules}
        assert held["", "Net: tanh", "forward"] == 400 * 300 * 4  # outside of modules by operator
    else:
        assert "gradient of first.weight" in names
    assert "Peak of a training step" in ds.report(report).page()
    assert f"peak {report.peak_bytes:,} B at" in str(report)


def test_a_model_that_returns_its_loss_needs_no_function():
    class Own(Net):
        def forward(self, x, labels):
            made = super().forward(x)
            return {"loss": functional.mse_loss(made, labels)}["loss"]

    torch.manual_seed(0)
    x, y = torch.randn(4, 8), torch.randn(4, 4)
    told = ds.inductor.explain(Own(), {"x": x, "labels": y})
    assert told.peak_bytes == ds.inductor.explain(Net(), (x, y), functional.mse_loss).peak_bytes
    with pytest.raises(ds.UsageError, match="explain finds no loss: give loss_fn"):
        ds.inductor.explain(Net(), x)
