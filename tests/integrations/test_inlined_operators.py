"""What PyTorch's compiler stores, held to what it does store: its buffers after fusion, in real compiles."""

import pytest
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomSchedulerPass
from torch._inductor.virtualized import V
from torch.nn import functional

from downset.integrations.fx_training import traced
from downset.integrations.training_graph import problems
from tests.fresh_graphs import fresh_graphs
from tests.integrations.test_inductor_options import Scheduled

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


class Graph(CustomGraphPass):
    def __init__(self):
        self.seen = []

    def uuid(self):
        return None

    def __call__(self, graph):
        self.seen.append(traced(graph, (), apart=False).graph)


class Stored(CustomSchedulerPass):
    """The bytes of every buffer that is left once operators are fused."""

    def __init__(self):
        self.seen = []

    def uuid(self):
        return None

    def __call__(self, nodes):
        names = {name for node in nodes for name in node.get_buffer_names()} - V.graph.removed_buffers
        buffers = [V.graph.scheduler.name_to_buf[name] for name in names]
        own = [buffer.node for buffer in buffers if not buffer.get_mutations() and not buffer.get_aliases()]
        self.seen.append(sorted(buffer.get_numel() * buffer.get_dtype().itemsize for buffer in own))
        raise Scheduled


def compiled(function, *inputs):
    """Our reading of the graph of a function, and the bytes of Inductor's buffers."""
    graph, stored = Graph(), Stored()
    options = {"joint_custom_post_pass": graph, "_post_fusion_custom_pass": stored}
    torch._dynamo.reset()
    with (
        pytest.raises(Exception, match="Scheduled"),
        fresh_graphs(),
        torch.no_grad(),
    ):
        torch.compile(function, fullgraph=True, options=options)(*inputs)
    return graph.seen[0], stored.seen[0]


WEIGHTS = [torch.ones(2, 8, 64) for _ in range(5)]


def products(count, x):
    return [torch.bmm(x, weights) for weights in WEIGHTS[:count]]


def cheap_read_by_several(x):
    made = sum(products(2, x))
    return made[:, :8].sum(2), made[:, 8:16] * 2, made.sum(0)


def dear_read_by_several(x):
    made = sum(products(2, x)).exp()
    return made[:, 1:].sum(0), made[1:].sum(1), made[:, 2:, 2:].sum(1)


def of_five_read_by_several(x):
    made = sum(products(5, x))
    return made[:, 1:].sum(0), made[1:].sum(1), made[:, 2:, 2:].sum(1)


def read_by_a_product_too(x):
    made = sum(products(2, x)) + 1
    return torch.bmm(made, WEIGHTS[0].transpose(1, 2)), made[:, 1:].sum(1)


def read_once_by_other_loops(x):
    return (products(1, x)[0] * 2).exp().sum(0)


def rows_added_to_tables(x):
    """The gradients of several tables, each a part of one sum."""
    made = sum(products(2, x)).view(-1, 4, 16)
    at = torch.arange(made.shape[0]) % 40
    return [torch.zeros(40, 16).index_put((at,), made[:, part], accumulate=True) for part in range(4)]


def read_after_a_view(x):
    made = sum(products(2, x)).view(-1, 8, 8).transpose(1, 2)
    return functional.pad(made, (1, 1)), made.sum(0)


FUNCTIONS = (
    cheap_read_by_several,
    dear_read_by_several,
    of_five_read_by_several,
    read_by_a_product_too,
    read_once_by_other_loops,
    rows_added_to_tables,
    read_after_a_view,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_stored_is_what_inductor_stores(function):
    graph, stored = compiled(function, torch.randn(2, 24, 8))
    (problem,) = problems(graph, ())
    assert sorted(storage.nbytes for storage in problem.storages) == stored
