"""Orders of large graphs that fall apart, compared with Liu's algorithm of 1987 and the merge of segments, in one run.

    python -m experiments.speed.trees [--quick]

In-trees, out-trees and series-parallel graphs whose tensors have one reader; series-parallel graphs with shared
tensors; and mixtures: trees of random cells, chains of cells with two inputs, U-Nets, a network forward and backward,
inceptions. Sizes are drawn from 1 to 1,000 bytes, of cells from 1 to 100. `liu` is method `liu` in Python; `merge` is
the order of the segments as if the file decided who frees what. CPU seconds of this process: `search` is method
`optimal` alone, `whole` is `plan_order` with its checks. The exponent is the slope of log `whole` over log operators.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from downset import OrderProblem, Storage, peak_bytes, plan_order
from downset.orders.liu import liu
from downset.orders.planners import ORDERS
from downset.orders.searches import OrderSearches
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

optimal = ORDERS["optimal"]


class Network:
    """A graph under construction: every operator makes one result of a random size."""

    def __init__(self, seed: int, largest: int = 1000) -> None:
        self.random, self._largest = random.Random(seed), largest
        self._read: list[tuple[int, ...]] = []
        self._nbytes: list[int] = []

    def __len__(self) -> int:
        return len(self._read)

    def operator(self, *reads: int) -> int:
        self._read.append(tuple(sorted({*reads})))
        self._nbytes.append(self.random.randint(1, self._largest))
        return len(self) - 1

    def problem(self, *, shared: bool = True) -> OrderProblem:
        """`shared`: a result has one storage that all its readers read; else one for each reader."""
        readers: list[list[int]] = [[] for _ in self._read]
        for operator, reads in enumerate(self._read):
            for source in reads:
                readers[source].append(operator)
        storages = []
        for operator, nbytes in enumerate(self._nbytes):
            if not readers[operator]:
                storages.append(Storage(nbytes, (operator,), (operator,), kept=True))
            elif shared:
                storages.append(Storage(nbytes, (operator,), tuple(readers[operator])))
            else:
                storages += [
                    Storage(self.random.randint(1, self._largest), (operator,), (reader,))
                    for reader in readers[operator]
                ]
        return OrderProblem(tuple(self._read), tuple(storages))


def in_tree(operators: int) -> OrderProblem:
    """A tree of operators with at most three children each, attached at random."""
    network = Network(1)
    parent, open_, children = [-1], [0], [0] * operators
    for v in range(1, operators):
        place = network.random.randrange(len(open_))
        parent.append(open_[place])
        children[parent[v]] += 1
        if children[parent[v]] == 3:
            open_[place] = open_[-1]
            open_.pop()
        open_.append(v)
    reads: list[list[int]] = [[] for _ in parent]
    for v in range(1, operators):
        reads[operators - 1 - parent[v]].append(operators - 1 - v)
    for listed in reads:
        network.operator(*listed)
    return network.problem()


def out_tree(operators: int) -> OrderProblem:
    network = Network(2)
    network.operator()
    while len(network) < operators:
        network.operator(network.random.randrange(max(0, len(network) - 500), len(network)))
    return network.problem(shared=False)


def _series_parallel(operators: int, seed: int) -> Network:
    network = Network(seed)
    arcs, nodes = [(0, 1)], 2
    while nodes + len(arcs) < operators:
        place = network.random.randrange(len(arcs))
        begin, end = arcs[place]
        if network.random.random() < 0.5:
            arcs[place] = (begin, nodes)
            arcs.append((nodes, end))
            nodes += 1
        else:
            arcs.append((begin, end))
    waits: dict[int, int] = defaultdict(int)
    leaving: dict[int, list[int]] = defaultdict(list)
    for begin, end in arcs:
        waits[end] += 1
        leaving[begin].append(end)
    reads: dict[int, list[int]] = defaultdict(list)
    ready = [0]
    while ready:
        node = ready.pop()
        operator = network.operator(*reads[node])
        for end in leaving[node]:
            reads[end].append(network.operator(operator))
            waits[end] -= 1
            if not waits[end]:
                ready.append(end)
    return network


def series_parallel(operators: int) -> OrderProblem:
    return _series_parallel(operators, 3).problem(shared=False)


def series_parallel_shared(operators: int) -> OrderProblem:
    return _series_parallel(operators, 3).problem()


def _cell(network: Network, inputs: Sequence[int], nodes: int) -> int:
    local = [network.operator(*inputs)]
    read: set[int] = set()
    for _ in range(nodes):
        window = local[-5:]
        sources = network.random.sample(window, min(len(window), network.random.randint(1, 2)))
        read.update(sources)
        local.append(network.operator(network.operator(*sources)))
    return network.operator(*(node for node in local if node not in read or node == local[-1]))


def tree_of_cells(operators: int) -> OrderProblem:
    network = Network(4, 100)
    level = [_cell(network, [network.operator()], 16) for _ in range(max(2, operators // 80))]
    while len(level) > 1:
        above, place = [], 0
        while place < len(level):
            count = network.random.randint(1, 3)
            above.append(_cell(network, level[place : place + count], 16))
            place += count
        level = above
    return network.problem()


def chain_of_cells(operators: int) -> OrderProblem:
    network = Network(5, 100)
    outputs = [network.operator()]
    outputs.append(network.operator(outputs[0]))
    while len(network) < operators:
        outputs.append(_cell(network, outputs[-2:], 10))
    return network.problem()


def unet(operators: int) -> OrderProblem:
    network = Network(6)
    last, skips = network.operator(), []
    for _ in range(operators // 7):
        skips.append(network.operator(network.operator(last)))
        last = network.operator(skips[-1])
    while skips:
        last = network.operator(network.operator(network.operator(last), skips.pop()))
        last = network.operator(last)
    return network.problem()


def forward_backward(operators: int) -> OrderProblem:
    network = Network(7)
    last, layers = network.operator(), []
    for _ in range(operators // 5):
        layers.append((last, network.operator(last)))
        last = layers[-1][1]
    gradient = network.operator(last)
    for source, activation in reversed(layers):
        network.operator(network.operator(source, gradient))
        gradient = network.operator(gradient, activation)
    return network.problem()


def inception(operators: int) -> OrderProblem:
    network = Network(8)
    last = network.operator()
    while len(network) < operators:
        branches = []
        for _ in range(network.random.randint(2, 6)):
            branch = last
            for _ in range(network.random.randint(1, 5)):
                branch = network.operator(branch)
            branches.append(branch)
        last = network.operator(*branches)
    return network.problem()


GRAPHS: dict[str, tuple[Callable[[int], OrderProblem], tuple[int, ...]]] = {
    "in-tree": (in_tree, (1_000, 10_000, 100_000)),
    "out-tree": (out_tree, (1_000, 10_000, 100_000)),
    "series-parallel": (series_parallel, (1_000, 10_000, 100_000)),
    "series-parallel, shared": (series_parallel_shared, (1_000, 10_000, 100_000)),
    "tree of cells": (tree_of_cells, (1_000, 10_000)),
    "chain of cells": (chain_of_cells, (1_000, 10_000)),
    "U-Net": (unet, (1_000, 10_000)),
    "forward and backward": (forward_backward, (1_000, 10_000)),
    "inceptions": (inception, (1_000, 10_000)),
}


def row_of(name: str, problem: OrderProblem) -> Row:
    row: Row = {"graph": name, "operators": len(problem.predecessors)}
    begin = time.process_time()
    row["liu"] = peak_bytes(problem, liu(problem).solution)
    row["liu_cpu_s"] = round(time.process_time() - begin, 3)
    merge = OrderSearches(problem).merge(seconds=10.0)
    row["merge"] = None if merge is None else peak_bytes(problem, merge)
    begin = time.process_time()
    optimal(problem)
    row["search_cpu_s"] = round(time.process_time() - begin, 3)
    begin = time.process_time()
    order = plan_order(problem)
    row["whole_cpu_s"] = round(time.process_time() - begin, 3)
    evidence = order.evidence
    row.update(optimal=order.peak_bytes, bound=evidence.bound, proven=evidence.proven, states=evidence.states)
    return row


def rows(options: Namespace) -> Iterator[Row]:
    for name, (make, sizes) in GRAPHS.items():
        for size in sizes[: 1 if options.quick else None]:
            yield row_of(name, make(size))


def proof(row: Row) -> str:
    gap = (row["optimal"] - row["bound"]) / max(row["bound"], 1)
    return "proven" if row["proven"] else f"gap {gap:.2%}"


def print_growth(points: Mapping[str, Sequence[tuple[float, float]]], what: str = "operators") -> None:
    """The least-squares slope of log CPU seconds over log operators, for each name of several points."""
    for name, listed in points.items():
        if len(listed) > 1:
            logs = [[math.log(value) for value in values] for values in zip(*listed, strict=True)]
            slope = statistics.linear_regression(*logs).slope
            print(f"{name}: CPU time grows with the power {slope:.2f} of the {what}")


def exponents(rows: Sequence[Row]) -> None:
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["whole_cpu_s"] > 0:
            points[row["graph"]].append((row["operators"], row["whole_cpu_s"]))
    print_growth(points)


EXPERIMENT = Experiment(
    "speed_trees",
    rows,
    (
        *fields("graph"),
        *fields("operators", "liu", "merge", "optimal", spec=","),
        ("proof", proof),
        *fields("states", spec=","),
        ("liu CPU s", "{liu_cpu_s:.2f}"),
        ("search CPU s", "{search_cpu_s:.2f}"),
        ("whole CPU s", "{whole_cpu_s:.2f}"),
    ),
    key=("graph", "operators"),
    quick="1,000 operators each, nothing written",
    after=exponents,
)

if __name__ == "__main__":
    run(EXPERIMENT)
