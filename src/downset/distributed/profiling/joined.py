"""A cluster to measure: a head on this machine, and devices that join it, here or elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from downset.distributed.keys import DeviceKeys, ray_environment, token_environment, write_token
from downset.distributed.profiling.measure import devices_of_cluster
from downset.distributed.serving.nodes import (
    LOCAL_ADDRESS,
    Node,
    NodeOptions,
    common_environment,
    free_port,
    start_node,
    working_folder,
)
from downset.errors import LimitReached, UnsupportedError
from downset.extras import optional_library

__all__ = ["Head", "joined_cluster"]

_STORE_BYTES = 96 << 20
_STARTS_S = 60.0


@dataclass(frozen=True, slots=True)
class Head:
    """Where this machine's head listens. `keys`: None on loopback only."""

    address: str = LOCAL_ADDRESS
    port: int = 0
    keys: DeviceKeys | None = None


@contextmanager
def joined_cluster(
    head: Head,
    names: Sequence[str],
    *,
    local: bool,
    joins_s: float = 120.0,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """This process in a cluster with these devices; nothing of it runs afterwards.

    `local`: the devices are started as nodes on this machine. Else each is waited for, `joins_s` long. Raises
    LimitReached that names the devices that did not come."""
    folder = working_folder()
    before = dict(os.environ)
    nodes: list[Node] = []
    ray: Any = None
    try:
        environment = _environment(head, folder)
        os.environ.update({**common_environment(), **environment})
        ray = optional_library("ray", what="measuring a cluster", extra="cluster")
        _read_environment_anew()
        port = free_port(head.address, head.port)
        options = NodeOptions(head.address, folder, port=port, object_store_bytes=_STORE_BYTES, environment=environment)
        nodes.append(start_node(options))
        where = f"{head.address}:{port}"
        _connect(ray, where, head.address, nodes[0])
        for name in names if local else ():
            own = replace(options, head=where, device=name, folder=folder / f"d{len(nodes)}")
            nodes.append(start_node(own))
        _wait_for(names, nodes, joins_s=_STARTS_S if local else joins_s, told=told)
        yield
    finally:
        if ray is not None:
            with contextlib.suppress(Exception):  # the head may be gone
                ray.shutdown()
        for node in reversed(nodes):
            node.stop()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _environment(head: Head, folder: Path) -> Mapping[str, str]:
    if head.keys is not None:
        return ray_environment(head.keys)
    write_token(folder / "token")
    return token_environment(folder / "token")


def _read_environment_anew() -> None:
    """Ray reads mode and token once a process: of a second cluster in this process they are others."""
    with contextlib.suppress(ImportError, AttributeError):
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _connect(ray: Any, where: str, address: str, node: Node) -> None:
    until = time.monotonic() + _STARTS_S
    while True:
        try:
            ray.init(
                address=where,
                _node_ip_address=address,
                log_to_driver=False,
                configure_logging=False,
                namespace="downset",
            )
            return
        except (ConnectionError, RuntimeError, OSError) as error:
            if not node.running:
                raise UnsupportedError(f"Ray's head node ended: {node.said()}") from None
            if time.monotonic() > until:
                raise LimitReached(f"no answer from Ray's head at {where}: {error}") from None
            time.sleep(0.2)


def _wait_for(names: Sequence[str], nodes: Sequence[Node], *, joins_s: float, told: Callable[[str], None]) -> None:
    until, said = time.monotonic() + joins_s, -1
    while lacks := sorted(set(names) - set(devices_of_cluster())):
        ended = next((node for node in nodes if not node.running), None)
        if ended is not None:
            raise UnsupportedError(f"a node ended: {ended.said()}")
        if time.monotonic() > until:
            raise LimitReached(f"device {', '.join(lacks)} did not join within {joins_s:g} s; is its worker running?")
        if len(lacks) != said:
            said = len(lacks)
            told(f"waiting for {', '.join(lacks)}")
        time.sleep(0.2)
