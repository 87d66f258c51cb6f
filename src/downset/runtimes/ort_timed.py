"""Single runs in ONNX Runtime, timed in turns with another executor or another file: a worker keeps the session and
times each run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
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

__all__ = ["RunSeconds", "timed_session", "turns"]

_WORKER = "downset.runtimes.ort_timed"
RunSeconds = tuple[float, float]
"""(latency, processor time of all threads) of a run, in seconds."""
_REST_S = 0.01
"""Seconds before each turn, in which threads of another session end to look for work."""
_TURN_S, _LEAST_RUNS, _MOST_RUNS = 0.04, 3, 50
"""Seconds that the runs of a turn take together, and the fewest and the most of them."""
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


def turns(
    paths: Sequence[str | os.PathLike[str]], feeds: Mapping[str, npt.NDArray[Any]], *, threads: int, rounds: int
) -> list[list[RunSeconds]]:
    """The time of a run by round and file. Each .onnx file has a session in a new process, by ONNX Runtime's defaults
    on `threads` threads, on the same inputs. In each round every file has its turn, every second round in reverse
    sequence. Raises as `timed_session`."""
    with ExitStack() as stack, saved([feeds]) as where:
        workers = [stack.enter_context(closing(Worker(_WORKER))) for _ in paths]
        for worker, path in zip(workers, paths, strict=True):
            worker.ask("open_here", {"path": os.fspath(path), "threads": threads, **where})
        listed = []
        for number in range(rounds):
            places = range(len(workers))
            row = {}
            for place in places if number % 2 == 0 else reversed(places):
                answer = workers[place].ask("turn_here", {})[0]
                row[place] = (float(answer["seconds"]), float(answer["cpu_s"]))
            listed.append([row[place] for place in places])
    return listed


def open_here(path: str, feeds: str, names: Sequence[Sequence[str]], threads: int) -> dict[str, npt.NDArray[Any]]:
    """`timed_session` inside the worker process."""
    library = onnxruntime_library("timing against ONNX Runtime")
    library.set_default_logger_severity(4)
    session = open_session(library, path, SessionSettings("timed", {"intra_op_num_threads": threads}))
    _OPEN[:] = [(session, dict(fed)) for fed in unpacked(feeds, names)]
    return seconds_here()


def turn_here() -> dict[str, npt.NDArray[Any]]:
    """A file's turn inside the worker process, of as many runs as fill it: the least of each, since other
    processes only ever add to it."""
    time.sleep(_REST_S)
    once_s = float(seconds_here()["seconds"])
    runs = min(max(int(_TURN_S / max(once_s, 1e-9)), _LEAST_RUNS), _MOST_RUNS)
    ((session, feeds),) = _OPEN
    times = [(time.perf_counter(), time.process_time())]
    for _ in range(runs):
        session.run(None, feeds)
        times.append((time.perf_counter(), time.process_time()))
    seconds, cpu_s = np.diff(times, axis=0).min(axis=0)
    return {"seconds": np.asarray(seconds), "cpu_s": np.asarray(cpu_s)}


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
