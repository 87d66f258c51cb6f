"""Progress for a user who waits: after two seconds a line states what is being done, for how long, and how long it may
take."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from downset.isolation import PARSING_S
from downset.text import format_seconds, printable, shortened

__all__ = ["reading", "waiting"]

_PATIENCE_S = 2.0
_BAR = 12
"""Columns of the bar."""


@contextmanager
def waiting(talk: Any, what: str, *, limit_s: float | None = None) -> Iterator[Callable[[str], None]]:
    """Show progress on `talk` while the body runs, after two seconds and only on a terminal: `what` is being done, for
    how long, and about how long it may take at most. The line says so if it takes longer, and is removed at the end.
    Yields a function that changes the text."""
    if not talk.is_terminal or talk.quiet:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    limit_s = None if limit_s is None or limit_s == math.inf else limit_s
    told = "" if limit_s is None else f"of about {format_seconds(limit_s)}"
    late = "" if limit_s is None else f"longer than {format_seconds(limit_s)}"
    told_width = max(len(told), len(late))
    room = talk.width - _BAR - told_width - len("⠋   0:00:00 ") - 1
    columns = (
        SpinnerColumn(),
        # On a narrow terminal the description is cut, never a figure.
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=_BAR),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
        TextColumn("{task.fields[told]}", table_column=Column(no_wrap=True, min_width=told_width)),
    )
    bar = Progress(*columns, console=talk, transient=True)
    task = bar.add_task(shortened(printable(what), room), total=limit_s, told=told)
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(_PATIENCE_S):
            return
        bar.start()
        while not ended.wait(0.2):
            elapsed = bar.tasks[0].elapsed or 0.0
            # A completed task stops its clock, and measurements may take longer than the limit of searches.
            bar.update(task, completed=_PATIENCE_S + elapsed if limit_s is None else min(elapsed, 0.99 * limit_s))
            if limit_s is not None and elapsed > limit_s:
                bar.update(task, told=late)

    watcher = threading.Thread(target=watch, name="downset-progress", daemon=True)
    watcher.start()
    try:
        yield lambda doing: bar.update(task, description=shortened(printable(doing), room))
    finally:
        ended.set()
        watcher.join()
        bar.stop()


def reading(talk: Any, model: str, *, limit_s: float = PARSING_S) -> AbstractContextManager[Callable[[str], None]]:
    """`waiting` while a model's file is read."""
    return waiting(talk, f"reading {Path(model).name}", limit_s=limit_s)
