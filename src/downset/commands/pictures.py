"""The options --report, --map and --trace, and writing what they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

if TYPE_CHECKING:
    from downset.reports.arena_view import ArenaView
    from downset.reports.page.elements import Page
    from downset.reports.timeline import Timeline

__all__ = [
    "check_pictures", "map_option", "report_option", "trace_option", "write_memory_pictures", "write_page",
    "write_picture", "write_timelines",
]  # fmt: skip

_Command = TypeVar("_Command", bound=Callable[..., Any])

report_option = click.option(
    "--report", "report_path", type=click.Path(),
    help="Also write a page to show: one HTML file, which opens offline (extra: report).",
)  # fmt: skip


def map_option(help_text: str) -> Callable[[_Command], _Command]:
    """`--map`, whose picture differs by command."""
    return click.option("--map", "map_path", type=click.Path(), help=help_text)


trace_option = click.option(
    "--trace", "trace_path", type=click.Path(),
    help="Also write a trace for chrome://tracing and Perfetto (JSON).",
)  # fmt: skip


def check_pictures(
    pictures: Mapping[str, str | None], *, others: Mapping[str, str | None], source: str | Path | Sequence[str | Path]
) -> None:
    """Raise where a picture cannot be written, before anything is planned. `pictures` and `others`: paths by option;
    each file of `pictures` has a name of its own. Raises UsageError, or UnsupportedError where a page needs Jinja2."""
    if all(path is None for path in pictures.values()):
        return
    from downset.errors import UsageError
    from downset.whole_files import check_output

    seen = {Path(os.path.realpath(path)): option for option, path in others.items() if path is not None}
    for option, path in pictures.items():
        if path is None:
            continue
        check_output(path, source=source)
        other = seen.setdefault(Path(os.path.realpath(path)), option)
        if other != option:
            raise UsageError(f"{other} and {option} both name {path}; give each a file of its own")
    if pictures.get("--report") is not None:
        from downset.reports.page.render import check_renderable

        check_renderable()


def write_page(path: str | None, page: Page, *, source: str | Path) -> None:
    """The page, whole or not at all; nothing without a path."""
    from downset.reports.page.render import render

    if path is not None:
        write_picture(path, render(page), source=source)


def write_memory_pictures(
    paths: Mapping[str, str | None], views: Sequence[ArenaView], *, caption: str, limit_bytes: int | None, source: str
) -> None:
    """The arenas as `--map` and `--trace` ask for them."""
    from downset.reports.memory_map import memory_map
    from downset.reports.trace import arena_trace

    if paths["--map"] is not None:
        write_picture(paths["--map"], memory_map(views, caption=caption, limit_bytes=limit_bytes), source=source)
    if paths["--trace"] is not None:
        write_picture(paths["--trace"], arena_trace(views), source=source)


def write_timelines(path: str | None, timelines: Sequence[Timeline | None], *, source: str | Path) -> None:
    """The timelines that are known as `--trace` asks for them; nothing without a path."""
    from downset.reports.trace import timeline_trace

    if path is not None:
        drawable = [timeline for timeline in timelines if timeline is not None]
        write_picture(path, timeline_trace(drawable), source=source)


def write_picture(path: str | Path | None, text: str, *, source: str | Path) -> None:
    """A picture's text, whole or not at all; nothing without a path."""
    from downset.whole_files import write_whole

    if path is not None:
        write_whole(path, text.encode(), source=Path(source))
