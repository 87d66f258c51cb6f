"""Off-chip traffic against brute force: what is least in it, and what is not."""

import random
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.serenity.traffic import off_chip_traffic
from tests.effort import cases
from tests.plain_graphs import random_graph
from tests.strategies import graphs, orders_of

BLOCK = 8
PAGE = " ".join((Path(__file__).resolve().parents[2] / "docs" / "serenity-evaluation.md").read_text().split())


def accesses_of(graph, steps):
    """(block, writes) one after another: inputs are made on chip, each operator reads and then writes."""
    blocks = [range(-(-t.nbytes // BLOCK) if t.role == "activation" else 0) for t in graph.tensors]
    found = [((t, b), True) for t in graph.inputs for b in blocks[t]]
    for operator in steps:
        op = graph.ops[operator]
        found += [((t, b), False) for t in dict.fromkeys(op.inputs) if t >= 0 for b in blocks[t]]
        found += [((t, b), True) for t in op.outputs for b in blocks[t]]
    return found


def least_traffic(accesses, capacity):
    """Brute force over every choice of victim: the fewest blocks fetched and written back together. A block that is
    read again and was never written back is written when it leaves; one that is read no more makes room for nothing."""
    last = {block: at for at, (block, _) in enumerate(accesses)}
    best = {(frozenset(), frozenset()): 0}  # (on chip, off chip) -> blocks moved
    for at, (block, writes) in enumerate(accesses):
        following = {}
        for (held, stored), cost in best.items():
            options = [(held, stored, cost)]
            if block not in held:
                cost += not writes
                options = (
                    [(held, stored, cost)]
                    if len(held) < capacity
                    else [(held - {victim}, stored | {victim}, cost + (victim not in stored)) for victim in held]
                )
            for chosen, kept, total in options:
                alive = frozenset(one for one in chosen | {block} if last[one] > at)
                state = (alive, kept)
                if total < following.get(state, 1 << 30):
                    following[state] = total
        best = following
    return min(best.values(), default=0)


def small(graph):
    return replace(
        graph,
        tensors=tuple(replace(t, nbytes=min(t.nbytes, 16)) if t.role == "activation" else t for t in graph.tensors),
    )


@given(data=st.data(), capacity=st.integers(1, 4))
@settings(max_examples=cases(80))
def test_what_is_moved_is_at_least_the_least_and_at_most_twice_that(data, capacity):
    graph = small(data.draw(graphs(most_ops=4)))
    steps = data.draw(orders_of(graph.predecessors()))
    least = BLOCK * least_traffic(accesses_of(graph, steps), capacity)
    found = off_chip_traffic(graph, steps, BLOCK * capacity, block_bytes=BLOCK)
    # at most twice: fetches are the fewest, and what is written back is fetched again
    assert least <= found.total_bytes <= 2 * least


@given(data=st.data(), capacity=st.integers(1, 4))
@settings(max_examples=cases(80))
def test_the_traffic_is_least_where_each_tensor_is_read_once(data, capacity):
    """Then every block that is fetched was written back once: fewest fetches are least traffic."""
    graph = small(data.draw(graphs(most_ops=5)))
    read = set()
    ops = []
    for op in graph.ops:
        fresh = [t for t in dict.fromkeys(op.inputs) if t < 0 or t not in read]
        read |= {t for t in fresh if t >= 0}
        ops.append(replace(op, inputs=tuple(fresh), kind="Conv", attrs={}))
    graph = replace(graph, ops=tuple(ops)).check()
    steps = data.draw(orders_of(graph.predecessors()))
    found = off_chip_traffic(graph, steps, BLOCK * capacity, block_bytes=BLOCK)
    assert found.total_bytes == BLOCK * least_traffic(accesses_of(graph, steps), capacity)
    assert found.read_bytes == found.written_bytes


def test_how_often_it_is_not_least_elsewhere():
    """The page says so in figures: of small random graphs in the order in which they are written."""
    above, worst = 0, 1.0
    for seed in range(400):
        graph = random_graph(random.Random(seed), 8)
        graph = replace(graph, tensors=tuple(replace(tensor, nbytes=BLOCK) for tensor in graph.tensors))
        steps = range(len(graph.ops))
        for capacity in (2, 3):
            least = BLOCK * least_traffic(accesses_of(graph, steps), capacity)
            found = off_chip_traffic(graph, steps, BLOCK * capacity, block_bytes=BLOCK).total_bytes
            above += found > least
            worst = max(worst, found / least if least else 1.0)
    assert f"{above} of 800 cases" in PAGE
    assert f"by at most {worst:.2f}x" in PAGE
