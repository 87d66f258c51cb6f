"""Each of the three heuristics against PyTorch inductor's own function, on stand-ins for its scheduler's nodes."""

import random
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor import memory

from downset.memory.liveness import order_problem, peak_bytes
from downset.orders.inductor import HEURISTICS
from downset.orders.planners import ORDERS
from tests.effort import cases
from tests.plain_graphs import random_graph
from tests.strategies import plain_graphs

inductor = ORDERS["inductor"]


class Thing(SimpleNamespace):
    """A node or buffer of inductor's scheduler, as far as its ordering looks at one."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def as_inductor_sees_it(graph):
    """(nodes, input buffers, buffers, names of graph outputs) of a graph without in-place operators and aliases."""
    nodes = [Thing(made=[]) for _ in graph.ops]
    made_by, read_by = graph.producers(), graph.consumers()
    names = [tensor.name for tensor in graph.tensors]
    inputs, buffers = {}, {}
    for index, tensor in enumerate(graph.tensors):
        readers = memory.OrderedSet(nodes[op] for op in read_by[index])
        info = memory.MemoryPlanningInfoForBuffer(tensor.nbytes, tensor.nbytes, readers, readers)
        if made_by[index] < 0:
            if readers:
                inputs[names[index]] = memory.FreeableInputBuffer(names[index], info)
        else:
            buffer = Thing(mpi_buffer=info, get_name=lambda name=names[index]: name)
            nodes[made_by[index]].made.append(buffer)
            buffers[names[index]] = buffer
    known = {**inputs, **buffers}
    for index, (node, op) in enumerate(zip(nodes, graph.ops, strict=True)):
        reads = list(dict.fromkeys(op.inputs))
        node.mpi_node = memory.MemoryPlanningInfoForNode(
            index,
            sum(graph.tensors[tensor].nbytes for tensor in op.outputs),
            memory.OrderedSet(known[names[tensor]] for tensor in reads),
            memory.OrderedSet(nodes[made_by[tensor]] for tensor in reads if made_by[tensor] >= 0),
            memory.OrderedSet(nodes[later] for tensor in op.outputs for later in read_by[tensor]),
        )
        node.get_outputs = lambda node=node: node.made
        node.get_buffer_names = lambda node=node: [buffer.get_name() for buffer in node.made]
        node.unmet_dependencies = [SimpleNamespace(name=names[tensor]) for tensor in reads]
    return nodes, inputs, buffers, memory.OrderedSet(names[tensor] for tensor in graph.outputs)


@given(plain_graphs(most_ops=30) | st.integers(0, 9).map(lambda seed: random_graph(random.Random(seed), 80)))
@settings(max_examples=cases(200))
def test_the_three_heuristics_are_inductors_own(graph):
    problem = order_problem(graph, "live")
    nodes, inputs, buffers, outputs = as_inductor_sees_it(graph)
    theirs = {
        "lpmf": memory.topological_sort_lpmf(nodes, inputs, buffers, outputs),
        "bfs": memory.topological_sort_bfs(nodes),
        "dfs": memory.topological_sort_dfs(nodes),
    }
    peaks = [memory.estimate_peak_memory(nodes, inputs, outputs)[0]]
    for name, heuristic in HEURISTICS.items():
        steps = [node.mpi_node.index for node in theirs[name]]
        assert list(heuristic(problem)) == steps, name
        peaks.append(memory.estimate_peak_memory(theirs[name], inputs, outputs)[0])
        assert peaks[-1] == peak_bytes(problem, steps)
    assert peak_bytes(problem, inductor(problem).solution) == min(peaks)


def test_the_three_differ_from_one_another():
    """Else one of them could stand in for all and the test above would not see it."""
    graphs = [random_graph(random.Random(seed), 12) for seed in range(20)]
    problems = [order_problem(graph, "live") for graph in graphs]
    found = {name: [heuristic(problem) for problem in problems] for name, heuristic in HEURISTICS.items()}
    assert found["lpmf"] != found["bfs"] != found["dfs"] != found["lpmf"]
