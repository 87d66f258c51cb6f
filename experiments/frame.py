"""The frame of every experiment: options, printing, saving, and the figures that a paper prints."""

from __future__ import annotations

import sys
import tomllib
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from experiments.rows import Row, rest_of_rows, save_rows

__all__ = [
    "NO_FIGURE",
    "RECORDED",
    "Column",
    "Experiment",
    "Printed",
    "beside",
    "fields",
    "line_beside",
    "line_of",
    "names_of",
    "printed",
    "ratio",
    "run",
    "show_table",
    "table_lines",
]

PAPERS = Path(__file__).resolve().parent / "papers"
RECORDED = " (recorded)"
NO_FIGURE = "no figure in the paper's text"
Column = tuple[str, str | Callable[[Row], str | None]]
"""Title, and the cell of a row: a format string over its fields, or a function. `-` is printed for what is absent or
None, yes or no for a truth value; the conversion `!m` multiplies by a thousand (`{cpu_s!m:.1f}` is in milliseconds)."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table or figure, as a script prints and saves it.

    name: the results go to experiments/results/NAME.json.
    rows: makes the rows, given the parsed options; each is printed as it comes. It yields none where inputs are absent.
    columns: of the printed table. Without columns and `lines` no row is printed by itself.
    key: the fields that tell rows apart. Each row is saved as it comes, in the place of the recorded row of its key;
        the other recorded rows stay and are printed with a mark. Without a key, a run that made rows replaces all of
        them at its end, and one that made none prints what is recorded.
    quick: help of `--quick`, which never saves.
    options: the script's own, as arguments of `add_argument` by flag.
    lines: the printed lines of a row, given the mark of a recorded one, where these are not one line of the table.
    after: prints below the rows, from those of this run with the recorded ones behind them.
    """

    name: str
    rows: Callable[[Namespace], Iterable[Row]]
    columns: Sequence[Column] = ()
    key: Sequence[str] = ()
    quick: str = "the same, nothing written"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lines: Callable[[Row, str], Iterable[str]] | None = None
    after: Callable[[Sequence[Row]], None] | None = None


def run(experiment: Experiment, arguments: Sequence[str] | None = None) -> None:
    """Run an experiment as its script does, with the arguments of the command line or with these."""
    description = sys.modules[experiment.rows.__module__].__doc__
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=experiment.quick)
    for flag, options in experiment.options.items():
        parser.add_argument(flag, **options)
    options = parser.parse_args(arguments)
    if experiment.columns:
        print(_head(experiment.columns))
    fresh: list[Row] = []
    for row in experiment.rows(options):
        _show(experiment, row)
        fresh.append(row)
        if experiment.key and not options.quick:
            save_rows(experiment.name, fresh, by=experiment.key)
    recorded = rest_of_rows(experiment.name, fresh, by=experiment.key)
    for row in recorded:
        _show(experiment, row, RECORDED)
    if experiment.after is not None:
        experiment.after([*fresh, *recorded])
    if fresh and not options.quick:
        print("written:", save_rows(experiment.name, fresh, by=experiment.key))


def names_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes some of these names, with commas between them."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise ArgumentTypeError(f"{name!r} is not one of {', '.join(choices)}")
        return names

    return read


def _show(experiment: Experiment, row: Row, mark: str = "") -> None:
    if experiment.lines is not None:
        print(*experiment.lines(row, mark), sep="\n", flush=True)
    elif experiment.columns:
        print(line_of(experiment.columns, row, mark), flush=True)


def _head(columns: Sequence[Column]) -> str:
    return f"| {' | '.join(title for title, _ in columns)} |\n|" + "---|" * len(columns)


def line_of(columns: Sequence[Column], row: Row, mark: str = "") -> str:
    """A row as a line of a Markdown table. A row with an `error` has that next to its first cell."""
    shown = columns[:1] if "error" in row else columns
    cells = [_CELLS.format(cell, **row) if isinstance(cell, str) else cell(row) or "-" for _, cell in shown]
    cells[0] += mark
    if "error" in row:
        cells += [row["error"][:100], *[""] * (len(columns) - 2)]
    return f"| {' | '.join(cells)} |"


def table_lines(columns: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    """The lines of a Markdown table."""
    return [*_head(columns).split("\n"), *(line_of(columns, row) for row in rows)]


def show_table(columns: Sequence[Column], rows: Iterable[Row], title: str = "") -> None:
    """Print a table behind a blank line and its title."""
    print(f"\n{title}\n" if title else "", *table_lines(columns, rows), sep="\n")


class _Cells(Formatter):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except (KeyError, TypeError):
            return None, field_name

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "m":
            return None if value is None else 1000 * value
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "-" if value is None else format(value, format_spec)


_CELLS = _Cells()


def fields(*names: str, spec: str = "") -> tuple[Column, ...]:
    """Columns of fields under their own names, all in one format."""
    return tuple((name.replace("_", " "), f"{{{name}:{spec}}}") for name in names)


def beside(
    paper: Callable[[Row], float | None], ours: Callable[[Row], float | None], spec: str = ",", *, of: str = ""
) -> tuple[Column, Column, Column]:
    """The columns paper, ours and ratio. `spec`: the format of ours; the paper's stands as it is printed there."""
    unit = f", {of}" if of else ""

    def shown(figure: Callable[[Row], float | None], form: str) -> Callable[[Row], str | None]:
        return lambda row: None if (value := figure(row)) is None else format(value, form)

    return (
        (f"paper{unit}", shown(paper, ",.12g")),
        (f"ours{unit}", shown(ours, spec)),
        ("ratio", lambda row: ratio(paper(row), ours(row))),
    )


def ratio(paper: float | None, ours: float | None) -> str:
    """Ours over the paper's, where there are both."""
    return "-" if not paper or ours is None else f"{ours / paper:.3f}"


def line_beside(
    what: str, paper: float | Sequence[float] | None, ours: float, how: str, *, where: str, spec: str = ".2f"
) -> str:
    """Paper, ours and ratio on a line. `paper`: a figure, or the least and the most of a range, or None where the paper
    has none; `where` it was taken; `how` ours came to be: measured or simulated. `spec`: the format of ours."""
    figure = f"ours ({how}) {ours:{spec}}"
    if paper is None:
        return f"{what}: {NO_FIGURE} | {figure} | no ratio"
    ends = (paper,) if isinstance(paper, (int, float)) else tuple(dict.fromkeys(paper))
    printed_ends = " to ".join(f"{end:,.12g}" for end in ends)
    ratios = " to ".join(ratio(end, ours) for end in reversed(ends))
    return f"{what}: paper ({where}) {printed_ends} | {figure} | ratio {ratios}"


@dataclass(frozen=True, slots=True)
class Printed:
    """A table or figure as a paper prints it: where it stands, its unit, and its rows."""

    paper: str
    where: str
    unit: str
    rows: Sequence[Row]

    def figure(self, column: str = "figure", /, **fields: Any) -> Any:
        """The figure in a column of the one row that has these fields; None where the paper prints none."""
        matches = [row for row in self.rows if all(row.get(name) == value for name, value in fields.items())]
        if len(matches) > 1:
            raise ValueError(f"{self.paper}, {self.where}: {len(matches)} rows have {fields}")
        return matches[0].get(column) if matches else None

    def of(self, column: str, *names: str) -> Callable[[Row], Any]:
        """The figure that stands next to a row of ours: of the same fields of these names."""
        return lambda row: self.figure(column, **{name: row[name] for name in names})


def printed(name: str) -> Printed:
    """The figures of experiments/papers/NAME.toml."""
    return Printed(**tomllib.loads((PAPERS / f"{name}.toml").read_text()))
