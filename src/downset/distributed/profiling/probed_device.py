"""The program of a device while it is measured. A plain class without Ray, of which `measure` makes an actor."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from downset.extras import onnxruntime_library

__all__ = ["ProbedDevice"]


class ProbedDevice:
    """`threads`: of each session of ONNX Runtime. `fetch`: a function that turns a reference into its array."""

    def __init__(self, *, threads: int = 0, fetch: Callable[[Any], Any] = lambda held: held) -> None:
        self._threads = threads or int(os.environ.get("DOWNSET_THREADS", "0")) or os.cpu_count() or 1
        self._fetch = fetch
        self._run: Callable[[], Any] = int
        self._rests = threading.Event()
        self._progress = (0, time.monotonic())

    def runtime_bytes(self) -> int:
        """The memory of all processes of this node's session, with shared memory counted once, before any model is
        loaded. A process that cannot be inspected counts with its resident memory."""
        return sum(_held_bytes(process) for process in _session_processes())

    def seconds(self, model: bytes, *, least_s: float, batches: int) -> list[float]:
        """Seconds of a run, one value for each batch of runs of at least `least_s` seconds. One run before them does
        not count."""
        run = self._opened(model)
        seconds = []
        for _ in range(batches):
            runs, begun = 0, time.monotonic()
            while (taken := time.monotonic() - begun) < least_s or not runs:
                run()
                runs += 1
            seconds.append(taken / runs)
        return seconds

    def open(self, model: bytes) -> None:
        """Open the model for `keep_computing`."""
        self._run = self._opened(model)

    def wake(self) -> None:
        """Undo `rest`, so that `keep_computing` can be called again."""
        self._rests.clear()

    def keep_computing(self) -> None:
        """Run the opened probe again and again until `rest` is called, and count the runs."""
        while not self._rests.is_set():
            self._run()
            self._progress = (self._progress[0] + 1, time.monotonic())

    def progress(self) -> tuple[int, float]:
        """The number of runs that `keep_computing` has ended, and when the last of them ended."""
        return self._progress

    def rest(self) -> None:
        """End `keep_computing`."""
        self._rests.set()

    def _opened(self, model: bytes) -> Callable[[], Any]:
        """A function that runs the model once; it has been run once before."""
        library = onnxruntime_library("running probes", extra="cluster")
        options = library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {given.name: _values(given) for given in session.get_inputs()}
        session.run(None, feeds)
        return lambda: session.run(None, feeds)

    def give(self, nbytes: int) -> Any:
        """An object of `nbytes` bytes in the form of a transfer's rows."""
        return np.zeros(nbytes, np.uint8)

    def take(self, held: list[Any]) -> None:
        """Fetch an object. `held`: a list of one reference."""
        arrived = self._fetch(held[0])
        if int(arrived[-1]):
            raise ValueError("an object arrived damaged")

    def ready(self) -> dict[str, Any]:
        """A sign of life, with figures of the device."""
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return {"threads": self._threads, "pid": os.getpid(), "memory_bytes": pages * page}


def _values(given: Any) -> Any:
    kinds = {
        "tensor(float)": np.float32,
        "tensor(int64)": np.int64,
        "tensor(uint8)": np.uint8,
        "tensor(bool)": np.bool_,
    }
    return np.full(given.shape, 0.5, kinds.get(given.type, np.float32))


def _session_processes() -> list[int]:
    session, pids = os.getsid(os.getppid()), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                pids.append(int(entry.name))
    return sorted({*pids, os.getpid()})


def _held_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    except (OSError, ValueError, IndexError):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
        return 0
