"""Tables of docs/how-a-job-runs.md: the calls from part to part of jobs that are run here, under a profile.

A part is a folder of src/downset, or a file next to them. Child processes are not in the profile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import files
from inspect import CO_OPTIMIZED
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

from click.testing import CliRunner

import downset
from docs_site.methods import table_text
from docs_site.tables.lines import lines
from downset.commands.group import downset as command

__all__ = ["TABLES"]

SOURCE = Path(downset.__file__).parent
DEEPEST = 3
HIDDEN = ("cli.py", "errors.py", "text.py")
MODELS = {"okay_nabu.tflite": "pymicro-wakeword", "light_squeezenet.onnx": "onnx"}
JOBS = {
    "fit": ["fit", "okay_nabu.tflite", "-o", "OUT/fitted.tflite", "-q"],
    "order": ["order", "light_squeezenet.onnx", "--report", "OUT/order.html"],
    "split": [
        "split",
        "light_squeezenet.onnx",
        "--cluster",
        "pico_1mac",
        "--method",
        "pico",
        "-o",
        "OUT/plan.json",
        "-q",
    ],
}


@dataclass
class Call:
    """A function that a function of another part called, and whom it called itself, by code, in the order of the first
    calls."""

    code: CodeType | None = None
    calls: dict[CodeType, Call] = field(default_factory=dict)


@cache
def file_of(code: CodeType) -> Path | None:
    path = Path(code.co_filename)
    return path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else None


def is_step(code: CodeType, caller: CodeType | None) -> bool:
    """Whether this call goes into another part: to a public function, which is not the body of a class. The first call
    is that of the command's own function."""
    path, before = file_of(code), caller and file_of(caller)
    if path is None or path.parts[0] in HIDDEN or code.co_name.startswith(("_", "<")):
        return False
    if before is None:
        return path == Path("commands", f"{code.co_name}.py")
    return bool(code.co_flags & CO_OPTIMIZED) and path.parts[0] != before.parts[0]


def profile_of(arguments: list[str]) -> Call:
    """Its only call is that of the command."""
    root = Call()
    open_calls: list[tuple[FrameType | None, Call]] = [(None, root)]
    by_codes: dict[tuple[int, int], tuple[bool, CodeType, CodeType | None]] = {}
    """Whether a call is a step, by the addresses of the codes, which it keeps alive: to hash a code takes long."""

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and open_calls[-1][0] is frame:
            open_calls.pop()
        elif event == "call":
            code, caller = frame.f_code, open_calls[-1][1]
            key = id(code), id(caller.code)
            if key not in by_codes:
                by_codes[key] = is_step(code, caller.code), code, caller.code
            if by_codes[key][0]:
                open_calls.append((frame, caller.calls.setdefault(code, Call(code))))

    sys.setprofile(watch)
    try:
        run(arguments)
    finally:
        sys.setprofile(None)
    return root


def run(arguments: list[str]) -> None:
    result = CliRunner().invoke(command, arguments)
    if result.exit_code:
        raise RuntimeError(f"downset {' '.join(arguments)} ended with {result.exit_code}: {result.output}")


def steps(call: Call, depth: int = 0) -> Iterator[list[str]]:
    """The calls that lead on into other parts, and what their docstrings begin with."""
    for code, inner in call.calls.items():
        if inner.calls and depth < DEEPEST:
            text = code.co_consts[0] if code.co_consts and isinstance(code.co_consts[0], str) else ""
            first = " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
            yield [f"{'→ ' * depth}`{code.co_name}`", f"`{file_of(code)}`", table_text(first)]
            yield from steps(inner, depth + 1)


def job(name: str) -> list[str]:
    """The command runs twice: what is imported and kept at the first time is not part of the job."""
    with TemporaryDirectory() as folder:
        arguments = [word.replace("OUT", folder) for word in JOBS[name]]
        model = arguments[1]
        (path,) = (file for file in files(MODELS[model]) or [] if file.name == model)
        arguments[1] = str(path.locate())
        run(arguments)
        root = profile_of(arguments)
    return lines(["call", "file", "what it does"], steps(root))


TABLES: Mapping[str, Callable[[], list[str]]] = {f"calls of {name}": partial(job, name) for name in JOBS}
