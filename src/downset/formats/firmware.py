"""A fitted model as C++ for firmware: the model as an aligned array, its arena's size, and its operators.

*Source* of the names of operators: `MicroMutableOpResolver` of TFLite Micro; of CMSIS-NN's scratch:
`arm_*_get_buffer_size` of CMSIS-NN (kernels with DSP instructions, int8), as of July 2026.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from downset import __version__
from downset.errors import UnsupportedError, UsageError
from downset.formats.tflite.read import builtin_operators, resource_variables
from downset.graph.core import Graph, Op
from downset.memory.overlaps import KernelsName
from downset.results import Fit
from downset.text import abridged, format_bytes, printable

__all__ = ["Firmware", "cmsis_nn_scratch_bytes", "firmware", "kernel_scratch_bytes", "resolver_method"]

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
    "//   static tflite::MicroInterpreter interpreter(",
    "//       tflite::GetModel(model), resolver, allocator,",
    "//       tflite::MicroResourceVariables::Create(allocator, kResourceVariables));",
)
"""How the interpreter is made. Variables lie in the arena, and TFLite Micro is told how many there are."""
_SPELLED = {
    "CUMSUM": "CumSum", "PADV2": "PadV2", "BATCH_MATMUL": "BatchMatMul",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}  # fmt: skip
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
        why = f"no header: the size of the arena is not known, {fit.not_measured or 'not measured'}"
        remedy = "; --int8 fits the file's exact int8 form, which TFLite Micro runs" if fit.int8_form else ""
        raise UnsupportedError(why + remedy)
    path = Path(fit.output_path)
    prefix = _identifier(path.stem)
    array = _array(path.read_bytes())
    guard = f"DOWNSET_{prefix.upper()}_H_"
    declared = f"alignas({_ALIGNMENT}) extern const unsigned char {prefix}_model[];"
    defined = f"alignas({_ALIGNMENT}) {'' if include else 'static '}const unsigned char {prefix}_model[] = {{"
    body = [
        *_comment(fit, path),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "",
        *([declared] if include else [defined, *array, "};"]),
        *_constants(fit, prefix, path),
        *_operators(path, prefix),
        f"#endif  // {guard}",
        "",
    ]
    if not include:
        return Firmware("\n".join(body))
    source = [f"// {_safe(path.name)}, written by downset {__version__}.", f'#include "{include}"', "", defined, *array,
              "};", ""]  # fmt: skip
    return Firmware("\n".join(body), "\n".join(source))


def _comment(fit: Fit, path: Path) -> list[str]:
    graph = fit.graph
    return [
        f"// {_safe(path.name)}: {len(graph.ops)} operators, written by downset {__version__} from "
        f"{_safe(Path(fit.model).name)} ({fit.shipped}).",
        "//",
        "// The arena was measured in TFLite Micro on a 64-bit host with its reference kernels. On a 32-bit target the",
        "// tail is smaller, as its pointers are; other kernels may take more scratch. Not checked: your target, its",
        "// compiler, and its kernels. MicroInterpreter::arena_used_bytes() tells the bytes used there.",
        *_assumed(fit),
        "//",
        "// A sketch of its use:",
        "//   alignas(16) static unsigned char arena[kArenaBytes];",
        "//   static tflite::MicroMutableOpResolver<kOperatorKinds> resolver;",
        "//   RegisterOperators(resolver);",
        *(_WITH_VARIABLES if resource_variables(path) else _WITHOUT_VARIABLES),
        "//   interpreter.AllocateTensors();",
        "// with the names below, in their namespace.",
    ]


def _assumed(fit: Fit) -> list[str]:
    if fit.assumed_kernels is None:
        return []
    return [
        "//",
        f"// Tensors overlap as the {fit.assumed_kernels} kernels of TFLite Micro allow. With other kernels (ESP-NN,",
        "// Xtensa, another build of CMSIS-NN) results are wrong without any error message.",
    ]


def _constants(fit: Fit, prefix: str, path: Path) -> list[str]:
    assert fit.measured is not None
    model_bytes, variables = path.stat().st_size, resource_variables(path)
    parts = fit.measured.details[fit.shipped]
    arena = fit.arena.after
    scratch, dsp = cmsis_nn_scratch_bytes(fit.graph), kernel_scratch_bytes(fit.graph, fit.kernels) > 0
    total = parts["head_bytes"] + parts["tail_bytes"]
    needed = max(total, parts["tail_bytes"] + planning_bytes(fit.graph, scratch=parts["head_bytes"] > arena))
    rounded = -(-needed // _ALIGNMENT) * _ALIGNMENT
    more = " + kCmsisNnScratchBytes" if dsp else ""
    claim = "proven least" if fit.arena.proven else f"bound {format_bytes(fit.arena.bound)}"
    return [
        "",
        f"namespace downset_{prefix} {{",
        "",
        f"static const unsigned char* const model = {prefix}_model;",
        f"constexpr size_t kModelBytes = {model_bytes};",
        "",
        f"constexpr size_t kTensorBytes = {arena};  // the plan's arena ({claim})",
        f"constexpr size_t kScratchBytes = {max(0, parts['head_bytes'] - arena)};  // of the reference kernels",
        f"constexpr size_t kTailBytes = {parts['tail_bytes']};  // what stays from one run to the next",
        f"constexpr size_t kMarginBytes = {rounded - total};  // for planning at the start; a multiple of {_ALIGNMENT}",
        "// CMSIS-NN's int8 kernels for DSP instructions ask for at most so much scratch in one operator, by its",
        f"// own formulas (analytic, not run){'' if dsp else ': add it where you link them'}.",
        f"constexpr size_t kCmsisNnScratchBytes = {scratch};",
        f"constexpr size_t kArenaBytes = kTensorBytes + kScratchBytes + kTailBytes + kMarginBytes{more};",
        *([f"constexpr int kResourceVariables = {variables};  // keep their values between runs"] if variables else []),
        "",
    ]


def _operators(path: Path, prefix: str) -> list[str]:
    names = builtin_operators(path)
    methods = [(name, resolver_method(name)) for name in names]
    calls = [
        f"  ok = resolver.{method}() == 0 && ok;"
        if method
        else f"  // custom operator {_safe(name)}: resolver.AddCustom(...)"
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
        f"}}  // namespace downset_{prefix}",
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
    """Bytes that TFLite Micro needs beside the tail while it plans, where tensors lie later: at most a description of a
    buffer for each tensor that is not constant and, with `scratch`, for each operator."""
    placed = sum(tensor.role != "constant" for tensor in graph.tensors)
    return _PLANNING_BYTES * (placed + (len(graph.ops) if scratch else 0))


def cmsis_nn_scratch_bytes(graph: Graph) -> int:
    """The most bytes of scratch that an int8 kernel of CMSIS-NN with DSP instructions needs in one operator; an upper
    bound where that depends on the compiler."""
    return max((_scratch_bytes(graph, op) for op in graph.ops), default=0)


def kernel_scratch_bytes(graph: Graph, kernels: KernelsName | None) -> int:
    """Bytes of scratch that these kernels need beside those of the reference kernels; 0 where no formula is known."""
    return cmsis_nn_scratch_bytes(graph) if kernels == "cmsis-nn-dsp" else 0


def _scratch_bytes(graph: Graph, op: Op) -> int:
    read = graph.tensors[op.inputs[0]] if op.inputs and op.inputs[0] >= 0 else None
    if read is None or read.dtype != "int8" or len(read.shape) != 4 or op.attrs.get("layout") != "NHWC":
        return 0
    channels = read.shape[-1]
    if op.kind == "AveragePool":
        return 4 * channels  # arm_avgpool_s8: a row of int32
    if op.kind != "Conv":
        return 0
    rows, columns = (int(extent) for extent in op.attrs["kernel_shape"])
    result_channels, group = graph.tensors[op.outputs[0]].shape[-1], int(op.attrs.get("group", 1))
    if group > 1 and group == channels:
        dilated = any(step != 1 for step in op.attrs.get("dilations", (1, 1)))
        # A 3x3 kernel with little padding needs none. The padding depends on the size and is not read: an upper bound.
        return 0 if result_channels != channels or dilated else 2 * channels * rows * columns
    if rows == columns == 1:
        return 4 * channels  # arm_convolve_1x1_s8_fast, with Arm's compiler; none with others
    length = -(-rows * columns * (channels // group) // 4) * 4
    return 2 * 2 * length  # two columns of int16


def _array(data: bytes) -> list[str]:
    return [
        "    " + ", ".join(f"0x{byte:02x}" for byte in data[start : start + _PER_LINE]) + ","
        for start in range(0, len(data), _PER_LINE)
    ]


def _identifier(name: str) -> str:
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "model"
    return word if not word[0].isdigit() else f"m_{word}"


def _safe(name: str) -> str:
    """The name as one line for a line comment, without backslashes, which would join it with the next line."""
    return printable(os.fspath(name).replace("\\", "/"))[:80]
