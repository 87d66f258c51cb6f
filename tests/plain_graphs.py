"""Random graphs, by a seeded generator or by one that Hypothesis drives (`strategies.plain_graphs`)."""

from __future__ import annotations

from itertools import permutations

from downset.graph.core import Graph, Op, Tensor


def random_graph(random, operators, inputs=2, window=8):
    """Operators of an opaque kind with one or two outputs, each reading one to three earlier tensors."""
    tensors = [Tensor(f"t{index}", (), "uint8", random.randint(1, 50)) for index in range(inputs)]
    ops = []
    for index in range(operators):
        recent = range(max(0, len(tensors) - window), len(tensors))
        reads = random.sample(recent, random.randint(1, min(3, len(recent))))
        made = range(len(tensors), len(tensors) + random.randint(1, 2))
        tensors += [Tensor(f"t{tensor}", (), "uint8", random.randint(1, 50)) for tensor in made]
        ops.append(Op(f"op{index}", "test::Any", tuple(reads), tuple(made)))
    outputs = random.sample(range(inputs, len(tensors)), random.randint(1, min(3, len(tensors) - inputs)))
    read = {tensor for op in ops for tensor in op.inputs}
    inputs_read = tuple(tensor for tensor in range(inputs) if tensor in read)
    return Graph("random", tuple(tensors), tuple(ops), inputs_read, tuple(sorted(outputs))).check()


def every_order(graph):
    """All orders in which the operators can run."""
    before = graph.predecessors()
    for steps in permutations(range(len(before))):
        place = {operator: at for at, operator in enumerate(steps)}
        if all(place[other] < place[v] for v in place for other in before[v]):
            yield steps
