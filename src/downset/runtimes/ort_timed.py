"""Single runs in ONNX Runtime, timed in turns with another executor: a worker keeps the session and times each run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library
from downset.process.isolation import Worker
from downset.results.sessions import SessionSettings
from downset.runtimes.feeds import saved, unpacked
from downset.runtimes.ort_settings import open_session
from downset.text import brief

__all__ = ["timed_session"]

_WORKER = "downset.runtimes.ort_timed"
_OPEN: list[tuple[Any, dict[str, Any]]] = []
"""The session and its inputs, in the worker."""


@contextmanager
def timed_session(
    path: str | os.PathLike[str], feeds: Mapping[str, npt.NDArray[Any]], *, threads: int
) -> Iterator[Callable[[], float]]:
    """Yields a function. Each call of it runs the .onnx file at `path` once, with ONNX Runtime's defaults on `threads`
    threads, and returns the seconds of that run alone. One run was done before. This and each call raise
    UnsupportedError where ONNX Runtime is missing, refuses the file or these inputs, or crashes, and LimitReached where
    a run takes too long."""
    with closing(Worker(_WORKER)) as worker:
        with saved([feeds]) as where:
            worker.ask("open_here", {"path": os.fspath(path), "threads": threads, **where})
        yield lambda: float(worker.ask("seconds_here", {})[0]["seconds"])


def open_here(path: str, feeds: str, names: Sequence[Sequence[str]], threads: int) -> dict[str, npt.NDArray[Any]]:
    """`timed_session` inside the worker process."""
    library = onnxruntime_library("timing against ONNX Runtime")
    library.set_default_logger_severity(4)
    session = open_session(library, path, SessionSettings("timed", {"intra_op_num_threads": threads}))
    _OPEN[:] = [(session, dict(fed)) for fed in unpacked(feeds, names)]
    return seconds_here()


def seconds_here() -> dict[str, npt.NDArray[Any]]:
    """One run inside the worker process."""
    if not _OPEN:
        raise UnsupportedError("ONNX Runtime ended between two runs")
    session, feeds = _OPEN[0]
    begin = time.perf_counter()
    try:
        session.run(None, feeds)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise UnsupportedError(f"ONNX Runtime does not run it: {brief(error, 160)}") from None
    return {"seconds": np.asarray(time.perf_counter() - begin)}
