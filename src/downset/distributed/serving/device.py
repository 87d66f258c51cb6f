"""The program of a device: its shards in ONNX Runtime, the rows that it holds, and the answers to its driver.

A plain class without Ray, of which `ray_fleet` makes an actor. Its methods take and return arrays and plain data.
Methods of different kinds run at the same time on separate threads: one computes, others send, receive and answer.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from downset.distributed.serving.device_program import DeviceProgram, RowStore
from downset.distributed.serving.kept_shards import LIMIT_BYTES, KeptShards
from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library
from downset.results.pipelines import Rows
from downset.text import brief

__all__ = ["DRIVER_SILENCE_S", "ServingDevice", "versions"]

DRIVER_SILENCE_S = 8.0
"""A device that has not heard from its driver for this long ends itself, because no other process would stop it."""
_SHARD = re.compile(r"[0-9a-f]{64}")
Array = npt.NDArray[Any]
_Step = tuple[int, int, str, int]
"""A task of a frame: run, frame, method and task."""
_RowsOf = Callable[[DeviceProgram], tuple[Rows, ...]]
Fetch = Callable[[Any, Callable[[], bool]], Any]
"""A function (reference, whether it is still wanted) -> arrays; None once they are not wanted any more."""


def _as_it_is(value: Any, wanted: Callable[[], bool]) -> Any:
    return value if wanted() else None


def versions() -> dict[str, str]:
    """The versions that driver and devices must have in common: a shard made for one ONNX Runtime may not run in
    another."""
    from importlib.metadata import version

    runtime = onnxruntime_library("running shards", extra="cluster")
    return {"downset": version("downset"), "onnxruntime": str(runtime.__version__)}


@dataclass(slots=True)
class _DeviceFrame:
    """A frame of one run on the device. A run may end while one of its tasks computes. The task then ends in the frame
    that it began in, even if a frame of the next run has the same number. `left`: how many of the device's tasks are
    not done. `begun`: the tasks that have begun, each with its method, for a message that arrives twice."""

    number: int
    program: DeviceProgram
    store: RowStore
    left: int
    begun: set[tuple[str, int]] = field(default_factory=set)


class ServingDevice:
    """`threads`: of each session of ONNX Runtime; 0: as many as the device has cores. `fetch`: a function that turns
    references into arrays."""

    def __init__(
        self, name: str, *, threads: int = 0, fetch: Fetch = _as_it_is, watched: bool = False, folder: str | None = None
    ) -> None:
        self._name, self._fetch = name, fetch
        self._threads = threads or int(os.environ.get("DOWNSET_THREADS", "0")) or os.cpu_count() or 1
        chosen = folder or os.environ.get("DOWNSET_SHARDS")
        limit_bytes = int(os.environ.get("DOWNSET_SHARDS_LIMIT", LIMIT_BYTES))
        self._kept = KeptShards(Path(chosen or tempfile.mkdtemp(prefix="downset-shards-")), limit_bytes)
        self._arriving: tuple[str, bytearray] = ("", bytearray())
        self._sessions: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._run = -1
        self._program: DeviceProgram | None = None
        self._readers: dict[int, int] = {}
        self._frames: dict[int, _DeviceFrame] = {}
        self._over: set[int] = (
            set()
        )  # the frames whose tasks are done, and that number all frames before which are over
        self._first = 0
        """All frames before `_first`, and those in `_over`, have none of the device's tasks left."""
        self._heard = time.monotonic()
        if watched:
            threading.Thread(target=self._watch, name="downset-watches-driver", daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """Versions, process, number of cores, and the shards on its disk."""
        return {
            **versions(),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "cores": os.cpu_count() or 1,
            "threads": self._threads,
            "shards": self._kept.names(),
        }

    def ping(self) -> dict[str, Any]:
        """A sign of life, with the memory of the process in bytes."""
        self._heard = time.monotonic()
        return {"rss_bytes": _rss_bytes(), "most_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def keep(self, shard: str, data: bytes, ahead: bool = False) -> list[str]:
        """Write a shard to the disk under the hash of its content. Returns the shards that were removed to make room
        for it (`KeptShards`)."""
        self._heard = time.monotonic()
        try:
            return self._kept.keep(shard, data, ahead=ahead)
        except UnsupportedError as error:
            raise UnsupportedError(f"device {self._name!r}: ", error.message) from None

    def place(self, shard: str, offset: int, piece: bytes, last: bool) -> list[str]:
        """Take the piece of a shard that begins at byte `offset`, for a plan that may come. With the last piece the
        shard is kept (`keep`). One shard arrives at a time: the first piece of another shard drops the pieces received
        so far."""
        self._heard = time.monotonic()
        if offset == 0:
            self._arriving = (shard, bytearray())
        name, content = self._arriving
        if name != shard or len(content) != offset:
            raise UnsupportedError(f"device {self._name!r}: a piece of a shard arrived in the wrong order")
        content += piece
        if not last:
            return []
        self._arriving = ("", bytearray())
        return self.keep(shard, bytes(content), ahead=True)

    def begin(self, run: int, program: bytes) -> list[str]:
        """Open the sessions of a program and drop everything of earlier runs. Returns the shards that are not on the
        disk as they came: the program begins when there are none of them. A run that has begun does not begin again."""
        self._heard = time.monotonic()
        if run < self._run or (run == self._run and self._program is not None):
            return []
        decoded = msgspec.json.decode(program, type=DeviceProgram)
        wanted = decoded.shards()
        for shard in wanted:
            if not _SHARD.fullmatch(shard):  # a name is a hash, never a path
                raise UnsupportedError(f"device {self._name!r}: {shard[:80]!r} is not the name of a shard")
        with self._lock:
            self._run, self._program, self._frames = run, None, {}
            self._over, self._first = set(), 0
            self._sessions = {shard: session for shard, session in self._sessions.items() if shard in wanted}
        self._kept.use(wanted)
        missing = []
        for shard in wanted:
            if shard not in self._sessions:
                content = self._kept.content(shard)
                if content is None:
                    missing.append(shard)
                else:
                    self._sessions[shard] = self._session(content)
            self._heard = time.monotonic()
        with self._lock:
            if self._run == run and not missing:
                self._program, self._readers = decoded, decoded.readers()
        return missing

    def _session(self, content: bytes) -> Any:
        library = onnxruntime_library("running shards", extra="cluster")
        library.set_default_logger_severity(4)
        options = library.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            return library.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base class
            raise UnsupportedError(f"device {self._name!r}: ONNX Runtime cannot load a shard: {brief(error)}") from None

    def enter(self, run: int, frame: int, references: list[Any]) -> dict[str, float]:
        """Take a frame's inputs, which arrive at the entry."""
        return self._take((run, frame, "enter", 0), references, lambda program: program.enters)

    def receive(self, run: int, frame: int, task: int, references: list[Any]) -> dict[str, float]:
        """Take the rows of a transfer. `references`: a list of one reference to what `send` returned."""
        return self._take((run, frame, "receive", task), references, lambda program: program.receives[task])

    def _take(self, step: _Step, references: list[Any], rows_of: _RowsOf) -> dict[str, float]:
        """Store the arrays of the references. Raises InvalidPlan if their rows are not the program's."""
        self._heard = begun = time.monotonic()
        arrays = self._fetch(references[0], lambda: step[0] == self._run)
        seconds = time.monotonic() - begun
        device_frame = self._at(step)
        if device_frame is not None and arrays is not None:
            with self._lock:
                for rows, array in zip(rows_of(device_frame.program), arrays, strict=True):
                    device_frame.store.put(rows, array)
                self._count(device_frame)
        return {"seconds": seconds}

    def compute(self, run: int, frame: int, tasks: Sequence[int]) -> dict[str, list[float]]:
        """Compute strips from the rows held here, one after another. Returns the seconds of each."""
        return {"seconds": [self._compute(run, frame, task) for task in tasks]}

    def _compute(self, run: int, frame: int, task: int) -> float:
        self._heard = begun = time.monotonic()
        device_frame = self._at((run, frame, "compute", task))
        if device_frame is not None:
            program, store = device_frame.program, device_frame.store
            work = program.computations[task]
            with self._lock:
                feeds = {program.forms[rows.tensor].name: store.rows(rows) for rows in work.reads}
            results: list[Array] = []
            if work.shard:
                names = [program.forms[rows.tensor].name for rows in work.makes]
                results = self._sessions[work.shard].run(names, feeds)
            with self._lock:
                for rows, array in zip(work.makes if work.shard else (), results, strict=True):
                    store.put(rows, np.asarray(array))
                store.read(list(dict.fromkeys(rows.tensor for rows in work.reads)))
                self._count(device_frame)
        return time.monotonic() - begun

    def send(self, run: int, frame: int, task: int) -> list[Array]:
        """The rows of a transfer as one object: contiguous arrays in the order of the plan's rows."""
        return self._give((run, frame, "send", task), lambda program: program.sends[task])

    def result(self, run: int, frame: int) -> list[Array]:
        """The network's outputs of a frame."""
        return self._give((run, frame, "result", 0), lambda program: program.results)

    def _give(self, step: _Step, rows_of: _RowsOf) -> list[Array]:
        self._heard = time.monotonic()
        device_frame = self._at(step)
        if device_frame is None:
            return []
        wanted = rows_of(device_frame.program)
        with self._lock:
            arrays = [device_frame.store.rows(rows) for rows in wanted]
            device_frame.store.read(list(dict.fromkeys(rows.tensor for rows in wanted)))
            self._count(device_frame)
        return arrays

    def _count(self, frame: _DeviceFrame) -> None:
        """Count one more task of a frame as done. After the last one the frame is dropped."""
        frame.left -= 1
        if not frame.left and self._frames.get(frame.number) is frame:
            del self._frames[frame.number]
            self._over.add(frame.number)
            while self._first in self._over:
                self._over.remove(self._first)
                self._first += 1

    def _at(self, step: _Step) -> _DeviceFrame | None:
        """The frame of a step that begins. None if its run is over, since tasks of it may still arrive, and for a step
        that has begun before: a message that arrives twice counts once."""
        run, frame, method, task = step
        with self._lock:
            if run != self._run or self._program is None or frame < self._first or frame in self._over:
                return None
            if frame not in self._frames:
                program = self._program
                self._frames[frame] = _DeviceFrame(
                    frame, program, RowStore(program.forms, self._readers), program.tasks()
                )
            device_frame = self._frames[frame]
            if (method, task) in device_frame.begun:
                return None
            device_frame.begun.add((method, task))
            return device_frame

    def _watch(self) -> None:
        """End this process if the driver was silent too long. The limit leaves time for opening sessions and receiving
        shards."""
        while time.monotonic() - self._heard < DRIVER_SILENCE_S:
            time.sleep(0.5)
        print(f"device {self._name}: the driver was silent for {DRIVER_SILENCE_S:g} s; ended", file=sys.stderr)
        os._exit(3)


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
