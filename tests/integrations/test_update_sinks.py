"""A graph without its update has the choices of the graph with it, each with its peak, by every order there is."""

import random
from dataclasses import replace

import pytest
import torch

from downset.integrations.random_operators import draws
from downset.integrations.update_sinks import without_update
from tests.integrations.test_training_graph import every_choice, random_step


def with_update(graph, seed):
    """The graph with updates behind it: of one result each, or of several at once, in one operator or in two."""
    generator = random.Random(f"update/{seed}")
    count, late = len(graph.reads), sorted(graph.late)
    read = [(late[0],), tuple(late)] if seed % 2 else [(v,) for v in late]
    reads = [*read, *([(count,)] if generator.random() < 0.5 else [])]
    more = len(reads)
    return replace(
        graph,
        reads=(*graph.reads, *reads),
        waits=(*graph.waits, *((),) * more),
        nbytes=(*graph.nbytes, *(0,) * more),
        loops=(*graph.loops, *(4,) * more),
        costs=(*graph.costs, *(1.0,) * more),
        may=(*graph.may, *(False,) * more),
        kept=frozenset(),
        late=graph.late | set(range(count, count + more)),
    ), set(range(count, count + more))


@pytest.mark.parametrize("seed", range(4))
def test_every_choice_has_its_peak(seed):
    graph, update = with_update(random_step(seed, 2, 2, apart=False), seed)
    less, kept = without_update(graph, update)
    assert len(less.reads) <= len(graph.reads)
    assert all(source < v for v, reads in enumerate(less.reads) for source in reads)
    assert [graph.reads[v] for v in kept if v not in update] == [
        tuple(kept[source] for source in less.reads[number]) for number, v in enumerate(kept) if v not in update
    ]
    assert sorted(every_choice(less)) == sorted(every_choice(graph))


def test_an_update_that_multiplies_matrices_stays():
    graph, update = with_update(random_step(0, 3, 2, apart=False), 0)
    first = min(update)
    heavy = replace(
        graph,
        nbytes=tuple(9 if v == first else of for v, of in enumerate(graph.nbytes)),
        loops=tuple(0 if v == first else of for v, of in enumerate(graph.loops)),
    )
    assert without_update(heavy, update) == (heavy, tuple(range(len(heavy.reads))))


def test_a_sink_waits_for_the_readers_of_what_its_update_writes():
    graph, update = with_update(random_step(0, 3, 2, apart=False), 0)
    waits = tuple((0,) if v in update else of for v, of in enumerate(graph.waits))
    less, kept = without_update(replace(graph, waits=waits), update)
    assert [less.waits[number] for number, v in enumerate(kept) if v in update] == [(0,)] * len(graph.late - update)


ATEN = torch.ops.aten
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    ("operator", "arguments", "options", "drawn"),
    [
        (ATTENTION, "qqq", {"is_causal": True}, False),
        (ATTENTION, ("q", "q", "q", 0.0), {}, False),
        (ATTENTION, ("q", "q", "q", 0.5), {}, True),
        (ATTENTION, "qqq", {"dropout_p": 0.5}, True),
        (ATEN.native_dropout.default, ("q", 0.0, True), {}, True),
        (ATEN.rand_like.default, "q", {}, True),
        (ATEN.add.Tensor, ("q", 1), {}, False),
    ],
)
def test_attention_draws_only_where_it_drops_out(operator, arguments, options, drawn):
    graph = torch.fx.Graph()
    tensor = graph.placeholder("q")
    given = tuple(tensor if of == "q" else of for of in arguments)
    assert draws(graph.call_function(operator, given, options)) == drawn
