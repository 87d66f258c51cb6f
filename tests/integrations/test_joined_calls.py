"""Kernels that share a call: held to the code that Inductor writes, to a count from the definition, to every order."""

import random
import re
from dataclasses import replace
from itertools import permutations
from math import prod
from unittest import mock

import pytest
import torch
from torch._inductor.graph import GraphLowering

from downset.integrations import order_pass
from downset.integrations.joined_calls import called_bytes, gathered
from downset.integrations.scheduler_order import least_called_order, least_peak_order, parts_first
from downset.memory.liveness import OrderProblem, Storage, peak_bytes
from tests.effort import cases
from tests.fresh_graphs import fresh_graphs
from tests.integrations.test_inductor_options import Scheduled, Watched

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]


def random_problem(seed, count, *, parts=False):
    generator = random.Random(f"calls/{seed}")
    before = [tuple(sorted(generator.sample(range(v), min(v, generator.randint(0, 2))))) for v in range(count)]
    storages, in_place = [], [[] for _ in range(count)]
    for v in range(count):
        readers = tuple(w for w in range(count) if v in before[w])
        storages.append(Storage(generator.randint(1, 4 if parts else 9), (v,), readers or (v,), kept=not readers))
    for v in range(count):
        in_place[v] = [w for w in before[v] if storages[w].nbytes == storages[v].nbytes]
    loops = [generator.random() < 0.7 for _ in range(count)]
    taken = [[generator.randint(0, storages[w].nbytes) for w in of] for of in in_place] if parts else []
    return OrderProblem(
        tuple(before), tuple(storages), tuple(map(tuple, in_place)), in_place_bytes=tuple(map(tuple, taken))
    ), loops


def counted(problem, steps, loops):
    """By call: what is made in it or before, less what was read to the end before it, less what is written over."""
    runs = []
    for operator in steps:
        if runs and loops[operator] and loops[runs[-1][-1]]:
            runs[-1].append(operator)
        else:
            runs.append([operator])
    held = []
    for number, run in enumerate(runs):
        ran = [operator for earlier in runs[:number] for operator in earlier]
        live = {v for v in (*ran, *run) if problem.storages[v].kept or not {*problem.storages[v].consumers} <= {*ran}}
        nbytes = sum(problem.storages[v].nbytes for v in live)
        for place, operator in enumerate(run):
            done = {*ran, *run[:place]}
            nbytes -= max(
                (
                    taken
                    for w, taken in problem.candidates(operator)
                    if {*problem.storages[w].consumers} <= done | {operator}
                ),
                default=0,
            )
        held += [nbytes] * len(run)
    return held


def orders(problem):
    for steps in permutations(range(len(problem.predecessors))):
        at = {v: step for step, v in enumerate(steps)}
        if all(at[w] < at[v] for v in at for w in problem.predecessors[v]):
            yield steps


def test_bytes_of_calls_are_those_of_the_definition():
    for seed in range(40):
        problem, loops = random_problem(seed, 6, parts=seed % 2 == 0)
        for steps in list(orders(problem))[::5]:
            assert called_bytes(problem, steps, loops) == counted(problem, steps, loops)


def test_gathered_orders_hold_no_more_and_often_the_least():
    least = better = 0
    for seed in range(40):
        problem, loops = random_problem(seed, 7)
        steps = tuple(range(7))
        order, most = gathered(problem, steps, loops, every_call=bool(seed % 2))
        assert order in set(orders(problem))
        assert most == max(counted(problem, order, loops)) <= max(counted(problem, steps, loops))
        assert peak_bytes(problem, order) <= peak_bytes(problem, steps)
        best = min(
            max(counted(problem, tried, loops))
            for tried in orders(problem)
            if peak_bytes(problem, tried) <= peak_bytes(problem, steps)
        )
        assert most >= best
        better += most < max(counted(problem, steps, loops))
        least += most == best
    assert better >= 5
    assert least >= 20


def test_of_orders_of_least_peak_one_is_taken_whose_calls_hold_less():
    less = 0
    for seed in range(30):
        drawn, loops = random_problem(seed, 9)
        problem = replace(drawn, in_place=())
        plain = least_peak_order(problem, work_limit=1_000)
        taken = least_called_order(problem, drawn, loops, work_limit=1_000)
        assert taken.peak_bytes == plain.peak_bytes == peak_bytes(problem, taken.steps)
        assert taken.evidence.bound == plain.evidence.bound
        mine, theirs = (sorted(counted(drawn, order.steps, loops), reverse=True) for order in (taken, plain))
        assert mine <= theirs
        less += mine[0] < theirs[0]
        assert least_called_order(problem, drawn, [False] * 9, work_limit=1_000).steps == plain.steps
    assert less >= 3


def late_sums(x):
    """Sums of large tensors, which nothing waits for: at the end they share a call with all that is large there."""
    weights = torch.ones(32, 32)
    made, sums = x, []
    for at in range(4):
        made = (made @ weights).relu() + at
        sums.append(made.sum(0))
    return made.exp().repeat(8, 1), sums


def adam(weight, gradient, mean, square):
    """The update of a parameter: the new moments are written, and stay in registers for the rest."""
    new_mean = torch.lerp(mean, gradient, 0.1)
    new_square = square * 0.99 + gradient * gradient * 0.01
    weight.sub_(new_mean / (new_square.sqrt() + 1e-8))
    mean.copy_(new_mean)
    square.copy_(new_square)
    return new_mean @ new_square


@pytest.mark.parametrize(
    ("function", "inputs", "kept"), [(late_sums, ((64, 32),), False), (adam, 4 * ((32, 32),), True)]
)
def test_bytes_of_calls_are_those_that_generated_code_allocates(function, inputs, kept):
    watched, texts = Watched(list, stop=False), []

    def generated(self):
        texts.append(self.codegen()[0].value)
        raise Scheduled

    known = []

    def ordered(nodes):
        planned = order_pass._planned(nodes, joined=False)
        known.append((planned.problem, order_pass._joined(nodes)))
        assert bool(planned.left_out) == kept
        return nodes

    watched.ours = ordered
    torch._dynamo.reset()
    settings = {"allow_buffer_reuse": False, "inplace_buffers": False, "reorder_for_peak_memory": False}
    with (
        fresh_graphs(**settings),
        mock.patch.object(GraphLowering, "compile_to_module", generated),
        torch.no_grad(),
        pytest.raises(Exception, match="Scheduled"),
    ):
        torch.compile(function, options={"_post_fusion_custom_pass": watched})(*map(torch.randn, inputs))
    ((problem, joined),) = known
    by_call = [
        nbytes
        for step, nbytes in enumerate(called_bytes(problem, range(len(joined)), joined))
        if not (step and joined[step] and joined[step - 1])
    ]
    assert allocated_at_calls(texts[0]) == by_call
    assert (len(by_call) < len(joined)) == (not kept)


def allocated_at_calls(text):
    """What is allocated at each call of a kernel, read from the lines of Inductor's generated code."""
    held, calls = {}, []
    for line in text.split("def call(self, args)")[1].splitlines():
        if made := re.match(r"\s+(buf\d+) = empty_strided_cpu\(\(([\d, ]+)\),", line):
            held[made[1]] = 4 * prod(int(size) for size in made[2].split(",") if size.strip())
        elif freed := re.match(r"\s+del (buf\d+)", line):
            del held[freed[1]]
        elif re.match(r"\s+(cpp_fused|extern_kernels)", line):
            calls.append(sum(held.values()))
    return calls


def with_calls(seed):
    """A problem in which some operators take results out of calls: (problem, those operators by call)."""
    problem, _ = random_problem(seed, 12)
    generator = random.Random(f"parts/{seed}")
    before, storages, parts = [*map(list, problem.predecessors)], [*problem.storages], {}
    for call in generator.sample(range(12), 4):
        for _ in range(generator.randint(1, 3)):
            part = len(before)
            later = [v for v in range(call + 1, 12) if generator.random() < 0.3]
            before.append([call])
            parts.setdefault(call, []).append(part)
            for v in later:
                before[v].append(part)
            storages.append(Storage(generator.randint(1, 9), (call,), (part, *later)))
    held = {of: parts[call] for call in parts for of in parts[call]}
    storages = [
        replace(of, consumers=tuple(sorted({*of.consumers, *(w for v in of.consumers for w in held.get(v, ()))})))
        for of in storages
    ]
    problem = OrderProblem(tuple(tuple(sorted({*of})) for of in before), tuple(storages), ((),) * len(before))
    return problem, parts


def drawn_order(problem, generator):
    order = []
    while len(order) < len(problem.predecessors):
        ready = [v for v, of in enumerate(problem.predecessors) if v not in order and {*of} <= {*order}]
        order.append(generator.choice(ready))
    return order


@pytest.mark.parametrize("seed", range(cases(40)))
def test_results_that_are_taken_out_at_once_never_raise_the_peak(seed):
    problem, parts = with_calls(seed)
    generator = random.Random(seed)
    for _ in range(5):
        steps = drawn_order(problem, generator)
        order = parts_first(problem, steps, parts)
        assert sorted(order) == sorted(steps)
        for place, operator in enumerate(order):
            assert {*problem.predecessors[operator]} <= {*order[:place]}
        for call, of in parts.items():
            start = order.index(call)
            assert {*order[start + 1 : start + 1 + len(of)]} == {*of}
        assert [v for v in order if not any(v in of for of in parts.values())] == [
            v for v in steps if not any(v in of for of in parts.values())
        ]
        assert peak_bytes(problem, order) <= peak_bytes(problem, steps)
        generator.shuffle(steps)  # in which some stand before what they wait for: none is lost
        assert sorted(parts_first(problem, steps, parts)) == sorted(steps)
