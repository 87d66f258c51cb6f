"""A wide layer and its loss in chunks of rows: the loss and every gradient of eager PyTorch, up to rounding."""

import random
from itertools import pairwise

import pytest
import torch
from torch._inductor import config
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.exc import InductorError
from torch._inductor.fx_passes.post_grad import remove_noop_ops
from torch._inductor.graph import GraphLowering
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from downset.integrations.chunk_pass import CHUNK, chunk_rows, operators
from downset.integrations.order_pass import order_options
from downset.integrations.recompute_pass import recompute_options
from downset.integrations.row_region import row_regions
from tests.effort import LONG

WORDS, WIDTH = 96, 8


def random_loss(chooser):
    """A loss of logits and targets, with options that matter to chunks: one denominator over all rows, weights,
    targets that are ignored, sums over the words."""
    options = {"reduction": chooser.choice(["mean", "sum"]), "label_smoothing": chooser.choice([0.0, 0.1])}
    weighted = chooser.random() < 0.5
    normaliser = chooser.choice([0.0, 1e-2])
    cap = chooser.choice([0.0, 5.0])

    def loss(logits, targets, shares):
        logits = logits.float()
        logits = cap * torch.tanh(logits / cap) if cap else logits
        weight = shares if weighted else None
        plain = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), weight, **options)
        return plain + normaliser * logits.logsumexp(-1).square().mean() if normaliser else plain

    return loss


def gradients_of(loss, dtype):
    def step(x, weight, bias, *others):
        leaves = [of.detach().requires_grad_() for of in (x, weight, *([bias] if bias is not None else []))]
        low = [of.to(dtype) for of in leaves]
        logits = functional.linear(low[0].tanh(), low[1], low[2] if len(low) > 2 else None)
        value = loss(logits, *others)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return step


def batch(chooser):
    generator = torch.Generator().manual_seed(chooser.randrange(999))
    lead = chooser.choice([(67,), (3, 23)])
    x = torch.randn(*lead, WIDTH, generator=generator)
    weight = torch.randn(WORDS, WIDTH, generator=generator)
    bias = torch.randn(WORDS, generator=generator) if chooser.random() < 0.7 else None
    targets = torch.randint(0, WORDS, lead, generator=generator)
    targets.view(-1)[chooser.sample(range(targets.numel()), 9)] = -100
    return x, weight, bias, targets, torch.rand(WORDS, generator=generator)


def traced_step(step, arguments):
    graph = make_fx(step, decomposition_table=select_decomp_table(), tracing_mode="fake")(*arguments)
    remove_noop_ops(graph.graph)
    graph.graph.eliminate_dead_code()
    return graph


@pytest.mark.parametrize("seed", range(40 if LONG else 4))
def test_chunks_give_the_loss_and_gradients_of_eager(seed):
    chooser = random.Random(seed)
    dtype = torch.bfloat16 if seed % 4 == 3 else torch.float32
    loss, arguments = random_loss(chooser), batch(chooser)
    step = gradients_of(loss, dtype)
    graph = traced_step(step, arguments)
    (region,) = row_regions(graph.graph)
    count = chooser.choice([2, 3, 7])
    chunk_rows(graph.graph, region, count)
    graph.recompile()
    assert {node.meta[CHUNK][1] for node in graph.graph.nodes if CHUNK in node.meta} == {*range(count)}
    largest = max(node.meta["val"].numel() for node in graph.graph.nodes if CHUNK in node.meta)
    assert largest <= max(-(-region.rows // count) * WORDS, WORDS * WIDTH)
    sums = [node for node in graph.graph.nodes if node.target is operators().add_product.default]
    assert all(node.args[0].meta["val"].dtype == torch.float32 for node in sums)
    assert dtype is torch.float32 or len(sums) == count
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for ours, theirs in zip(graph(*arguments), step(*arguments), strict=True):
        torch.testing.assert_close(ours, theirs, **near)


@pytest.mark.parametrize("layers", [1, 2])
def test_chunks_read_weights_before_updates_write_them(layers):
    """Every layer is wide and is updated in the graph: one whose update came first would give other gradients below."""

    def step(x, targets, rate, *weights):
        leaves = [of.detach().requires_grad_() for of in weights]
        made = x
        for up, down in pairwise(leaves):
            made = made + functional.gelu(made @ up).tanh() @ down if up.shape[0] == WIDTH else made
        loss = functional.mse_loss(made, targets)
        for weight, gradient in zip(weights, torch.autograd.grad(loss, leaves), strict=True):
            weight.copy_(weight - rate * gradient)
        return (loss.detach(),)

    def arguments():
        generator = torch.Generator().manual_seed(layers)
        shapes = [(WIDTH, WORDS), (WORDS, WIDTH)] * layers
        made = [torch.randn(*shape, generator=generator) for shape in [(67, WIDTH), (67, WIDTH)]]
        return *made, torch.tensor(1.0), *(0.3 * torch.randn(*shape, generator=generator) for shape in shapes)

    graph = traced_step(step, arguments())
    regions = list(row_regions(graph.graph))
    assert len(regions) >= layers
    for region in regions:
        chunk_rows(graph.graph, region, 3)
    graph.recompile()
    ours, theirs = arguments(), arguments()
    assert torch.allclose(*graph(*ours), *step(*theirs))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_sums_of_narrow_types_are_in_float32():
    """256 chunks that each add less than half of a step of bfloat16 to the first: in bfloat16 the sum would stay."""
    total = torch.ones(4, 4)
    for _ in range(256):
        total = operators().add_product(total, *(torch.full(shape, 2.0**-5).bfloat16() for shape in ((4, 1), (1, 4))))
    torch.testing.assert_close(total, torch.full((4, 4), 1.25))


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, targets, _: functional.cross_entropy(logits.flatten(0, -2), targets.flatten()).sqrt(),
        lambda logits, targets, _: functional.cross_entropy(logits.flatten(0, -2), targets.flatten()) + logits.std(),
        lambda logits, *_: logits.softmax(-2).square().sum(),
    ],
    ids=["a gradient that needs the whole loss", "a statistic of all logits", "a norm over rows"],
)
def test_a_loss_whose_rows_need_each_other_stays_whole(loss):
    graph = traced_step(gradients_of(loss, torch.float32), batch(random.Random(0)))
    assert list(row_regions(graph.graph)) == []


def test_chunks_of_equally_many_rows_share_their_kernels(monkeypatch):
    """More chunks compile no more C++: a kernel with the place of its chunk as a constant would be one for each."""

    def written(*_):
        raise RuntimeError("written")

    def kernels(count):
        graph = traced_step(step, arguments)
        (region,) = row_regions(graph.graph)
        chunk_rows(graph.graph, region, count)
        graph.recompile()
        found.clear()
        with config.patch(options), pytest.raises(InductorError, match="written"):
            compile_fx_inner(graph, arguments)
        return len(found), len({*found})

    options, check = recompute_options(1 << 40, choices=1, report=None, whole=True)
    options |= order_options(work_limit=100, report=None, check=check, limited=True) | {"force_disable_caches": True}
    del options["joint_custom_post_pass"]
    found, define = [], CppScheduling.define_kernel
    monkeypatch.setattr(CppScheduling, "define_kernel", lambda *given: found.append(given[1]) or define(*given))
    monkeypatch.setattr(GraphLowering, "_compile_to_module_lines", written)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator) for shape in [(64, WIDTH), (WORDS, WIDTH)])
    targets = torch.randint(0, WORDS, (64,), generator=generator)
    arguments = x, weight, None, targets, torch.ones(WORDS)
    step = gradients_of(lambda logits, targets, _: functional.cross_entropy(logits, targets), torch.float32)
    calls, few = kernels(4)
    more_calls, many = kernels(8)
    assert more_calls > calls
    assert many == few
