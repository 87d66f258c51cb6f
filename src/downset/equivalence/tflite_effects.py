"""The effects of the operators of a `.tflite` file besides their results: what they read and write outside tensors.

An operator that is not known to be without effects has every effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from downset.equivalence.effects import EVERYTHING
from downset.equivalence.file_network import Effect
from downset.equivalence.tflite_file import StoredFile, listed, subgraphs_of
from downset.formats.tflite.kinds import PURE_CUSTOM

__all__ = ["LAST_KNOWN", "Effects", "variable_name", "visible_numbers"]

LAST_KNOWN = 209
"""The greatest number of a builtin operator whose effects are known here."""
_EVERYTHING = frozenset(
    {
        "CALL",
        "CALL_ONCE",
        "DELEGATE",
        "HASHTABLE",
        "HASHTABLE_FIND",
        "HASHTABLE_IMPORT",
        "HASHTABLE_SIZE",
        "IF",
        "STABLEHLO_CASE",
        "STABLEHLO_COMPOSITE",
        "STABLEHLO_CUSTOM_CALL",
        "STABLEHLO_WHILE",
        "WHILE",
    }
)
_CUSTOM = 32
_DRAWS = frozenset({"MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"})
_EVERY: tuple[Effect, ...] = ((EVERYTHING, True),)


@dataclass(slots=True)
class Effects:
    """`variables`: by tensor, the name of the variable whose handle it holds."""

    variables: dict[int, str] = field(default_factory=dict)

    def of(
        self, number: int, kind: str, operator: Any, inputs: Sequence[int], outputs: Sequence[int]
    ) -> tuple[Effect, ...]:
        """The effects of the builtin operator `number`, in the order of the file. `kind`: its name in the schema, or
        that of a custom operator."""
        if number == _CUSTOM:
            return () if kind in PURE_CUSTOM else _EVERY
        if kind == "VAR_HANDLE":
            self.variables[outputs[0]] = f"variable {variable_name(operator)}"
            return ()
        if kind in ("ASSIGN_VARIABLE", "READ_VARIABLE"):
            variable = self.variables.get(inputs[0], EVERYTHING)
            return ((variable, kind == "ASSIGN_VARIABLE" or variable == EVERYTHING),)
        if kind in _DRAWS:
            return (("random numbers", True),)
        pure = kind not in _EVERYTHING and number <= LAST_KNOWN
        calls = subgraphs_of(operator.builtinOptions) or subgraphs_of(operator.builtinOptions2)
        return () if pure and not calls else _EVERY


def variable_name(handle: Any) -> tuple[bytes, bytes]:
    """Container and shared name of the variable of a VAR_HANDLE, as LiteRT and TFLite Micro read them: both end them at
    the first zero, and take a missing one for an empty one."""
    container, name = (getattr(handle.builtinOptions, key, None) or b"" for key in ("container", "sharedName"))
    return container.split(bytes(1))[0], name.split(bytes(1))[0]


def visible_numbers(stored: StoredFile) -> dict[tuple[bytes, bytes], int]:
    """By variable: its number, which the runtime counts by the VAR_HANDLEs of the file and a handle holds. Empty where
    nothing in the file depends on numbers: every handle is made by a VAR_HANDLE and only names a variable that is read
    or assigned, and no table, whose number the file states, lies among the variables."""
    numbers: dict[tuple[bytes, bytes], int] = {}
    visible = False
    for subgraph in stored.model.subgraphs:
        called = [(stored.kind_of(operator), operator) for operator in listed(subgraph.operators)]
        handles = {int(t) for kind, operator in called if kind == "VAR_HANDLE" for t in listed(operator.outputs)}
        visible |= bool(handles & {int(tensor) for tensor in listed(subgraph.outputs)})
        for kind, operator in called:
            if kind == "VAR_HANDLE":
                numbers.setdefault(variable_name(operator), len(numbers))
            names = kind in ("ASSIGN_VARIABLE", "READ_VARIABLE")
            read = [int(tensor) in handles for tensor in listed(operator.inputs)]
            visible |= (
                kind.startswith("HASHTABLE") or any(read[1:]) or any(one != names for one in read[:1] if one or names)
            )
    return numbers if visible else {}
