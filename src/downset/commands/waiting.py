"""Progress for a user who waits: after two seconds a line states what is being done, for how long, and how long it may
take."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from downset.process.limits import PARSING_S
from downset.text import format_seconds, printable, shortened, unheard

__all__ = ["Waiting", "counting", "interruptible", "reading", "waiting"]

_PATIENCE_S = 2.0
_A_DAY_S = 86_400.0
_BAR = 12
"""Columns of the bar."""


class Waiting:
    """Shows a user who waits what is being done. This one shows nothing."""

    def __call__(self, doing: str) -> None:
        """Change the text."""

    def takes_longer(self, more_s: float) -> None:
        """Expect this many seconds more than the estimate from before the work."""


class _Line(Waiting):
    """The line on a terminal, with the estimate of the whole in seconds, or None where there is none."""

    def __init__(self, talk: Any, what: str, limit_s: float | None) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._before_s = self._limit_s = limit_s
        estimate_width = 0 if limit_s is None else len(f"longer than {format_seconds(limit_s)}")
        self._room = talk.width - _BAR - estimate_width - len("⠋   0:00:00 ") - 1
        columns = (
            SpinnerColumn(),
            # On a narrow terminal the description is cut, never a figure.
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=_BAR),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
            TextColumn("{task.fields[estimate]}", table_column=Column(no_wrap=True, min_width=estimate_width)),
        )
        self.bar = Progress(*columns, console=talk, transient=True)
        self._task = self.bar.add_task(shortened(printable(what), self._room), total=limit_s, estimate="")
        self.draw()

    def __call__(self, doing: str) -> None:
        self.bar.update(self._task, description=shortened(printable(doing), self._room))

    def takes_longer(self, more_s: float) -> None:
        if self._before_s is not None:
            self._limit_s = float(math.ceil(self._before_s + more_s))
            self.draw()

    def draw(self) -> None:
        """Show how much of the estimate has gone by."""
        elapsed, limit_s = self.bar.tasks[0].elapsed or 0.0, self._limit_s
        if limit_s is None:
            self.bar.update(self._task, completed=_PATIENCE_S + elapsed)
            return
        estimate = f"{'longer than' if elapsed > limit_s else 'of about'} {format_seconds(limit_s)}"
        # A completed task stops its clock, and work may take longer than the estimate.
        self.bar.update(self._task, total=limit_s, completed=min(elapsed, 0.99 * limit_s), estimate=estimate)


@contextmanager
def waiting(talk: Any, what: str, *, limit_s: float | None = None) -> Iterator[Waiting]:
    """Show progress on `talk` while the body runs, after two seconds and only on a terminal: `what` is being done, for
    how long, and about how long it may take at most. The line says so if it takes longer, and is removed at the end.
    Yields what changes the text and the estimate."""
    if not talk.is_terminal or talk.quiet:
        yield Waiting()
        return
    line = _Line(talk, what, None if limit_s == math.inf else limit_s)
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(_PATIENCE_S):
            return
        line.bar.start()
        while not ended.wait(0.2):
            line.draw()

    watcher = threading.Thread(target=watch, name="downset-progress", daemon=True)
    watcher.start()
    try:
        yield line
    finally:
        ended.set()
        watcher.join()
        line.bar.stop()


@contextmanager
def counting(talk: Any, *, get_time: Callable[[], float] | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on `talk` while the body runs, only on a terminal. Yields a function that takes what is being done,
    how much of it is done, and how much there is of it. The bar says the time that is left of it, estimated from the
    speed of what is done of it so far, and -:--:-- while that is not known. `get_time`: a clock in seconds."""
    if not talk.is_terminal or talk.quiet:
        yield unheard
        return
    from rich.progress import Progress

    # Rich forgets steps after this time, and a round of a large network takes longer than its default.
    bar = Progress(console=talk, transient=True, get_time=get_time, speed_estimate_period=_A_DAY_S)
    task = bar.add_task("starting", total=None)

    def show(what: str, done: int, total: int) -> None:
        now = bar.tasks[0]
        if not done or done < now.completed or total != now.total:
            bar.reset(task, total=total)  # the speed of what was done before tells nothing
        bar.update(task, description=what, completed=done)

    with bar:
        yield show


def reading(
    talk: Any, model: str, *, what: str = "", runs: bool = False, limit_s: float = PARSING_S
) -> AbstractContextManager[Waiting]:
    """`waiting` while a model's file is read, or `what` is done with it. Before that, while this process has opened no
    model and has no thread that waits, it forks the server of workers, where workers read the file or it `runs` in
    them."""
    from downset.formats.reading import fork_workers

    fork_workers(model, run=runs)
    return waiting(talk, what or f"reading {Path(model).name}", limit_s=limit_s)


@contextmanager
def interruptible(runs_s: Callable[[], float]) -> Iterator[None]:
    """A context in which the first Ctrl-C ends all searches, and says what follows. `runs_s`: the seconds that all runs
    in the runtime take, about."""
    from downset.budget import INTERRUPTED
    from downset.native import compiled
    from downset.process.command import answering_interrupt

    def end_searches() -> None:
        INTERRUPTED.set()
        compiled.interrupt(True)
        print(
            "downset: the search ends; what it found is run, proven and written, which takes about "
            f"{format_seconds(runs_s())}; Ctrl-C again stops at once",
            file=sys.stderr,
            flush=True,
        )

    try:
        with answering_interrupt(end_searches):
            yield
    finally:
        INTERRUPTED.clear()
        compiled.interrupt(False)
