"""The options --report, --map and --trace, functions that write their files, and lines that name written files."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from downset.commands.options import path_option
from downset.commands.wording import worded
from downset.reports.document import PAGE_SUFFIXES

if TYPE_CHECKING:
    from downset.reports.arena_view import ArenaView
    from downset.reports.document import Document
    from downset.reports.timeline import Timeline

__all__ = [
    "Written",
    "check_pictures",
    "map_option",
    "not_written_lines",
    "report_option",
    "trace_option",
    "write_memory_pictures",
    "write_page",
    "write_picture",
    "write_timelines",
    "written_lines",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

report_option = path_option(
    "--report",
    "report_path",
    help="Also write a page to show: one HTML file, which opens offline (extra: report).",
)


def map_option(help_text: str) -> Callable[[_Command], _Command]:
    """`--map`, whose picture depends on the command."""
    return path_option("--map", "map_path", help=help_text)


trace_option = path_option("--trace", "trace_path", help="Also write a trace for chrome://tracing and Perfetto (JSON).")


def check_pictures(
    pictures: Mapping[str, str | None], *, others: Mapping[str, str | None], source: str | Path | Sequence[str | Path]
) -> None:
    """Raise if a picture cannot be written, before anything is planned. `pictures` and `others`: paths by option; no
    two paths of `pictures` may be the same. Raises UsageError, or UnsupportedError if a page needs Jinja2."""
    if all(path is None for path in pictures.values()):
        return
    from downset.errors import UsageError
    from downset.process.whole_files import check_output

    seen = {Path(os.path.realpath(path)): option for option, path in others.items() if path is not None}
    for option, path in pictures.items():
        if path is None:
            continue
        check_output(path, source=source)
        other = seen.setdefault(Path(os.path.realpath(path)), option)
        if other != option:
            raise UsageError(f"{other} and {option} both name {path}; give each a file of its own")
    for option, path in pictures.items():
        if path is not None:
            _check_suffix(option, Path(path))
    if pictures.get("--report") is not None:
        from downset.reports.page.render import check_renderable

        check_renderable()


_SUFFIXES: Mapping[str, tuple[str, ...]] = {"--report": PAGE_SUFFIXES, "--map": (".svg",), "--trace": (".json",)}
"""The suffixes of the files of each option."""
_WRITTEN = {"--report": "an HTML page", "--map": "an SVG picture", "--trace": "a trace in JSON"}


def _check_suffix(option: str, path: Path) -> None:
    """Raise UsageError where the suffix of a path does not match the content; a pipe or a device may have any name."""
    from downset.errors import UsageError

    suffixes = _SUFFIXES[option]
    if path.suffix.lower() not in suffixes and (path.is_file() or not path.exists()):
        raise UsageError(f"{option} writes {_WRITTEN[option]}: {path} must end in {' or '.join(suffixes)}")


def written_lines(pictures: Mapping[str, str | None], *others: tuple[str | Path | None, str]) -> list[str]:
    """A line for each file that was written: `others`, each a path and what the file holds, then the pictures. None is
    the path of a file that was not asked for."""
    files = [*others, *((path, _WRITTEN[option]) for option, path in pictures.items())]
    return [f"written: {path} ({what})" for path, what in files if path is not None]


class Written:
    """The files that a command has written so far. As a context, it names them also where an error or a signal ends
    the command: below the message (not where `quiet`), and as `files` of its JSON."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._files: list[tuple[str, str]] = []

    def add(self, path: str, what: str) -> None:
        """Note a file that was written, and what it holds."""
        self._files.append((path, what))

    def add_picture(self, option: str, path: str) -> None:
        """Note a picture that was written for this option."""
        self.add(path, _WRITTEN[option])

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self._files]

    @property
    def lines(self) -> list[str]:
        """A line for each file; none where `quiet`."""
        return [] if self._quiet else written_lines({}, *self._files)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from downset.commands.options import console
        from downset.errors import DownsetError
        from downset.process.command import Stopped
        from downset.reports.terminal import print_lines

        if isinstance(error, DownsetError | Stopped):
            error.add_lines(self.lines)
            error.found = {**error.found, "files": self.paths}
        elif error is not None:
            print_lines(console(stderr=True), self.lines)


def not_written_lines(*paths: str | None) -> list[str]:
    """A line that names the files which were asked for and are not written, because no plan is known to fit."""
    named = [path for path in paths if path is not None]
    return [f"not written: {', '.join(named)} (nothing is known to fit)"] if named else []


def write_page(path: str | None, document: Document, *, source: str | Path, packages: Sequence[str] = ()) -> None:
    """Write the page completely or not at all; nothing without a path. Its facts name the command with its defaults,
    and versions, with those of `packages`, where the page does not."""
    if path is None:
        return
    from downset.reports.document import Value, versions_value
    from downset.reports.page.render import render
    from downset.runtimes.versions import versions_of

    foot, titles = [*document.foot], {figure.title for figure in document.foot}
    if "command" not in titles:
        foot.append(Value("command", shlex.join(["downset", *sys.argv[1:]])))
        foot.append(Value("by default", " ".join(_defaults())))
    if "versions" not in titles:
        foot.append(versions_value(versions_of(*packages)))
    write_picture(path, render(worded(replace(document, foot=tuple(foot)))), source=source)


def _defaults() -> list[str]:
    """The options of the command that were not given, with their defaults, as they are typed."""
    context = click.get_current_context()
    if context is None:
        return []
    return [
        f"{parameter.opts[-1]} {parameter.default}"
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and not parameter.is_flag
        and isinstance(parameter.default, str | int | float)
        and getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "DEFAULT"
    ]


def write_memory_pictures(
    paths: Mapping[str, str | None], views: Sequence[ArenaView], *, caption: str, limit_bytes: int | None, source: str
) -> None:
    """Write the pictures of arenas that `--map` and `--trace` ask for."""
    if paths["--map"] is not None:
        from downset.reports.memory_map import memory_map

        write_picture(paths["--map"], memory_map(views, caption=caption, limit_bytes=limit_bytes), source=source)
    if paths["--trace"] is not None:
        from downset.reports.trace import arena_trace

        write_picture(paths["--trace"], arena_trace(views), source=source)


def write_timelines(path: str | None, timelines: Sequence[Timeline | None], *, source: str | Path) -> None:
    """Write the known timelines to the file of `--trace`; nothing without a path."""
    if path is not None:
        from downset.reports.trace import timeline_trace

        drawable = [timeline for timeline in timelines if timeline is not None]
        write_picture(path, timeline_trace(drawable), source=source)


def write_picture(path: str | Path | None, text: str, *, source: str | Path) -> None:
    """Write a picture's text completely or not at all; nothing without a path."""
    from downset.process.whole_files import write_whole

    if path is not None:
        write_whole(path, text.encode(), source=Path(source))
