"""`plan_step` plans graphs of PyTorch as data, and its tags make PyTorch's own partitioner do what was planned."""

import random

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_compiler
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy

import downset as ds
from tests.integrations.test_chunk_pass import batch, gradients_of, random_loss, traced_step
from tests.integrations.test_recompute_pass import Deep
from tests.integrations.test_recompute_pass import batch as rows

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


def run(limit):
    """(plan, loss, gradients, bytes that PyTorch's partitioner saves) of a model that is tagged by the plan."""
    torch.manual_seed(0)
    model = Deep()
    x, y = rows()
    plans, saved = [], []

    def partition(graph, inputs, **options):
        before = str(graph.graph)
        plans.append(ds.plan_step(graph, limit))
        assert str(graph.graph) == before
        ds.inductor.tag_step(graph, plans[-1])
        forward, backward = min_cut_rematerialization_partition(graph, inputs, **options)
        values = [
            node.meta["val"] for node in backward.graph.find_nodes(op="placeholder") if "primals" not in node.name
        ]
        saved.append(sum(value.numel() * value.itemsize for value in values))
        return forward, backward

    def compiled(graph, inputs):
        return make_boxed_compiler(lambda made, _: made)(graph, inputs)

    def backend(graph, inputs):
        return aot_module_simplified(graph, inputs, fw_compiler=compiled, bw_compiler=compiled, partition_fn=partition)

    torch._dynamo.reset()
    loss = torch.compile(lambda x, y: functional.mse_loss(model(x), y), fullgraph=True, backend=backend)(x, y)
    loss.backward()
    return plans[0], loss.detach(), [of.grad for of in model.parameters()], saved[0]


def test_pytorch_saves_what_a_plan_keeps():
    easy, loss, gradients, most = run(10**9)
    assert {of.action for of in easy.operators} == {"keep"}
    assert easy.evidence.value == 0
    assert easy.evidence.proven
    tight, again, others, least = run(easy.front[-1][1])
    assert tight.within
    assert "recompute" in {of.action for of in tight.operators}
    assert tight.peak_bytes < easy.peak_bytes
    assert least < most
    torch.testing.assert_close(again, loss)
    torch.testing.assert_close(others, gradients)


def test_gradients_that_a_graph_is_given_mark_its_backward_pass():
    """Without marks: what follows from inputs named tangents is the backward pass. Its plan is that of the marks."""

    def step(x, weight, tangents_1):
        return torch.autograd.grad((x @ weight).tanh().sin(), weight, tangents_1)[0]

    x, weight = torch.ones(256, 32), torch.ones(32, 64, requires_grad=True)
    traced = make_fx(step, tracing_mode="fake")(x, weight, torch.ones(256, 64))
    unmarked = ds.plan_step(traced, 10**6)
    for node in traced.graph.nodes:
        if node.name in ("mul", "detach_1", "tanh_backward", "mm_1"):
            node.meta["autograd_backward"] = True
        elif node.op == "placeholder":
            node.name = node.name.replace("tangents", "given")
    assert unmarked.operators == ds.plan_step(traced, 10**6).operators
    assert {of.name for of in unmarked.operators} >= {"mm", "tanh"}


def test_chunks_and_moves_are_planned_for_a_graph_with_a_wide_layer():
    graph = traced_step(gradients_of(random_loss(random.Random(1)), torch.float32), batch(random.Random(4)))
    ((loss, *_),) = next(iter(graph.graph.find_nodes(op="output"))).args
    nodes = [*graph.graph.nodes]
    for node in nodes[nodes.index(loss) + 1 :]:  # make_fx marks no backward pass
        node.meta["autograd_backward"] = node.op == "call_function"
    free = ds.plan_step(graph, 10**9)
    assert free.chunks == 1
    tight = ds.plan_step(graph, free.front[-1][1])
    assert tight.peak_bytes < free.peak_bytes
    assert tight.within
    fast_link = ds.plan_step(graph, 1, link_bytes_s=1e15)
    assert fast_link.peak_bytes <= ds.plan_step(graph, 1).peak_bytes * 2
    for plan in (tight, fast_link):
        ds.inductor.tag_step(graph, plan)
        by_name = {node.name: node for node in graph.graph.nodes}
        for of in plan.operators:
            expected = {"keep": CheckpointPolicy.MUST_SAVE, "recompute": CheckpointPolicy.MUST_RECOMPUTE}
            if of.action in expected:
                assert by_name[of.name].meta["recompute"] is expected[of.action]


@pytest.mark.parametrize("options", [{"limit_bytes": 0}, {"limit_bytes": 9, "link_bytes_s": 0.0}])
def test_numbers_and_graphs_that_make_no_sense_are_one_line(options):
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    with pytest.raises(ds.UsageError, match="above 0"):
        ds.plan_step(graph, **options)
    with pytest.raises(ds.UsageError, match="no backward pass"):
        ds.plan_step(graph, 9)
