"""The places of the user's model that operators of a compiled graph come from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["module_of", "part_of_step", "source_line"]


def source_line(traces: Iterable[str]) -> str:
    """The innermost line (path:line) of stack traces that is not of this package; "" without one."""
    for line in reversed([line.strip() for trace in traces for line in trace.splitlines()]):
        match = re.match(r'File "(.+)", line (\d+)', line)
        if match and Path(match[1]).parent != Path(__file__).parent:
            return f"{match[1]}:{match[2]}"
    return ""


def part_of_step(traces: Iterable[str], origins: Iterable[Any]) -> str:
    """The part of a whole step that an operator without a line of the model computes: "the optimiser's update" or "a
    gradient"; "" elsewhere."""
    if any(f"{Path(__file__).with_name('optimizer_update.py')}" in trace for trace in traces):
        return "the optimiser's update"
    return "a gradient" if any(origin.meta.get("autograd_backward") for origin in origins) else ""


def module_of(origins: Iterable[Any]) -> str:
    """The innermost module of the model that one of these fx nodes comes from, or ""."""
    for origin in origins:
        stack = origin.meta.get("nn_module_stack") or origin.meta.get("fwd_nn_module_stack")
        if stack:
            path, kind = list(stack.values())[-1]
            name = re.sub(r"^L\['parts'\]\.model|^L\['\w+'\]|\._modules|[\[\]']", "", path).lstrip(".")
            return " ".join(["module", *([name] if name else []), f"({getattr(kind, '__name__', kind)})"])
    return ""
