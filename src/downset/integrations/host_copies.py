"""Results of the forward pass that move to the host and come back, where a device has memory of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from downset.errors import UsageError
from downset.integrations.fx_training import Traced
from downset.integrations.planned_order import PLANNED
from downset.integrations.training_graph import TrainingGraph, with_host

__all__ = ["check_link", "copy_to_host", "has_own_memory", "place_host_copies", "with_moves"]


def check_link(link_bytes_s: float | None) -> None:
    """Raise UsageError for a link that is not a number of bytes a second above 0."""
    if link_bytes_s is not None and not link_bytes_s > 0:
        raise UsageError(f"link_bytes_s is {link_bytes_s!r}; give the bytes a second of the link, above 0")


def with_moves(trace: Traced, link_bytes_s: float) -> TrainingGraph:
    """The graph in which whole results may move over a link of so many bytes a second. Results that are one of several
    or not contiguous stay, because PyTorch moves none of these either."""
    movable = {number for number, node in enumerate(trace.nodes) if _is_whole(node)}
    return with_host(trace.graph, link_bytes_s, movable)


def has_own_memory(nodes: Collection[Any]) -> bool:
    """Whether the nodes run on a device whose memory is not the host's."""
    values = (node.meta.get("val") for node in nodes)
    return any(hasattr(value, "device") and value.device.type != "cpu" for value in values)


def copy_to_host(graph: Any, node: Any, reader: Any) -> tuple[Any, Any]:
    """(the copy of a result on the host, the copy of that on its device before `reader`)."""
    import torch

    value = node.meta["val"]

    def put(source: Any, device: Any, before: Any) -> Any:
        with graph.inserting_before(before):
            copy = graph.call_function(torch.ops.prims.device_put.default, (source, device), {"non_blocking": True})
        copy.meta["val"] = value.to(device)
        return copy

    on_host = put(node, torch.device("cpu"), node.next)
    return on_host, put(on_host, value.device, reader)


def place_host_copies(hosts: Mapping[Any, Any], early: Collection[Any]) -> None:
    """Give the copy of each result on the host the place of the result's last reader in the planned order. `hosts`: by
    result; `early`: the operators of the forward pass."""
    for node, host in hosts.items():
        readers = _readers(node, early)
        places = [of.meta[PLANNED] for of in (node, *readers) if PLANNED in of.meta]
        if places:
            host.meta[PLANNED] = max(places)


def _readers(node: Any, early: Collection[Any]) -> set[Any]:
    """The operators that read a result or its views."""
    ahead, seen, readers = [node], {node}, set[Any]()
    while ahead:
        for user in ahead.pop().users:
            if user in early:
                readers.add(user)
            elif user not in seen and PLANNED not in user.meta:  # a view, or what lies behind the forward pass
                seen.add(user)
                ahead.append(user)
    return readers


def _is_whole(node: Any) -> bool:
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_contiguous()
