"""Within a limit a step holds the bytes that its report says, by the profiler, and trains as eager PyTorch does."""

import warnings

import pytest
import torch

import downset as ds
from experiments.inductor.measure import peak_bytes
from experiments.inductor.networks import GPT, language

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


def test_a_transformer_holds_what_its_report_says():
    """At the least peak: attention runs again, too."""
    cases = []
    for _ in range(2):
        torch.manual_seed(0)
        cases.append(language(GPT(512, 64, 2, 64), 512, 2, 64))
    mine, plain = cases
    reports = []
    optimizers = [torch.optim.AdamW(case.model.parameters(), lr=1e-3) for case in cases]
    step = ds.inductor.compile_step(mine.model, mine.loss_fn, optimizers[0], peak_bytes=1, report=reports.append)
    with warnings.catch_warnings(), torch._inductor.config.patch(force_disable_caches=True):
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        for _ in range(3):
            loss = plain.loss_fn(plain.model(plain.inputs), plain.targets)
            loss.backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
            torch.testing.assert_close(step(mine.inputs, mine.targets), loss.detach(), rtol=1e-4, atol=1e-5)
    assert step.fallback == ""
    again, order = reports
    assert any("attention" in operator.name for operator in again.operators)
    assert peak_bytes(lambda: step(mine.inputs, mine.targets)) == pytest.approx(order.peak_bytes, rel=0.02)
