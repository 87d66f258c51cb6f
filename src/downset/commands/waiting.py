"""Progress for a user who waits: after two seconds a line says what is being done, and how long it has taken and may
take."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from downset.isolation import PARSING_S
from downset.text import format_seconds, printable

__all__ = ["reading", "waiting"]

_PATIENCE_S = 2.0


@contextmanager
def waiting(talk: Any, what: str, *, limit_s: float | None = None) -> Iterator[Callable[[str], None]]:
    """While the body runs, and once it took two seconds: `what` is done, for how long, and for about how long at most.
    Only on a terminal, on `talk`; gone at the end. Yields what tells that something else is done now."""
    if not talk.is_terminal or talk.quiet:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    limit_s = None if limit_s is None or limit_s == math.inf else limit_s
    upto = "" if limit_s is None else f"of about {format_seconds(limit_s)}"
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn(upto),
    )
    bar = Progress(*columns, console=talk, transient=True)
    task = bar.add_task(printable(what), total=limit_s)
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(_PATIENCE_S):
            return
        bar.start()
        while not ended.wait(0.2):
            elapsed = bar.tasks[0].elapsed or 0.0
            # A task that is complete stops its clock, and what is measured may take longer than the limit of searches.
            bar.update(task, completed=_PATIENCE_S + elapsed if limit_s is None else min(elapsed, 0.99 * limit_s))

    watcher = threading.Thread(target=watch, name="downset-progress", daemon=True)
    watcher.start()
    try:
        yield lambda doing: bar.update(task, description=printable(doing))
    finally:
        ended.set()
        watcher.join()
        bar.stop()


def reading(talk: Any, model: str, *, limit_s: float = PARSING_S) -> AbstractContextManager[Callable[[str], None]]:
    """`waiting` for a model's file to be read."""
    return waiting(talk, f"reading {Path(model).name}", limit_s=limit_s)
