"""Devices as Ray actors, one on each node with a device's resource. Ray neither retries calls nor restarts actors.

`cluster` starts Ray's head on this machine and joins it; nodes of the devices are here or elsewhere. Ray carries calls,
plans and shards; frames and rows go over the connections of `downset.distributed.wire`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from downset.distributed.keys import (
    DeviceKeys,
    issue_keys,
    make_authority,
    open_keys,
    ray_environment,
    token_environment,
)
from downset.distributed.serving import ray_private
from downset.distributed.serving.device import ServingDevice
from downset.distributed.serving.fleet import DeviceLost, Then
from downset.distributed.serving.nodes import (
    LEAST_STORE_BYTES,
    LOCAL_ADDRESS,
    NodeOptions,
    NodeProcess,
    answers,
    check_stores,
    common_environment,
    device_environment,
    device_resource,
    free_port,
    head_address,
    host_and_port,
    keys_and_address,
    start_node,
    working_folder,
)
from downset.errors import DownsetError, UnsupportedError, UsageError
from downset.extras import environment_with, optional_library
from downset.messages import Setting
from downset.process.supervisor import tell
from downset.text import brief, printable

__all__ = ["RayDevice", "RayFleet", "cluster"]

GROUPS = {"control": 2, "setup": 1}
"""The threads of a device that answer calls: shards and plans come one after another, signs of life at any time."""
_SETUP = ("keep", "place", "begin")
_log = logging.getLogger("downset.serving")
_CONNECTS_S = 120.0
_RESOURCE = device_resource("")
_OWNER_DIED = "its owner has died"
"""Ray's words for a device whose driver, or the driver's node, has ended."""
_PROCESS_GONE = "a process of it is gone"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _ended(reason: str) -> UnsupportedError:
    return UnsupportedError(f"Ray's head node ended: {reason}; start the command again")


def _last_line(error: BaseException) -> str:
    """The last line of an error without escape codes of terminals. Ray puts the traceback of the other process before
    it."""
    lines = [line for line in _ESCAPE.sub("", str(error)).splitlines() if line.strip()]
    return printable(brief(lines[-1], 600)) if lines else type(error).__name__


class RayDevice(ServingDevice):
    """A device in Ray's worker process. It ends itself if its driver is silent. Its node's environment says where its
    keys are, and at which address it is reached."""

    def __init__(self, name: str, threads: int) -> None:
        keys, address = keys_and_address()
        super().__init__(name, threads=threads, keys=keys, address=address, watched=True)


class RayFleet:
    """The driver's connection to a cluster. A process can have one at a time, because Ray's connection is global."""

    def __init__(
        self, head: str, address: str, environment: Mapping[str, str], keys: DeviceKeys, *, threads: int = 0
    ) -> None:
        self.local_nodes: tuple[NodeProcess, ...] = ()
        """The nodes of devices that were started on this machine."""
        self._environment = {**common_environment(), **environment}
        self._ray: Any = optional_library("ray", what="running pipelines on devices", extra="cluster")
        ray_private.check()
        if self._ray.is_initialized():
            raise UsageError("Ray is in use in this process already; end that pipeline first")
        self._threads = threads
        self._actors: dict[str, Any] = {}
        self._head, self.address, self.keys = head, address, keys
        self._node: NodeProcess | None = None
        self._own_node = ""

    def connect(self, node: NodeProcess | None = None, local_nodes: Sequence[NodeProcess] = ()) -> None:
        """Connect to the head. `local_nodes`: of the devices that were started on this machine. Raises UnsupportedError
        if the head does not answer, or if `node`, the head's node, has ended."""
        self._node, until = node, time.monotonic() + _CONNECTS_S
        self.local_nodes = tuple(local_nodes)
        self._seen: set[str] = set()
        self._starts = Counter[str]()
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
                ray_private.quieten()
                return
            except (ConnectionError, RuntimeError, OSError, TimeoutError) as error:
                with contextlib.suppress(Exception):
                    self._ray.shutdown()
                self._check_head(node, until, brief(error))
                time.sleep(0.2)

    def _join(self) -> None:
        """Join the cluster as its driver. Ray reads its settings from the environment, which is the caller's: they are
        there only as long as that takes."""
        with environment_with(self._environment), ray_private.addresses_kept():
            ray_private.read_settings()
            self._ray.init(
                address=self._head,
                _node_ip_address=self.address,
                namespace="downset",
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
                job_config=ray_private.job_without_paths(),
            )

    def _check_head(self, node: NodeProcess | None, until: float, reason: str) -> None:
        """Raise UnsupportedError if the head's node has ended, or the time is over. A node that took longer to start
        than Ray waits starts again, unless its folder, which is gone with it, had keys of devices."""
        late = time.monotonic() > until
        if node is not None and not node.running:
            if late or self.local_nodes or not node.too_slow:
                raise _ended(node.last_error()) from None
            node.again()
        if late:
            raise UnsupportedError(f"no answer from Ray's head at {self._head}: {reason}") from None

    def close(self) -> None:
        """Disconnect; the actors of this driver end with it."""
        with contextlib.suppress(Exception):  # the head may be gone
            self._ray.shutdown()
            ray_private.read_settings()  # those of the caller, who may use Ray too
        tell("ending")

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's nodes that are alive."""
        return [node for node in self._ray.nodes() if node["Alive"]]

    def check(self) -> None:
        """Raise UnsupportedError if the head's node has ended. Ray notices it later, and then ends this process."""
        if self._node is not None and not self._node.running:
            raise _ended(self._node.last_error())

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
        self._seen.update(names)
        self._start_again()
        return set(names)

    def _start_again(self) -> None:
        """Start local nodes again that ended before they had joined, as `downset worker` does: on a busy machine Ray's
        processes may not be up in the time that they give each other."""
        for node in self.local_nodes:
            device = node.options.device or ""
            if device in self._seen or node.running:
                continue
            self._starts[device] += 1
            if self._starts[device] > _MOST_STARTS:
                raise UnsupportedError(f"Ray's node of device {device!r} ended at its start: {node.last_error()}")
            _log.info("Ray's node of device %s ended at its start: %s", device, node.last_error())
            node.again()

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

    def _method(self, device: str, method: str) -> Any:
        if device not in self._actors:
            raise DeviceLost(device, "it has been stopped")
        return getattr(self._actors[device], method).options(
            concurrency_group="setup" if method in _SETUP else "control"
        )

    def _answer(self, device: str, future: Any, then: Then) -> None:
        error = future.exception()
        if error is None:
            then(future.result(), None)
        else:
            then(None, self._explained(device, error))

    def _explained(self, device: str, error: BaseException) -> BaseException:
        """The exception that explains an error: our own errors as they are; an error of Ray as the loss of the
        device."""
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
            return UnsupportedError(f"device {device!r} failed: {_last_line(error) if cause is None else brief(cause)}")
        if isinstance(error, exceptions.ActorUnavailableError):
            return DeviceLost(device, "its connection broke")
        if isinstance(error, exceptions.RayActorError):
            if _OWNER_DIED in str(error):  # the owner is this process, whose node is dead to Ray
                return _ended(_PROCESS_GONE)
            return DeviceLost(device, "its process has ended")
        return DeviceLost(device, _last_line(error))


_MOST_STARTS = 3
_MOST_LOCAL = 64
"""The most devices that are started on one machine."""


@contextmanager
def cluster(
    devices: Sequence[str],
    *,
    head: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    threads: int = 0,
) -> Iterator[RayFleet]:
    """Start Ray's head and join it. Everything that was started ends with the context, or with this process.

    `head`: HOST:PORT to listen on for devices on which `downset worker` runs. `keys`: the folder that `downset keys
    issue` made for this machine. Without `head` each of `devices` is a node on this machine, on loopback, with a token
    made for it and one thread. `threads`: of ONNX Runtime on each device; 0: as many as it has cores.

    Raises UsageError if the port is in use or one of Ray's own, there is no memory for object stores,
    this process is in a cluster already, or a head has no keys or those of another address; LoadError
    for keys that `open_keys` refuses."""
    local = head is None
    if not local and keys is None:
        raise UsageError(
            "devices on other machines need keys: make them with `downset keys` and give ", Setting("keys")
        )
    if local and len(devices) > _MOST_LOCAL:
        raise UsageError(
            f"{len(devices)} devices are too many for one machine, where each takes some 200 MB; at most {_MOST_LOCAL} "
            "are started here; with ",
            Setting("head"),
            " more can join",
        )
    check_stores(LEAST_STORE_BYTES * (1 + len(devices) if local else 1))
    address, port = (LOCAL_ADDRESS, 0) if head is None else head_address(head)
    with ExitStack() as stack:
        folder = working_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if local or keys is None:
            own_keys, keys_of = _local_keys(folder, devices)
            environment: Mapping[str, str] = token_environment(own_keys.token)
        else:
            own_keys, keys_of = open_keys(keys), []
            own_keys.check_host(address)
            environment = ray_environment(own_keys)
        port = free_port(address, port)
        fleet = RayFleet(f"{address}:{port}", address, environment, own_keys, threads=threads)
        node = start_node(NodeOptions(address, folder, port=port, environment=environment, remove_folder=True))
        stack.callback(node.stop)
        nodes: list[NodeProcess] = []
        for number, name in enumerate(devices if local else ()):
            own = folder / f"d{number}"
            there = {
                **environment,
                **device_environment(keys_of[number], address),
                "DOWNSET_SHARDS": str(own / "shards"),
                "DOWNSET_THREADS": str(threads or 1),
            }
            joins = NodeOptions(address, own, head=f"{address}:{port}", device=name, environment=there)
            nodes.append(start_node(joins))
            stack.callback(nodes[-1].stop)
        stack.callback(fleet.close)
        fleet.connect(node, nodes)
        yield fleet


def _local_keys(folder: Path, devices: Sequence[str]) -> tuple[DeviceKeys, list[DeviceKeys]]:
    """Keys of the driver and of each device, for this run alone."""
    authority = make_authority(folder / "keys", days=30)
    names = ["driver", *(f"device-{number}" for number in range(len(devices)))]
    driver, *own = (open_keys(issue_keys(authority, name, hosts=[LOCAL_ADDRESS], days=30)) for name in names)
    return driver, own
