"""Within a limit no batch runs by a plan for a smaller one, however batches vary, and few plans are made."""

import copy
import random
import re
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import downset as ds
from downset.integrations.planned_sizes import PlannedSizes
from experiments.inductor.measure import peak_bytes

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

COMPILE = torch.compile


class Divided(nn.Linear):
    """With a place that no graph holds, so that a step has three."""

    def forward(self, x):
        hidden = super().forward(x)
        torch._dynamo.graph_break()
        return hidden * 2


class Layers(nn.Module):
    """Of more bytes than a bucket has."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)


def elements(tensor):
    count = tensor.numel()
    return count if isinstance(count, int) else count.node.hint


@pytest.fixture
def calls(monkeypatch):
    """[the graph of each call, (elements that it was compiled for, elements at hand) by tensor]; no code is made."""
    seen = []

    def compile_(function, *, options, fullgraph=False):
        del options

        def backend(graph, inputs):
            inner = torch._dynamo.backends.debugging.aot_eager(graph, inputs)
            planned = [elements(of) for of in inputs if isinstance(of, torch.Tensor)]

            def call(*given):
                held = [of.numel() for of in given if isinstance(of, torch.Tensor)]
                seen.append((graph, list(zip(planned, held, strict=True))))
                return inner(*given)

            return call

        return COMPILE(function, fullgraph=fullgraph, backend=backend)

    monkeypatch.setattr(torch, "compile", compile_)
    return seen


@pytest.mark.parametrize(
    ("lengths", "most"), [((4, 8, 16, 6, 16, 5, 4), 3), ((16, 8, 16, 4, 6), 2), ((4, 16, 8, 2), 2)]
)
@pytest.mark.parametrize(("kind", "graphs"), [(nn.Linear, 1), (Divided, 3)])
def test_no_batch_runs_by_the_plan_of_a_smaller_one(kind, graphs, lengths, most, calls):
    torch.manual_seed(0)
    model = kind(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, peak_bytes=4_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the place without a graph
        for length in lengths:
            x = torch.randn(length, 3)
            with torch.no_grad():
                expected = functional.mse_loss(model(x), x[:, :2])
            torch.testing.assert_close(step(x, x[:, :2].clone()), expected)
    assert all(held <= planned for _, pairs in calls for planned, held in pairs)
    assert len({id(graph) for graph, _ in calls}) <= most * graphs


def test_a_step_that_updates_other_parameters_remembers_no_choices_of_the_one_before(calls):
    """Passes remember what fused kernels held, so that a compile after it takes less: of that graph alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ds.inductor.compile_step(model, functional.mse_loss, optimizer, peak_bytes=4_000_000)
    made, options = [], step._options

    def kept():
        made.append(options())
        return made[-1]

    step._options = kept
    x = torch.randn(4, 3)
    for trained, count in ((True, 1), (True, 1), (False, 2), (True, 3)):
        model[0].requires_grad_(trained)
        optimizer.zero_grad()
        step(x, x[:, :2].clone())
        assert len(made) == count, step.fallback
    assert len(set(map(id, made))) == len(made) == 3


def test_plans_stay_few_and_hold_for_what_they_run():
    """Against all pairs: a plan runs a batch only if that is no larger in any size."""
    generator = random.Random(0)
    for _ in range(50):
        planned, made = PlannedSizes(1), {}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(60):
                batch, length = generator.choice((2, 4)), generator.randrange(1, 100)
                number = planned.plan_of((torch.empty(batch, length), (torch.empty(batch),)))
                of = made.setdefault(number, (batch, length))
                assert told or (batch <= of[0] and length <= of[1])
        assert len(made) <= 8
        assert len(told) <= 1


def test_batches_of_another_form_have_plans_of_their_own():
    planned = PlannedSizes(1)
    batches = [{"a": torch.empty(8)}, {"b": torch.empty(8)}, torch.empty(8), torch.empty(8, dtype=torch.int64)]
    assert [planned.plan_of(batch) for batch in batches] == [0, 1, 2, 3]
    assert [planned.plan_of(batch) for batch in reversed(batches)] == [3, 2, 1, 0]
    assert PlannedSizes(None).plan_of(torch.empty(9)) == 0


@pytest.mark.parametrize("limit", [1_000, 10_000_000])
def test_a_step_in_graphs_that_holds_more_than_its_limit_says_once_what_it_holds(limit, calls):
    """Against the profiler's own sums; a limit that the step keeps to is not spoken of."""
    torch.manual_seed(0)
    model = Divided(3, 2)
    step = ds.inductor.compile_step(model, functional.mse_loss, torch.optim.AdamW(model.parameters()), peak_bytes=limit)
    x, y = torch.randn(500, 3), torch.randn(500, 2)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(4):
            step(x, y)
    assert calls
    peak = peak_bytes(lambda: step(x, y))
    told = [re.search(r"was measured to hold ([\d,]+) B", str(of.message)) for of in heard]
    said = [int(found[1].replace(",", "")) for found in told if found]
    assert said == ([pytest.approx(peak, rel=0.02)] if peak > limit else [])
    assert (peak > limit) is (limit == 1_000)


@pytest.mark.parametrize("limit", [None, 40_000_000])
def test_within_a_limit_buckets_of_gradients_divide_no_graph(limit, calls):
    """Ranks still meet in hooks, and train as without a compiler."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        layers = Layers()
        both = (copy.deepcopy(layers), layers)
        plain, model = (nn.parallel.DistributedDataParallel(of, bucket_cap_mb=1) for of in both)
        optimizers = [torch.optim.SGD(of.parameters(), lr=0.1) for of in (plain, model)]
        x, y = torch.randn(4, 512), torch.randn(4, 512)
        with pytest.warns(UserWarning, match="DistributedDataParallel"):
            step = ds.inductor.compile_step(model, functional.mse_loss, optimizers[1], peak_bytes=limit)
        for _ in range(2):
            loss = functional.mse_loss(plain(x), y)
            loss.backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            torch.testing.assert_close(step(x, y), loss.detach())
    finally:
        dist.destroy_process_group()
    graphs = len({id(graph) for graph, _ in calls})
    assert graphs > 2 if limit is None else graphs == 2  # the model, and the loss behind its hooks
