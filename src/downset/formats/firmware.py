"""A fitted model as C++ for firmware: the model as an aligned array, its arena's size, and its operators.

*Source* of the names of operators: `MicroMutableOpResolver` of TFLite Micro. What a library's kernels take follows from
the formulas in `memory.cmsis_nn` and `memory.esp_nn`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from downset import __version__
from downset.errors import UnsupportedError, UsageError
from downset.formats.firmware_states import state_comment, state_functions
from downset.formats.kernel_scratch import KernelScratch, kernel_scratch
from downset.formats.tflite.read import builtin_operators, resource_variables
from downset.graph.core import Graph
from downset.memory import cmsis_nn
from downset.memory.kernel_libraries import KernelLibrary, kernel_library
from downset.memory.models import memory_model
from downset.memory.records import align_up
from downset.messages import Message, Setting
from downset.results.fit import Fit
from downset.text import abridged, format_bytes, printable

__all__ = [
    "Firmware",
    "arena_bytes",
    "firmware",
    "identifier",
    "in_files",
    "one_line",
    "operator_lines",
    "planning_bytes",
    "resolver_method",
]

_ALIGNMENT = 16
"""Bytes to which TFLite Micro asks the model and the arena to be aligned."""
_PLANNING_BYTES = 72 + 40
"""Bytes in which the allocator and the planner describe each buffer, with pointers of eight bytes."""
_PER_LINE = 20
_WITHOUT_VARIABLES = (
    "//   static tflite::MicroInterpreter interpreter(tflite::GetModel(model), resolver, arena, kArenaBytes);",
)
_WITH_VARIABLES = (
    "//   tflite::MicroAllocator* allocator = tflite::MicroAllocator::Create(arena, kArenaBytes);",
    "//   tflite::MicroResourceVariables* variables =",
    "//       tflite::MicroResourceVariables::Create(allocator, kResourceVariables);",
    "//   static tflite::MicroInterpreter interpreter(tflite::GetModel(model), resolver, allocator, variables);",
)
"""How the interpreter is made. Variables lie in the arena, and TFLite Micro is told how many there are."""
_SUM = ["constexpr size_t kArenaBytes = kTensorBytes + kScratchBytes + kTailBytes + kMarginBytes;"]
"""The arena with the reference kernels."""
_SUM_OF_LIBRARY = [
    "constexpr size_t kArenaBytes = kTensorBytes + kTailBytes + {0}KeptBytes + kMarginBytes +",
    "    ({0}ScratchBytes > kScratchBytes ? {0}ScratchBytes : kScratchBytes);",
]
"""The arena with a library's kernels, whose scratch takes the place of that of the reference kernels. {0}: the
beginning of its constants' names."""
_LISTED = 20
"""Operators that one list of the header names at most."""
_SPELLED = {
    "CUMSUM": "CumSum",
    "PADV2": "PadV2",
    "BATCH_MATMUL": "BatchMatMul",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}
"""The resolver's names of operators that do not follow from the schema's names by capital letters alone."""


@dataclass(frozen=True, slots=True)
class Firmware:
    """C++ text. `header` holds everything if `source` is empty; else `source` defines the array of the model, and
    `header` declares it and holds the rest."""

    header: str
    source: str = ""

    __repr__ = abridged


def firmware(fit: Fit, *, include: str = "") -> Firmware:
    """The model that a fit for TFLite Micro wrote, as C++11. `include`: the name by which the source includes the
    header; empty for one header that holds everything.

    Raises UsageError where the fit wrote no file or is for another target, UnsupportedError where TFLite Micro did not
    run it: its arena's size is not known then.
    """
    if fit.target != "tflm":
        raise UsageError(f"a header is for TFLite Micro (target tflm), not for {fit.target}")
    if fit.output_path is None:
        raise UsageError("a header holds the model that is written: give an output, too")
    if fit.measured is None:
        reason = Message("no header: the size of the arena is not known, ", fit.not_measured or "not measured")
        fits = " fits the file's exact int8 form, which TFLite Micro runs"
        raise UnsupportedError(reason, *(("; ", Setting("int8", True), fits) if fit.int8_form else ()))
    path = Path(fit.output_path)
    constants = _constants(fit, identifier(path.stem), path)
    return in_files(path, _comment(fit, path), [*constants, *operator_lines(path), *state_functions(path)], include)


def in_files(path: Path, comment: Sequence[str], body: Sequence[str], include: str) -> Firmware:
    """The model at `path` as an array, with the comment before it and the body behind it, which begins with the
    namespace. `include`: the name by which the source includes the header; empty for one header that holds
    everything."""
    prefix = identifier(path.stem)
    array = _array(path.read_bytes())
    guard = f"DOWNSET_{prefix.upper()}_H_"
    declared = f"alignas({_ALIGNMENT}) extern const unsigned char {prefix}_model[];"
    defined = f"alignas({_ALIGNMENT}) {'' if include else 'static '}const unsigned char {prefix}_model[] = {{"
    header = [
        *comment,
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "",
        *([declared] if include else [defined, *array, "};"]),
        *body,
        f"}}  // namespace downset_{prefix}",
        "",
        f"#endif  // {guard}",
        "",
    ]
    if not include:
        return Firmware("\n".join(header))
    source = [
        f"// {one_line(path.name)}, written by downset {__version__}.",
        f'#include "{include}"',
        "",
        defined,
        *array,
        "};",
        "",
    ]
    return Firmware("\n".join(header), "\n".join(source))


def _comment(fit: Fit, path: Path) -> list[str]:
    graph = fit.graph
    return [
        f"// {one_line(path.name)}: {len(graph.ops)} operators, written by downset {__version__} from "
        f"{one_line(Path(fit.model).name)} ({fit.shipped}).",
        "//",
        f"// The arena was measured in TFLite Micro {one_line(fit.versions.get('tflite-micro', ''))} on a 64-bit",
        "// host with its reference kernels. On a 32-bit target the tail is smaller, as its pointers are; other",
        "// kernels may take more scratch. Not checked: your target, its compiler, and its kernels.",
        "// MicroInterpreter::arena_used_bytes() tells the bytes used there.",
        *_assumed(fit),
        "//",
        "// A sketch of its use:",
        "//   alignas(16) static unsigned char arena[kArenaBytes];",
        "//   static tflite::MicroMutableOpResolver<kOperatorKinds> resolver;",
        "//   RegisterOperators(resolver);",
        *(_WITH_VARIABLES if resource_variables(path) else _WITHOUT_VARIABLES),
        "//   interpreter.AllocateTensors();",
        "// with the names below, in their namespace.",
        *state_comment(path),
    ]


def _assumed(fit: Fit) -> list[str]:
    if fit.assumed_kernels is None:
        return []
    return [
        "//",
        f"// Tensors overlap as the {fit.assumed_kernels} kernels of TFLite Micro allow. With other kernels (ESP-NN,",
        "// Xtensa, another build of CMSIS-NN) results are wrong without any error message.",
    ]


def arena_bytes(fit: Fit) -> int:
    """The size of the arena that a header states, `kArenaBytes`, for a fit that was measured in TFLite Micro."""
    return sum(_arena_parts(fit))


def _arena_parts(fit: Fit) -> tuple[int, int]:
    """(bytes that the file takes with its kernels, bytes to add for planning at the start and to round up)."""
    assert fit.measured is not None
    parts = fit.measured.details[fit.shipped]
    arena, tail = fit.arena.after, parts["tail_bytes"]
    named, taken = _kernels(fit)
    counted = taken if named else KernelScratch()
    scratch = max(0, parts["head_bytes"] - arena, counted.above_bytes)
    total = arena + scratch + tail + counted.kept_bytes
    needed = max(total, tail + counted.kept_bytes + planning_bytes(fit.graph, scratch=scratch > 0))
    return total, align_up(needed, _ALIGNMENT) - total


def _constants(fit: Fit, prefix: str, path: Path) -> list[str]:
    assert fit.measured is not None
    model_bytes, variables = path.stat().st_size, resource_variables(path)
    parts = fit.measured.details[fit.shipped]
    arena, tail = fit.arena.after, parts["tail_bytes"]
    reference = max(0, parts["head_bytes"] - arena)
    named, taken = _kernels(fit)
    _, margin = _arena_parts(fit)
    claim = "proven least" if fit.arena.proven else f"bound {format_bytes(fit.arena.bound)}"
    held = f" with that scratch of {named.name}" if named and memory_model(fit.memory).scratch else ""
    return [
        "",
        f"namespace downset_{prefix} {{",
        "",
        f"static const unsigned char* const model = {prefix}_model;",
        f"constexpr size_t kModelBytes = {model_bytes};",
        "",
        f"constexpr size_t kTensorBytes = {arena};  // the plan's arena{held} ({claim})",
        f"constexpr size_t kScratchBytes = {reference};  // of the reference kernels",
        f"constexpr size_t kTailBytes = {tail};  // what stays from one run to the next; on a Cortex-M about "
        f"{parts['cortex_m_tail_bytes']} (estimated)",
        f"constexpr size_t kMarginBytes = {margin};  // for planning at the start; a multiple of {_ALIGNMENT}",
        *_of_library(named, taken),
        *([line.format(_prefix(named)) for line in _SUM_OF_LIBRARY] if named else _SUM),
        *([f"constexpr int kResourceVariables = {variables};  // keep their values between runs"] if variables else []),
        "",
    ]


def _kernels(fit: Fit) -> tuple[KernelLibrary | None, KernelScratch]:
    """The library that the fit names, and what its kernels take; no library and the larger figures of CMSIS-NN's two
    where it names none, or the reference kernels."""
    if fit.kernels is not None and fit.kernels != "reference":
        return kernel_library(fit.kernels), kernel_scratch(fit, fit.kernels)
    both = [kernel_scratch(fit, "cmsis-nn-dsp"), kernel_scratch(fit, "cmsis-nn-mve")]
    most = KernelScratch(
        max(one.above_bytes for one in both), max(one.kept_bytes for one in both), unknown=both[0].unknown
    )
    return None, most


def _prefix(library: KernelLibrary | None) -> str:
    return "kEspNn" if library is not None and library.chip else "kCmsisNn"


def _of_library(named: KernelLibrary | None, taken: KernelScratch) -> list[str]:
    """The lines on what the kernels take of a library that was named, or of CMSIS-NN."""
    whose = "CMSIS-NN's kernels for DSP or MVE instructions" if named is None else f"The kernels of {named.name}"
    source = cmsis_nn.SOURCES if named is None else named.source
    return [
        f"// {whose} take at most so much scratch above the tensors, and keep at most so",
        "// much from one run to the next, by formulas (analytic, not run):",
        f"// {source}.",
        f"// Compared with {'ESP-NN' if named and named.chip else 'CMSIS-NN'}'s own functions on a host.",
        *(["// Add both where you link them. For ESP-NN fit with kernels named by chip and version."] * (not named)),
        *_operator_list("Not in these figures, as their formulas are not known:", taken.unknown),
        *_operator_list(
            "By their source these kernels may write BEYOND the scratch that they ask for (esp-nn issue 30):",
            taken.overruns,
        ),
        f"constexpr size_t {_prefix(named)}ScratchBytes = {taken.above_bytes};",
        f"constexpr size_t {_prefix(named)}KeptBytes = {taken.kept_bytes};",
    ]


def _operator_list(title: str, operators: Sequence[str]) -> list[str]:
    """A comment with the first operators of a list; nothing where it is empty."""
    if not operators:
        return []
    more = [f"and {len(operators) - _LISTED} more"] * (len(operators) > _LISTED)
    return [f"// {title}", *(f"//   {one_line(operator)}" for operator in (*operators[:_LISTED], *more))]


def operator_lines(path: Path) -> list[str]:
    """C++ that registers the operators of the file."""
    names = builtin_operators(path)
    methods = [(name, resolver_method(name)) for name in names]
    calls = [
        f"  ok = resolver.{method}() == 0 && ok;"
        if method
        else f"  // custom operator {one_line(name)}: resolver.AddCustom(...)"
        for name, method in methods
    ]
    return [
        f"constexpr unsigned kOperatorKinds = {max(1, len(names))};",
        "",
        "// Registers what the model needs and nothing else, with a tflite::MicroMutableOpResolver<kOperatorKinds>.",
        "template <class Resolver>",
        "bool RegisterOperators(Resolver& resolver) {",
        "  bool ok = true;",
        *([] if calls else ["  (void)resolver;"]),
        *calls,
        "  return ok;",
        "}",
        "",
    ]


def resolver_method(name: str) -> str | None:
    """The resolver's method for a builtin operator of TFLite's schema: CONV_2D -> AddConv2D. None for custom ones."""
    if name.startswith("custom."):
        return None
    if name in _SPELLED:
        return f"Add{_SPELLED[name]}"
    return "Add" + "".join(part if part[0].isdigit() else part.capitalize() for part in name.split("_"))


def planning_bytes(graph: Graph, *, scratch: bool) -> int:
    """Bytes that TFLite Micro needs in addition to the tail while it plans, where tensors lie later: at most a
    description of a buffer for each tensor that is not constant and, with `scratch`, for each operator."""
    placed = sum(tensor.role != "constant" for tensor in graph.tensors)
    return _PLANNING_BYTES * (placed + (len(graph.ops) if scratch else 0))


def _array(data: bytes) -> list[str]:
    return [
        "    " + ", ".join(f"0x{byte:02x}" for byte in data[start : start + _PER_LINE]) + ","
        for start in range(0, len(data), _PER_LINE)
    ]


def identifier(name: str) -> str:
    """The name as a C identifier in small letters."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "model"
    return word if not word[0].isdigit() else f"m_{word}"


def one_line(name: str) -> str:
    """The name as one line for a line comment, without backslashes, which would join it with the next line."""
    return printable(os.fspath(name).replace("\\", "/"))[:80]
