"""The order of operators of a `.tflite` file that no tensor states: what variables and tables demand."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from downset.formats.tflite.kinds import PURE_CUSTOM

__all__ = ["SideEffects", "Variable", "variable_name"]

Variable = tuple[bytes, bytes]

_BARRIERS = frozenset(
    {
        "ASSIGN_VARIABLE",
        "CALL",
        "CALL_ONCE",
        "HASHTABLE",
        "HASHTABLE_FIND",
        "HASHTABLE_IMPORT",
        "HASHTABLE_SIZE",
        "IF",
        "READ_VARIABLE",
        "STABLEHLO_CASE",
        "STABLEHLO_COMPOSITE",
        "STABLEHLO_CUSTOM_CALL",
        "STABLEHLO_WHILE",
        "WHILE",
    }
)
"""Operators that may read and write what no tensor holds."""


def variable_name(options: Any) -> Variable:
    """Container and shared name of the variable of a VAR_HANDLE. The runtimes end both at the first zero, and take a
    missing one for an empty one."""
    container, name = (getattr(options, key, None) or b"" for key in ("container", "sharedName"))
    return container.split(bytes(1))[0], name.split(bytes(1))[0]


class SideEffects:
    """Dependencies without a tensor: a variable is read after it was last written, and written after it was read.

    An operator that calls a subgraph, a custom operator that is not known, and one that reads or assigns by a handle
    that no VAR_HANDLE makes, may read and write all variables. Operators that read one of the tensors `states`, which a
    kernel may write, keep their order. `numbered`: VAR_HANDLEs keep their order.
    """

    def __init__(self, numbered: bool, states: Container[int]) -> None:
        self._numbered, self._last_handle = numbered, -1
        self._states, self._last_reader = states, dict[int, int]()
        self._name_of: dict[int, Variable] = {}
        self._written: dict[Variable, int] = {}
        self._read: dict[Variable, list[int]] = {}
        self._barrier = -1

    def after(
        self, name: str, position: int, inputs: tuple[int, ...], outputs: tuple[int, ...], options: Any
    ) -> tuple[int, ...]:
        read = {tensor for tensor in inputs if tensor in self._states}
        waits = {self._last_reader.get(tensor, -1) for tensor in read} | self._waits(
            name, position, inputs, outputs, options
        )
        self._last_reader.update(dict.fromkeys(read, position))
        return tuple(sorted(earlier for earlier in waits if earlier >= 0))

    def _waits(
        self, name: str, position: int, inputs: tuple[int, ...], outputs: tuple[int, ...], options: Any
    ) -> set[int]:
        """The operators before it, or -1, without those that read a state."""
        if name == "VAR_HANDLE":
            self._name_of.update(dict.fromkeys(outputs, variable_name(options)))
            earlier, self._last_handle = self._last_handle, position
            return {earlier} if self._numbered else set()
        variable = self._name_of.get(inputs[0]) if inputs else None
        if name == "READ_VARIABLE" and variable is not None:
            waits = {self._written.get(variable, -1), self._barrier}
            self._read.setdefault(variable, []).append(position)
        elif name == "ASSIGN_VARIABLE" and variable is not None:
            waits = {self._written.get(variable, -1), self._barrier, *self._read.pop(variable, ())}
            self._written[variable] = position
        elif name in _BARRIERS or (name.startswith("custom.") and name[7:] not in PURE_CUSTOM):
            waits = {
                self._barrier,
                *self._written.values(),
                *(earlier for reads in self._read.values() for earlier in reads),
            }
            self._barrier = position
            self._written.clear()
            self._read.clear()
        else:
            return set()
        return waits
