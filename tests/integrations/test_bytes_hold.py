"""Within a limit a step holds the bytes that its report says, by the profiler, and trains as eager PyTorch does."""

import warnings

import pytest
import torch

import downset as ds
from downset.integrations import recompute_pass
from experiments.inductor.measure import peak_bytes
from experiments.inductor.networks import GPT, language
from tests.integrations.test_inductor_options import Scheduled

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


def test_a_transformer_holds_what_its_report_says():
    """At the least peak: attention runs again, too."""
    cases = []
    for _ in range(2):
        torch.manual_seed(0)
        cases.append(language(GPT(512, 64, 1, 64), 512, 2, 64))
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


def test_what_fused_kernels_hold_above_the_limit_is_planned_again(monkeypatch):
    """The peak of the fused graph is told as a third more than it is: plans get smaller until it is within the limit,
    and no kernel of an earlier plan is compiled."""
    check = recompute_pass._check_peak
    told, peaks = [], []

    def report(of):
        told.append(of)
        if isinstance(of, ds.inductor.OrderReport):
            raise Scheduled

    def higher(settings, peak):
        peaks.append(peak * 4 // 3)
        check(settings, peaks[-1])

    monkeypatch.setattr(recompute_pass, "_check_peak", higher)
    torch.manual_seed(0)
    case = language(GPT(512, 64, 1, 64), 512, 2, 64)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    limit = 1_400_000
    step = ds.inductor.compile_step(case.model, case.loss_fn, optimizer, peak_bytes=limit, report=report)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="Scheduled"), torch._inductor.config.patch(force_disable_caches=True):
        step(case.inputs, case.targets)  # falls back, because the report raises
    assert len(peaks) > 1
    assert all(peak > limit for peak in peaks[:-1])
    estimates = [of.peak_bytes for of in told if isinstance(of, ds.inductor.RecomputeReport)]
    assert len(estimates) == len(peaks) <= 4
    assert estimates == sorted(set(estimates), reverse=True)
    assert sum(isinstance(of, ds.inductor.OrderReport) for of in told) == 1


def test_convolutions_hold_what_the_report_says():
    """With what the library allocates inside them: without it the report is a fifth below."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(32, 8, 3, padding=1)]
    model = torch.nn.Sequential(*layers)
    inputs, targets = torch.randn(2, 3, 32, 32), torch.randn(2, 8, 32, 32)
    reports = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_fn = torch.nn.functional.mse_loss
    step = ds.inductor.compile_step(model, loss_fn, optimizer, peak_bytes=1, report=reports.append)
    with warnings.catch_warnings(), torch._inductor.config.patch(force_disable_caches=True):
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        step(inputs, targets)
    assert step.fallback == ""
    peak = peak_bytes(lambda: step(inputs, targets))
    assert peak == pytest.approx(reports[-1].peak_bytes, rel=0.02)
