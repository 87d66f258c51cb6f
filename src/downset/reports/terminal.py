"""Renders a document as text: on a terminal, or as lines."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from downset.messages import Message
from downset.reports.document import Code, Column, Document, Facts, Steps, Table
from downset.text import printable, shortened

__all__ = ["print_document", "print_lines", "print_table", "step_lines", "text_of"]

_WIDTH = 120
"""Characters of a line of text that is not for a terminal; only sentences may be longer."""
_TITLE_WIDTH = 60
_NARROWEST = 12
"""The fewest characters to which names are shortened."""


def text_of(document: Document) -> str:
    """The document as plain text."""
    from rich.console import Console

    out = Console(file=StringIO(), width=_WIDTH, highlight=False, color_system=None)
    print_document(out, document)
    return str(out.file.getvalue()).rstrip("\n")  # type: ignore[attr-defined]


def print_document(out: Any, document: Document, *, written: Sequence[str] = ()) -> None:
    """Print the document to a rich console. `written`: lines on the files that the command wrote, which stand before
    the next steps."""
    verdict = document.verdict
    print_lines(out, [verdict.headline, *verdict.detail.splitlines()])
    about = ": ".join(text for text in (shortened(printable(document.title), _TITLE_WIDTH), document.subtitle) if text)
    print_lines(out, [about] if about else [], style="italic")
    for figure in document.figures:
        if "terminal" in figure.on and figure.text:
            print_lines(out, [f"{figure.title}: {figure.text}{f' ({figure.remark})' if figure.remark else ''}"])
    parts = [part for part in document.parts if "terminal" in part.on]
    for part in parts:
        if isinstance(part, Table):
            print_table(out, part)
        elif isinstance(part, Facts | Code):
            print_lines(out, part.lines if isinstance(part, Facts) else part.text.split("\n"))
    print_lines(out, written)
    print_lines(out, [line for part in parts if isinstance(part, Steps) for line in step_lines(part.steps)])


def step_lines(steps: Sequence[Any]) -> list[str]:
    """The steps as lines for a terminal, under a heading; empty if there are none."""
    if not steps:
        return []
    numbered = enumerate(steps, start=1)
    return ["next, the best first:", *(Message(f"  {number}. ", step.text) for number, step in numbered)]


def print_lines(out: Any, lines: Sequence[str], *, style: str = "") -> None:
    """Print each line as one, with the names in it made printable and without markup."""
    from rich.text import Text

    for line in lines:
        out.print(Text(printable(line), style=style), soft_wrap=True)


def print_table(out: Any, table: Table) -> None:
    """Print the table. If the terminal is too narrow, names lose their middle; where that is not enough each figure has
    its own line, so that no digit is cut."""
    if not table.rows:
        return
    shown, rows = table.shown("terminal"), _cells(table)
    excess = _width(_widths(shown, rows)) - out.width
    for place, column in enumerate(shown):
        room = max(len(cells[place]) for cells in rows) - excess
        if column.shrinks and excess > 0 and room >= _NARROWEST:
            rows = [[*cells[:place], shortened(cells[place], room), *cells[place + 1 :]] for cells in rows]
            excess = 0
    print_lines(out, [table.caption] if table.caption else [], style="italic")
    if excess <= 0:
        out.print(_grid(shown, rows))
    else:
        for head, *others in rows:
            print_lines(out, [f"{shown[0].title} {head}" if head.isdigit() else head], style="bold")
            pairs = zip(shown[1:], others, strict=True)
            print_lines(out, [f"  {column.title}: {cell}" for column, cell in pairs if cell and column.title])
    left_out = table.most is not None and len(table.rows) > table.most
    print_lines(out, [line for line in (table.legend, table.rest if left_out else "") if line])


def _cells(table: Table) -> list[list[str]]:
    """The cells of the rows that a terminal shows, with a star in marked rows."""
    rows = []
    for place, row in enumerate(table.rows[: table.most]):
        cells = ["\n".join(map(printable, column.text(row).split("\n"))) for column in table.shown("terminal")]
        cells[0] += " *" if place in table.marked else ""
        rows.append(cells)
    return rows


def _grid(shown: Sequence[Column], rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid()
    for column, width in zip(shown, _widths(shown, rows), strict=True):
        justify: Any = "left" if column.left else "right"
        grid.add_column(Text(column.title), justify=justify, no_wrap=True, width=width)
    for cells in rows:
        grid.add_row(*map(Text, cells))
    return grid


def _widths(shown: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """The characters that each column needs. Rich finds the same, at a cost of milliseconds for each row."""
    from rich.cells import cell_len

    columns = [(column.title, *(cells[place] for cells in rows)) for place, column in enumerate(shown)]
    return [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in columns]


def _width(widths: Sequence[int]) -> int:
    """The characters of a table: of its columns, of a space on both sides of each, and of the lines between them."""
    return sum(widths) + 3 * len(widths) + 1
