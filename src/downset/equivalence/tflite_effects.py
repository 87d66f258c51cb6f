"""The effects of the operators of a `.tflite` file besides their results: what they read and write outside tensors.

An operator that is not known to be without effects has every effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from downset.equivalence.effects import EVERYTHING
from downset.equivalence.file_network import Effect
from downset.equivalence.tflite_file import subgraphs_of
from downset.formats.tflite.kinds import PURE_CUSTOM

__all__ = ["LAST_KNOWN", "Effects"]

LAST_KNOWN = 209
"""The greatest number of a builtin operator whose effects are known here."""
_EVERYTHING = frozenset(
    {
        "CALL", "CALL_ONCE", "DELEGATE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE",
        "IF", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "STABLEHLO_CUSTOM_CALL", "STABLEHLO_WHILE", "WHILE",
    }
)  # fmt: skip
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
        that of a custom operator. Variables are identified by their shared name, as LiteRT and TFLite Micro do: both
        end it at the first zero, and take a missing name for an empty one."""
        if number == _CUSTOM:
            return () if kind in PURE_CUSTOM else _EVERY
        if kind == "VAR_HANDLE":
            options = operator.builtinOptions
            names = (getattr(options, name, None) or b"" for name in ("container", "sharedName"))
            self.variables[outputs[0]] = f"variable {[name.split(bytes(1))[0] for name in names]}"
            return ()
        if kind in ("ASSIGN_VARIABLE", "READ_VARIABLE"):
            variable = self.variables.get(inputs[0], EVERYTHING)
            return ((variable, kind == "ASSIGN_VARIABLE" or variable == EVERYTHING),)
        if kind in _DRAWS:
            return (("random numbers", True),)
        pure = kind not in _EVERYTHING and number <= LAST_KNOWN
        calls = subgraphs_of(operator.builtinOptions) or subgraphs_of(operator.builtinOptions2)
        return () if pure and not calls else _EVERY
