"""Recomputation held to every choice there is, priced here from the definitions, and to its laws on larger graphs."""

from itertools import combinations, permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import downset as ds
from tests.effort import cases
from tests.strategies import plain_graphs

pytestmark = pytest.mark.native


def training_graph(sizes):
    """A chain of activations of these bytes, a loss, and their gradients in reverse; every gradient reads its layer's
    input."""
    layers = len(sizes) - 1
    tensors = [ds.Tensor(f"a{at}", (), "uint8", size) for at, size in enumerate(sizes)]
    ops = [ds.Op(f"forward{at}", "test::Layer", (at,), (at + 1,)) for at in range(layers)]
    gradient = layers
    for at in reversed(range(layers)):
        tensors.append(ds.Tensor(f"g{at}", (), "uint8", sizes[at]))
        ops.append(ds.Op(f"backward{at}", "test::Gradient", (gradient, at), (len(tensors) - 1,)))
        gradient = len(tensors) - 1
    return ds.Graph("training", tuple(tensors), tuple(ops), (0,), (gradient,)).check()


def training_graphs(*layers):
    """Of one of these numbers of layers."""
    sizes = [st.lists(st.integers(4, 30), min_size=count + 1, max_size=count + 1) for count in layers]
    return st.builds(training_graph, st.one_of(sizes))


def uneven(layers):
    """Bytes of the activations of so many layers, of which none is like the next."""
    return [4 + 11 * layer % 27 for layer in range(layers + 1)]


def every_plan(graph, costs):
    """(cost, peak) of every choice: each topological order divided in two, each set of operators before that run again,
    and each order of what that makes. Peaks from sets of what is made and still read, with no code of the library."""
    before = graph.predecessors()

    def orders(count, waits):
        return (o for o in permutations(range(count)) if all(o.index(w) < o.index(v) for v in o for w in waits[v]))

    def least_peak(reads, makes, inputs, outputs, nbytes):
        maker = {tensor: op for op, made in enumerate(makes) for tensor in made}
        waits = [{maker[t] for t in read if t in maker} for read in reads]
        least = None
        for order in orders(len(reads), waits):
            held, peak = set(inputs), sum(nbytes[t] for t in inputs)
            for at, op in enumerate(order):
                held |= set(makes[op])
                peak = max(peak, sum(nbytes[t] for t in held))
                later = {t for after in order[at + 1 :] for t in reads[after]} | set(outputs)
                held &= later
            least = peak if least is None else min(least, peak)
        return least

    def copied_or(read, new):
        return {new.get(tensor, tensor) for tensor in read}

    found = []
    nbytes = [tensor.nbytes for tensor in graph.tensors]
    reads, makes = [set(op.inputs) for op in graph.ops], [set(op.outputs) for op in graph.ops]
    found.append((0.0, least_peak(reads, makes, graph.inputs, graph.outputs, nbytes)))
    seen = set()
    for order in orders(len(graph.ops), before):
        for split in range(1, len(order)):
            early, late = frozenset(order[:split]), order[split:]
            for count in range(1, len(early) + 1):
                for again in combinations(sorted(early), count):
                    if (early, again) in seen:
                        continue
                    seen.add((early, again))
                    new = {t: len(nbytes) + at for at, t in enumerate(sorted(t for v in again for t in makes[v]))}
                    sizes = nbytes + [nbytes[t] for t in sorted(new)]
                    copied = [copied_or(reads[v], new) for v in again]
                    late_reads = [
                        {new.get(t, t) for t in reads[v]} if v in late else reads[v] for v in range(len(reads))
                    ]
                    peak = least_peak(
                        late_reads + copied,
                        makes + [{new[t] for t in makes[v]} for v in again],
                        graph.inputs,
                        graph.outputs,
                        sizes,
                    )
                    found.append((sum(costs[v] for v in again), peak))
    return found


@settings(max_examples=cases(25))
@given(graph=training_graphs(2, 3), prices=st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_small_steps_are_planned_as_well_as_any(graph, prices):
    """On a chain the order is given, so all splits of all orders are all splits of it: what is proven is the least."""
    costs = prices[: len(graph.ops)]
    plans = every_plan(graph, costs) if len(graph.ops) <= 4 else None
    peaks = sorted({peak for _, peak in ds.plan_recompute(graph, 10**9, costs=costs, choices=5000).front})
    for limit in [*peaks, peaks[-1] + 1]:
        plan = ds.plan_recompute(graph, limit, costs=costs, choices=5000)
        assert plan.evidence.proven
        assert plan.order.peak_bytes <= limit
        if plans is not None:
            assert plan.cost == min(cost for cost, peak in plans if peak <= limit)
    with pytest.raises(ds.DownsetError):
        ds.plan_recompute(graph, peaks[0] - 1, costs=costs, choices=5000)
    if plans is not None:
        assert peaks[0] == min(peak for _, peak in plans)


@settings(max_examples=cases(10))
@given(graph=training_graphs(6, 14))
def test_a_larger_limit_never_costs_more_and_every_plan_keeps_its_own(graph):
    none = ds.plan_recompute(graph, 10**9, choices=80)
    assert none.cost == 0
    assert none.recomputed == ()
    assert none.evidence.proven
    least = none.front[-1][1]
    assume(least < none.order.peak_bytes)  # else there is nothing to test
    last = None
    for limit in range(least, none.order.peak_bytes + 40, max((none.order.peak_bytes - least) // 6, 1)):
        plan = ds.plan_recompute(graph, limit, choices=80)
        problem = ds.order_problem(plan.graph)
        assert ds.peak_bytes(problem, plan.order.steps) == plan.order.peak_bytes <= limit
        ds.verify(plan.graph, plan.order, ds.plan_arena(plan.graph, plan.order))
        assert last is None or plan.cost <= last
        assert len(plan.graph.ops) == len(graph.ops) + len(plan.recomputed)
        last = plan.cost
    assert last == 0


def values(graph):
    """What every output of a graph is made of, as nested tuples: equal where and only where the networks compute it."""
    held = {tensor: graph.tensors[tensor].name for tensor in graph.inputs}
    for op in graph.ops:
        for at, tensor in enumerate(op.outputs):
            held[tensor] = (op.name.removesuffix(" again"), at, tuple(held[t] for t in op.inputs))
    return [held[tensor] for tensor in graph.outputs]


@settings(max_examples=cases(125))
@given(graph=plain_graphs(9, 9))
def test_it_stays_the_same_network_on_random_graphs(graph):
    _, least = ds.plan_recompute(graph, 10**9, choices=60).front[-1]
    plan = ds.plan_recompute(graph, least, choices=60)
    assert values(plan.graph) == values(graph)
    assert plan.order.peak_bytes == least


def test_what_waits_for_side_effects_and_random_numbers_runs_once():
    graph = training_graph(uneven(8))
    ops = list(graph.ops)
    ops[1] = ds.Op("draw", "RandomNormalLike", ops[1].inputs, ops[1].outputs)
    ops[3] = ds.Op("write", ops[3].kind, ops[3].inputs, ops[3].outputs, {}, (2,))
    graph = ds.Graph("effects", graph.tensors, tuple(ops), graph.inputs, graph.outputs).check()
    front = ds.plan_recompute(graph, 10**9).front
    for _, peak in front:
        plan = ds.plan_recompute(graph, peak)
        assert not {"draw", "write", ops[2].name} & set(plan.recomputed)
    assert len(front) > 1


def test_limits_that_cannot_be_met():
    graph = training_graph(uneven(30))
    lowest = ds.plan_recompute(graph, 10**9).front[-1][1]
    with pytest.raises(ds.InfeasibleError, match="one operator needs"):
        ds.plan_recompute(graph, 5)
    with pytest.raises(ds.LimitReached, match=r"the least peak of the \d+ choices"):
        ds.plan_recompute(graph, lowest - 1)
    for bad in ([1.0], [-1.0] * 60, [float("nan")] * 60):
        with pytest.raises(ds.UsageError, match="one, 0 or more, for each of the 60"):
            ds.plan_recompute(graph, 10**6, costs=bad)
    with pytest.raises(ds.UsageError, match="at least 1"):
        ds.plan_recompute(graph, 10**6, choices=0)
    for limit in ("2MB", 2e6):
        with pytest.raises(ds.UsageError, match="give a whole number of bytes"):
            ds.plan_recompute(graph, limit)
