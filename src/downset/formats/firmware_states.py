"""The part of a firmware's header on what a network keeps from one call to the next: how it is called, initialised and
reset."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from downset.formats.reading import load
from downset.formats.stream_records import record_of
from downset.formats.tflite.read import resource_variables
from downset.formats.tflite.states_in_place import lost_at_reset
from downset.graph.core import Graph
from downset.text import counted, format_bytes, printable

__all__ = ["state_comment", "state_functions"]

_PER_LINE = 20


def state_comment(path: Path) -> list[str]:
    """Lines on how a file that keeps states is called; none for a file without states."""
    graph, variables = load(path), resource_variables(path)
    if not graph.states and not variables:
        return []
    given = ", ".join(f"input({place}) {_safe(name)}" for place, name in _given(graph))
    resets = "ResetStates(interpreter, variables)" if lost_at_reset(path) else "ResetStates(interpreter)"
    lines = [
        "//",
        "// The network keeps states from one call to the next:",
        f"//   1. AllocateTensors() once{', then InitializeStates(interpreter)' if graph.states else ''}.",
        "//   2. For each call set these inputs alone, and Invoke():",
        f"//      {given}",
        f"//   3. {resets} to begin again.",
    ]
    if graph.states:
        nbytes = format_bytes(sum(graph.tensors[state.read].nbytes for state in graph.states))
        lines += [
            f"// {counted(len(graph.states), 'state')} in place ({nbytes} B): further inputs, which lie where",
            "// a call writes their next values. The arena is not cleared: what lies there counts as rows, unless",
            "// InitializeStates ran; an int8 zero is its zero point. Reset() of the interpreter does not reach",
            "// them. Nothing else may use the arena between two calls. For TFLite Micro only, which follows the",
            "// offsets in this file: elsewhere results are wrong without any error message.",
        ]
    if variables:
        lines += [
            f"// {counted(variables, 'variable')}: the first call initialises them. Reset() of the interpreter fills",
            "// them with their zero point, and does not assign their initial values again; ResetStates does.",
        ]
    return [*lines, *_hops(path)]


def _hops(path: Path) -> list[str]:
    """Which calls of a stream count."""
    record = record_of(path)
    if record is None:
        return []
    return [
        f"// A call takes {record.hop} rows. After the states were initialised or reset, leave out the outputs of",
        f"// {counted(record.first_exact, 'call')}: they lack rows of their window.",
    ]


def _given(graph: Graph) -> list[tuple[int, str]]:
    kept = {state.read for state in graph.states}
    return [(place, graph.tensors[tensor].name) for place, tensor in enumerate(graph.inputs) if tensor not in kept]


def state_functions(path: Path) -> list[str]:
    """C++ functions that initialise and reset the states of a file; no lines for one without states."""
    graph, lost, record = load(path), lost_at_reset(path), record_of(path)
    if not graph.states and not resource_variables(path):
        return []
    lines = [] if record is None else [f"constexpr int kFirstExactCall = {record.first_exact};  // from 0", ""]
    lines += _in_place(graph) if graph.states else []
    lines += _of_variables(lost) if lost else []
    steps = ["interpreter.Reset() == 0"]
    steps += ["AssignVariables(variables)"] * bool(lost) + ["InitializeStates(interpreter)"] * bool(graph.states)
    return [
        *lines,
        "// Begins again: no earlier call counts.",
        f"template <class Interpreter{', class Variables' if lost else ''}>",
        f"bool ResetStates(Interpreter& interpreter{', Variables* variables' if lost else ''}) {{",
        f"  return {' && '.join(steps)};",
        "}",
        "",
    ]


def _in_place(graph: Graph) -> list[str]:
    """`InitializeStates`, with a table of the states: their inputs, bytes, and initial bytes."""
    initial, rows = bytearray(), []
    for state in graph.states:
        rows.append(
            f"      {{{graph.inputs.index(state.read)}, {graph.tensors[state.read].nbytes}, {len(initial)}, "
            f"{len(state.initial)}}},  // {_safe(state.name)}"
        )
        initial += state.initial
    return [
        "// Puts the initial bytes into the states in place: after AllocateTensors(), before the first call.",
        "template <class Interpreter>",
        "bool InitializeStates(Interpreter& interpreter) {",
        "  static const unsigned char initial[] = {",
        *_array(bytes(initial)),
        "  };",
        "  static const struct { size_t input, bytes, from, period; } states[] = {",
        *rows,
        "  };",
        "  for (const auto& state : states) {",
        "    auto* tensor = interpreter.input(state.input);",
        "    if (tensor == nullptr || tensor->bytes != state.bytes) return false;",
        "    unsigned char* to = reinterpret_cast<unsigned char*>(tensor->data.raw);",
        "    for (size_t at = 0; at < state.bytes; ++at) to[at] = initial[state.from + at % state.period];",
        "  }",
        "  return true;",
        "}",
        "",
    ]


def _of_variables(values: Mapping[str, bytes]) -> list[str]:
    """`AssignVariables`, which assigns the initial values as the file's CALL_ONCE does."""
    lines = [
        "// Assigns the initial values again. `variables`: what MicroResourceVariables::Create returned.",
        "template <class Variables>",
        "bool AssignVariables(Variables* variables) {",
        "  bool ok = variables != nullptr;",
    ]
    for place, (name, initial) in enumerate(values.items()):
        lines += [
            f"  static const unsigned char initial_{place}[] = {{",
            *_array(initial),
            "  };",
            f"  ok = ok && variables->Assign(variables->CreateIdIfNoneFound(nullptr, {_literal(name)}),",
            f"                               sizeof initial_{place}, initial_{place}) == 0;",
        ]
    return [*lines, "  return ok;", "}", ""]


def _literal(name: str) -> str:
    """A C++ string of these bytes."""
    plain = string.ascii_letters + "_"
    return '"' + "".join(chr(byte) if chr(byte) in plain else f"\\{byte:03o}" for byte in name.encode()) + '"'


def _array(data: bytes) -> Sequence[str]:
    return [
        "      " + ", ".join(f"0x{byte:02x}" for byte in data[start : start + _PER_LINE]) + ","
        for start in range(0, len(data), _PER_LINE)
    ]


def _safe(name: str) -> str:
    return printable(name.replace("\\", "/"))[:60]
