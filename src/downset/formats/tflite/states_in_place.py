"""The form of a streaming `.tflite` file in which TFLite Micro keeps its variables in place.

A variable takes its bytes in the tail of TFLite Micro's arena, and in the head a copy of what was read and one of what
is assigned. In place it is an input and an output of the network at one offset: the firmware never sets this input, so
what a call writes is there in the next call.

A variable can be moved where a constant initialises it, where it is read before it is assigned once, and where the
operator that makes its next value can run after all that read the old one. Any other variable stays.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.formats.tflite.flatbuffer import Flatbuffer, read_flatbuffer
from downset.formats.tflite.read import load_tflite
from downset.formats.tflite.side_effects import Variable, variable_name
from downset.formats.tflite.stored_states import STATES_KEY, StoredState, packed_states
from downset.formats.tflite.write_rewritten import drop_weights
from downset.process.whole_files import write_whole

__all__ = ["InPlaceForm", "lost_at_reset", "write_in_place", "write_with_values"]

_READ, _ASSIGN, _HANDLE, _ONCE = "READ_VARIABLE", "ASSIGN_VARIABLE", "VAR_HANDLE", "CALL_ONCE"
_PREFIX = "state/"


@dataclass(frozen=True, slots=True)
class InPlaceForm:
    """The states in place of a written file, and by variable that stays the reason."""

    moved: tuple[StoredState, ...]
    kept: Mapping[str, str]


@dataclass(slots=True)
class _Uses:
    """The uses of a variable in the main subgraph: tensors by index, operators by position. `reads`: (operator, result)
    of each; `assigns`: (operator, value) of each. `initial`: the bytes that a constant assigns to it before its first
    use; None where none does. `fault`: why it stays."""

    name: str
    reads: list[tuple[int, int]] = field(default_factory=list)
    assigns: list[tuple[int, int]] = field(default_factory=list)
    initial: bytes | None = None
    fault: str = ""


def write_in_place(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> InPlaceForm:
    """Write the form of the file at `path` to `output`, without offsets; nothing where no variable can be moved. Raises
    LoadError for a damaged file."""
    file = read_flatbuffer(path)
    network = _VariableFile(file, load_tflite(path).predecessors())
    variables = network.variables()
    waits: dict[int, set[int]] = defaultdict(set)
    moved: dict[Variable, _Uses] = {}
    for variable, uses in variables.items():
        uses.fault = uses.fault or network.fault(uses) or network.order_fault(uses, waits)
        if not uses.fault:
            moved[variable] = uses
    kept = {uses.name: uses.fault for uses in variables.values() if uses.fault}
    states = network.move(moved, waits) if moved else ()
    if moved:
        write_whole(output, file.packed(), source=Path(path))
    return InPlaceForm(states, kept)


def write_with_values(path: str | os.PathLike[str], output: str | os.PathLike[str], names: Sequence[str]) -> None:
    """Write the file with the values that it assigns to these variables as further outputs, in this sequence. Raises
    UnsupportedError where it does not assign each of them once."""
    file = read_flatbuffer(path)
    network = _VariableFile(file, load_tflite(path).predecessors())
    values = {uses.name: [value for _, value in uses.assigns] for uses in network.variables().values()}
    lost = next((name for name in names if len(values.get(name, ())) != 1), None)
    if lost is not None:
        raise UnsupportedError(f"{path} does not assign a variable {lost!r} once")
    main = network.main
    main.outputs = np.asarray([*_listed(main.outputs), *(values[name][0] for name in names)], np.int32)
    write_whole(output, file.packed(), source=Path(path))


def lost_at_reset(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """By variable: its initial bytes, where TFLite Micro's reset does not bring them back. It fills a variable with the
    zero point of what the main subgraph assigns to it, and with 0 where that is not quantised."""
    file = read_flatbuffer(path)
    network, lost = _VariableFile(file, load_tflite(path).predecessors()), dict[str, bytes]()
    for uses in network.variables().values():
        if uses.initial is not None and uses.assigns:
            stated = network.main.tensors[uses.assigns[0][1]].quantization
            zeros = [] if stated is None or not len(_listed(stated.scale)) else [*_listed(stated.zeroPoint)]
            fill = bytes([int(zeros[0]) % 256 if zeros else 0])
            if uses.initial != fill * len(uses.initial):
                lost[uses.name] = uses.initial
    return lost


@dataclass(slots=True)
class _VariableFile:
    """The main subgraph of a file. `predecessors`: by operator those that it waits for."""

    file: Flatbuffer
    predecessors: Sequence[Sequence[int]]

    @property
    def main(self) -> Any:
        return self.file.model.subgraphs[0]

    def variables(self) -> dict[Variable, _Uses]:
        """The variables of the main subgraph, by the order of their handles."""
        uses_of: dict[Variable, _Uses] = {}
        handles: dict[int, Variable] = {}
        other = ""
        for place, operator in enumerate(self.main.operators):
            kind, inputs = self._kind(operator), _listed(operator.inputs)
            if kind == _HANDLE:
                variable = variable_name(operator.builtinOptions)
                handles[int(operator.outputs[0])] = variable
                uses_of.setdefault(variable, _Uses(variable[1].decode(errors="replace")))
            elif kind in (_READ, _ASSIGN) and int(inputs[0]) in handles:
                uses = uses_of[handles[int(inputs[0])]]
                listed, tensor = (uses.reads, operator.outputs[0]) if kind == _READ else (uses.assigns, inputs[1])
                listed.append((place, int(tensor)))
            elif kind == _ONCE:
                other = other or self._initialise(place, operator, uses_of)
            elif kind in (_READ, _ASSIGN) or self._may_use_variables(kind, operator):
                other = other or f"{kind} may read or write it"
            elif handles.keys() & {int(tensor) for tensor in inputs}:
                other = other or f"{kind} reads a handle"
        for name in {
            uses.name for uses in uses_of.values() if [one.name for one in uses_of.values()].count(uses.name) > 1
        }:
            other = other or f"two variables are called {name!r}"
        for uses in uses_of.values():
            uses.fault = other
        return uses_of

    def _initialise(self, place: int, operator: Any, uses_of: dict[Variable, _Uses]) -> str:
        """Note the constants that a CALL_ONCE assigns. Returns why nothing may be moved; "" where something may."""
        subgraph = self.file.model.subgraphs[operator.builtinOptions.initSubgraphIndex]
        handles: dict[int, Variable] = {}
        for inner in subgraph.operators:
            kind = self._kind(inner)
            if kind == _HANDLE:
                handles[int(inner.outputs[0])] = variable_name(inner.builtinOptions)
                continue
            value = subgraph.tensors[inner.inputs[1]] if kind == _ASSIGN else None
            data = None if value is None else self.file.model.buffers[value.buffer].data
            if data is None or int(inner.inputs[0]) not in handles:
                return f"{_ONCE} does more than assign constants"
            variable = handles[int(inner.inputs[0])]
            uses = uses_of.setdefault(variable, _Uses(variable[1].decode(errors="replace")))
            if uses.reads or uses.assigns or uses.initial is not None:
                return f"{_ONCE} at operator {place} is not the first to assign {uses.name!r}"
            uses.initial = np.asarray(data, np.uint8).tobytes()
        return ""

    def _may_use_variables(self, kind: str, operator: Any) -> bool:
        options = operator.builtinOptions
        calls = options is not None and any("subgraph" in key.lower() for key in vars(options))
        return (
            calls or kind == "CUSTOM" or kind.startswith(("HASHTABLE", "CALL", "STABLEHLO")) or kind in ("IF", "WHILE")
        )

    def fault(self, uses: _Uses) -> str:
        """Why a variable cannot be an input and an output; "" where it can."""
        if len(uses.assigns) != 1 or not uses.reads:
            return f"it is read {len(uses.reads)} and assigned {len(uses.assigns)} times in a call"
        (assigned, value), results = uses.assigns[0], [result for _, result in uses.reads]
        if any(place > assigned for place, _ in uses.reads):
            return "it is read after it was assigned"
        if uses.initial is None:
            return "no constant initialises it"
        ends = [int(tensor) for tensors in (self.main.inputs, self.main.outputs) for tensor in _listed(tensors)]
        if value in ends or any(result in ends for result in results):
            return "an input or output of the network is the same tensor"
        if sum(value in _listed(one.inputs) and self._kind(one) == _ASSIGN for one in self.main.operators) > 1:
            return "its next value is also assigned to another variable"
        if self._maker(value) is None or self._kind(self.main.operators[self._maker(value)]) == _READ:
            return "no operator makes its next value"
        shapes = {(self.main.tensors[t].type, tuple(_listed(self.main.tensors[t].shape))) for t in (value, *results)}
        if len(shapes) > 1:
            return "what is read and what is assigned differ in shape or type"
        return ""

    def order_fault(self, uses: _Uses, waits: dict[int, set[int]]) -> str:
        """Why the operator that makes the next value cannot run after all that read the old one; "" where it can, and
        then `waits` has that."""
        maker, results = self._maker(uses.assigns[0][1]), {result for _, result in uses.reads}
        assert maker is not None
        readers = {place for place, one in enumerate(self.main.operators) if results & {*map(int, _listed(one.inputs))}}
        if maker in readers:
            return f"{self._kind(self.main.operators[maker])} reads it while it makes its next value"
        if self._sorted({**waits, maker: waits.get(maker, set()) | readers}) is None:
            return "its next value has to be made before the old one was read for the last time"
        waits[maker] |= readers
        return ""

    def _sorted(self, waits: Mapping[int, Iterable[int]]) -> list[int] | None:
        """The operators in an order with these further waits, as near to that of the file as it can be; None for a
        cycle."""
        needed = [{*earlier, *waits.get(place, ())} for place, earlier in enumerate(self.predecessors)]
        later: dict[int, list[int]] = defaultdict(list)
        for place, earlier in enumerate(needed):
            for one in earlier:
                later[one].append(place)
        left = [len(earlier) for earlier in needed]
        ready = [place for place, count in enumerate(left) if not count]
        order = []
        while ready:
            order.append(place := heapq.heappop(ready))
            for one in later[place]:
                left[one] -= 1
                if not left[one]:
                    heapq.heappush(ready, one)
        return order if len(order) == len(needed) else None

    def move(self, moved: Mapping[Variable, _Uses], waits: Mapping[int, Iterable[int]]) -> tuple[StoredState, ...]:
        """Make these variables inputs and outputs of the network."""
        main, order = self.main, self._sorted(waits)
        assert order is not None
        states = []
        stands_for: dict[int, int] = {}
        names = {_name(tensor) for tensor in main.tensors}
        for uses in moved.values():
            (_, first), *others = uses.reads
            value, called = uses.assigns[0][1], uses.name.removeprefix(_PREFIX)
            stands_for |= {result: first for _, result in others}
            names -= {_name(main.tensors[first]), _name(main.tensors[value])}
            ends = _new(f"{_PREFIX}{called}", names), _new(f"next/{called}", names)
            stored = StoredState(uses.name, *ends, _pattern(uses.initial or b""))
            main.tensors[first].name, main.tensors[value].name = stored.input.encode(), stored.output.encode()
            self._add_ends(first, value)
            states.append(stored)
        gone = {place for uses in moved.values() for place, _ in (*uses.reads, *uses.assigns)}
        main.operators = [main.operators[place] for place in order if place not in gone]
        for operator in main.operators:
            if operator.inputs is not None:
                operator.inputs = np.asarray([stands_for.get(int(t), int(t)) for t in operator.inputs], np.int32)
        self._drop_handles(moved)
        drop_weights(self.file.model)
        self._state(states)
        return tuple(states)

    def _add_ends(self, first: int, value: int) -> None:
        """Add them to what the caller gives and gets. Signatures stay: TFLite Micro does not read them."""
        main = self.main
        main.inputs = np.asarray([*_listed(main.inputs), first], np.int32)
        main.outputs = np.asarray([*_listed(main.outputs), value], np.int32)

    def _drop_handles(self, moved: Mapping[Variable, _Uses]) -> None:
        """Remove what the moved variables alone needed: their handles, their initialisation, and a CALL_ONCE that has
        nothing left to do."""
        model, main = self.file.model, self.main
        for operator in [one for one in main.operators if self._kind(one) == _ONCE]:
            place = operator.builtinOptions.initSubgraphIndex
            called = model.subgraphs[place]
            handles = self._handles(called.operators, moved)
            called.operators = [one for one in called.operators if not handles & {*_tensors(one)}]
            if called.operators:
                _drop_tensors(model, place)
                continue
            main.operators.remove(operator)
            if place == len(model.subgraphs) - 1 and not any(
                signature.subgraphIndex == place for signature in model.signatureDefs or ()
            ):
                model.subgraphs.pop()
        handles = self._handles(main.operators, moved)
        main.operators = [one for one in main.operators if not handles & {*_tensors(one)}]
        _drop_tensors(model, 0)

    def _handles(self, operators: Sequence[Any], moved: Mapping[Variable, _Uses]) -> set[int]:
        handles = (one for one in operators if self._kind(one) == _HANDLE)
        return {int(one.outputs[0]) for one in handles if variable_name(one.builtinOptions) in moved}

    def _state(self, states: Sequence[StoredState]) -> None:
        entry = self.file.schema.MetadataT()
        entry.name, entry.buffer = STATES_KEY.encode(), self.file.add_buffer(packed_states(states))
        self.file.model.metadata = [*(self.file.model.metadata or []), entry]

    def _maker(self, tensor: int) -> int | None:
        makers = (place for place, one in enumerate(self.main.operators) if tensor in _listed(one.outputs))
        return next(makers, None)

    def _kind(self, operator: Any) -> str:
        code = self.file.model.operatorCodes[operator.opcodeIndex]
        return self.file.kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]


def _drop_tensors(model: Any, place: int) -> None:
    """Remove the tensors of a subgraph to which nothing refers."""
    graph = model.subgraphs[place]
    entries = [
        entry
        for signature in model.signatureDefs or ()
        if signature.subgraphIndex == place
        for entry in (*(signature.inputs or ()), *(signature.outputs or ()))
    ]
    used = {int(tensor) for tensors in (graph.inputs, graph.outputs) for tensor in _listed(tensors)}
    used |= {tensor for operator in graph.operators for tensor in _tensors(operator)}
    used |= {entry.tensorIndex for entry in entries}
    number = {old: new for new, old in enumerate(sorted(used - {-1}))} | {-1: -1}
    graph.tensors = [graph.tensors[old] for old in sorted(used - {-1})]
    for table in (graph, *graph.operators):
        for key in ("inputs", "outputs", "intermediates"):
            if getattr(table, key, None) is not None:
                setattr(table, key, np.asarray([number[int(t)] for t in getattr(table, key)], np.int32))
    for entry in entries:
        entry.tensorIndex = number[entry.tensorIndex]


def _tensors(operator: Any) -> list[int]:
    every = (operator.inputs, operator.outputs, operator.intermediates)
    return [int(tensor) for tensors in every for tensor in _listed(tensors)]


def _listed(values: Any) -> Any:
    return () if values is None else values


def _name(tensor: Any) -> str:
    return (tensor.name or b"").decode(errors="replace")


def _new(name: str, names: set[str]) -> str:
    """The name, or with a number behind it where it is taken. Adds the result to `names`."""
    unique, number = name, 2
    while unique in names:
        unique, number = f"{name}_{number}", number + 1
    names.add(unique)
    return unique


def _pattern(data: bytes) -> str:
    """The shortest beginning, in hexadecimal digits, of which the bytes are repetitions."""
    for size in (1, 2, 4, 8):
        if len(data) % size == 0 and data[:size] * (len(data) // size) == data:
            return data[:size].hex()
    return data.hex()
