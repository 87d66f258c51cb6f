"""Renders a document as a page: HTML text in one file that opens from disk and loads nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from downset import __version__
from downset.extras import optional_library
from downset.reports.charts import STYLE, chart_svg
from downset.reports.document import ChartGroup, Code, Document, Facts, Part, Picture, Steps, Table, Value
from downset.text import printable

__all__ = ["check_renderable", "embedded", "render"]

_KINDS = {Table: "table", Facts: "facts", Code: "code", ChartGroup: "figure", Steps: "steps"}


def render(document: Document) -> str:
    """The page with its style, scripts and pictures inside. Markup in names is escaped.

    Raises UnsupportedError if Jinja2 is not installed (extra `report`)."""
    template = _template()
    shown = [(one.heading, [_drawn(part) for part in one.parts if _has_content(part)]) for one in document.sections]
    sections = [(heading, _anchor(heading), parts) for heading, parts in shown if parts]
    figures, foot = map(_with_text, (document.figures, document.foot))
    markup: str = template.render(page=document, sections=sections, figures=figures, foot=foot, number=_numbers())
    return markup


def check_renderable() -> None:
    """Raise UnsupportedError if Jinja2 is not installed. Called before anything is planned for a page."""
    _template()


def embedded(markup: str, *, height_px: int = 780) -> str:
    """The page inside another one, for a notebook. Its styles and scripts do not affect the outer page."""
    return (
        f'<iframe srcdoc="{escape(markup)}" sandbox="allow-scripts" title="downset report" '
        f'style="width:100%;height:{height_px}px;border:0"></iframe>'
    )


@cache
def _template() -> Any:
    jinja2 = optional_library("jinja2", what="a report as a page", extra="report")
    markup = jinja2.utils.markupsafe.Markup
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["version"] = __version__
    environment.filters["svg"] = lambda chart: markup(chart_svg(chart))  # `chart_svg` escapes names
    environment.filters["kind"] = lambda part: _KINDS[type(part)]
    environment.filters["cells"] = _cells
    for name, text in (("style", STYLE + _asset("page.css")), ("script", _asset("page.js"))):
        environment.globals[name] = markup(text)  # our own files
    return environment.get_template("page.html.j2")


def _asset(name: str) -> str:
    return files("downset.reports.page").joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """Text from a file as one line without control characters; our own markup unchanged."""
    return value if hasattr(value, "__html__") or not isinstance(value, str) else _lines(value)


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def _has_content(part: Part) -> bool:
    if isinstance(part, Table):
        return "page" in part.on and len(part.rows) > 0
    return "page" in part.on and part != Facts(())


def _drawn(part: Part) -> Part | ChartGroup:
    return part.draw() if isinstance(part, Picture) else part


def _with_text(figures: Sequence[Value]) -> list[Value]:
    return [figure for figure in figures if "page" in figure.on and figure.text]


def _cells(table: Table) -> Iterator[tuple[str, bool, list[tuple[str, bool]]]]:
    """The rows: id, whether the row is highlighted, and its cells with whether each is aligned left."""
    shown = table.shown("page")
    for place, row in enumerate(table.rows):
        cells = [(column.text(row), column.left) for column in shown]
        yield table.ids[place] if table.ids else "", place in table.marked, cells


def _anchor(heading: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in heading.lower())


def _numbers() -> Any:
    """A counter: 1, 2, 3, …, for numbering the figures of a page."""
    count = iter(range(1, 1_000_000))
    return lambda: next(count)
