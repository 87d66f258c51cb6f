"""Within a limit a whole step never holds more, once its kernels are fused, than one in which nothing runs again."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import downset as ds
from downset.integrations import recompute_pass, whole_step
from downset.integrations.fused_peak import NOTHING, PlanAgain, RecomputeSettings, check_free, check_peak
from experiments.inductor.networks import dlrm
from tests.fresh_graphs import fresh_graphs


class Enough(BaseException):
    """Ends a compile once its graph is ordered."""


def shipped(limit, plans):
    """(the plan that is compiled, the plans whose kernels are fused); `plans`: (estimated, fused) peaks by rising
    number of operators that run again, with falling estimates, as `recompute_pass` takes one of them for a target.
    Each adds a second to the one before."""
    settings = RecomputeSettings(limit, None, None, most_plans=4)
    taken = []
    while True:
        within = [number for number, (estimate, _) in enumerate(plans) if estimate <= settings.target()]
        taken.append(within[0] if within else len(plans) - 1)
        estimate, fused = plans[taken[-1]]
        settings.front[:] = [(of, float(number)) for number, (of, _) in enumerate(plans)]
        settings.taken = estimate, float(taken[-1])
        settings.none[:] = [plans[0][0]]
        if not within:
            settings.not_within.append(estimate)
        try:
            check_peak(settings, fused, last=True)
        except PlanAgain:
            continue
        return taken[-1], taken


peaks = st.integers(1, 100)


@given(peaks, st.lists(peaks, min_size=1, max_size=8, unique=True), st.data())
def test_the_plan_that_stays_is_the_best_of_those_that_were_tried(limit, estimates, data):
    """For any peaks of fused kernels, as long as the estimate of the step in which nothing runs again is not above what
    that step holds: within the limit it runs least again, and above it, it holds no more than any other."""
    estimates.sort(reverse=True)
    fused = [data.draw(st.integers(estimates[0], 200)), *(data.draw(st.integers(0, 200)) for _ in estimates[1:])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stays, tried = shipped(limit, [*zip(estimates, fused, strict=True)])
    within = [plan for plan in tried if fused[plan] <= limit]
    if within:
        assert stays == min(within)
    else:
        assert fused[stays] <= fused[0]
        assert fused[stays] == min(fused[plan] for plan in tried)
    assert len(tried) <= 6


def test_a_plan_that_holds_what_it_says_is_compiled_once():
    """Also where it is above the limit: a compile until kernels are fused takes long."""
    assert shipped(10, [(100, 110), (60, 61)]) == (1, [1])
    assert shipped(100, [(200, 200), (95, 95)]) == (1, [1])


def test_a_plan_far_below_the_limit_is_replaced_by_one_that_runs_less_again():
    """Kernels that fuse hold half of what was told before."""
    plans = [(400, 200), (180, 90), (150, 75), (100, 50)]
    assert shipped(100, plans) == (1, [3, 1])
    assert shipped(100, [*plans[:2], (150, 75), (100, 95)]) == (3, [3])
    assert shipped(100, [(400, 200), (180, 105), *plans[2:]]) == (3, [3, 1, 3])


@given(peaks, peaks, st.integers(0, 200))
def test_without_a_limit_running_again_what_then_holds_more_is_compared_with_running_nothing(none, fused, again):
    """`none`: the estimate of the step in which nothing runs again; `fused`: its peak; `again`: that of the other."""
    settings, taken = RecomputeSettings(None, None, None), []
    while True:
        taken.append(settings.target() == NOTHING)
        settings.none[:] = [none]
        try:
            check_free(settings, fused if taken[-1] else again, last=True)
        except PlanAgain:
            continue
        break
    assert taken == ([False] if again <= none else [False, True] if fused <= again else [False, True, False])


@pytest.mark.native
@pytest.mark.xdist_group("inductor")
def test_a_copy_that_makes_shared_calls_hold_more_is_not_taken_without_a_limit(monkeypatch):
    """Tables and a few products: what two operators that run again save is less than what their calls hold then. Each
    size of a batch is planned by itself."""
    held = []

    def told(settings, peak, *, last):
        held.append(peak)
        check_free(settings, peak, last=last)

    def report(_):
        raise Enough

    monkeypatch.setattr(recompute_pass, "check_free", told)
    torch.manual_seed(0)
    case = dlrm(6)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    step = ds.inductor.compile_step(case.model, case.loss_fn, optimizer, report=report)
    torch._dynamo.reset()
    for batch in (128, 256):
        held.clear()
        with fresh_graphs(), pytest.raises(Enough):
            step(tuple(of[:batch] for of in case.inputs), case.targets[:batch])
        assert len(held) == 2
        assert held[1] < 0.9 * held[0]


def test_the_warning_says_that_nothing_runs_again():
    with pytest.warns(UserWarning, match="peaks at 105 B .* it runs nothing again") as told:
        assert shipped(10, [(100, 105), (60, 130)]) == (0, [1, 0])
    assert len(told) == 1


@pytest.mark.native
@pytest.mark.xdist_group("inductor")
def test_a_copy_that_fuses_with_its_reader_is_not_taken(monkeypatch):
    """The copy of a ReLU and the gradient of that ReLU become one kernel, which holds five matrices where four would
    do without copies."""
    fused, chosen = {}, []

    def told(settings, peak, *, last):
        fused[settings.target()] = peak
        check_peak(settings, peak, last=last)

    def report(of):
        chosen.append(of)
        if isinstance(of, ds.inductor.OrderReport):
            raise Enough

    monkeypatch.setattr(recompute_pass, "check_peak", told)
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64, bias=False), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, peak_bytes=1, report=report)
    torch._dynamo.reset()
    uncached = fresh_graphs()
    with pytest.warns(UserWarning, match="nothing again"), uncached, pytest.raises(Enough):
        step(torch.randn(2048, 64), torch.randn(2048, 64))
    *_, again, order = chosen
    assert not again.operators
    assert order.peak_bytes == fused[NOTHING] < fused[1]


def in_two_graphs(limit, thirds, monkeypatch):
    """(the plans of a step as forward and backward graphs, the peaks of its graphs), where so many thirds of each peak
    are told."""
    peaks, told = [], []

    def other(settings, peak, *, last):
        peaks.append(peak * thirds // 3)
        check_peak(settings, peaks[-1], last=last)

    def report(of):
        told.append(of)
        if "backward" in getattr(of, "graph", ""):
            raise Enough

    monkeypatch.setattr(recompute_pass, "check_peak", other)
    monkeypatch.setattr(whole_step, "marks_backward", lambda: False)
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_fn(outputs, targets):
        return (outputs.reshape(1, -1) @ targets.reshape(-1, 1)).squeeze()

    with pytest.warns(UserWarning, match="as forward and backward graphs"):
        step = ds.inductor.compile_step(model, loss_fn, optimizer, peak_bytes=limit, report=report)
    torch._dynamo.reset()
    with fresh_graphs(), pytest.raises(Enough):
        step(torch.randn(256, 32), torch.randn(256, 32))
    return [of for of in told if isinstance(of, ds.inductor.RecomputeReport)], peaks


@pytest.mark.native
@pytest.mark.xdist_group("inductor")
def test_forward_and_backward_graphs_above_the_limit_are_planned_again(monkeypatch):
    limit = 290_000
    (first, second), peaks = in_two_graphs(limit, 4, monkeypatch)
    assert first.peak_bytes <= limit < peaks[1]
    assert second.peak_bytes < first.peak_bytes
    assert max(peaks[2:]) <= limit


@pytest.mark.native
@pytest.mark.xdist_group("inductor")
def test_forward_and_backward_graphs_far_below_the_limit_run_less_again(monkeypatch):
    limit = 190_000
    (first, second), peaks = in_two_graphs(limit, 2, monkeypatch)
    assert max(peaks[:2]) <= 0.9 * limit
    assert first.peak_bytes < second.peak_bytes
    assert first.cost_s > second.cost_s
    assert max(peaks[2:]) <= limit


def test_what_ran_in_front_of_a_graph_that_is_planned_again_is_put_back(monkeypatch):
    """Buffers, gradients and generators, however often it is planned: losses are those of plain PyTorch."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("batches", torch.zeros(()))

        def forward(self, x):
            self.batches += 1
            return self.layer(x + self.batches * torch.rand_like(x))

    ended = []

    def compiled(function, *, options):
        def call(*arguments):
            results = function(*arguments)
            if len(ended) < 3:
                ended.append(options)
                raise PlanAgain
            return results

        return call

    def losses(step_of):
        torch.manual_seed(0)
        model = Noisy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = step_of(model, optimizer)
        batches = [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(3)]
        return [step(*batch).item() for batch in batches], model.batches.item()

    def plain(model, optimizer):
        def step(inputs, targets):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    monkeypatch.setattr(whole_step, "marks_backward", lambda: False)
    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.warns(UserWarning, match="as forward and backward graphs"):
        ours = losses(lambda model, of: ds.inductor.compile_step(model, functional.mse_loss, of, peak_bytes=1 << 30))
    assert ours == losses(plain)
    assert len(ended) == 3 and all(options is ended[0] for options in ended)
