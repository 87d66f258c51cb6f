"""Parts of a report as data: a verdict, and sections of facts, tables and pictures. `render` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from downset.reports.charts import Chart

__all__ = ["ChartGroup", "Choice", "Code", "Facts", "Page", "Section", "Table", "Verdict", "versions_fact"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`state`: good (it fits, or something was gained), bad (it does not fit), unknown, or plain. `numbers`: (name,
    value, remark) of the most important figures."""

    state: Literal["good", "bad", "unknown", "plain"]
    headline: str
    detail: str = ""
    numbers: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` have as many cells as there are `columns`. `ids`: ids of the rows, to which marks of pictures refer.
    `numeric`: indices of the columns that are aligned right. `marked`: indices of the rows that are highlighted."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ids: tuple[str, ...] = ()
    numeric: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    caption: str = ""

    def cells(self) -> list[tuple[str, bool, Sequence[tuple[str, bool]]]]:
        """The rows: id, whether the row is highlighted, and its cells with whether each is a number."""
        return [
            (
                self.ids[place] if self.ids else "",
                place in self.marked,
                [(cell, column in self.numeric) for column, cell in enumerate(row)],
            )
            for place, row in enumerate(self.rows)
        ]


@dataclass(frozen=True, slots=True)
class Facts:
    """Sentences, as a list. `ranked`: the list is numbered."""

    lines: tuple[str, ...]
    ranked: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Text to paste, with its title."""

    caption: str
    text: str


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts with headings on one time axis, the legend of colours as (style, meaning), and the tables behind them."""

    name: str
    charts: tuple[tuple[str, Chart], ...]
    legend: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""


def versions_fact(versions: Mapping[str, str]) -> tuple[str, str]:
    """The fact of a page that lists versions by name."""
    return "versions", ", ".join(f"{name} {version}" for name, version in versions.items())


Choice = Table | Facts | Code | ChartGroup


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    parts: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """`facts`: (name, value) for the foot of the page: model, target, and the options and versions for which its
    figures hold."""

    title: str
    subtitle: str
    verdict: Verdict
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()
