"""The process of a device: its shards in ONNX Runtime, its run, and the answers to its driver.

A plain class without Ray, of which `ray_fleet` makes an actor. Its methods are what the driver calls: they take and
return plain data. Frames and rows come and go through the `Endpoint`, in the run (`device_run`).
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt

from downset.distributed.keys import DeviceKeys
from downset.distributed.serving.device_program import Computation, DeviceProgram
from downset.distributed.serving.device_run import DeviceRun, RunSetup
from downset.distributed.serving.kept_shards import LIMIT_BYTES, KeptShards
from downset.distributed.wire.connection import Connection
from downset.distributed.wire.endpoint import Endpoint
from downset.distributed.wire.messages import Hello
from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library
from downset.text import brief

__all__ = ["DRIVER_SILENCE_S", "ServingDevice", "versions"]

DRIVER_SILENCE_S = 8.0
"""A device that has not heard from its driver for this long ends itself, because no other process would stop it."""
_SHARD = re.compile(r"[0-9a-f]{64}")
Array = npt.NDArray[Any]


def versions() -> dict[str, str]:
    """The versions that driver and devices must have in common: a shard made for one ONNX Runtime may not run in
    another, and Ray of one version does not answer another's. Ray's only in a process that uses it."""
    from importlib.metadata import version

    runtime = onnxruntime_library("running shards", extra="cluster")
    own = {"downset": version("downset"), "onnxruntime": str(runtime.__version__)}
    ray = sys.modules.get("ray")
    return own if ray is None else {**own, "ray": str(ray.__version__)}


class ServingDevice:
    """`threads`: of each session of ONNX Runtime; 0: as many as the device has cores. `keys`, `address`: of its
    endpoint; a device without keys takes part in no run."""

    def __init__(
        self,
        name: str,
        *,
        threads: int = 0,
        keys: DeviceKeys | None = None,
        address: str = "127.0.0.1",
        watched: bool = False,
        folder: str | None = None,
    ) -> None:
        self._name = name
        self._threads = threads or int(os.environ.get("DOWNSET_THREADS", "0")) or os.cpu_count() or 1
        chosen = folder or os.environ.get("DOWNSET_SHARDS")
        limit_bytes = int(os.environ.get("DOWNSET_SHARDS_LIMIT", LIMIT_BYTES))
        self._kept = KeptShards(Path(chosen or tempfile.mkdtemp(prefix="downset-shards-")), limit_bytes)
        self._arriving: tuple[str, bytearray] = ("", bytearray())
        self._sessions: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._number = -1
        self.run: DeviceRun | None = None
        self._endpoint = None if keys is None else Endpoint(keys, address, self._accepted)
        self._heard = time.monotonic()
        if watched:
            threading.Thread(target=self._watch, name="downset-watches-driver", daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """Versions, process, number of cores, the shards on its disk, and where its endpoint is."""
        here = None if self._endpoint is None else self._endpoint.here
        return {
            **versions(),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "cores": os.cpu_count() or 1,
            "threads": self._threads,
            "shards": self._kept.names(),
            "endpoint": None if here is None else msgspec.to_builtins(here),
        }

    def close(self) -> None:
        """End the run and close the endpoint."""
        with self._lock:
            run, self.run, self._number = self.run, None, sys.maxsize
        if run is not None:
            run.end()
        if self._endpoint is not None:
            self._endpoint.close()

    def _accepted(self, connection: Connection, hello: Hello) -> None:
        if (run := self.run) is not None:
            run.read(connection, hello)

    def ping(self) -> dict[str, Any]:
        """A sign of life, with the memory of the process in bytes, and what is under way in the run."""
        self._heard = time.monotonic()
        run = self.run
        return {
            "rss_bytes": _rss_bytes(),
            "most_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "run": -1 if run is None else run.number,
            "steps": [] if run is None else run.steps(),
        }

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

    def begin(self, run: int, program: bytes, setup: bytes) -> list[str]:
        """Open the sessions of a program and end the run before. Returns the shards that are not on the disk as they
        came: the run begins when there are none of them. A run that has begun does not begin again."""
        self._heard = time.monotonic()
        if run < self._number or (run == self._number and self.run is not None):
            return []
        decoded = msgspec.json.decode(program, type=DeviceProgram)
        wanted = decoded.shards()
        for shard in wanted:
            if not _SHARD.fullmatch(shard):  # a name is a hash, never a path
                raise UnsupportedError(f"device {self._name!r}: {shard[:80]!r} is not the name of a shard")
        with self._lock:
            ended, self.run, self._number = self.run, None, run
            self._sessions = {shard: session for shard, session in self._sessions.items() if shard in wanted}
        if ended is not None:
            ended.end()
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
        if not missing:
            self._start(run, decoded, msgspec.json.decode(setup, type=RunSetup))
        return missing

    def _start(self, number: int, program: DeviceProgram, setup: RunSetup) -> None:
        if self._endpoint is None:
            raise UnsupportedError(f"device {self._name!r} has no keys")
        with self._lock:
            if self._number == number:
                self.run = DeviceRun(number, program, setup, self._endpoint, self._compute)

    def _compute(self, work: Computation, feeds: Mapping[str, Array], names: list[str]) -> tuple[list[Array], float]:
        session, begun_s = self._sessions[work.shard], time.monotonic()
        return session.run(names, feeds), time.monotonic() - begun_s

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
