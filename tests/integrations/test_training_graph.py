"""What runs again in a training step, held to every set and every order there is, counted here from the definitions."""

import math
import random
from dataclasses import replace
from itertools import combinations, permutations

import pytest

import downset as ds
from downset.integrations import training_graph
from downset.integrations.free_recompute import nearly_free
from downset.integrations.recompute_plan import affordable_choices, plan_again
from downset.integrations.training_graph import (
    Priced,
    TrainingGraph,
    priced,
    problems,
    with_host,
)
from downset.integrations.variants import plan_variants
from downset.rewrites.recompute_search import REFUSED
from tests.command import said_by_every_process

pytestmark = pytest.mark.native


def random_step(seed, early, late, *, apart, fused=False, workspaces=False):
    """A forward pass, a backward pass that reads what it made, and writes into inputs behind their readers."""
    generator = random.Random(f"step/{seed}")
    count = early + late
    reads = [
        tuple(sorted(generator.sample(range(v), min(v, generator.randint(0 if v < 2 else 1, 3))))) for v in range(count)
    ]
    last = max(early - 1, 0)
    reads[early] = tuple(sorted({*reads[early], last}))  # the loss
    return TrainingGraph(
        reads=tuple(reads),
        waits=tuple(() for _ in range(count)),
        nbytes=tuple(generator.randint(1, 30) for _ in range(count)),
        loops=tuple(generator.choice([0, 8, 8]) if fused else 0 for _ in range(count)),
        costs=tuple(float(generator.randint(1, 9)) for _ in range(count)),
        may=tuple(v < last and generator.random() < 0.9 for v in range(count)),
        kept=frozenset({count - 1}),
        late=frozenset(range(early, count)),
        apart=apart,
        workspaces=tuple(generator.choice([0, 5, 25]) for _ in range(count)) if workspaces else (),
    )


def every_choice(graph):
    """(cost, peak) of every set that may run again: no kernels, each order tried, bytes held counted one by one."""
    count = len(graph.reads)
    may = [v for v in range(count) if graph.may[v]]
    found = []
    for size in range(len(may) + 1):
        for again in combinations(may, size):
            ops = {("own", v) for v in range(count)} | {("copy", v) for v in again}

            def read(op, again=again):
                kind, v = op
                if kind == "copy" and v in graph.moved:
                    return set()  # it comes back from the host
                late = kind == "copy" or v in graph.late
                return {("copy" if late and s in again else "own", s) for s in graph.reads[v]}

            while True:  # drop forward operators that nobody needs any more
                used = {s for op in ops for s in read(op)}
                idle = {
                    op
                    for op in ops
                    if op not in used
                    and (op[0] == "copy" or (op[1] not in graph.kept and any(op[1] in r for r in graph.reads)))
                }
                if not idle:
                    break
                ops -= idle
            late = {op for op in ops if op[0] == "copy" or op[1] in graph.late}
            forward = ops - late
            anchor = behind(graph, forward)
            before = {
                op: read(op) | ({anchor} if op[0] == "copy" and not graph.apart and anchor else set()) for op in ops
            }
            cost = sum(graph.costs[v] for _, v in ops) - sum(graph.costs[v] for v in {v for _, v in ops})
            least = None
            for order in orders(ops, before, forward if graph.apart else None):
                peak = peak_of(graph, order, read)
                least = peak if least is None else min(least, peak)
            found.append((cost, least))
    return found


def behind(graph, forward):
    def above(v):
        return {v}.union(*(above(s) for s in graph.reads[v]))

    return max(forward, key=lambda op: (len(above(op[1])), -op[1])) if forward else None


def orders(ops, before, forward):
    def valid(order):
        at = {op: i for i, op in enumerate(order)}
        return all(at[b] < at[op] for op in order for b in before[op])

    if forward is None:
        yield from (order for order in permutations(sorted(ops)) if valid(order))
        return
    firsts = [o for o in permutations(sorted(forward)) if valid_part(o, before)]
    seconds = [o for o in permutations(sorted(ops - forward)) if valid_part(o, before)]
    yield from ((*one, *two) for one in firsts for two in seconds)


def valid_part(order, before):
    at = {op: i for i, op in enumerate(order)}
    return all(at[b] < at[op] for op in order for b in before[op] if b in at)


def peak_of(graph, order, read):
    peak = 0
    for step, op in enumerate(order):
        later = {s for after in order[step:] for s in read(after)} | {("own", v) for v in graph.kept} | {op}
        held = [made for made in order[: step + 1] if made in later]
        inside = graph.workspaces[op[1]] if graph.workspaces else 0
        if op[0] == "copy" and op[1] in graph.moved:
            inside = 0  # nothing computes it again
        peak = max(peak, sum(graph.nbytes[v] for _, v in held) + inside)
    return peak


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("link", [None, 5.0])
def test_small_steps_are_planned_as_well_as_any(seed, apart, link):
    """`link`: bytes a second to the host; some results then cost less to move there and back than to compute again. In
    half of the steps, libraries allocate inside operators."""
    graph = random_step(seed, 3, 2 + seed % 2, apart=apart, workspaces=seed > 1)
    if link is not None:
        graph = with_host(graph, link, range(len(graph.reads)))
        assert graph.moved or seed != 1
    plans = every_choice(graph)
    peaks = sorted({peak for _, peak in plans})
    for limit in [peaks[0] - 1, *peaks, peaks[-1] + 1]:
        plan = plan_again(graph, limit, choices=500)
        fitting = [cost for cost, peak in plans if peak <= limit]
        assert plan.within == bool(fitting)
        assert plan.least_bytes == peaks[0]
        if fitting:
            assert plan.chosen.judged.peak_bytes <= limit
            assert plan.chosen.judged.cost == pytest.approx(min(fitting), abs=1e-9)
        else:
            assert plan.chosen.judged.peak_bytes == peaks[0]


@pytest.mark.parametrize("apart", [False, True])
def test_a_larger_limit_never_costs_more_and_more_choices_are_never_worse(apart):
    gained = 0
    for seed in (0, 1, 8):
        graph = random_step(seed, 12, 10, apart=apart, fused=True)
        none = plan_again(graph, 10**9, choices=1).none
        before = None
        for limit in (none.peak_bytes * eighths // 8 for eighths in (5, 6, 7, 8)):
            few, many = (plan_again(graph, limit, choices=choices) for choices in (8, 25))
            assert many.within or not few.within
            if few.within:
                assert many.chosen.judged.cost <= few.chosen.judged.cost
            assert many.least_bytes <= many.chosen.judged.peak_bytes
            if not many.within:
                assert many.chosen.judged.peak_bytes == min(choice.judged.peak_bytes for choice in many.front)
                continue
            assert many.chosen.judged.peak_bytes <= limit
            assert before is None or many.chosen.judged.cost <= before
            before = many.chosen.judged.cost
            gained += bool(many.chosen.again)
            made = problems(graph, many.chosen.again)
            planned = [ds.plan_order(problem, work_limit=1_000, time_limit_s=10.0) for problem in made]
            assert max(order.peak_bytes for order in planned) == many.chosen.judged.peak_bytes
        assert before == 0
    assert gained


def test_more_memory_is_never_slower_and_less_never_peaks_higher():
    """Over all forms of a step together, at and between all peaks of their front."""
    for seed in range(2):
        forms = {1: random_step(seed, 8, 7, apart=False), 8: random_step(seed + 9, 9, 7, apart=False)}
        front = plan_variants(forms, 1, 10).front
        limits = sorted({of.peak_bytes + more for of in front for more in (-1, 0, 1)})
        plans = [plan_variants(forms, limit, 10) for limit in limits]
        assert all(plan.front == front for plan in plans)
        chosen = [plan.chosen for plan in plans]
        assert [of.cost for of in chosen] == sorted((of.cost for of in chosen), reverse=True)
        assert [of.peak_bytes for of in chosen] == sorted(of.peak_bytes for of in chosen)
        for plan, limit in zip(plans, limits, strict=True):
            assert plan.within == (plan.chosen.peak_bytes <= limit)
            within = [of.cost for of in front if of.peak_bytes <= limit]
            assert plan.chosen.cost == (min(within) if within else front[-1].cost)
            assert plan.least_bytes <= plan.chosen.peak_bytes


@pytest.mark.parametrize("seed", [2])
def test_without_a_limit_what_is_expensive_does_not_run_again(seed):
    """Of every set that adds at most 3 % of the step's seconds, one of about the least peak: the cheapest."""
    graph = random_step(seed, 4, 3, apart=False)
    factors = random.Random(seed)
    graph = replace(graph, costs=tuple(cost * factors.choice([0.002, 0.01, 1, 4]) for cost in graph.costs))
    choices = every_choice(graph)
    within = [(cost, peak) for cost, peak in choices if cost <= 0.03 * sum(graph.costs)]
    none, least = choices[0][1], min(peak for _, peak in within)
    cost, peak = (found := priced(graph, nearly_free(graph))).cost, found.peak_bytes
    if least > 0.99 * none:
        assert (cost, peak) == (0, none)
    else:
        alike = [one for one in within if one[1] <= least / 0.99]
        assert (cost, peak) == pytest.approx(min(alike))


def test_without_a_limit_only_cheap_sets_are_ordered(monkeypatch):
    """On a graph with more sets than are tried, in which most are too expensive."""
    graph = random_step(3, 40, 30, apart=False)
    ordered, optimal = [], training_graph.optimal
    monkeypatch.setattr(training_graph, "optimal", lambda *given, **more: ordered.append(1) or optimal(*given, **more))
    costs = []

    def pricing(of, again, *, most_s):
        before = len(ordered)
        found = priced(of, again, most_s=most_s)
        costs.append((found.cost <= most_s, len(ordered) > before))
        return found

    monkeypatch.setattr("downset.integrations.recompute_plan.priced", pricing)
    nearly_free(graph, choices=20)
    cheap, done = zip(*costs, strict=True)
    assert cheap == done and sum(cheap) <= 20 and not all(cheap)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_too_expensive_has_no_price_and_the_rest_keep_theirs(seed):
    graph = random_step(seed, 8, 6, apart=False)
    plan = plan_again(graph, 2**60)
    for choice in plan.front:
        cost = choice.judged.cost
        assert priced(graph, choice.again, most_s=cost) == choice.judged
        if cost:
            assert priced(graph, choice.again, most_s=cost / 2).peak_bytes == REFUSED


@pytest.mark.parametrize("apart", [False, True])
def test_no_price_is_above_the_order_in_which_copies_come_before_their_readers(apart):
    """However large the graph, and however few states the search for an order may take."""
    for seed in range(3):
        graph = chain(20 + 10 * seed, seed, apart=apart)
        for share in (2, 3):
            again = {v for v in range(len(graph.reads)) if graph.may[v] and v % share}
            order, read = copies_before_their_readers(graph, again)
            assert priced(graph, again).peak_bytes <= peak_of(graph, order, read)


def chain(layers, seed, *, apart):
    """Layers, then behind a loss their gradients: each reads what its layer read, and one that is kept hangs on it."""
    generator = random.Random(f"chain/{seed}")
    reads = [(), *((v,) for v in range(layers))]
    for layer in range(layers, 0, -1):
        gradient = len(reads) - 2 if len(reads) > layers + 1 else layers
        reads += [tuple(sorted({layer - 1, gradient})), tuple(sorted({layer - 1, gradient}))]
    count = len(reads)
    return TrainingGraph(
        reads=tuple(reads),
        waits=((),) * count,
        nbytes=tuple(
            generator.randint(50, 99) if v % 2 or v <= layers else generator.randint(1, 9) for v in range(count)
        ),
        loops=(0,) * count,
        costs=(1.0,) * count,
        may=tuple(v < layers for v in range(count)),
        kept=frozenset(range(layers + 2, count, 2)),
        late=frozenset(range(layers + 1, count)),
        apart=apart,
    )


def copies_before_their_readers(graph, again):
    def read(op):
        kind, v = op
        late = kind == "copy" or v in graph.late
        return {("copy" if late and s in again else "own", s) for s in graph.reads[v]}

    order = []

    def run(op):
        for source in sorted(read(op)):
            if source not in order:
                run(source)
        order.append(op)

    for v in sorted(graph.late):
        run(("own", v))
    early = {op for op in order if op[0] == "own" and op[1] not in graph.late}
    return [*sorted(early), *(op for op in order if op not in early)], read


def test_by_default_the_effort_is_bounded_by_the_size_of_the_graph():
    """Operators in all the problems that are planned: no more on a large graph, and the same whatever the limit."""
    sizes = {}
    for early, late in ((12, 10), (400, 300), (900, 600)):
        graph = random_step(early, early, late, apart=True)
        tried, planned = affordable_choices(graph), []
        assert 8 <= tried <= 100
        sizes[early + late] = tried
        if early == 400:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("downset.integrations.recompute_plan.priced", counting(planned))
                free, tight = (plan_again(graph, limit) for limit in (10**9, 1))
            assert free.tried == tight.tried == tried < 100
            assert len(planned) == 2 * tried
            assert planned[:tried] == planned[tried:]
    assert sizes[22] > sizes[700] > sizes[1500]
    assert all(8 <= count <= 100 for count in sizes.values())
    assert all(tried * count <= 60_000 for count, tried in sizes.items())


def counting(planned):
    """Prices by a formula, and keeps what was asked: a search for orders of so many graphs would take long."""

    def price(graph, again, *, most_s):
        assert most_s == math.inf
        planned.append(tuple(again))
        return Priced(sum(graph.costs[v] for v in again), 10_000 - sum(graph.nbytes[v] for v in again), False)

    return price


def test_what_is_written_in_place_waits_for_copies_too():
    """Operator 3 writes over what operator 0 reads: a second run of 0 must come before."""
    graph = TrainingGraph(
        reads=((), (0,), (0, 1), (2,)),
        waits=((), (), (), (0,)),
        nbytes=(10, 1, 1, 0),
        loops=(0, 0, 0, 0),
        costs=(1.0, 1.0, 1.0, 1.0),
        may=(True, False, False, False),
        kept=frozenset({3}),
        late=frozenset({2, 3}),
        apart=False,
    )
    (problem,) = problems(graph, (0,))
    assert len(problem.predecessors) == 5
    assert problem.predecessors[4] == (0, 2, 3)
    assert problem.predecessors[2] == (1,)  # the copy: behind the loss


def test_every_process_tries_the_same_sets():
    program = (
        "from tests.integrations.test_training_graph import counting, random_step\n"
        "from downset.integrations import recompute_plan\n"
        "asked = []\n"
        "recompute_plan.priced = counting(asked)\n"
        "plan = recompute_plan.plan_again(random_step(0, 60, 40, apart=True), 9_900)\n"
        "print(plan.tried, plan.chosen.again, asked)"
    )
    assert said_by_every_process(program).startswith("100 (")
