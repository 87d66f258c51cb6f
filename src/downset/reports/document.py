"""A result as a document: verdict, figures, tables, pictures, next steps. Terminal, page and JSON render it; none
of them sees the result, so that a figure is written in one place.

A `key` is the path of a value in JSON, with dots between its levels; a value without one is for people only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from downset.reports.charts import Chart
    from downset.results.next_step import NextStep

__all__ = [
    "EVERYWHERE",
    "JSON_ONLY",
    "PAGE",
    "PAGE_SUFFIXES",
    "TERMINAL",
    "ChartGroup",
    "Code",
    "Column",
    "Document",
    "Facts",
    "Medium",
    "Part",
    "Picture",
    "Section",
    "Steps",
    "Table",
    "Value",
    "Verdict",
    "columns",
    "named",
    "versions_value",
]

PAGE_SUFFIXES = (".html", ".htm")
"""The suffixes of the file of a page."""

Medium = Literal["terminal", "page"]
TERMINAL: frozenset[Medium] = frozenset({"terminal"})
PAGE: frozenset[Medium] = frozenset({"page"})
EVERYWHERE = TERMINAL | PAGE
JSON_ONLY: frozenset[Medium] = frozenset()
"""Where people see a part of a document. JSON has every value with a key."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`state`: good (it fits, or something was gained), bad (it does not fit), unknown, or plain."""

    state: Literal["good", "bad", "unknown", "plain"]
    headline: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A value with its title. `show` makes its text, `remark` says how it is known. `missing`: the text of None; people
    do not see a figure without text."""

    title: str
    value: Any
    show: Callable[[Any], str] = str
    remark: str = ""
    key: str = ""
    missing: str = ""
    on: frozenset[Medium] = EVERYWHERE

    @property
    def text(self) -> str:
        return self.missing if self.value is None else self.show(self.value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: `value` takes a row's value (the name of an attribute, or a function of the row), and `show`
    makes the text of a value that is not None. `key`: the name of the value in the row's JSON. `left`: aligned left.
    `shrinks`: names, which lose their middle where a terminal is too narrow."""

    title: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], str] = str
    key: str = ""
    left: bool = False
    shrinks: bool = False
    on: frozenset[Medium] = EVERYWHERE

    def of(self, row: Any) -> Any:
        return attrgetter(self.value)(row) if isinstance(self.value, str) else self.value(row)

    def text(self, row: Any) -> str:
        value = self.of(row)
        return "" if value is None else self.show(value)


def columns(*titles: str, left: int = 1) -> tuple[Column, ...]:
    """Columns of rows that are tuples of texts. `left`: how many of the first columns are aligned left."""
    return tuple(Column(title, itemgetter(place), left=place < left) for place, title in enumerate(titles))


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a row for each of `rows`. JSON has it at `key` as a list of objects; or where `row_key` gives the
    key of a row, as an object at that key, "" for a row without one.

    `ids`: ids of the rows, to which pictures refer. `marked`: indices of the rows that are highlighted. `caption`
    stands above the table, `legend` below it. `most`: the number of rows on a terminal; where there are more, it shows
    `rest` below the table."""

    columns: tuple[Column, ...]
    rows: Sequence[Any]
    caption: str = ""
    key: str = ""
    row_key: Callable[[Any], str] | None = None
    ids: tuple[str, ...] = ()
    marked: frozenset[int] = frozenset()
    legend: str = ""
    most: int | None = None
    rest: str = ""
    on: frozenset[Medium] = EVERYWHERE

    def shown(self, medium: Medium) -> tuple[Column, ...]:
        """The columns that this medium shows."""
        return tuple(column for column in self.columns if medium in column.on)

    def values(self) -> Iterator[tuple[str, Any]]:
        """The values with keys, as they stand in JSON."""
        keyed = [column for column in self.columns if column.key]
        objects = [{column.key: column.of(row) for column in keyed} for row in self.rows]
        if self.row_key is not None:
            yield from ((key, one) for row, one in zip(self.rows, objects, strict=True) if (key := self.row_key(row)))
        elif self.key:
            yield self.key, objects


@dataclass(frozen=True, slots=True)
class Facts:
    """Sentences, as a list."""

    lines: tuple[str, ...]
    on: frozenset[Medium] = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Code:
    """Text to paste, with its title on a page."""

    caption: str
    text: str
    on: frozenset[Medium] = EVERYWHERE


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts with headings on one time axis, the legend of colours as (style, meaning), and the tables behind them."""

    name: str
    charts: tuple[tuple[str, Chart], ...]
    legend: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Charts that are drawn only for a page."""

    draw: Callable[[], ChartGroup]
    on: frozenset[Medium] = PAGE


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that the user can take next, the best first. A terminal shows it at the end."""

    steps: tuple[NextStep, ...]
    on: frozenset[Medium] = EVERYWHERE


Part = Table | Facts | Code | Picture | Steps


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a heading, which only a page shows."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """`figures`: the most important ones, below the verdict. `foot`: figures for which the others hold: model, target,
    options and versions, which a terminal does not show. `data`: values by key that only JSON has, or that people see
    in sentences; a function gives one that has a part for each of many records, and is called for JSON alone."""

    title: str
    subtitle: str
    verdict: Verdict
    sections: tuple[Section, ...] = ()
    figures: tuple[Value, ...] = ()
    foot: tuple[Value, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> list[Part]:
        return [part for section in self.sections for part in section.parts]


def named(value: object, *names: str) -> dict[str, Any]:
    """Attributes of a value, by their names."""
    return {name: getattr(value, name) for name in names}


def versions_value(versions: Mapping[str, str], key: str = "") -> Value:
    """The versions of packages, by name."""
    return Value("versions", versions, _versions, key=key)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
