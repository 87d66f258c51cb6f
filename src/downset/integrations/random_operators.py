"""Tells which of PyTorch's operators draw random numbers, also to its partitioner.

PyTorch tags every fused attention as one that draws, because it drops out where it is asked to. One that draws nothing
may run again and needs no fixed place among generators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

__all__ = ["draws", "states_where_drawn"]

_LOCK = RLock()
"""Held while the partitioner's function is ours."""


def draws(node: Any) -> bool:
    """Whether an fx node draws random numbers: a seeded operator, unless it drops out with probability 0."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else None
            value = node.kwargs.get(argument.name, argument.default_value) if given is None else given
            return not (isinstance(value, (int, float)) and value == 0)
    return True


@contextmanager
def states_where_drawn() -> Iterator[None]:
    """Within it, PyTorch's partitioner keeps a generator's state for operators that draw alone. It keeps one for every
    seeded operator that runs again, and attention without dropout, in both passes, waits for it."""
    from torch._functorch import partitioners

    with _LOCK:
        theirs = getattr(partitioners, "functionalize_rng_ops", None)
        if theirs is None:
            yield
            return

        def where_drawn(joint: Any, *rest: Any, **options: Any) -> Any:
            marked = [node for node in joint.graph.nodes if "recompute" in node.meta and not draws(node)]
            marks = [(node, node.meta.pop("recompute")) for node in marked]
            try:
                return theirs(joint, *rest, **options)
            finally:
                for node, mark in marks:
                    node.meta["recompute"] = mark

        partitioners.functionalize_rng_ops = where_drawn
        try:
            yield
        finally:
            partitioners.functionalize_rng_ops = theirs
