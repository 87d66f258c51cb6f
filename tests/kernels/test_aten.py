"""Calls of PyTorch's operators without a counterpart among the graph's kinds: they compute what PyTorch computes, from
a program and from its file alike, and what is not pure is not run."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from downset.errors import UnsupportedError
from downset.executor.plain_function import network_function
from downset.formats.torch.read import load_exported
from downset.graph.core import Op, fingerprint
from downset.kernels import aten
from downset.kernels.aten import is_pure_aten
from downset.kernels.table import check_kernels
from downset.stages.prepared import prepare


class Calls(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.table = nn.Parameter(torch.randn(9, 4, generator=torch.Generator().manual_seed(1)))

    def forward(self, x, y):
        return self.compute(x, y, self.table)


CASES = {
    "numbers": lambda x, y, table: (x * 0.5 + 1 - y / 3, 2 - x, x**2, x > 0.1),
    "slices": lambda x, y, table: (x[:, 1:, ::2], x.select(1, 2), x.narrow(2, 1, 3), x.flip(1), torch.roll(y, 1, 2)),
    "several": lambda x, y, table: (*torch.unbind(x, 1), *x.chunk(2, 2), *torch.topk(y, 2)),
    "rows": lambda x, y, table: (
        functional.layer_norm(x, (8,)),
        functional.group_norm(x, 2),
        functional.rms_norm(y, (8,)),
        functional.instance_norm(x),
    ),
    "attention": lambda x, y, table: functional.scaled_dot_product_attention(x, y, y, is_causal=True),
    "sums": lambda x, y, table: (x.sum((0, 2)), x.amax(1), x.var(2), x.std(1), torch.cumsum(y, 2), x.mean()),
    "choice": lambda x, y, table: (
        torch.where(x > y, x, y),
        x.masked_fill(y < 0, 7.0),
        torch.tril(x),
        x.clamp(min=0.1),
    ),
    "weights": lambda x, y, table: (table[1:5] @ x[0, :, :4].t(), functional.embedding((x[0] > 0).long(), table)),
    "shapes": lambda x, y, table: (
        torch.stack([x, y], 1),
        x.repeat(1, 2, 1),
        x[:, :, None].expand(2, 4, 3, 8),
        x.unflatten(2, (2, 4)),
        functional.pad(x, (1, 2), value=3.0),
    ),
    "images": lambda x, y, table: (
        functional.interpolate(x[None], scale_factor=2.0),
        functional.interpolate(x[None], size=(3, 5), mode="bilinear"),
        functional.pixel_shuffle(x.reshape(1, 4, 4, 4), 2),
    ),
    "types": lambda x, y, table: (
        x.double() + y,
        (x > 0).float(),
        x.to(torch.float16),
        x.half().softmax(2, dtype=torch.float32),
        (x > 0).sum(1, dtype=torch.float64),
    ),
    "factories": lambda x, y, table: (
        x + torch.arange(8) + torch.arange(1.0, 9.0, dtype=torch.float64),
        torch.cat([x, torch.zeros(2, 1, 8), torch.ones(2, 2, 8)], 1) + torch.full((8,), 3.5),
        x + torch.zeros_like(x) + torch.ones_like(y) * torch.full_like(x, 0.5),
        x @ torch.eye(8) + x.new_zeros(8) + x.new_ones(8) + x.new_full((8,), 2) + torch.linspace(0, 1, 8),
        torch.where(x > 0, x, torch.tensor(-1.0)) * torch.tensor([1.0, 2.0] * 4),
        x.masked_fill(torch.ones(4, 8, dtype=torch.bool).triu(1), 9) + torch.ones(8, dtype=torch.bfloat16),
        torch.arange(0, 9, 2),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.full((2,), True),
    ),
    "tests": lambda x, y, table: (x.isnan() | (x > y), (x > 0).any(1), (x > -9).all(), *x.max(2), x.min(1)[0], x % 0.3),
    "norms": lambda x, y, table: (
        functional.batch_norm(x.sigmoid(), *table[:4].detach().abs().unbind(1)),
        functional.batch_norm(x, table[:4, 0].detach(), table[:4, 1].detach().abs()),
        torch.logsumexp(x, 2),
        torch.linalg.vector_norm(y, dim=1),
    ),
    "layouts": lambda x, y, table: (
        x[None].contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1),
        y.clone(memory_format=torch.contiguous_format) * 2,
    ),
}


def exported(compute):
    torch.manual_seed(0)
    values = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    return torch.export.export(Calls(compute).eval(), values), values


@pytest.mark.parametrize("name", CASES)
def test_calls_compute_what_pytorch_does_from_a_program_and_from_its_file(tmp_path, name):
    program, values = exported(CASES[name])
    torch.export.save(program, tmp_path / "p.pt2")
    graph, read = load_exported(program), load_exported(tmp_path / "p.pt2")
    assert fingerprint(graph) == fingerprint(read)
    assert any(op.kind.startswith("aten::") for op in graph.ops)
    with torch.no_grad():
        theirs = program.module()(*values)
        theirs = theirs if isinstance(theirs, tuple) else (theirs,)
        for network in (graph, prepare(read)):
            run, _ = network_function(network)
            for one, other in zip(run(*values), theirs, strict=True):
                torch.testing.assert_close(one, other)
                assert one.dtype == other.dtype


def test_arguments_tell_graphs_apart():
    def sliced(start):
        return fingerprint(load_exported(exported(lambda x, y, table: x[:, start:])[0]))

    assert sliced(1) != sliced(2)
    assert sliced(1) == sliced(1)


@pytest.mark.parametrize(
    "kind", ["from_file.default", "rand_like.default", "add_.Tensor", "copy_.default", "dropout.default", "set_.source"]
)
def test_what_writes_draws_or_reads_files_is_not_run(kind):
    assert not is_pure_aten(f"aten::{kind}")
    assert not is_pure_aten(kind)


@pytest.mark.parametrize("name", sorted(aten._PURE | aten._FACTORIES))
def test_what_writes_to_its_arguments_is_refused_by_pytorchs_own_schemas(name):
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        if operator._schema.is_mutable:
            with pytest.raises(ValueError, match="writes to its arguments"):
                aten.aten_call(Op("o", f"aten::{name}.{overload}", (), ()), [], [])
        drawing = torch.Tag.nondeterministic_seeded in operator.tags
        assert not drawing or name == "scaled_dot_product_attention"


def test_attention_that_draws_is_refused():
    program, _ = exported(lambda x, y, table: functional.scaled_dot_product_attention(x, y, y, dropout_p=0.5))
    graph = load_exported(program)
    check_kernels(graph)
    run, values = network_function(graph)
    with pytest.raises(UnsupportedError, match="dropout draws random numbers"):
        run(*values)
