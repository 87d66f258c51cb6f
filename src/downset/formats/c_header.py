"""A plan as a C header, for engines that place tensors themselves."""

from __future__ import annotations

import re

from downset.graph.core import Graph
from downset.results.plans import Arena, Order
from downset.text import printable

__all__ = ["c_header"]


def c_header(graph: Graph, order: Order, arena: Arena) -> str:
    """A header of constants, for C99 and C++: the arena size, the order of the operators, and each tensor's offset and
    size in bytes."""
    guard = re.sub(r"\W+", "_", f"downset_{graph.name}_plan_h").upper()
    prefix = re.sub(r"\W+", "_", graph.name).strip("_") or "model"
    prefix = prefix if not prefix[0].isdigit() else f"m_{prefix}"
    placed = sorted(arena.tensor_offsets.items())
    steps = ", ".join(map(str, order.steps)) or "0"
    lines = [
        f"// {_comment(graph.name)}: {len(graph.ops)} operators, memory model {arena.memory}.",
        f"// Arena {arena.arena_bytes} bytes, bound {int(arena.evidence.bound)}"
        f"{', proven optimal' if arena.evidence.proven else ''}.",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stddef.h>",
        f"#define {prefix.upper()}_ARENA_BYTES {arena.arena_bytes}u",
        f"#define {prefix.upper()}_OPERATORS {len(order.steps)}u",
        f"#define {prefix.upper()}_TENSORS {len(placed)}u",
        f"static const unsigned {prefix}_order[] = {{{steps}}};",
        f"static const struct {{ unsigned tensor; size_t offset, bytes; }} {prefix}_tensors[] = {{",
        *(
            f"    {{{t}u, {offset}u, {graph.tensors[t].nbytes}u}},  // {_comment(graph.tensors[t].name)}"
            for t, offset in placed
        ),
        *(["    {0u, 0u, 0u},"] if not placed else []),
        "};",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _comment(name: str) -> str:
    """A tensor's name as one line for a line comment. It does not end in what joins the next line: a backslash, or ??/,
    which stands for a backslash in strict ISO C."""
    return re.sub(r"\?+/", "?/", printable(name.replace("\\", "/")))[:80]
