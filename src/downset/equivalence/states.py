"""The network of one call of a file with variables, so that a file that keeps them in place is compared with it.

The proof is an induction over the calls. Hypothesis: before a call each variable of the first file holds the bytes of
its state in the second. It holds before the first call, because the one CALL_ONCE runs before the variables are used
and assigns the initial bytes that the second file states. Step: in a call of the first file every READ_VARIABLE gives
what the variable held when the call began, since its one ASSIGN_VARIABLE comes later. So the call computes a function
of the inputs and of what the variables held, whose results are the outputs and the values assigned: `one_call` is that
function. If the second file holds the same function, its next states are the values assigned.

What the proof assumes of the caller of the second file: the initial bytes are put there before the first call and after
a reset, nothing writes to the arena between calls, and the runtime follows offsets, as TFLite Micro does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from downset.equivalence.claims import Unproven
from downset.equivalence.effects import EVERYTHING
from downset.equivalence.file_network import (
    ABSENT,
    Body,
    FileNetwork,
    FileNode,
    FileValue,
    metadata_of,
    without_metadata,
)
from downset.equivalence.offline import Offline
from downset.errors import LoadError
from downset.formats.tflite.stored_states import STATES_KEY, StoredState, read_states

__all__ = ["Unproven", "one_call", "states_fault", "states_of", "without_states"]

_READ, _ASSIGN, _HANDLE, _ONCE = "READ_VARIABLE", "ASSIGN_VARIABLE", "VAR_HANDLE", "CALL_ONCE"


def states_of(network: FileNetwork) -> tuple[StoredState, ...]:
    """The states in place that the metadata of a file name. Raises LoadError for damaged metadata."""
    stored = metadata_of(network, STATES_KEY)
    return () if stored is None else read_states(stored)


def without_states(network: FileNetwork) -> FileNetwork:
    """The network without what its metadata say of states."""
    return without_metadata(network, STATES_KEY)


def _ends_of(network: FileNetwork, states: Sequence[StoredState]) -> list[tuple[int, int]]:
    """The input and the output of each state. Raises LoadError where the file has none of these names, or several."""
    main, ends = network.bodies[0], list[tuple[int, int]]()
    for state in states:
        read = [value for value in main.inputs if network.values[value].label == state.input]
        written = [value for value in main.outputs if network.values[value].label == state.output]
        if len(read) != 1 or len(written) != 1:
            raise LoadError(f"{network.label}: the state {state.name!r} is not one input and one output")
        ends.append((read[0], written[0]))
    if len({value for pair in ends for value in pair}) < 2 * len(ends):
        raise LoadError(f"{network.label}: two states are one tensor")
    return ends


def states_fault(network: FileNetwork, offline: Offline | None) -> str | None:
    """Why the states of a file are not in place; None where they are. `check_placement` checks all else: that nothing
    lies over the old value before its last reader has run, or over the next one from when it is made to the end."""
    for state, (read, written) in zip(states := states_of(network), _ends_of(network, states), strict=True):
        if offline is None or offline.offsets[read] < 0:
            return f"the state {state.name!r} has no offset, so its next value would be lost"
        if offline.offsets[read] != offline.offsets[written] or offline.nbytes[read] != offline.nbytes[written]:
            return (
                f"the state {state.name!r} lies at {offline.offsets[read]}, and its next value at "
                f"{offline.offsets[written]}: it would be lost"
            )
    return None


def one_call(network: FileNetwork, other: FileNetwork) -> FileNetwork:
    """The function that one call of a file computes whose variables `other` keeps in place: these variables as inputs
    and outputs in the sequence in which `other` has them. Raises Unproven where the variables are used otherwise than
    the proof needs, and LoadError for damaged metadata of `other`."""
    states = states_of(other)
    _check_ends(other, states)
    variables = _Variables.of(network)
    moved = {state.name.encode(): state for state in states}
    main, nodes = network.bodies[0], network.nodes
    once = variables.only_once(main)
    first: dict[int, int] = {}
    ends: list[tuple[int, int]] = []
    gone: set[int] = set()
    for name, state in moved.items():
        reads, assigns = variables.uses(main, _READ, name), variables.uses(main, _ASSIGN, name)
        if len(assigns) != 1 or not reads:
            raise Unproven(f"the variable {state.name!r} is read {len(reads)} and assigned {len(assigns)} times")
        steps = [main.nodes.index(node) for node in (once, *reads, *assigns)]
        if steps != sorted(steps):
            raise Unproven(f"the variable {state.name!r} is read after it was assigned, or before it was initialised")
        results = [nodes[node].outputs[0] for node in reads]
        first |= dict.fromkeys(results, results[0])
        ends.append((results[0], nodes[assigns[0]].inputs[1]))
        gone |= {*reads, *assigns, *variables.handles_named(name)}
        gone.add(variables.initialising(once, state, network.values[results[0]]))
    variables.check_all(moved, gone)
    return _reduced(network, gone, first, ends, once)


def _check_ends(other: FileNetwork, states: Sequence[StoredState]) -> None:
    """Raise Unproven unless the states are the last inputs and outputs of the file, in their sequence."""
    ends, main = _ends_of(other, states), other.bodies[0]
    listed = [*main.inputs[-len(ends) :]], [*main.outputs[-len(ends) :]]
    if listed != ([read for read, _ in ends], [written for _, written in ends]):
        raise Unproven("its states are not the last of its inputs and outputs")


@dataclass(frozen=True, slots=True)
class _Variables:
    """`handles`: by value, the shared name of the variable whose handle it is."""

    network: FileNetwork
    handles: Mapping[int, bytes]

    @classmethod
    def of(cls, network: FileNetwork) -> _Variables:
        handles: dict[int, bytes] = {}
        containers: dict[bytes, bytes] = {}
        for node in network.nodes:
            if node.kind == _HANDLE:
                container, name = (_until_zero(node.settings.get(key)) for key in ("container", "sharedName"))
                if containers.setdefault(name, container) != container:
                    raise Unproven(f"two containers have a variable {name!r}")
                handles[node.outputs[0]] = name
        return cls(network, handles)

    def uses(self, body: Body, kind: str, name: bytes) -> list[int]:
        nodes = self.network.nodes
        return [one for one in body.nodes if nodes[one].kind == kind and self.handles.get(nodes[one].inputs[0]) == name]

    def handles_named(self, name: bytes) -> set[int]:
        return {
            index
            for index, node in enumerate(self.network.nodes)
            if node.kind == _HANDLE and self.handles[node.outputs[0]] == name
        }

    def only_once(self, main: Body) -> int:
        """The CALL_ONCE of the main graph, which is the only operator of the file that may touch any variable without
        naming it. Raises Unproven where there is another, or none."""
        nodes = self.network.nodes
        touching = [one for one in range(len(nodes)) if any(name == EVERYTHING for name, _ in nodes[one].effects)]
        if len(touching) != 1 or nodes[touching[0]].kind != _ONCE or touching[0] not in main.nodes:
            others = [nodes[one].called for one in touching if nodes[one].kind != _ONCE]
            raise Unproven(f"{others[0]} may use variables" if others else "its variables are not initialised once")
        return touching[0]

    def body_of(self, once: int) -> Body:
        place: Any = self.network.nodes[once].settings.get("initSubgraphIndex")
        body: Body = self.network.bodies[place]
        return body

    def initialising(self, once: int, state: StoredState, read: FileValue) -> int:
        """The operator that assigns the initial bytes of a state, which is then `read`. Raises Unproven where none
        does."""
        assigning = self.uses(self.body_of(once), _ASSIGN, state.name.encode())
        value = self.network.values[self.network.nodes[assigning[0]].inputs[1]] if len(assigning) == 1 else None
        if value is None or value.content is None:
            raise Unproven(f"no constant initialises the variable {state.name!r}")
        content, pattern = value.content(), state.initial_bytes
        if (
            (value.shape, value.dtype) != (read.shape, read.dtype)
            or not pattern
            or pattern * (len(content) // len(pattern)) != content
        ):
            raise Unproven(f"the variable {state.name!r} begins with other bytes than the state")
        return assigning[0]

    def check_all(self, moved: Iterable[bytes], gone: set[int]) -> None:
        """Raise Unproven where anything else uses a moved variable or its handle."""
        names = set(moved)
        handles = {value for value, name in self.handles.items() if name in names}
        for index, node in enumerate(self.network.nodes):
            if index not in gone and handles & {*node.inputs, *node.captured}:
                raise Unproven(f"{node.called} uses a variable that the other file keeps in place")
        ends = {value for body in self.network.bodies for value in (*body.inputs, *body.outputs, *body.named.values())}
        if handles & (ends | {*self.network.named.values()}):
            raise Unproven("the handle of a variable leaves the network")


def _reduced(
    network: FileNetwork, gone: set[int], first: Mapping[int, int], ends: Sequence[tuple[int, int]], once: int
) -> FileNetwork:
    """The network without the operators `gone`, with further inputs and outputs. `first`: values that are equal to
    another one. A CALL_ONCE that has nothing left to do is removed with its graph."""
    place: Any = network.nodes[once].settings.get("initSubgraphIndex")
    emptied = not set(network.bodies[place].nodes) - gone
    if emptied:
        gone = gone | {once}
    kept = [index for index in range(len(network.nodes)) if index not in gone]
    number = {old: new for new, old in enumerate(kept)}
    nodes = tuple(_reading(network.nodes[index], first) for index in kept)
    bodies = [replace(body, nodes=tuple(number[one] for one in body.nodes if one in number)) for body in network.bodies]
    bodies[0] = replace(
        bodies[0],
        inputs=(*bodies[0].inputs, *(read for read, _ in ends)),
        outputs=(*bodies[0].outputs, *(first.get(written, written) for _, written in ends)),
    )
    settings = dict(network.settings)
    if emptied and place == len(bodies) - 1:
        bodies.pop()
        subgraphs: Any = settings.get("subgraphs", ())
        settings["subgraphs"] = subgraphs[:-1]
    return replace(network, nodes=nodes, bodies=tuple(bodies), settings=settings)


def _reading(node: FileNode, first: Mapping[int, int]) -> FileNode:
    inputs = tuple(value if value == ABSENT else first.get(value, value) for value in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def _until_zero(name: Any) -> bytes:
    return (name or b"").split(bytes(1))[0]
