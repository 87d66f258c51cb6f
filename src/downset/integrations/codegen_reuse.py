"""Tells which operands Inductor's code writes over: a result may lie where an operand lay that nothing reads later.

The decision is Inductor's own (`decide_inplace_update`), asked before code is generated, as if all other nodes had run.
What a version decides otherwise is not counted, and an estimate is then too high.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

__all__ = ["written_over_by"]


def written_over_by(nodes: Sequence[Any]) -> list[frozenset[str]]:
    """By node: the buffers over which its kernel may write, each if the node is the last that reads it."""
    from torch._inductor.virtualized import V

    scheduler = V.graph.scheduler
    every = {name for node in nodes for name in node.get_operation_names()}
    found: list[frozenset[str]] = []
    for node in nodes:
        with _have_run(scheduler, every - {*node.get_operation_names()} - _waiting(node)):
            found.append(frozenset(name for part in node.get_nodes() for name in _decided(part)))
    return found


def _waiting(node: Any) -> set[str]:
    """The nodes that wait for an operand of this one without reading it: until they have run, Inductor takes it for one
    that is read later."""
    buffers = node.scheduler.name_to_buf
    reads = {read.name for part in node.get_nodes() for read in part.read_writes.reads}
    users = [user for name in reads & buffers.keys() for user in buffers[name].users]
    return {user.get_name() for user in users if user.is_weak}


def _decided(part: Any) -> Iterator[str]:
    """The operands over which one node of a kernel may write."""
    from torch._inductor.virtualized import V

    never_reused = V.graph.never_reuse_buffers
    given: list[str] = []
    try:
        while True:
            kernel = SimpleNamespace(args=SimpleNamespace(make_inplace=lambda *_: None), inplace_update_buffers={})
            with V.set_kernel_handler(kernel):
                part.decide_inplace_update()
            operands = {*kernel.inplace_update_buffers.values()}
            if not operands:
                return
            yield from operands
            new = operands - never_reused
            given += new
            never_reused.update(new)  # it may be another operand that is read last
    finally:
        for name in given:
            never_reused.discard(name)


@contextmanager
def _have_run(scheduler: Any, names: set[str]) -> Iterator[None]:
    """Within it, the scheduler takes these operations for ones that have run."""
    completed = scheduler.completed_operations
    new = [name for name in names if name not in completed]
    completed.update(new)
    try:
        yield
    finally:
        for name in new:
            completed.discard(name)
