"""`downset inspect`: the contents of a model, and the live bytes while each operator runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import (
    console,
    parse_shapes,
    shape_option,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.commands.waiting import reading
from downset.process.limits import PARSING_S
from downset.results.fit import Inspection, StepNeed
from downset.text import counted, format_bytes, printable, shortened

__all__ = ["inspect"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--memory", "--target", "memory", help="Memory model; default tflm for .tflite, ort for .onnx, else live."
)
@shape_option
@time_limit_option("For reading.")
@worker_memory_option
@trust_option
@json_option("inspect")
def inspect(
    model: str, memory: str | None, shapes: tuple[str, ...], time_limit: float, trust: bool, as_json: bool
) -> None:
    """Operators, tensors, width and number of downsets of MODEL, and the live bytes at each operator."""
    from downset.formats.reading import load
    from downset.reports.inspection import inspect as look_into
    from downset.reports.json_forms.memory import inspection_json

    with reading(console(stderr=True), model, limit_s=max(time_limit, PARSING_S)) as progress:
        loaded = load(model, shapes=parse_shapes(shapes), trust=trust)
        progress(f"looking into {counted(len(loaded.ops), 'operator')}")
        inspection = look_into(loaded, memory=memory)
    if as_json:
        print_json("inspect", inspection_json(inspection))
    else:
        _print_screen(inspection, console())


_BAR = 20
"""Characters of the bar of the peak, where the terminal has room for it."""
_SHOWN = 1_000
"""Operators on the screen. Drawing a longer table takes longer than inspecting the network."""


def _around_peak(steps: Sequence[StepNeed]) -> tuple[Sequence[StepNeed], int]:
    """The operators to show, with the first of the most live bytes in the middle, and how many are left out."""
    peak = max(range(len(steps)), key=lambda step: steps[step].live_bytes, default=0)
    low = max(min(peak - _SHOWN // 2, len(steps) - _SHOWN), 0)
    shown = steps[low : low + _SHOWN]
    return shown, len(steps) - len(shown)


def _print_screen(inspection: Inspection, out: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    out.print(
        f"{inspection.model}: {inspection.operators} operators, {inspection.tensors} activation tensors, "
        f"weights {format_bytes(inspection.weight_bytes)} B",
        markup=False,
        soft_wrap=True,
    )
    downsets = f"{inspection.downsets:,}" if inspection.downsets_exact else f"about 10^{inspection.downsets_log10:.0f}"
    out.print(
        f"width {inspection.width}, {downsets} downsets; peak in file order "
        f"{format_bytes(inspection.peak_bytes)} B (memory model {inspection.memory})",
        soft_wrap=True,
    )
    shown, left_out = _around_peak(inspection.steps)
    peak, mark = max(inspection.peak_bytes, 1), " ← peak"
    numbers = [
        ("step", [str(row.step) for row in shown]),
        ("live bytes", [format_bytes(row.live_bytes) for row in shown]),
    ]
    width = sum(2 + max([len(title), *map(len, cells)]) for title, cells in numbers)
    bar_room = _BAR if out.width >= width + 3 * _BAR else 0
    left = out.width - width - bar_room - len(mark) - 6
    kinds = max([len("kind"), *(len(row.kind) for row in shown)])
    kind_room = min(kinds, max(left // 2, 4))
    room = max(left - kind_room, 4)
    table = Table(box=None)
    for title, cells in numbers:
        longest = max([len(title), *map(len, cells)])
        table.add_column(title, justify="right", no_wrap=True, min_width=longest)  # no digit is cut
    for column in (*([""] if bar_room else []), "kind", "name"):
        table.add_column(column, no_wrap=True)
    for place, row in enumerate(shown):
        bar = ["█" * round(bar_room * row.live_bytes / peak)] if bar_room else []
        name = shortened(printable(row.name), room) + (mark if row.live_bytes == inspection.peak_bytes else "")
        kind = shortened(printable(row.kind), kind_room)
        table.add_row(*map(Text, (*(cells[place] for _, cells in numbers), *bar, kind, name)))
    out.print(table)
    if left_out:
        out.print(f"{left_out:,} more operators; --json lists them all", soft_wrap=True)
