"""The proof against streams that another writer made: the files of `reference_streams` are proven, and no file that is
wrong is, also where every shape is right and the record and the certificate agree with what it computes."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from downset.equivalence.prove import prove
from downset.errors import DownsetError
from tests.effort import LONG
from tests.equivalence.reference_streams import Layer, Written, drawn
from tests.equivalence.stream_cases import Case, apart, onnx_hops
from tests.equivalence.test_streams import ROUNDING, mutants_of, wrong_if_proven


def case_of(written, folder):
    return Case(*written.save(folder), written.record["hop"])


def test_streams_of_another_writer_are_proven_and_compute_their_windows(tmp_path):
    queues = 0
    for seed in range(300 if LONG else 24):
        written = drawn(seed)
        case = case_of(written, tmp_path)
        proof = prove(case.window, case.stream)
        assert proof.proven, (seed, proof.reason)
        assert apart(*onnx_hops(case)) <= ROUNDING, seed
        queues += any(state["age"] for state in written.states)
    assert queues >= 3


@pytest.mark.parametrize("seed", range(12 if LONG else 2))
def test_no_changed_stream_of_another_writer_is_proven_that_computes_something_else(tmp_path, seed):
    written = drawn(seed)
    case = case_of(written, tmp_path)
    mutants = list(mutants_of(onnx.load(case.stream), case.record))
    counts = wrong_if_proven(
        case, onnx_hops, mutants if LONG else mutants[:: 1 + len(mutants) // 40], tmp_path, ROUNDING
    )
    assert counts["rejected"] > counts["equal"] and not counts["refused"], counts


def plain():
    """Three states of two rows, of which two are of convolutions; and the rows of the output."""
    layers = [
        Layer("Conv", 0, 3),
        Layer("LeakyRelu", 1),
        Layer("Sub", 1, other=2),
        Layer("Conv", 3, 2, dilation=2),
        Layer("MaxPool", 4, 3),
    ]
    return Written(layers, 24, 2)


def queued():
    """A convolution that moves by two rows every three hops."""
    return Written([Layer("Conv", 0, 3, 3)], 21, 2)


def node(written, name):
    return next(node for node in written.stream.nodes if node.name == name)


def constant(written, name):
    return next(one for one in written.stream.constants if one.name == name)


def set_constant(written, name, value):
    held = constant(written, name)
    held.CopyFrom(numpy_helper.from_array(np.asarray(value).astype(numpy_helper.to_array(held).dtype), name))


def attribute(written, name, key):
    return next(one for one in node(written, name).attribute if one.name == key)


def swap(items, one, other):
    items[one], items[other] = items[other], items[one]


def in_sequence(written):
    """Nodes that were added, each before the nodes that read its result."""
    nodes, there = written.stream.nodes, {name for name, _ in written.stream.inputs}
    there |= {one.name for one in written.stream.constants}
    written.stream.nodes = []
    while nodes:
        first = next(one for one in nodes if set(one.input) <= there)
        nodes.remove(first)
        written.stream.nodes.append(first)
        there |= set(first.output)


def a_row_off(written):
    set_constant(written, "next/x.start", [1])
    set_constant(written, "next/x.stop", [-1])


def a_row_off_said_in_the_certificate(written):
    a_row_off(written)
    written.parts["next/x"]["box"] = [[2, 21, 23]]


def another_shift_said_in_both(written):
    a_row_off_said_in_the_certificate(written)
    written.states[0]["shift"] = 1


def states_swapped(written):
    one, other = node(written, "next/x"), node(written, "next/t3")
    one.output[0], other.output[0] = other.output[0], one.output[0]


def states_swapped_when_read(written):
    one, other = node(written, "x.joined"), node(written, "t3.joined")
    one.input[0], other.input[0] = other.input[0], one.input[0]


def from_the_old_state(written):
    written.stream.nodes.remove(node(written, "next/t3"))
    written.stream.node("Identity", ["state/t3"], "next/t3")


def another_hop(written):
    written.record["hop"], written.record["first_exact"] = 1, 23


def another_hop_with_its_shifts(written):
    another_hop(written)
    for state in written.states:
        state["shift"] = 1


def initial_values_of_another_sign(written):
    written.record["first_exact"] = 0
    for state, (_, rows) in zip(written.states, written.stream.inputs[1:], strict=True):
        value = np.full((1, 2, rows), -1, np.float32)
        written.stream.constants.append(numpy_helper.from_array(value, state["name"]))


def another_slope(written):
    attribute(written, "t2.new", "alpha").f = 0.125


def average_for_maximum(written):
    held = node(written, "t5.new")
    held.attribute.remove(attribute(written, "t5.new", "dilations"))
    held.op_type = "AveragePool"


def padding_moved(written):
    """A row of zeros in place of the oldest one that is read."""
    written.stream.cut("x.joined", "x.later", 1)
    node(written, "t1.new").input[0] = "x.later"
    attribute(written, "t1.new", "pads").ints[:] = [1, 0]
    in_sequence(written)


def padding_behind(written):
    written.stream.cut("x.joined", "x.earlier", 0, -1)
    node(written, "t1.new").input[0] = "x.earlier"
    attribute(written, "t1.new", "pads").ints[:] = [0, 1]
    in_sequence(written)


def padding_said_in_the_certificate(written):
    padding_moved(written)
    written.parts["x.later"] = {"of": "x", "box": [[2, 21, 24]], "terms": None}


def another_sign(written):
    held = node(written, "t3.new").input
    held[0], held[1] = held[1], held[0]


def new_rows_before_the_old(written):
    held = node(written, "x.joined").input
    held[0], held[1] = held[1], held[0]


def another_dilation(written):
    written.stream.cut("t3.joined", "t3.later", 1)
    written.parts["t3.later"] = {"of": "t3", "box": [[2, 19, 22]], "terms": None}
    node(written, "t4.new").input[0] = "t3.later"
    attribute(written, "t4.new", "dilations").ints[:] = [1]
    in_sequence(written)


def a_constant_in_its_last_bit(written):
    value = numpy_helper.to_array(constant(written, "w1"))
    set_constant(written, "w1", np.nextafter(value, np.float32(9)))


def rows_backwards(written):
    written.stream.constants.append(numpy_helper.from_array(np.array([-1]), "back"))
    written.stream.constants.append(numpy_helper.from_array(np.array([-(1 << 30)]), "front"))
    names = ["x.joined", "back", "front", "next/x.axis", "back"]
    written.stream.node("Slice", names, "x.back")
    written.parts["x.back"] = {"of": "x", "box": [[2, 20, 24]], "terms": None}
    node(written, "t1.new").input[0] = "x.back"
    in_sequence(written)


def a_tensor_like_it(written):
    """The record and the certificate say that the states of t3 hold rows of t2, which has its shape and its pace."""
    next(state for state in written.states if state["tensor"] == "t3")["tensor"] = "t2"
    for name in ("t3.joined", "next/t3"):
        written.parts[name]["of"] = "t2"


def the_layer_before(written):
    node(written, "t4.new").input[0] = "t1.joined"
    held = node(written, "t3.joined")
    held.input[1] = "t1.new"
    held.output[0] = "t1.joined"
    node(written, "next/t3").input[0] = "t1.joined"
    written.parts["t1.joined"] = written.parts.pop("t3.joined")


WRONG = [
    a_row_off,
    a_row_off_said_in_the_certificate,
    another_shift_said_in_both,
    states_swapped,
    states_swapped_when_read,
    from_the_old_state,
    another_hop,
    another_hop_with_its_shifts,
    initial_values_of_another_sign,
    another_slope,
    average_for_maximum,
    padding_moved,
    padding_behind,
    padding_said_in_the_certificate,
    another_sign,
    new_rows_before_the_old,
    another_dilation,
    a_constant_in_its_last_bit,
    rows_backwards,
    a_tensor_like_it,
    the_layer_before,
]
"""Changes of `plain` that leave every input and output its shape."""

ONLY_SAID = (another_hop, another_hop_with_its_shifts, initial_values_of_another_sign, a_tensor_like_it)
"""Those of the record alone: what the file computes stays right."""


def is_proven(case):
    try:
        return prove(case.window, case.stream).proven
    except DownsetError as error:
        assert error.message
        return False


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_a_stream_that_is_wrong_in_one_thing_is_not_proven(tmp_path, change):
    """Oracle: ONNX Runtime computes something else, with files that it runs as they are."""
    written = plain()
    assert is_proven(case_of(written, tmp_path))
    change(written)
    case = case_of(written, tmp_path)
    if change not in ONLY_SAID:
        assert apart(*onnx_hops(case)) > 0
    assert not is_proven(case)


def ages_swapped(written):
    one, other = node(written, "next/t1"), node(written, "next/t1/1")
    one.output[0], other.output[0] = other.output[0], one.output[0]


def a_queue_that_waits(written):
    node(written, "next/t1").input[0] = "state/t1"
    written.parts["next/t1"] = {"of": "t1", "box": [[2, *written.states[1]["rows"]]], "terms": None}


def a_later_window_read(written):
    node(written, "t1").input[0] = "state/t1/1"


def a_queue_of_one(written):
    """Each call reads what the call before left."""
    node(written, "next/t1").input[0] = "next/t1/2"
    written.parts["next/t1"] = written.parts["next/t1/2"]


def an_age_left_out(written):
    node(written, "next/t1").input[0] = "state/t1/2"


def negated_on_its_way(written):
    node(written, "next/t1").op_type = "Neg"


QUEUES = [ages_swapped, a_queue_that_waits, a_later_window_read, a_queue_of_one, an_age_left_out, negated_on_its_way]


@pytest.mark.parametrize("change", QUEUES, ids=lambda change: change.__name__)
def test_a_queue_that_is_wrong_in_one_thing_is_not_proven(tmp_path, change):
    written = queued()
    assert is_proven(case_of(written, tmp_path))
    change(written)
    in_sequence(written)
    case = case_of(written, tmp_path)
    assert apart(*onnx_hops(case)) > 0
    assert not is_proven(case)


def test_rows_next_to_the_edge_of_a_window_are_not_proven_to_move(tmp_path):
    """The record, the certificate and what the file computes agree; the rows behind the padding differ in each
    window."""
    written = Written([Layer("Conv", 0, 3, begin=2), Layer("LeakyRelu", 1)], 16, 2)
    case = case_of(written, tmp_path)
    assert apart(*onnx_hops(case)) > 0
    proof = prove(case.window, case.stream)
    assert not proof.proven and "depend on an edge of the window" in proof.reason
