"""One call of a stream: from what its states hold before the call, what its outputs and its next states hold.

The hypothesis is a claim for each state and for the new rows; every operator is proven by the identities of strips
(`parts`), in coordinates of the window that the call computes. Variables are followed in the order of the file: a
variable that is read before it is assigned holds what the call before left, and afterwards what was assigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from downset.equivalence import identities
from downset.equivalence.claims import Claim, Unproven, whole
from downset.equivalence.effects import order_difference
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode
from downset.equivalence.parts import FURTHER, PartsProof
from downset.equivalence.surroundings import same_called_graphs, same_settings
from downset.formats.certificates import Certificate
from downset.results.streams import State, StreamRecord

__all__ = ["CallStep", "HeldState", "check_step", "check_variable"]

_OF_FILES = ("subgraphs", "signatures")
"""Settings of .tflite files that count graphs and name their inputs; the proof compares what they stand for."""
_OPTIONS = {
    "CALL_ONCE": ("CallOnceOptionsT", 0, 0),
    "VAR_HANDLE": ("VarHandleOptionsT", 0, 1),
    "READ_VARIABLE": ("ReadVariableOptionsT", 1, 1),
    "ASSIGN_VARIABLE": ("AssignVariableOptionsT", 2, 0),
}
"""By operator about variables: its table of options, its numbers of inputs and outputs."""
_STATED = {"initSubgraphIndex", "container", "sharedName", "BuiltinOptions", "Operator.builtinOptionsType"}
_COPIES = ("Identity", "RESHAPE")
"""The operators by which writers copy a state: of .onnx and of .tflite files."""


@dataclass(frozen=True, slots=True)
class HeldState:
    """A state of the record with its tensors in the file. For a variable `name` is that of the resource, and
    `initial` the constant that it holds before the first call (None: the file assigns none); `read` and `next` are then
    ABSENT."""

    state: State
    of: int
    read: int = ABSENT
    next: int = ABSENT
    name: str = ""
    initial: int | None = None


@dataclass(frozen=True, slots=True)
class CallStep:
    """The result of a call. `next`: by state, the claim that is proven of what it holds after the call; None where it
    only holds what the state at `copied` held before. `exact`: whether no sums are added up in another sequence."""

    next: tuple[Claim | None, ...]
    copied: tuple[int | None, ...]
    exact: bool


def check_step(
    first: FileNetwork, second: FileNetwork, certificate: Certificate, record: StreamRecord, held: Sequence[HeldState]
) -> CallStep:
    """Prove what one call of the stream `second` makes, where each state holds what the record says. Raises Unproven
    for the first operator whose result is not what the certificate says."""
    proof = _StepProof(first, second, certificate, record, held)
    proof.whole()
    return CallStep(tuple(proof.left), tuple(proof.copied), not proof.summed and not proof.stacks.finite)


def check_variable(node: FileNode) -> None:
    """An operator about variables states nothing but which variable, or which graph, it is about."""
    options, inputs, outputs = _OPTIONS[node.kind]
    settings = dict(node.settings)
    plain = settings.pop("BuiltinOptions", None) == options and settings.pop("OperatorCode.version", None) == 1
    if not plain or any(value for key, value in settings.items() if key not in _STATED):
        raise Unproven("it states more than an operator of its kind has")
    if (len(node.inputs), len(node.outputs)) != (inputs, outputs) or ABSENT in (*node.inputs, *node.outputs):
        raise Unproven("it has another number of inputs or outputs")


class _StepProof(PartsProof):
    def __init__(
        self,
        first: FileNetwork,
        second: FileNetwork,
        certificate: Certificate,
        record: StreamRecord,
        held: Sequence[HeldState],
    ) -> None:
        super().__init__(first, second, certificate)
        self.record, self.held = record, held
        self.variables = {each.name: index for index, each in enumerate(held) if each.name}
        self.content: dict[str, int] = {}
        """By variable that was assigned in this call: the value that it holds."""
        self.handles: set[int] = set()
        self.copy_of: dict[int, int] = {}
        """By value: the state that it holds unchanged."""
        self.started = not self.variables
        self.left: list[Claim | None] = []
        self.copied: list[int | None] = []

    def whole(self) -> None:
        first, second = self.first, self.second
        effect = next((node for node in first.nodes if node.effects), None)
        if effect is not None:
            raise Unproven(f"the window's {effect.called} has effects of its own")
        same_settings(first, second, _OF_FILES)
        if first.bodies[0].settings != second.bodies[0].settings:
            raise Unproven("their main graphs state something else")
        self._graphs()
        self._inputs()
        self._operators()
        self._outputs(second.bodies[0].outputs[: len(first.bodies[0].outputs)])
        self._names()
        for each in self.held:
            value = self.content.get(each.name, ABSENT) if each.name else each.next
            if value == ABSENT:
                raise Unproven(f"the state {each.state.name!r} is never assigned")
            self.left.append(self.claims.get(value))
            self.copied.append(self.copy_of.get(value))
        plain = {index for index, node in enumerate(second.nodes) if not self._about_variables(node)}
        difference = order_difference(first, second, self.kept, {}, only=(range(len(first.nodes)), plain))
        if difference:
            raise Unproven(difference)

    def _graphs(self) -> None:
        if not self.variables or len(self.first.bodies) > 1:
            same_called_graphs(self.first, self.second)
        elif len(self.second.bodies) > 2:
            raise Unproven("it holds further graphs")

    def _inputs(self) -> None:
        main = self.second.bodies[0]
        for one, other in zip(self.first.bodies[0].inputs, main.inputs, strict=False):
            ours, theirs = self.first.values[one], self.second.values[other]
            if ours.label == self.record.input:
                if theirs.label != ours.label:
                    raise Unproven(f"the input {ours.label!r} is not at its place")
                box = list(whole(ours))
                box[self.record.axis] = (self.record.window - self.record.hop, self.record.window)
                self._check_form(other, Claim(one, tuple(box)))
                self.claims[other] = Claim(one, tuple(box))
            elif ours.form != theirs.form or not ours.same_default(theirs) or ours.label != theirs.label:
                raise Unproven(f"the input {ours.label!r} has another type, shape or quantization")
            else:
                self.claims[other] = self._all_of(one)
        for index, each in enumerate(self.held):
            if each.read != ABSENT:
                self._read(each.read, index)

    def _check_form(self, value: int, claim: Claim) -> None:
        """Prove that what a call begins with has the type, shape and quantization of what it is said to hold. The file
        must state them all, since no operator makes it."""
        mine, original = self.second.values[value], self.first.values[claim.of]
        if mine.shape is None or not mine.dtype or mine.dtype != original.dtype:
            raise Unproven(f"{mine.label!r} has another type than {original.label!r}, or no fixed shape")
        identities.shape_is(mine, claim.box)
        identities.same_type(mine, original, claim.box)

    def _read(self, value: int, index: int) -> None:
        each = self.held[index]
        box = list(whole(self.first.values[each.of]))
        if not (0 <= each.state.axis < len(box) and 0 <= each.state.rows[0] < each.state.rows[1]):
            raise Unproven(f"the record says that {each.state.name!r} holds rows that there are not")
        box[each.state.axis] = each.state.rows
        claim = Claim(each.of, tuple(box))
        self._check_form(value, claim)
        if not each.state.age:  # others hold rows of a later window
            self.claims[value] = claim
        self.copy_of[value] = index

    def _about_variables(self, node: FileNode) -> bool:
        return node.kind in ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")

    def _operator(self, index: int, node: FileNode) -> None:
        if self._about_variables(node) and self.variables:
            self._variable(node)
        elif any(value in self.copy_of and value not in self.claims for value in node.inputs):
            self._copy(node)
        else:
            super()._operator(index, node)

    def _copy(self, node: FileNode) -> None:
        """A state of a later window is moved on in its queue as it is, in its form, or not used."""
        if node.kind not in _COPIES or any(node.settings.get(key) for key in FURTHER):
            raise Unproven("it reads a state of a later window, and does not only copy it")
        ours, theirs = (self.second.values[value] for value in (node.inputs[0], node.outputs[0]))
        forms = [(value.shape, value.dtype, value.scales) for value in (ours, theirs)]
        sizes = [self.second.values[value].content for value in node.inputs[1:2]]
        if forms[0] != forms[1] or any(size is None or size() != _int32s(ours.shape) for size in sizes):
            raise Unproven(f"{theirs.label!r} is not a copy in the form of {ours.label!r}")
        self.copy_of[node.outputs[0]] = self.copy_of[node.inputs[0]]

    def _variable(self, node: FileNode) -> None:
        check_variable(node)
        if node.kind == "VAR_HANDLE":
            self.handles.add(node.outputs[0])
            return
        if node.kind == "CALL_ONCE":
            self.started = True  # it is the only one (`stream._variables`)
            return
        if not self.started:
            raise Unproven("it runs before the initial values are assigned")
        name = str(node.effects[0][0])
        state = self.variables.get(name)
        if state is None:
            raise Unproven(f"the record does not name its {name}")
        if node.inputs[0] not in self.handles:
            raise Unproven("it runs before its VAR_HANDLE")
        if node.kind == "ASSIGN_VARIABLE":
            if node.inputs[1] not in self.claims and node.inputs[1] not in self.copy_of:
                raise Unproven("it runs before what makes its value, or nothing is known of that")
            self._same_form(node.inputs[1], state)
            self.content[name] = node.inputs[1]
            return
        result = node.outputs[0]
        self._same_form(result, state)
        if name not in self.content:
            self._read(result, state)
            return
        assigned = self.content[name]
        if assigned in self.claims:
            self.claims[result] = self.claims[assigned]
        if assigned in self.copy_of:
            self.copy_of[result] = self.copy_of[assigned]

    def _same_form(self, value: int, state: int) -> None:
        """A variable has the type and shape of what it is assigned, whatever the file states of a tensor that reads it:
        all must be those of the state's initial value."""
        initial = self.held[state].initial
        mine = self.second.values[value]
        if initial is None:
            raise Unproven(f"the variable {self.held[state].state.name!r} has no initial value")
        start = self.second.values[initial]
        if (mine.shape, mine.dtype, mine.scales) != (start.shape, start.dtype, start.scales):
            raise Unproven(f"{mine.label!r} has another type or shape than the initial value of the variable")

    def _names(self) -> None:
        """Callers may name inputs and outputs: each name that the window has means the same."""
        first, second = self.first, self.second
        pairs: list[tuple[Mapping[object, int], Mapping[object, int]]] = [(first.named, second.named)]
        pairs.append((first.bodies[0].named, second.bodies[0].named))
        for ours, theirs in pairs:
            for name, value in ours.items():
                other = theirs.get(name)
                said = name if isinstance(name, str) else str(name[-1]) if isinstance(name, tuple) else ""
                if other is None:
                    raise Unproven(f"{said!r} is not there")
                if value in first.bodies[0].inputs:
                    same = other == second.bodies[0].inputs[first.bodies[0].inputs.index(value)]
                else:
                    same = first.values[value].content is None and self.claims.get(other) == self._all_of(value)
                if not same:
                    raise Unproven(f"{said!r} is another tensor")
            states = {each.read for each in self.held} | {each.next for each in self.held}
            unknown = next((name for name, value in theirs.items() if name not in ours and value not in states), None)
            if unknown is not None:
                raise Unproven(f"the window has no {unknown!r}")


def _int32s(shape: Sequence[int] | None) -> bytes:
    return np.asarray(shape or (), "<i4").tobytes()
