"""The proof of streams, and that of states in place, name a reason for every file that they refuse: each
`raise Unproven` of theirs is reached by a change of a right stream, and none is left that no change reaches."""

from dataclasses import dataclass, replace

import pytest

from downset.equivalence import states, stream, stream_motion, stream_step
from downset.equivalence.claims import Unproven
from downset.equivalence.file_network import Body, FileNetwork
from downset.equivalence.read_onnx import at_sizes, read_onnx
from downset.equivalence.read_tflite import read_tflite
from downset.equivalence.states import one_call
from downset.equivalence.stream import check_stream
from downset.formats.certificates import Certificate, read_certificate
from downset.formats.stream_records import record_of
from downset.formats.tflite.states_in_place import write_in_place
from downset.results.streams import StreamRecord
from tests.cli.test_verify_streams import with_a_gain
from tests.equivalence.raised import never_raised, recorded
from tests.equivalence.reference_streams import Layer, Written
from tests.equivalence.test_reference_streams import plain, queued, set_constant
from tests.equivalence.test_streams import chain
from tests.streaming_networks import streaming_network


@dataclass
class Given:
    """What the proof reads. Changes are made in place."""

    first: FileNetwork
    second: FileNetwork
    certificate: Certificate
    record: StreamRecord

    def reason(self):
        return check_stream(self.first, self.second, self.certificate, self.record, None).reason

    def note(self, **changes):
        self.record = replace(self.record, **changes)

    def note_state(self, place, **changes):
        held = list(self.record.states)
        held[place] = replace(held[place], **changes)
        self.note(states=tuple(held))

    def change_main(self, network="second", **changes):
        held = getattr(self, network)
        main = replace(held.bodies[0], **changes)
        setattr(self, network, replace(held, bodies=(main, *held.bodies[1:])))

    def change_node(self, kind, **changes):
        """Of the stream's first operator of this kind in the main graph."""
        nodes, place = list(self.second.nodes), self.places(kind)[0]
        nodes[place] = replace(nodes[place], **changes)
        self.second = replace(self.second, nodes=tuple(nodes))

    def change_value(self, value, network="second", **changes):
        held = getattr(self, network)
        values = list(held.values)
        values[value] = replace(values[value], **changes)
        setattr(self, network, replace(held, values=tuple(values)))

    def places(self, *kinds):
        return [place for place in self.second.bodies[0].nodes if self.second.nodes[place].kind in kinds]

    def move(self, kind, to):
        """The first operator of a kind to a place in the order of the main graph."""
        order = list(self.second.bodies[0].nodes)
        order.insert(to, order.pop(order.index(self.places(kind)[0])))
        self.change_main(nodes=tuple(order))


def of_onnx(written, folder):
    window, other = written.save(folder)
    network, certificate = read_onnx(other)
    first = at_sizes(read_onnx(window)[0], window, None)
    return Given(first, at_sizes(network, other, None), read_certificate(certificate), record_of(other))


def of_tflite(folder):
    case = chain("int8", 3, folder)
    second, _, certificate = read_tflite(case.stream)
    return Given(read_tflite(case.window)[0], second, read_certificate(certificate), case.record)


def a_second_copy(given):
    """Another state of the same rows, which the file also writes."""
    state = given.record.states[0]
    values, nodes, main = list(given.second.values), list(given.second.nodes), given.second.bodies[0]
    labels = {value.label: place for place, value in enumerate(values)}
    values += [replace(values[labels[name]], label=f"{name}/copy") for name in (state.name, state.next)]
    maker = next(node for node in nodes if labels[state.next] in node.outputs)
    nodes.append(replace(maker, outputs=(len(values) - 1,)))
    given.second = replace(given.second, values=tuple(values), nodes=tuple(nodes))
    given.change_main(
        inputs=(*main.inputs, len(values) - 2),
        outputs=(*main.outputs, len(values) - 1),
        nodes=(*main.nodes, len(nodes) - 1),
    )
    part = given.certificate.parts[state.next]
    given.certificate.parts[f"{state.next}/copy"] = part
    again = replace(state, name=f"{state.name}/copy", next=f"{state.next}/copy")
    given.note(states=(*given.record.states, again))


def a_variable_that_is_not_constant(given):
    body = given.second.bodies[1]
    assigned = next(place for place in body.nodes if given.second.nodes[place].kind == "ASSIGN_VARIABLE")
    given.change_value(given.second.nodes[assigned].inputs[1], content=None)


def without_an_assignment(given):
    gone = given.places("ASSIGN_VARIABLE")[0]
    given.change_main(nodes=tuple(place for place in given.second.bodies[0].nodes if place != gone))


def effects_in_the_window(given):
    nodes = list(given.first.nodes)
    nodes[0] = replace(nodes[0], effects=(("clock", True),))
    given.first = replace(given.first, nodes=tuple(nodes))


def handles_late(given):
    given.move("VAR_HANDLE", len(given.second.bodies[0].nodes))


def names(given, change):
    given.change_main("first", named={"rows": given.first.bodies[0].inputs[0]})
    given.change_main(named=change(given.second.bodies[0]))


def value_of(network, label):
    return next(place for place, value in enumerate(network.values) if value.label == label)


def never_computed(folder):
    """The state is said to hold all of the window's output, along its channels; each call gives it out and keeps it."""
    written = Written([Layer("LeakyRelu", 0)], 16, 2)
    model, state = written.stream, "state/t1"
    model.nodes, model.constants = [], []
    for made in ("t1", "next/t1"):
        model.cut(state, made, 0)
        written.parts[made] = {"of": "t1", "box": [], "terms": None}
    model.inputs, model.outputs = [("x", 2), (state, 16)], [("t1", 16), ("next/t1", 16)]
    held = {"name": state, "next": "next/t1", "tensor": "t1", "axis": 1, "rows": [0, 2], "shift": 0, "age": 0}
    written.record["states"] = [held]
    return of_onnx(written, folder)


def written_as_read(folder):
    """Each call leaves in a state the rows that the call before left, and says so."""
    written = plain()
    low, high = written.states[0]["rows"]
    set_constant(written, "next/x.start", 0)
    set_constant(written, "next/x.stop", high - low)
    written.parts["next/x"]["box"] = [[2, low, high]]
    return of_onnx(written, folder)


def gained(folder, *, kept=True):
    """Products of a second input, which does not move."""
    written = Written([Layer("Conv", 0, 3)], 16, 2)
    with_a_gain(written, kept=kept)
    return of_onnx(written, folder)


def another_gain(folder):
    given = gained(folder, kept=False)
    given.change_value(value_of(given.second, "gain"), label="loss")
    return given


def padded(folder):
    return of_onnx(Written([Layer("Conv", 0, 3, begin=2), Layer("LeakyRelu", 1)], 16, 2), folder)


def ages_apart(given):
    given.note_state(-1, age=given.record.states[-1].age + 2)


def copied_from_elsewhere(given):
    """Each age keeps what it held."""
    copies = [node for node in given.second.nodes if node.kind == "Identity"]
    nodes = [replace(node, inputs=copies[0].inputs) if node in copies else node for node in given.second.nodes]
    given.second = replace(given.second, nodes=tuple(nodes))


def read_in_a_queue(given):
    nodes = [replace(node, kind="Neg") if node.kind == "Identity" else node for node in given.second.nodes]
    given.second = replace(given.second, nodes=tuple(nodes))


def of_another_shape(given):
    copy = given.second.nodes[given.places("RESHAPE")[0]]
    given.change_value(copy.outputs[0], shape=(1, 1))


def assigned_too_early(given):
    order = list(given.second.bodies[0].nodes)
    assign = given.places("ASSIGN_VARIABLE")[-1]
    order.remove(assign)
    first = min(order.index(place) for place in given.places("READ_VARIABLE"))
    given.change_main(nodes=(*order[:first], assign, *order[first:]))


def never_started(given):
    body = given.second.bodies[1]
    nodes = given.second.nodes
    kept = tuple(place for place in body.nodes if nodes[place].kind != "ASSIGN_VARIABLE")
    given.second = replace(given.second, bodies=(given.second.bodies[0], replace(body, nodes=kept)))


def read_as_another_type(given):
    given.change_value(given.second.nodes[given.places("READ_VARIABLE")[0]].outputs[0], dtype="uint8")


ONNX = {
    "the record says that a window has 25 rows": lambda given: given.note(window=25),
    "the window has no tensor 'absent'": lambda given: given.note_state(0, tensor="absent"),
    "its inputs and the states of its record differ in": lambda given: given.note_state(0, name="absent"),
    "are not those of its record": lambda given: given.note(form="in_place"),
    "only from hop 11 on all rows of the window were given": lambda given: given.note(first_exact=1),
    "moves by 2 rows every 1 hops, not by": lambda given: given.note_state(0, shift=1, rows=(20, 22)),
    "holds rows that there are not": lambda given: given.note_state(0, rows=(5, 5)),
    "or no fixed shape": lambda given: given.change_value(value_of(given.second, "state/x"), shape=None),
    "the window has no input 'absent'": lambda given: given.note(input="absent"),
    "or has no axis 9": lambda given: given.note(axis=9),
    "it lacks inputs or outputs of the window": lambda given: given.change_main(outputs=()),
    "or an output twice": lambda given: given.change_main(
        outputs=(*given.second.bodies[0].outputs, given.second.bodies[0].outputs[-1])
    ),
    "two states hold the rows": a_second_copy,
    "their main graphs state something else": lambda given: given.change_main("first", settings={"doc": 1}),
    "has effects of its own": effects_in_the_window,
    "runs before what makes its input": lambda given: given.change_main(
        "first", nodes=given.first.bodies[0].nodes[::-1]
    ),
    "the input 'x' is not at its place": lambda given: given.change_value(given.second.bodies[0].inputs[0], label="z"),
    "'rows' is not there": lambda given: names(given, lambda main: {}),
    "'rows' is another tensor": lambda given: names(given, lambda main: {"rows": main.inputs[1]}),
    "the window has no 'more'": lambda given: names(
        given, lambda main: {"rows": main.inputs[0], "more": main.outputs[0]}
    ),
}
BUILT = {
    "'t1' moves along axis 2, not 1": never_computed,
    "is not proven to hold rows 22:24 of 'x'": written_as_read,
    "the rows of 'y' do not move with the window": gained,
    "the input 'gain' has another type": another_gain,
    "depend on an edge of the window": padded,
}
QUEUED = {
    "a place is missing in the queue of 't1'": ages_apart,
    "is not what that of age": copied_from_elsewhere,
    "it reads a state of a later window, and does not only copy it": read_in_a_queue,
}
TFLITE = {
    "it has no CALL_ONCE": lambda given: given.change_node("CALL_ONCE", settings={}),
    "it has inputs or outputs beyond the window's": lambda given: given.change_main(
        inputs=(*given.second.bodies[0].inputs, 0)
    ),
    "it states more than an operator of its kind has": lambda given: given.change_node("READ_VARIABLE", settings={}),
    "the record does not name its variable": lambda given: given.note(states=given.record.states[1:]),
    "is not a copy in the form of": of_another_shape,
    "it runs before what makes its value": assigned_too_early,
    "has no initial value": never_started,
    "has another type or shape than the initial value": read_as_another_type,
    "its record states a variable twice": lambda given: given.note_state(0, name=given.record.states[1].name),
    "assigns no constant": a_variable_that_is_not_constant,
    "it has another number of inputs or outputs": lambda given: given.change_node("READ_VARIABLE", inputs=(0, 0)),
    "is never assigned": without_an_assignment,
    "it holds further graphs": lambda given: setattr(
        given, "second", replace(given.second, bodies=(*given.second.bodies, Body("", (), (), ())))
    ),
    "it runs before the initial values are assigned": lambda given: given.move(
        "CALL_ONCE", len(given.second.bodies[0].nodes)
    ),
    "it runs before its VAR_HANDLE": handles_late,
}


def cases(folder):
    """(what the reason says, what the proof reads) of all."""
    for reason, build in BUILT.items():
        yield reason, build(folder)
    read = {of: lambda of=of: of_onnx(of(), folder) for of in (plain, queued)} | {chain: lambda: of_tflite(folder)}
    for of, changes in ((plain, ONNX), (queued, QUEUED), (chain, TFLITE)):
        assert read[of]().reason() == ""
        for reason, change in changes.items():
            given = read[of]()
            change(given)
            yield reason, given


def test_a_stream_that_is_refused_says_why_and_no_reason_is_left_that_none_has(tmp_path, monkeypatch):
    made = recorded(monkeypatch)
    for reason, given in cases(tmp_path):
        assert reason in given.reason()
    assert never_raised(made, stream, stream_step, stream_motion) == []


@dataclass
class Kept:
    """A file with a variable, and the file that keeps it in place."""

    network: FileNetwork
    other: FileNetwork

    def reason(self):
        with pytest.raises(Unproven) as raised:
            one_call(self.network, self.other)
        return str(raised.value)

    def change(self, of, body=0, **changes):
        """The first operator of a kind in a graph."""
        nodes = list(self.network.nodes)
        place = self.first(of, body)
        nodes[place] = replace(nodes[place], **changes)
        self.network = replace(self.network, nodes=tuple(nodes))

    def first(self, kind, body=0):
        return next(place for place in self.network.bodies[body].nodes if self.network.nodes[place].kind == kind)

    def change_body(self, place, **changes):
        bodies = list(self.network.bodies)
        bodies[place] = replace(bodies[place], **changes)
        self.network = replace(self.network, bodies=tuple(bodies))


def kept(folder):
    streaming_network(folder / "variables.tflite", 6, kinds=["delay", "delay"])
    write_in_place(folder / "variables.tflite", folder / "in_place.tflite")
    return Kept(*(read_tflite(folder / name)[0] for name in ("variables.tflite", "in_place.tflite")))


def order(given, kind, to):
    """The first operator of a kind to a place in the order."""
    nodes = list(given.network.bodies[0].nodes)
    nodes.insert(to, nodes.pop(nodes.index(given.first(kind))))
    given.change_body(0, nodes=tuple(nodes))


def turned_round(given):
    main = given.other.bodies[0]
    turned = replace(main, inputs=main.inputs[::-1])
    given.other = replace(given.other, bodies=(turned, *given.other.bodies[1:]))


def another_start(given):
    held = given.network.nodes[given.first("ASSIGN_VARIABLE", 1)].inputs[1]
    values = list(given.network.values)
    values[held] = replace(values[held], content=bytes(12).__bytes__)
    given.network = replace(given.network, values=tuple(values))


def handle_of(given):
    return given.network.nodes[given.first("VAR_HANDLE")].outputs[0]


STATES = {
    "its states are not the last of its inputs and outputs": turned_round,
    "two containers have a variable": lambda given: given.change(
        "VAR_HANDLE", settings={**given.network.nodes[given.first("VAR_HANDLE")].settings, "container": b"other"}
    ),
    "is read 1 and assigned 0 times": lambda given: given.change("ASSIGN_VARIABLE", kind="ADD", effects=()),
    "is read after it was assigned": lambda given: order(given, "READ_VARIABLE", 99),
    "may use variables": lambda given: given.change("READ_VARIABLE", effects=(("*", True),)),
    "no constant initialises the variable": lambda given: given.change_body(1, nodes=()),
    "begins with other bytes than the state": another_start,
    "uses a variable that the other file keeps in place": lambda given: given.change(
        "ADD", inputs=(handle_of(given), 0)
    ),
    "the handle of a variable leaves the network": lambda given: given.change_body(
        0, outputs=(*given.network.bodies[0].outputs, handle_of(given))
    ),
}


def test_variables_that_are_no_states_in_place_say_why_and_no_reason_is_left_that_none_has(tmp_path, monkeypatch):
    one_call(kept(tmp_path).network, kept(tmp_path).other)
    made = recorded(monkeypatch)
    for reason, change in STATES.items():
        given = kept(tmp_path)
        change(given)
        assert reason in given.reason()
    assert never_raised(made, states) == []
