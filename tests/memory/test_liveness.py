"""Each memory model on graphs small enough to count by hand."""

import pytest

from downset.errors import LimitReached, UsageError
from downset.graph.core import Graph, Op, Tensor
from downset.memory import liveness
from downset.memory.bounds import breadth_bound
from downset.memory.liveness import lifetimes, order_problem, peak_bytes, profile
from downset.memory.models import MEMORY_MODELS, memory_model


def graph_of(sizes, ops, inputs, outputs):
    """`sizes`: bytes by tensor; `ops`: (kind, inputs, outputs[, attrs]) each."""
    tensors = tuple(Tensor(f"t{index}", (size,), "uint8", size) for index, size in enumerate(sizes))
    built = tuple(
        Op(f"op{index}", kind, tuple(ins), tuple(outs), *attrs) for index, (kind, ins, outs, *attrs) in enumerate(ops)
    )
    return Graph("hand", tensors, built, tuple(inputs), tuple(outputs)).check()


# input 0 -> a 1 -> b 2 (output); input is read again by the last operator
CHAIN = graph_of([10, 20, 5], [("Conv", [0], [1]), ("Add", [1, 0], [2])], [0], [2])


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ("live", [30, 35]),  # 0+1, 0+1+2
        ("paper", [20, 20]),  # tensor 1 alone
        ("tflm", [16 + 32, 16 + 32 + 16]),
        ("litert", [64 + 64, 64 * 3]),
    ],
)
def test_a_chain_by_hand(memory, expected):
    assert profile(order_problem(CHAIN, memory), range(2)) == expected


def test_a_graph_output_that_is_also_consumed_stays_to_the_end():
    graph = graph_of([8, 16, 4], [("Conv", [0], [1]), ("Conv", [1], [2])], [0], [1, 2])
    assert profile(order_problem(graph, "live"), range(2)) == [24, 20]
    records = lifetimes(graph, range(2)).records
    assert [(record.start, record.stop) for record in records] == [(0, 1), (0, 2), (1, 2)]


def test_an_output_nobody_reads_lives_for_one_step():
    graph = graph_of([8, 16, 4, 1], [("Split", [0], [1, 2]), ("Conv", [1], [3])], [0], [3])
    assert profile(order_problem(graph, "live"), range(2)) == [28, 17]


def test_an_input_nobody_reads_counts_before_the_first_operator_only():
    graph = graph_of([8, 100, 4], [("Conv", [0], [2])], [0, 1], [2])
    problem = order_problem(graph, "live")
    assert profile(problem, [0]) == [12]
    assert problem.floor_bytes == 108
    assert peak_bytes(problem, [0]) == 108
    assert breadth_bound(lifetimes(graph, [0]).records) == 108


def test_an_input_passed_straight_through_is_kept():
    graph = graph_of([8, 4], [("Conv", [0], [1])], [0], [0, 1])
    assert profile(order_problem(graph, "live"), [0]) == [12]
    assert lifetimes(graph, [0]).records[0].stop == 1


def test_serenitys_concat_is_its_parts():
    ops = [("Conv", [0], [1]), ("Conv", [0], [2]), ("Concat", [1, 2], [3]), ("Conv", [3], [4])]
    graph = graph_of([4, 10, 20, 30, 2], ops, [0], [4])
    assert profile(order_problem(graph, "live"), range(4)) == [14, 34, 60, 32]
    # no bytes for tensor 3: the parts stay until operator 3 ran
    assert profile(order_problem(graph, "serenity"), range(4)) == [14, 34, 30, 32]


def test_partial_sums_accumulate_in_the_result():
    ops = [("Conv", [0], [1]), ("Conv", [0], [2]), ("Sum", [1, 2], [3], {"partial_sum": 1}), ("Conv", [3], [4])]
    graph = graph_of([4, 10, 10, 10, 2], ops, [0], [4])
    assert profile(order_problem(graph, "live"), range(4)) == [14, 24, 30, 12]
    # one block of 10 from the first partial convolution on
    assert profile(order_problem(graph, "serenity"), range(4)) == [14, 14, 10, 12]


def test_a_view_has_no_bytes_of_its_own_and_keeps_its_source():
    ops = [("Conv", [0], [1]), ("Reshape", [1], [2]), ("Conv", [2], [3])]
    graph = graph_of([256, 512, 512, 256], ops, [0], [3])
    assert profile(order_problem(graph, "ort"), range(3)) == [512, 512, 768]
    living = lifetimes(graph, range(3), "ort")
    assert living.record_of[1] == living.record_of[2]


def test_in_place_needs_the_last_reader_and_an_equal_size():
    # tensor 1 is read by a Relu and by a Clip: in place only for the reader that comes last
    ops = [("Conv", [0], [1]), ("Relu", [1], [2]), ("Conv", [2], [3]), ("Clip", [1], [4]), ("Sum", [3, 4], [5])]
    graph = graph_of([256] * 6, ops, [0], [5])
    problem = order_problem(graph, "ort")
    # Conv: 1; Relu copies (1 is needed later): 1,2; Conv: 1,2,3; Clip over 1: 1,3; Sum, the graph's output: 4,3,5
    assert profile(problem, range(5)) == [256, 512, 768, 512, 768]
    living = lifetimes(graph, range(5), "ort")
    assert breadth_bound(living.records) == 768
    assert living.record_of[4] == living.record_of[1]
    smaller = graph_of([256, 256, 256, 256, 2560, 256], ops, [0], [5])
    assert profile(order_problem(smaller, "ort"), range(5))[3] == 512 + 2560


def test_onnx_runtime_allocates_every_graph_output():
    ops = [("Conv", [0], [1]), ("Reshape", [1], [2]), ("Relu", [1], [3])]
    graph = graph_of([256] * 4, ops, [0], [2, 3])
    assert profile(order_problem(graph, "ort"), range(3)) == [256, 512, 768]
    assert profile(order_problem(graph, "torch"), range(3)) == [256, 256, 512]


def test_graph_inputs_are_never_overwritten():
    graph = graph_of([64, 64], [("Relu", [0], [1])], [0], [1])
    assert profile(order_problem(graph, "litert"), [0]) == [128]


def test_every_model_says_what_it_counts_and_unknown_names_list_the_known():
    for model in MEMORY_MODELS.values():
        assert model.counts
        assert memory_model(model) is memory_model(model.name)
    with pytest.raises(UsageError, match="live, paper, serenity"):
        memory_model("ram")


def test_parts_of_a_zero_copy_concatenation_keep_their_own_names_where_its_tensor_comes_first_in_the_file():
    tensors = [Tensor(name, (), "uint8", 8) for name in ("joined", "a", "b", "y")]
    ops = (
        Op("one", "Conv", (), (1,)),
        Op("two", "Conv", (), (2,)),
        Op("concat", "Concat", (1, 2), (0,)),
        Op("last", "Conv", (0,), (3,)),
    )
    graph = Graph("g", tuple(tensors), ops, (), (3,)).check()
    assert [record.id for record in lifetimes(graph, range(4), "serenity").records] == ["a", "b", "y"]


def test_what_does_not_fit_into_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(liveness, "machine_bytes", lambda: 1 << 31)
    tensors = tuple(Tensor(f"t{at}", (), "opaque", 1) for at in range(2))
    op = Op("op", "Op", (0,), (1,))
    graph = Graph("g", tensors, (op,) * 400_000, (0,), (1,))
    with pytest.raises(LimitReached, match="400,000 operators takes about 2,400,000,000 bytes"):
        liveness.order_problem(graph)
    assert liveness.order_problem(Graph("g", tensors, (op,), (0,), (1,))).predecessors == ((),)
