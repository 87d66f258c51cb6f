"""What runs again keeps a generator's state where it draws, and nowhere else."""

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_compiler
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import downset as ds

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


class Attending(nn.Module):
    """Attention without dropout in its operator; `drop` of its result goes, and `again`: in the backward pass it runs
    again by the model's own word."""

    def __init__(self, drop, *, again):
        super().__init__()
        self.drop, self.again = drop, again
        self.inside, self.outside = nn.Linear(8, 24), nn.Linear(8, 8)

    def block(self, x):
        q, k, v = self.inside(x).view(64, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(64, 4, 8)
        return self.outside(functional.dropout(torch.tanh(attended), self.drop))

    def forward(self, x):
        for _ in range(3):
            x = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return x


@pytest.mark.parametrize(("drop", "again"), [(0.0, False), (0.0, True), (0.5, True)])
def test_states_of_generators_are_kept_where_an_operator_draws(drop, again):
    torch.manual_seed(0)
    model, x = Attending(drop, again=again), torch.randn(64, 4, 8)
    graphs = []

    def compiled(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_compiler(lambda of, _: of)(graph, inputs)

    own = ds.inductor.options(peak_bytes=1)["custom_partitioner_fn"]

    def backend(graph, inputs):
        return aot_module_simplified(graph, inputs, fw_compiler=compiled, bw_compiler=compiled, partition_fn=own)

    torch._dynamo.reset()
    ends = []
    for forward in (model, torch.compile(model, fullgraph=True, backend=backend)):
        model.zero_grad()
        torch.manual_seed(1)
        loss = forward(x).square().sum()
        loss.backward()
        ends.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*ends)
    forward, backward = graphs
    assert sum("flash_attention_for_cpu.default" in name for name in backward) >= 1  # it runs again
    draws = sum("run_and_save_rng_state" in name for name in forward), sum("run_with_rng" in name for name in backward)
    assert draws == ((3, 3) if drop else (0, 0))
