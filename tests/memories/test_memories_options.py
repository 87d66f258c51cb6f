"""What the options of a plan for two memories mean, on networks of two operators, against the machine."""

from itertools import product

import pytest

import downset as ds
from downset.formats.reading import load
from downset.memories.of_graph import MemoriesRequest, memories_form
from downset.memory.models import memory_model
from tests.memories.oracles.machine import least_cost
from tests.tflite_net import TfliteNet

pytestmark = pytest.mark.native
LIMIT = {"slow": 1 << 20, "memory": "tflm", "work_limit": 20_000}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A convolution of one cell, which reads each byte many times, and a sum, which reads each byte once."""
    net = TfliteNet(3, size=4, dtype="int8")
    x = net.input(8)
    return load(
        net.save(tmp_path_factory.mktemp("net") / "m.tflite", [net.op("ADD", (net.conv(x, 8, 1), x), 8, "AddOptions")])
    )


def plan(graph, fast, **options):
    return ds.plan_memories(graph, fast=fast, **LIMIT, **options)


def weights_of(graph):
    return {tensor for op in graph.ops for tensor in op.inputs if tensor in graph.constants}


def test_weights_in_slow_memory_are_loaded_once_where_they_have_room(graph):
    nbytes = sum(graph.tensors[tensor].nbytes for tensor in weights_of(graph))
    assert nbytes > 0 == plan(graph, 1 << 20).evidence.value
    kept = plan(graph, 1 << 20, weights="slow", direct="never")
    assert (kept.moved_bytes, kept.direct_bytes) == (nbytes, 0)
    streamed = plan(graph, 1 << 20, weights="slow", direct="size")
    assert streamed.moved_bytes + streamed.direct_bytes == nbytes


@pytest.mark.parametrize("fast", [288, 416, 1 << 16])
def test_each_option_costs_what_the_machine_needs(graph, fast):
    for direct, weights, place in product(("kernel", "once", "size", "never"), ("flash", "slow"), ("either", "slow")):
        options = {"direct": direct, "weights": weights, "inputs": place, "outputs": place}
        request = MemoriesRequest(fast, memory_model("tflm"), **options)
        try:
            problem = memories_form(graph, request).problem
        except ds.InfeasibleError:
            with pytest.raises(ds.InfeasibleError):
                plan(graph, fast, **options)
            continue
        planned = plan(graph, fast, **options)
        assert planned.evidence.proven and planned.cost_without_offsets == least_cost(problem)
        ends = sum(graph.tensors[tensor].nbytes for tensor in (*graph.inputs, *graph.outputs))
        if place == "slow":
            assert planned.moved_bytes + planned.direct_bytes >= ends
        if direct == "never":
            assert not planned.direct_bytes
        if direct == "once":
            sizes = {one.nbytes for one in graph.tensors}
            assert all(
                access.direct_bytes in sizes
                for accesses in problem.accesses
                for access in accesses
                if access.direct_cost is not None
            )


def test_a_direct_access_counts_what_the_kernel_reads(graph):
    """With room for the weights alone, the convolution reads its input for each of the eight channels that it makes."""
    x, sums = (graph.tensors[tensor].nbytes for tensor in (graph.inputs[0], graph.outputs[0]))
    nothing = plan(graph, 16, inputs="slow", outputs="slow", direct="kernel")
    assert nothing.direct_bytes == 8 * x + x + 3 * sums
    assert plan(graph, 16, inputs="slow", outputs="slow", direct="size").direct_bytes == 2 * x + 3 * sums
    with pytest.raises(ds.InfeasibleError, match="needs 128 bytes"):
        plan(graph, 16, direct="once")


def test_a_part_that_is_taken_is_as_if_fast_memory_were_smaller(graph):
    values = [
        plan(graph, fast, direct="size", reserve=reserve).evidence.value for fast, reserve in ((288, 0), (400, 112))
    ]
    assert values[0] == values[1] > 0
