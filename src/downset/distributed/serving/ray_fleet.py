"""Devices as Ray actors, one on each node with a device's resource. Ray neither retries calls nor restarts actors."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from downset.distributed.fetching import fetched
from downset.distributed.serving.device import ServingDevice
from downset.distributed.serving.fleet import DeviceLost, Then
from downset.distributed.serving.nodes import NodeProcess, answers, common_environment, device_resource, host_and_port
from downset.distributed.serving.ray_node import addresses_kept
from downset.errors import DownsetError, UnsupportedError, UsageError
from downset.extras import environment_with, optional_library
from downset.process.supervisor import tell
from downset.text import brief, printable

__all__ = ["RayDevice", "RayFleet"]

GROUPS = {"compute": 1, "send": 2, "receive": 4, "control": 2, "setup": 1}
"""The threads of a device by task: computations run one after another, all other calls at the same time."""
_GROUP_OF = {
    "compute": "compute",
    "send": "send",
    "result": "send",
    "enter": "receive",
    "receive": "receive",
    "keep": "setup",
    "place": "setup",
    "begin": "setup",
}
_log = logging.getLogger("downset.serving")
_CONNECTS_S = 60.0
_RESOURCE = device_resource("")
_OWNER_DIED = "its owner has died"
"""Ray's words for a device whose driver, or the driver's node, has ended."""
_PROCESS_GONE = "a process of it is gone"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _logged(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    del ignore_prefix
    for line in data["lines"]:
        _log.info("Ray: %s", line)


def _ended(reason: str) -> UnsupportedError:
    return UnsupportedError(f"Ray's head node ended: {reason}; start the command again")


class _NoPaths(list[str]):
    """A list of folders that stays empty, for the import path of a job's processes."""

    def extend(self, folders: Iterable[str]) -> None:
        del folders


def _last_line(error: BaseException) -> str:
    """The last line of an error without escape codes of terminals. Ray puts the traceback of the other process before
    it."""
    lines = [line for line in _ESCAPE.sub("", str(error)).splitlines() if line.strip()]
    return printable(brief(lines[-1], 600)) if lines else type(error).__name__


class RayDevice(ServingDevice):
    """A device in Ray's worker process. It ends itself if its driver is silent."""

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name, threads=threads, fetch=fetched, watched=True)


class RayFleet:
    """The driver's connection to a cluster. A process can have one at a time, because Ray's connection is global."""

    def __init__(self, head: str, address: str, environment: Mapping[str, str], *, threads: int = 0) -> None:
        self.local_nodes: tuple[NodeProcess, ...] = ()
        """The nodes of devices that were started on this machine."""
        self._environment = {**common_environment(), **environment}
        self._ray: Any = optional_library("ray", what="running pipelines on devices", extra="cluster")
        if self._ray.is_initialized():
            raise UsageError("Ray is in use in this process already; end that pipeline first")
        self._threads = threads
        self._actors: dict[str, Any] = {}
        self._head, self._address = head, address
        self._node: NodeProcess | None = None
        self._own_node = ""

    @staticmethod
    def _read_settings() -> None:
        """Make Ray read its environment again: it does so once, when it is imported, which may have been with another
        cluster's token, or with none."""
        core = optional_library("ray._raylet", what="running pipelines on devices", extra="cluster")
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()

    def _quieten(self) -> None:
        """Keep Ray from printing messages about workers to stdout, which is for data."""
        worker = optional_library("ray._private.worker", what="running pipelines on devices", extra="cluster")
        worker.print_to_stdstream = _logged

    def _without_paths(self) -> Any:
        """A job configuration whose devices import installed packages only. Ray would add the current folder and the
        script's folder to their path, where a file such as msgspec.py may lie."""
        job = self._ray.job_config.JobConfig()
        job._py_driver_sys_path = _NoPaths()
        return job

    def connect(self, node: NodeProcess | None = None, local_nodes: Sequence[NodeProcess] = ()) -> None:
        """Connect to the head. `local_nodes`: of the devices that were started on this machine. Raises UnsupportedError
        if the head does not answer, or if `node`, the head's node, has ended."""
        self._node, until = node, time.monotonic() + _CONNECTS_S
        self.local_nodes = tuple(local_nodes)
        tell(
            "ending",
            f"Ray ended this process, as it does where its head node at {self._head} has ended or cannot be reached; "
            "start the command again",
        )
        host, port = host_and_port(self._head)
        # While it waits, Ray's client writes to stderr whatever its settings.
        while not answers(host, port):
            self._check_head(node, until, "nobody listens there")
            time.sleep(0.1)
        while True:
            try:
                self._join()
                self._own_node = self._ray.get_runtime_context().get_node_id()
                self._quieten()
                return
            except (ConnectionError, RuntimeError, OSError, TimeoutError) as error:
                with contextlib.suppress(Exception):
                    self._ray.shutdown()
                self._check_head(node, until, brief(error))
                time.sleep(0.2)

    def _join(self) -> None:
        """Join the cluster as its driver. Ray reads its settings from the environment, which is the caller's: they are
        there only as long as that takes."""
        with environment_with(self._environment), addresses_kept():
            self._read_settings()
            self._ray.init(
                address=self._head,
                _node_ip_address=self._address,
                namespace="downset",
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
                job_config=self._without_paths(),
            )

    def _check_head(self, node: NodeProcess | None, until: float, reason: str) -> None:
        """Raise UnsupportedError if the head's node has ended, or the time is over."""
        if node is not None and not node.running:
            raise _ended(node.said()) from None
        if time.monotonic() > until:
            raise UnsupportedError(f"no answer from Ray's head at {self._head}: {reason}") from None

    def close(self) -> None:
        """Disconnect; the actors of this driver end with it."""
        with contextlib.suppress(Exception):  # the head may be gone
            self._ray.shutdown()
            self._read_settings()  # those of the caller, who may use Ray too
        tell("ending")

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's nodes that are alive."""
        return [node for node in self._ray.nodes() if node["Alive"]]

    def check(self) -> None:
        """Raise UnsupportedError if the head's node has ended. Ray notices it later, and then ends this process."""
        if self._node is not None and not self._node.running:
            raise _ended(self._node.said())

    def present(self) -> Collection[str]:
        """The devices whose nodes are in the cluster. Raises UsageError if two nodes have one name, and
        UnsupportedError if the head's node is not there any more."""
        self.check()
        nodes = self.nodes()
        if self._own_node not in [node["NodeID"] for node in nodes]:
            raise _ended(_PROCESS_GONE)
        names = [
            resource.removeprefix(_RESOURCE)
            for node in nodes
            for resource in node["Resources"]
            if resource.startswith(_RESOURCE)
        ]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"two workers are called {twice[0]!r}: give each a name of its own")
        return set(names)

    def store_bytes(self) -> dict[str, int]:
        """The bytes of each device's object store."""
        return {
            resource.removeprefix(_RESOURCE): int(node["Resources"].get("object_store_memory", 0))
            for node in self.nodes()
            for resource in node["Resources"]
            if resource.startswith(_RESOURCE)
        }

    def start(self, device: str) -> None:
        self.stop(device)
        actor = self._ray.remote(concurrency_groups=GROUPS)(RayDevice)
        self._actors[device] = actor.options(
            num_cpus=0, resources={device_resource(device): 1}, max_restarts=0, max_task_retries=0
        ).remote(device, self._threads)

    def stop(self, device: str) -> None:
        actor = self._actors.pop(device, None)
        if actor is not None:
            with contextlib.suppress(Exception):  # it may have ended already
                self._ray.kill(actor, no_restart=True)

    def call(self, device: str, method: str, *arguments: Any, then: Then) -> None:
        try:
            reference = self._method(device, method).remote(*arguments)
        except Exception as error:  # Ray raises it if an actor is known to be dead
            then(None, self._explained(device, error))
            return
        reference.future().add_done_callback(lambda future: self._answer(device, future, then))

    def send(self, device: str, *arguments: Any) -> Any:
        return self._method(device, "send").remote(*arguments)

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def _method(self, device: str, method: str) -> Any:
        if device not in self._actors:
            raise DeviceLost(device, "it has been stopped")
        return getattr(self._actors[device], method).options(concurrency_group=_GROUP_OF.get(method, "control"))

    def _answer(self, device: str, future: Any, then: Then) -> None:
        error = future.exception()
        if error is None:
            then(future.result(), None)
        else:
            then(None, self._explained(device, error))

    def _explained(self, device: str, error: BaseException) -> BaseException:
        """The exception that explains an error: our own errors as they are; an error of Ray as the loss of the device
        to blame. That is the sender if what the method fetched is gone."""
        exceptions = self._ray.exceptions
        cause = getattr(error, "cause", None)
        for failure in (cause, error):
            if isinstance(failure, DownsetError):
                return failure
        if device in self._actors:
            _log.info("device %s: %s", device, _last_line(error))
        if isinstance(error, exceptions.RayTaskError):  # tested before its cause's type, of which it is an instance too
            if isinstance(cause, MemoryError):
                return DeviceLost(device, "it is out of memory")
            if isinstance(cause, exceptions.RayActorError | exceptions.ObjectLostError):
                return DeviceLost("", "what it sent is gone")
            return UnsupportedError(f"device {device!r} failed: {_last_line(error) if cause is None else brief(cause)}")
        if isinstance(error, exceptions.ActorUnavailableError):
            return DeviceLost(device, "its connection broke")
        if isinstance(error, exceptions.RayActorError):
            if _OWNER_DIED in str(error):  # the owner is this process, whose node is dead to Ray
                return _ended(_PROCESS_GONE)
            return DeviceLost(device, "its process has ended")
        return DeviceLost(device, _last_line(error))
