"""The proof, by induction over hops, that a stream computes what a network computes on windows.

Window w holds the rows [w * H, w * H + N) of a sequence; the call that computes it gets its last H rows alone.

- *Hypothesis*: before the call of window w, each state holds rows [a, b) of a tensor of window w (of window w + g, for
  a state of age g in a queue).
- *Step* (`stream_step`): then the operators of the call make the outputs of window w, and leave in each state rows
  [a + d, b + d) of the same tensor of window w (or what the state of the next age held).
- *Shift* (`stream_motion`): over the network of the window alone, row r + d of window w is row r of window w + m, for
  a queue of m states, as both lie where no row depends on the window's edges. So the hypothesis holds for w + 1.
- *Base*: a row of a state depends, by the lemma, only on rows of the window's input. Before the first call none of
  these was given; so nothing is claimed of any. A row that depends on rows given since the first call alone is right,
  by the step. From call `ceil((N - H) / H)` on, all N rows of the window were given: outputs are the window's from
  there on, whatever the states held first. A record that promises them from an earlier call is not proven, also where
  its initial states are what the window makes of constant rows: those are numbers, which no proof computes.

The record and the certificate in the file are statements to prove. Nothing here depends on how the stream was written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from downset.equivalence.claims import Claim, Unproven
from downset.equivalence.file_network import FileNetwork
from downset.equivalence.offline import Offline
from downset.equivalence.states import states_of, without_states
from downset.equivalence.stream_motion import Motions, motions
from downset.equivalence.stream_step import HeldState, check_step, check_variable
from downset.formats.certificates import Certificate
from downset.formats.tflite.stored_states import StoredState
from downset.results.comparisons import Proof, StreamProof
from downset.results.streams import State, StreamRecord

__all__ = ["check_stream", "first_right"]


def first_right(record: StreamRecord) -> int:
    """The first call from which on all rows of its window were given."""
    return -(-(record.window - record.hop) // record.hop)


def check_stream(
    first: FileNetwork, second: FileNetwork, certificate: Certificate, record: StreamRecord, offline: Offline | None
) -> Proof:
    """Prove that the stream `second` computes on each hop what `first` computes on its window."""
    try:
        data = _data(first, record)
        held = _held(first, second, record)
        _check_in_place(record, states_of(second))
        step = check_step(first, without_states(second), certificate, record, held)
        shifts = motions(first, data, record.axis, record.hop)
        _next_window(first, held, step.next, step.copied, shifts)
        if record.first_exact < first_right(record):
            raise Unproven(
                f"the record promises the window's outputs from hop {record.first_exact} on; only from hop "
                f"{first_right(record)} on all rows of the window were given"
            )
    except Unproven as reason:
        return Proof(False, placed=offline is not None, reason=str(reason) or "a statement of its record is not proven")
    facts = StreamProof(record.window, record.hop, record.form, len(held), record.first_exact, first_right(record))
    return Proof(True, step.exact, rewrites=len(certificate.parts), placed=offline is not None, stream=facts)


def _data(first: FileNetwork, record: StreamRecord) -> int:
    data = next((value for value in first.bodies[0].inputs if first.values[value].label == record.input), None)
    if data is None:
        raise Unproven(f"the window has no input {record.input!r}")
    shape = first.values[data].shape
    if shape is None or not 0 <= record.axis < len(shape):
        raise Unproven(f"the shape of {record.input!r} is not known, or has no axis {record.axis}")
    if shape[record.axis] != record.window or not 0 < record.hop <= record.window:
        raise Unproven(
            f"the record says that a window has {record.window} rows and a hop {record.hop}; "
            f"{record.input!r} has {shape[record.axis]} along axis {record.axis}"
        )
    return data


def _held(first: FileNetwork, second: FileNetwork, record: StreamRecord) -> list[HeldState]:
    """The states of the record, each with its tensors. Every input, output and variable beyond the window's is one."""
    tensors: dict[str, int] = {}
    for index, value in enumerate(first.values):
        tensors.setdefault(value.label, index)
    missing = next((state.tensor for state in record.states if state.tensor not in tensors), None)
    if missing is not None:
        raise Unproven(f"the window has no tensor {missing!r}")
    main, own = second.bodies[0], first.bodies[0]
    inputs, outputs = main.inputs[len(own.inputs) :], main.outputs[len(own.outputs) :]
    if len(main.inputs) < len(own.inputs) or len(main.outputs) < len(own.outputs):
        raise Unproven("it lacks inputs or outputs of the window")
    if record.form == "variables":
        if inputs or outputs:
            raise Unproven("it has inputs or outputs beyond the window's")
        return _variables(second, record, tensors)
    ends = [{second.values[value].label: value for value in values} for values in (inputs, outputs)]
    stated = [[state.name for state in record.states], [state.next for state in record.states]]
    for what, there, names in zip(("input", "output"), ends, stated, strict=True):
        if len(set(names)) != len(names) or there.keys() != set(names):
            odd = next(iter(sorted(there.keys() ^ set(names))), "two states")
            raise Unproven(f"its {what}s and the states of its record differ in {odd!r}")
    if len(set(outputs)) != len(outputs) or any(kind.startswith("VAR") for kind in _kinds(second)):
        raise Unproven("it has variables too, or an output twice")
    return [
        HeldState(
            state,
            tensors[state.tensor],
            ends[0][state.name],
            ends[1][state.next],
        )
        for state in record.states
    ]


def _kinds(network: FileNetwork) -> list[str]:
    return [node.kind for node in network.nodes if isinstance(node.kind, str)]


def _variables(second: FileNetwork, record: StreamRecord, tensors: Mapping[str, int]) -> list[HeldState]:
    """The states as variables, with the constants that the graph of CALL_ONCE assigns to them."""
    initial: dict[str, int] = {}
    calls = [node for node in second.nodes if node.kind == "CALL_ONCE"]
    body = second.bodies[1] if len(second.bodies) > 1 else None
    if body is None or len(calls) != 1 or calls[0].settings.get("initSubgraphIndex") != 1:
        raise Unproven("it has no CALL_ONCE of the graph that assigns the initial values")
    for index in body.nodes:
        node = second.nodes[index]
        if node.kind in ("VAR_HANDLE", "ASSIGN_VARIABLE"):
            check_variable(node)
        if node.kind == "VAR_HANDLE":
            continue
        if node.kind != "ASSIGN_VARIABLE" or second.values[node.inputs[1]].content is None:
            raise Unproven(f"{node.called} of the graph of initial values assigns no constant")
        initial[str(node.effects[0][0])] = node.inputs[1]
    names = [f"variable {(b'', state.name.encode())}" for state in record.states]
    if len(set(names)) != len(names):
        raise Unproven("its record states a variable twice")
    return [
        HeldState(state, tensors[state.tensor], name=name, initial=initial.get(name))
        for state, name in zip(record.states, names, strict=True)
    ]


def _check_in_place(record: StreamRecord, stored: Sequence[StoredState]) -> None:
    """The states in place, each with its next state at the same bytes (`states_fault`), are those of the record."""
    ends = [(state.name, state.next) for state in record.states] if record.form == "in_place" else []
    if sorted(ends) != sorted((state.input, state.output) for state in stored):
        raise Unproven("the states that its metadata place, each with its next state, are not those of its record")


def _next_window(
    first: FileNetwork,
    held: Sequence[HeldState],
    left: Sequence[Claim | None],
    copied: Sequence[int | None],
    shifts: Motions,
) -> None:
    """Prove that what a call leaves in each state is what the hypothesis says of the next window."""
    queues: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for index, each in enumerate(held):
        state = each.state
        places = queues[state.tensor, state.axis, state.rows, state.shift]
        if state.age in places:
            raise Unproven(f"two states hold the rows {state.rows[0]}:{state.rows[1]} of {state.tensor!r}")
        places[state.age] = index
    for places in queues.values():
        each = held[places[min(places)]]
        state, count = each.state, len(places)
        if sorted(places) != list(range(count)):
            raise Unproven(f"a place is missing in the queue of {state.tensor!r}")
        _moves(first, each.of, state, count, shifts)
        for age in range(count - 1):
            if copied[places[age]] != places[age + 1]:
                raise Unproven(f"the state {held[places[age]].state.name!r} is not what that of age {age + 1} was")
        low, high = state.rows
        box = list(_box(first, each.of))
        box[state.axis] = (low + state.shift, high + state.shift)
        if left[places[count - 1]] != Claim(each.of, tuple(box)):
            raise Unproven(
                f"the next {held[places[count - 1]].state.name!r} is not proven to hold rows {low + state.shift}:"
                f"{high + state.shift} of {state.tensor!r}"
            )


def _box(first: FileNetwork, value: int) -> list[tuple[int, int]]:
    return [(0, extent) for extent in first.values[value].shape or ()]


def _moves(first: FileNetwork, value: int, state: State, count: int, shifts: Motions) -> None:
    """Prove that rows [a + d, b + d) of a window are rows [a, b) of the one `count` hops on."""
    label = first.values[value].label
    motion = shifts.of.get(value)
    if motion is None:
        raise Unproven(f"the rows of {label!r} do not move with the window: {shifts.stops.get(value, 'it is fixed')}")
    if motion.axis != state.axis:
        raise Unproven(f"{label!r} moves along axis {motion.axis}, not {state.axis}")
    if count % motion.hops or Fraction(state.shift) != motion.rate * count:
        raise Unproven(
            f"{label!r} moves by {motion.rate * motion.hops} rows every {motion.hops} hops, "
            f"not by {state.shift} every {count}"
        )
    low, high = state.rows
    if low < motion.rows[0] or high + state.shift > motion.rows[1]:
        raise Unproven(
            f"rows {low}:{high + state.shift} of {label!r} depend on an edge of the window; "
            f"rows {motion.rows[0]}:{motion.rows[1]} do not"
        )
