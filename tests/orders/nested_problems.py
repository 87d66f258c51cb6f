"""Random problems that can be taken apart, and near misses: trees, out-trees, series-parallel graphs, parts that are
neither, and any of these inside another; results with one or several readers, parts of results, bytes taken over."""

from __future__ import annotations

from random import Random

from downset.memory.liveness import OrderProblem, Storage

__all__ = ["SHAPES", "in_tree", "nested_problem", "random_problem", "step_problem"]


def in_tree(random: Random, operators: int, children: int = 3, largest: int = 1000) -> OrderProblem:
    """Every operator has one reader, and reads up to `children` results."""
    parent = [-1] * operators
    open_, degree = [0], [0] * operators
    for v in range(1, operators):
        place = random.randrange(len(open_))
        parent[v] = open_[place]
        degree[parent[v]] += 1
        if degree[parent[v]] == children:
            open_[place] = open_[-1]
            open_.pop()
        open_.append(v)
    last = operators - 1  # operator v of the tree is last - v, so that readers come later
    before: list[list[int]] = [[] for _ in parent]
    storages = []
    for v in reversed(range(operators)):
        reader = last - parent[v] if v else last
        if v:
            before[reader].append(last - v)
        storages.append(Storage(random.randint(1, largest), (last - v,), (reader,), kept=v == 0))
    return OrderProblem(tuple(map(tuple, before)), tuple(storages))


def _tree(random: Random, before: list[set[int]], entries: list[int], size: int) -> list[int]:
    first = len(before)
    before.extend({*entries} for _ in range(size))
    for v in range(first, first + size - 1):
        before[random.randrange(v + 1, first + size)].add(v)
    return [first + size - 1]


def _out_tree(random: Random, before: list[set[int]], entries: list[int], size: int) -> list[int]:
    first = len(before)
    before.append({*entries})
    for _ in range(size - 1):
        before.append({random.randrange(first, len(before))})
    return [v for v in range(first, len(before)) if not any(v in later for later in before[v:])]


def _part(random: Random, before: list[set[int]], entries: list[int], size: int) -> list[int]:
    """One entry, one exit, and any graph between them."""
    first = len(before)
    before.append({*entries})
    for v in range(first + 1, first + size):
        earlier = range(max(first, v - 3), v)
        before.append({*random.sample(earlier, min(len(earlier), random.randint(1, 2)))})
    read = {u for v in before[first:] for u in v}
    before.append({v for v in range(first, len(before)) if v not in read})
    return [len(before) - 1]


def _dag(random: Random, before: list[set[int]], entries: list[int], size: int) -> list[int]:
    first = len(before)
    for _ in range(size):
        earlier = [*entries, *range(first, len(before))]
        before.append({*random.sample(earlier, min(len(earlier), random.randint(0, 2)))})
    return [v for v in range(first, len(before)) if not any(v in later for later in before[v:])]


def step_problem(random: Random, layers: int = 4) -> OrderProblem:
    """A chain of layers and one back, as a training step has it; each layer has branches next to the way back, which
    nothing reads in the end, or which a later operator joins. Storages are of every kind."""
    before: list[set[int]] = [set()]
    for _ in range(layers - 1):
        before.append({len(before) - 1})
    joins: list[int] = []
    way_back = layers - 1
    for layer in reversed(range(layers)):
        back = len(before)
        joined = {v for v in joins if random.random() < 0.3}
        joins = [v for v in joins if v not in joined]
        before.append({way_back, layer, *joined})
        way_back = back
        for _ in range(random.choice((0, 1, 1, 2))):
            before.append({back, *({layer - 1} if layer and random.random() < 0.7 else ())})
            if random.random() < 0.5:
                before.append({len(before) - 1})
            joins.append(len(before) - 1)
    return random_problem(random, [tuple(sorted(v)) for v in before])


SHAPES = {"tree": _tree, "out-tree": _out_tree, "part": _part, "dag": _dag}


def nested_problem(random: Random, most: int = 11) -> OrderProblem:
    """Shapes in series and side by side, with storages of every kind."""
    before: list[set[int]] = []
    exits: list[int] = []
    while len(before) < most - 3:
        beside = [
            random.choice([*SHAPES.values()])(random, before, exits, random.randint(1, 4))
            for _ in range(random.choice((1, 2, 2, 3)))
        ]
        exits = sorted({v for branch in beside for v in branch})
        if random.random() < 0.5 and len(exits) > 1:
            before.append({*exits})
            exits = [len(before) - 1]
    return random_problem(random, [tuple(sorted(v)) for v in before])


def random_problem(random: Random, predecessors: list[tuple[int, ...]]) -> OrderProblem:
    """Storages and takeovers of these operators: with one reader or several, from the start, kept, accumulated, read
    before the last of its parts is made."""
    count = len(predecessors)
    upstream: list[set[int]] = []
    for before in predecessors:
        upstream.append({*before}.union(*(upstream[u] for u in before)))
    later = [[w for w in range(count) if v in upstream[w]] for v in range(count)]
    readers = [[w for w in range(count) if v in predecessors[w]] for v in range(count)]
    largest, single = random.choice((2, 5, 30, 1000)), random.random() < 0.6

    def size() -> int:
        return random.randint(0, largest)

    storages = []
    for v in range(count):
        for _ in range(random.choice((1, 1, 1, 2))):
            if not later[v]:
                read_by = (v,)
            elif single:
                read_by = (random.choice(readers[v]),)
            else:
                read_by = tuple(sorted(random.sample(later[v], min(len(later[v]), random.randint(1, 3)))))
            storages.append(Storage(size(), (v,), read_by, not later[v] and random.random() < 0.5))
        if random.random() < 0.2:
            storages.append(Storage(size(), (v,), (v,)))  # a workspace
    if random.random() < 0.3:
        storages.append(Storage(size(), (), tuple(sorted(random.sample(range(count), min(count, 2))))))
    for _ in range(random.choice((0, 0, 1, 2))):  # parts of one result, often of neighbours
        first = random.randrange(count)
        near = range(first, min(count, first + 4)) if random.random() < 0.7 else range(count)
        parts = tuple(sorted(random.sample(near, min(len(near), random.randint(2, 3)))))
        after = [w for w in range(count) if upstream[w] & {*parts}]
        read_by = tuple(sorted(random.sample(after, min(len(after), random.randint(1, 2))))) or parts
        storages.append(Storage(size(), parts, read_by, random.random() < 0.4))
    in_place: list[tuple[int, ...]] = [()] * count
    taken: list[tuple[int, ...]] = [()] * count
    if random.random() < 0.4:
        for v in range(count):
            most = max((s.nbytes for s in storages if s.producers == (v,)), default=0)
            chosen = [
                index
                for index, s in enumerate(storages)
                if v in s.consumers and v not in s.producers and not s.kept and random.random() < 0.5
            ]
            in_place[v] = tuple(chosen)
            taken[v] = tuple(random.randint(0, min(storages[index].nbytes, most)) for index in chosen)
    return OrderProblem(tuple(predecessors), tuple(storages), tuple(in_place), 0, tuple(taken))
