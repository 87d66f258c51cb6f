"""Ray's nodes as child processes: started, waited for, and stopped with all their processes.

A node is `ray start --block` (`ray_node`) under `node_guard`. A device's node has the custom resource `downset:NAME`,
which pins the device's actor to it. Nodes have no dashboard, no log monitor, no autoscaler and no prestarted worker,
and every node needs a token.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from downset.distributed.keys import DeviceKeys, known_keys
from downset.distributed.serving import ray_node
from downset.errors import UsageError
from downset.extras import optional_library
from downset.messages import Setting
from downset.text import format_bytes

__all__ = [
    "LEAST_STORE_BYTES",
    "LOCAL_ADDRESS",
    "NodeOptions",
    "NodeProcess",
    "answers",
    "check_stores",
    "common_environment",
    "device_environment",
    "device_resource",
    "free_port",
    "head_address",
    "host_and_port",
    "is_host",
    "keys_and_address",
    "ray_host",
    "start_node",
    "working_folder",
]

LOCAL_ADDRESS = "127.0.0.1"
"""The one address at which Ray's processes listen on loopback alone; at every other they listen on all interfaces."""
LEAST_STORE_BYTES = 80 << 20
"""The least bytes of an object store: Ray refuses stores below 75 MiB."""
_TOO_SLOW = "timed out during startup"
"""Ray's words for a node whose processes took longer than it waits."""
_LOG_HEAD = re.compile(r"^\[[^\]]*\] (?:\(\w+\) )?\S+:\d+: ")
_RAYS_PORTS = range(10_002, 20_000)
"""The ports that Ray gives to its workers; it refuses a head on one of them."""
_PORTS_TRIED = 100
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""The names of loopback that are one node's address to Ray."""
_SHARED_MEMORY = Path("/dev/shm")
_SOCKET_ROOM = 16
"""The most characters of a folder for temporary files: longer names leave no room for Ray's sockets, limited to 107."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`address`: of this node. `head`: HOST:PORT of the head that it joins; None: it is the head, and listens on
    `port`. `device`: the device whose actor it runs, None for the head. `environment`: token, certificates and other
    variables."""

    address: str
    folder: Path
    head: str | None = None
    port: int = 0
    device: str | None = None
    object_store_bytes: int = LEAST_STORE_BYTES
    environment: Mapping[str, str] = field(default_factory=dict)
    remove_folder: bool = False


class NodeProcess:
    """A running node. The starter should call `stop`; if it ends before, the guard stops the node."""

    def __init__(self, process: subprocess.Popen[bytes], options: NodeOptions, log: int) -> None:
        """`log`: the open file of what Ray writes. The guard may have removed its name when somebody asks for it."""
        self._process, self.options, self._log = process, options, log
        self._lock, self._stopped = threading.Lock(), False

    @property
    def session(self) -> int:
        """The session number of all processes of this node."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def last_error(self) -> str:
        """The last line that Ray wrote about an error, or its last line if there is none, without time and source."""
        lines = [line.strip() for line in self._written().splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or "unable" in line.lower()]
        return _LOG_HEAD.sub("", (errors or lines or ["it wrote no reason"])[-1])[-300:]

    @property
    def too_slow(self) -> bool:
        """Whether Ray ended it because its processes were not up within Ray's 30 seconds, as on a busy machine."""
        return not self.running and _TOO_SLOW in self._written()

    def _written(self) -> str:
        return "" if self._log < 0 else os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the node has ended within the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def again(self) -> None:
        """Start it again if it has ended and was not stopped."""
        with self._lock:
            if self._stopped or self.running:
                return
            self._end()
            fresh = start_node(self.options)
            self._process, self._log = fresh._process, fresh._log

    def stop(self) -> None:
        """Kill every process of the node; returns when they are gone."""
        with self._lock:
            self._stopped = True
            self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self.wait(10.0):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


def device_resource(name: str) -> str:
    """The name of the custom resource of a device's node."""
    return f"downset:{name}"


def common_environment() -> dict[str, str]:
    """The environment of every process of a cluster; the driver's has it while Ray reads it."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_max_direct_call_object_size": "4096",  # larger results stay where they were made until they are read
        "OMP_NUM_THREADS": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # a worker whose head is gone waits for the next one
    }


def device_environment(keys: DeviceKeys, address: str) -> dict[str, str]:
    """The variables by which a device's process knows its keys and the address at which others reach it."""
    return {"DOWNSET_KEYS": str(keys.folder), "DOWNSET_NAME": keys.name, "DOWNSET_ADDRESS": address.strip("[]")}


def keys_and_address() -> tuple[DeviceKeys, str]:
    """The keys and the address of the device whose process this is, as `device_environment` states them. Who started
    its node has checked the keys; the library that does so would take 13 MB of the device's process."""
    keys = known_keys(os.environ["DOWNSET_KEYS"], os.environ["DOWNSET_NAME"])
    return keys, os.environ["DOWNSET_ADDRESS"]


def working_folder() -> Path:
    """A new folder for Ray's files with a name short enough for its sockets."""
    where = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="ds-", dir=where if len(where) <= _SOCKET_ROOM else "/tmp"))


def free_port(address: str, port: int = 0) -> int:
    """`port`, or if it is 0, a free port that Ray takes for a head. Raises UsageError if the address or port cannot be
    listened on."""
    bound = _bound_port(address, port)
    for _ in range(_PORTS_TRIED):
        if port != 0 or bound not in _RAYS_PORTS:
            break
        bound = _bound_port(address, port)
    return bound


def _bound_port(address: str, port: int) -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address}:{port}: {error.strerror or error}; another driver may run there, or give "
                "another port"
            ) from None
        return int(listener.getsockname()[1])


def host_and_port(text: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT. Raises UsageError for other text."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536 or not is_host(host):
        raise UsageError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def head_address(text: str) -> tuple[str, int]:
    """The host, as Ray takes it, and the port of a head at HOST:PORT. Raises UsageError for other text, and for a port
    that Ray uses for its workers."""
    host, port = host_and_port(text)
    if port in _RAYS_PORTS:
        raise UsageError(
            f"a head cannot listen on port {port}: Ray keeps ports {_RAYS_PORTS[0]} to {_RAYS_PORTS[-1]} for its "
            "workers; give another port, such as 6379"
        )
    return ray_host(host), port


def ray_host(host: str) -> str:
    """The host; of the names of loopback the one at which Ray listens on loopback alone."""
    return LOCAL_ADDRESS if host.strip("[]").lower() in _LOOPBACK else host


def is_host(text: str) -> bool:
    """Whether a name can be looked up; for other names Python's sockets raise UnicodeError."""
    try:
        return bool(text.encode("idna")) and text.isprintable()
    except UnicodeError:
        return False


def answers(host: str, port: int) -> bool:
    """Whether some process listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2.0):
        return True
    return False


def start_node(options: NodeOptions) -> NodeProcess:
    """Start a node. It is up when Ray says so. Raises UsageError if there is no memory for the object store, or no
    token."""
    optional_library("ray", what="running pipelines on devices", extra="cluster")
    if options.environment.get("RAY_AUTH_MODE") != "token":
        raise UsageError(
            "a node without a token would take orders from everybody: give ",
            Setting("keys"),
            ", or run without ",
            Setting("head"),
        )
    check_stores(options.object_store_bytes)
    options.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", ray_node.__name__, "start", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", options.address, "--num-cpus", "0", "--num-gpus", "0", "--log-style", "record"]
    command += ["--object-store-memory", str(options.object_store_bytes), "--include-log-monitor", "false"]
    command += ["--resources", json.dumps({device_resource(options.device): 1} if options.device else {})]
    if options.head is None:
        command += ["--head", "--port", str(options.port), "--include-dashboard", "false", "--no-monitor"]
    else:
        command += ["--address", options.head]
    command += ["--temp-dir", str(options.folder / "r")]
    log = os.open(options.folder / "node.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    guard = str(Path(__file__).with_name("node_guard.py"))
    removed = str(options.folder) if options.remove_folder else ""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard, removed, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=options.folder,
            env={**os.environ, **common_environment(), **options.environment},
        )
    except BaseException:
        os.close(log)
        raise
    return NodeProcess(process, options, log)


def check_stores(wanted_bytes: int) -> None:
    """Raise UsageError if shared memory has no room for object stores of this size together. Ray takes it as it is
    used, and would end then, or use the disk, which is slower than most networks."""
    if sys.platform != "linux":  # Ray has no shared memory there
        return
    place, wanted = _SHARED_MEMORY, format_bytes(wanted_bytes)
    try:
        free = shutil.disk_usage(place).free
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "this user cannot write there")
    except OSError as error:
        raise UsageError(
            f"no memory for the object store: it takes {wanted} bytes in {place}: {error.strerror}; mount a tmpfs there"
        ) from None
    if free < wanted_bytes:
        raise UsageError(
            f"no memory for the object store: it takes {wanted} bytes and {place} has {format_bytes(free)} left; "
            "make room there"
        )
