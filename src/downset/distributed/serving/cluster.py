"""Starts and joins a cluster: Ray's head on this machine, and nodes of the devices here or elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from downset.distributed.keys import open_keys, ray_environment, token_environment, write_token
from downset.distributed.serving.nodes import (
    LEAST_STORE_BYTES,
    LOCAL_ADDRESS,
    NodeOptions,
    NodeProcess,
    check_stores,
    free_port,
    head_address,
    start_node,
    working_folder,
)
from downset.distributed.serving.ray_fleet import RayFleet
from downset.errors import UsageError
from downset.messages import Setting

__all__ = ["cluster"]

_MOST_LOCAL = 64
"""The most devices that are started on one machine."""


@contextmanager
def cluster(
    devices: Sequence[str],
    *,
    head: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    store_bytes: int = LEAST_STORE_BYTES,
    threads: int = 0,
) -> Iterator[RayFleet]:
    """Start Ray's head and join it. Everything that was started ends with the context, or with this process.

    `head`: HOST:PORT to listen on for devices on which `downset worker` runs. `keys`: the folder that `downset keys
    issue` made for this machine. Without `head` each of `devices` is a node on this machine, on loopback, with a token
    made for it and one thread. `threads`: of ONNX Runtime on each device; 0: as many as it has cores.

    Raises UsageError if the port is in use or one of Ray's own, there is no memory for object stores of
    `store_bytes`, this process is in a cluster already, or a head has no keys or those of another address; LoadError
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
    check_stores(store_bytes * (1 + len(devices) if local else 1))
    address, port = (LOCAL_ADDRESS, 0) if head is None else head_address(head)
    with ExitStack() as stack:
        folder = working_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = _environment(folder, keys, address)
        port = free_port(address, port)
        fleet = RayFleet(f"{address}:{port}", address, environment, threads=threads)
        node = start_node(
            NodeOptions(
                address, folder, port=port, object_store_bytes=store_bytes, environment=environment, remove_folder=True
            )
        )
        stack.callback(node.stop)
        nodes: list[NodeProcess] = []
        for number, name in enumerate(devices if local else ()):
            own = folder / f"d{number}"
            there = {**environment, "DOWNSET_SHARDS": str(own / "shards"), "DOWNSET_THREADS": str(threads or 1)}
            joins = NodeOptions(
                address, own, head=f"{address}:{port}", device=name, object_store_bytes=store_bytes, environment=there
            )
            nodes.append(start_node(joins))
            stack.callback(nodes[-1].stop)
        stack.callback(fleet.close)
        fleet.connect(node, nodes)
        yield fleet


def _environment(folder: Path, keys: str | os.PathLike[str] | None, address: str) -> Mapping[str, str]:
    if keys is not None:
        opened = open_keys(keys)
        opened.check_host(address)
        return ray_environment(opened)
    write_token(folder / "token")
    return token_environment(folder / "token")
