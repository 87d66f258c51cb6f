"""Tags on a captured step: PyTorch's own pass makes the copies, results stay equal, and the step holds less."""

import pytest
import torch
from torch import nn
from torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass import (
    remat_using_tags_for_fwd_loss_bwd_graph,
)
from torch.fx.experimental.proxy_tensor import make_fx

import downset as ds
from experiments.inductor.measure import peak_bytes

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


def captured():
    """A step of several layers as a graph of (loss, gradients), with its backward pass marked; and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.GELU())))
    parameters = [parameter.detach().requires_grad_() for parameter in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    x = torch.randn(512, 32)

    def step(x, *parameters):
        loss = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,)).square().mean()
        return loss, *torch.autograd.grad(loss, parameters)

    graph = make_fx(step, tracing_mode="fake")(x, *parameters)
    nodes = [*graph.graph.nodes]
    first = next(number for number, node in enumerate(nodes) if "ones_like" in str(node.target))
    for node in nodes[first:-1]:
        node.meta["autograd_backward"] = True
    return graph, (x, *(parameter.detach() for parameter in parameters))


def test_pytorchs_pass_takes_the_tags_and_the_step_holds_less():
    graph, inputs = captured()
    expected = graph(*inputs)
    before = peak_bytes(lambda: graph(*inputs)[0])
    limit = before * 6 // 10
    assert ds.inductor.memory_policy(limit)(graph, config=object()) is graph
    policies = {str(node.meta["recompute"]) for node in graph.graph.nodes if "recompute" in node.meta}
    assert policies == {"CheckpointPolicy.MUST_SAVE", "CheckpointPolicy.MUST_RECOMPUTE"}
    less = remat_using_tags_for_fwd_loss_bwd_graph(graph)
    torch.testing.assert_close(less(*inputs), expected)
    assert peak_bytes(lambda: less(*inputs)[0]) < 0.8 * before


def test_a_limit_that_nothing_keeps_to_is_told_and_one_that_is_no_number_refused():
    graph, _ = captured()
    with pytest.warns(UserWarning, match="finds no choice within 1 B; the least of those tried takes") as told:
        ds.inductor.memory_policy(1)(graph)
    assert told[0].filename == __file__
    with pytest.raises(ds.UsageError, match="peak_bytes is '4GB'"):
        ds.inductor.memory_policy("4GB")
