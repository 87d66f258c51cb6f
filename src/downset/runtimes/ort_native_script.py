"""C++ and C# that open a fitted file's session by the settings that were measured, as far as the interfaces of ONNX
Runtime in these languages reach; a comment says what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from downset.results.sessions import SessionSettings
from downset.results.sizes import PlannedSize
from downset.runtimes.ort_script import OtherProcessor, relative_parts
from downset.runtimes.ort_settings import MALLOPT
from downset.text import printable

__all__ = ["PROGRAMS", "native_program"]

Named = str | os.PathLike[str]

_MISSING = {
    "execution_order": "a function for the order of execution; nodes may run in another order than the file's, and "
    "take more than was measured",
    "enable_mem_reuse": "a function for the reuse of buffers; one may be kept for the next of its size",
}
"""Settings that only Python's interface has, by name."""
_LEVELS = {"ORT_DISABLE_ALL": "DISABLE_ALL", "ORT_ENABLE_ALL": "ENABLE_ALL"}
_CPP = {
    "intra_op_num_threads": "options.SetIntraOpNumThreads({});",
    "inter_op_num_threads": "options.SetInterOpNumThreads({});",
    "enable_mem_pattern": "options.DisableMemPattern();",
    "enable_cpu_mem_arena": "options.DisableCpuMemArena();",
    "graph_optimization_level": "options.SetGraphOptimizationLevel({});",
}
_CSHARP = {
    "intra_op_num_threads": "options.IntraOpNumThreads = {};",
    "inter_op_num_threads": "options.InterOpNumThreads = {};",
    "enable_mem_pattern": "options.EnableMemoryPattern = false;",
    "enable_cpu_mem_arena": "options.EnableCpuMemArena = false;",
    "graph_optimization_level": "options.GraphOptimizationLevel = GraphOptimizationLevel.{};",
}
"""Lines by attribute of Python's `SessionOptions`; the switches among these are only ever turned off."""

_ARENA = "max_mem, arena_extend_strategy, initial_chunk_size_bytes, max_dead_bytes_per_chunk"


def native_program(
    model: Named,
    settings: SessionSettings,
    *,
    program: Named,
    version: str,
    other: OtherProcessor | None = None,
    planned: Sequence[PlannedSize] = (),
) -> str:
    """The code, by the suffix of `program`, that opens `model` with these settings; it finds the model by its path
    relative to the folder of the program. Comments say what the model is for with `other`, and the sizes that are
    `planned`, which are not checked."""
    return PROGRAMS[Path(program).suffix.lower()](
        "/".join(relative_parts(model, program)),
        settings,
        _comment(model, settings, version, other)
        + "".join(f"// Missing here: a check that {one.shown}, for which the file was planned.\n" for one in planned),
    )


def _comment(model: Named, settings: SessionSettings, version: str, other: OtherProcessor | None) -> str:
    lines = [f"Opens {printable(Path(model).name)} by the settings under which it was measured by downset {version}."]
    if settings.malloc:
        lines.append("The settings of the C library's allocator are glibc's, and hold for the whole process.")
    lines += [f"Missing here: {missing}." for name, missing in _MISSING.items() if name in settings.options]
    if other is not None:
        what = "operators" if other.bound.layouts else "packed weights"
        lines.append(
            f"Its {what} are for this kind of processor and ONNX Runtime {other.bound.runtime}; elsewhere "
            + (_elsewhere(other) if other.bound.layouts else 'add session.disable_prepacking = "1".')
        )
    return "".join(f"// {line}\n" for line in lines)


def _elsewhere(other: OtherProcessor) -> str:
    return "fit the model there." if other.original is None else "open the original."


def _lines(settings: SessionSettings, lines_of: Mapping[str, str], levels: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in settings.options.items():
        shown = levels.get(value.rpartition(".")[2], value.rpartition(".")[2]) if isinstance(value, str) else value
        lines += [lines_of[name].format(shown)] if name in lines_of else []
    return lines


def _arena(settings: SessionSettings) -> str:
    """The arguments of an arena in C++ and C#, in the sequence of `_ARENA`, which all versions of the runtime have. A
    region that is no `int` there is left to the runtime, and so is a limit beyond C#'s `uint`."""
    limits = zip(_ARENA.split(", "), (1 << 32, 2, 1 << 31, 1 << 31), (0, -1, -1, -1), strict=True)
    values = ((settings.arena.get(name, usual), most, usual) for name, most, usual in limits)
    return ", ".join(str(value if value < most else usual) for value, most, usual in values)


def _indented(lines: Sequence[str], by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines)


def _cpp(model: str, settings: SessionSettings, comment: str) -> str:
    lines = []
    if settings.malloc:
        lines += ["#ifdef __GLIBC__"]
        lines += [f"mallopt({name}, {value});" for name, value in settings.malloc.items()]
        lines += ["#endif"]
    if settings.arena:
        lines += [
            "auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);",
            f"Ort::ArenaCfg arena({_arena(settings)});  // {_ARENA}",
            "env.CreateAndRegisterAllocator(memory, arena);",
        ]
    lines += ["Ort::SessionOptions options;", *_lines(settings, _CPP, {})]
    lines += [f'options.AddConfigEntry("{key}", "{value}");' for key, value in settings.config.items()]
    return _CPP_PROGRAM.format(comment=comment, settings=_indented(lines, 2), model=model)


def _csharp(model: str, settings: SessionSettings, comment: str) -> str:
    lines = []
    if settings.malloc:
        set_parameters = " ".join(f"mallopt({MALLOPT[name]}, {value});" for name, value in settings.malloc.items())
        lines.append(f"try {{ {set_parameters} }} catch (Exception) {{ }}  // no glibc")
    if settings.arena:
        lines += [
            "var memory = new OrtMemoryInfo(OrtMemoryInfo.allocatorCPU, OrtAllocatorType.ArenaAllocator, 0, "
            "OrtMemType.Default);",
            f"var arena = new OrtArenaCfg({_arena(settings)});  // {_ARENA}",
            "OrtEnv.Instance().CreateAndRegisterAllocator(memory, arena);",
        ]
    levels = {name: f"ORT_{level}" for name, level in _LEVELS.items()}
    lines += ["var options = new SessionOptions();", *_lines(settings, _CSHARP, levels)]
    lines += [f'options.AddSessionConfigEntry("{key}", "{value}");' for key, value in settings.config.items()]
    return _CSHARP_PROGRAM.format(comment=comment, settings=_indented(lines, 8), model=model)


_CPP_PROGRAM = """\
{comment}
#include <filesystem>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <onnxruntime_cxx_api.h>

/// A session by these settings. `folder`: that of this file, from which the model is found. Call it once in a process.
Ort::Session open_session(Ort::Env& env, const std::filesystem::path& folder) {{
{settings}  return Ort::Session(env, (folder / "{model}").c_str(), options);
}}
"""
_CSHARP_PROGRAM = """\
{comment}
using System;
using System.IO;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime;

public static class FittedSession
{{
    [DllImport("libc")]
    private static extern int mallopt(int parameter, int value);

    /// <summary>A session by these settings. folder: that of this file, from which the model is found. Call it once in
    /// a process.</summary>
    public static InferenceSession Open(string folder)
    {{
{settings}        return new InferenceSession(Path.Combine(folder, "{model}"), options);
    }}
}}
"""
PROGRAMS: Mapping[str, Callable[[str, SessionSettings, str], str]] = {
    ".cc": _cpp,
    ".cpp": _cpp,
    ".cxx": _cpp,
    ".cs": _csharp,
}
"""The programs by the suffix of their file; any other is Python."""
