"""A device's node on its machine: joins the head whenever one answers, and afterwards waits for the next one."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from downset.clusters.model import check_device_name
from downset.distributed.keys import DeviceKeys, ray_environment
from downset.distributed.serving.nodes import (
    NodeOptions,
    NodeProcess,
    answers,
    device_environment,
    head_address,
    is_host,
    ray_host,
    start_node,
    working_folder,
)
from downset.errors import UnsupportedError, UsageError

__all__ = ["WorkerOptions", "work"]

_LOOKS_S = 1.0
_ENDED_EARLY_S = 20.0
_EARLY_ENDS = 5


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`keys`: of this device. `address`: of this machine; None: the address of its route to the head.
    `shards`: the folder that keeps shards, at most `shards_bytes` of them. `wait_s`: end if no head answered for this
    long; None: never."""

    head: str
    name: str
    keys: DeviceKeys
    address: str | None
    object_store_bytes: int
    threads: int
    shards: Path
    shards_bytes: int
    wait_s: float | None = None


def work(options: WorkerOptions, *, report: Callable[[str], None]) -> int:
    """Serve until stopped, or until no head answers for `wait_s`. Returns how many heads were joined. `report` gets
    messages about what happens.

    Raises UsageError for a head that is not HOST:PORT or has no address, for an invalid name or address, and for one
    that the keys do not hold; UnsupportedError if the node ends again and again soon after its start."""
    host, port = head_address(options.head)
    check_device_name(options.name)
    options.keys.check_name(options.name)
    if options.address is not None and not is_host(options.address):
        raise UsageError(f"{options.address!r} is not an address of a machine")
    early = joined = 0
    since_s: float | None = None
    while True:
        address = ray_host(options.address or _own_address(host, port))
        options.keys.check_host(address)
        if not answers(host, port):
            if since_s is None:
                since_s = time.monotonic()
                report(f"{options.name}: waiting for the head at {options.head}")
            if options.wait_s is not None and time.monotonic() - since_s > options.wait_s:
                return joined
            time.sleep(_LOOKS_S)
            continue
        since_s, begun_s, joined = None, time.monotonic(), joined + 1
        reason = _serve_once(options, address, host, port, report)
        early = early + 1 if time.monotonic() - begun_s < _ENDED_EARLY_S else 0
        if early >= _EARLY_ENDS:
            raise UnsupportedError(f"Ray's node ended {early} times soon after its start: {reason}")


def _serve_once(options: WorkerOptions, address: str, host: str, port: int, report: Callable[[str], None]) -> str:
    """Run the node until it ends; returns the last line that Ray wrote."""
    folder = working_folder()
    own = {
        **ray_environment(options.keys),
        **device_environment(options.keys, address),
        "DOWNSET_THREADS": str(options.threads),
        "DOWNSET_SHARDS": str(options.shards.absolute()),
        "DOWNSET_SHARDS_LIMIT": str(options.shards_bytes),
    }
    node: NodeProcess | None = None
    try:
        node = start_node(
            NodeOptions(
                address,
                folder,
                head=f"{host}:{port}",
                device=options.name,
                environment=own,
                object_store_bytes=options.object_store_bytes,
                remove_folder=True,
            )
        )
        report(f"{options.name}: joins the head at {options.head} from {address}")
        while not node.wait(_LOOKS_S):
            pass
        reason = node.last_error()
        report(f"{options.name}: left the head ({reason})")
        return reason
    finally:
        if node is not None:
            node.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _own_address(host: str, port: int) -> str:
    """This machine's address on the route to the head. No packet is sent to find it."""
    try:
        kind, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(f"this machine does not reach the head {host!r}: {error.strerror or error}") from None
