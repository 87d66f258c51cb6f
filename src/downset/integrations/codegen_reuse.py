"""Tells which operands Inductor's code writes over: a result may lie where an operand lay that nothing reads later.

The decision is Inductor's own (`decide_inplace_update`), asked before code is generated, as if all other nodes had run.
What a version decides otherwise is not counted, and an estimate is then too high.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

__all__ = ["written_over_by"]


def written_over_by(nodes: Sequence[Any]) -> list[frozenset[tuple[str, str]]]:
    """By node: pairs of a result and an operand of its kernel over which it may be written, if the node is the last
    that reads the operand. Code of templates and of libraries writes over none."""
    from torch._inductor.virtualized import V

    scheduler = V.graph.scheduler
    every = {name for node in nodes for name in node.get_operation_names()}
    shown = {name for node in nodes for of in node.get_outputs() for name in of.node.get_inputs_that_alias_output()}
    pairs: list[frozenset[tuple[str, str]]] = []
    for node in nodes:
        if node.is_extern() or node.is_template():
            pairs.append(frozenset())
            continue
        users, readers = _users(node)
        with _have_run(scheduler, readers & every):
            over = [pair for part in node.get_nodes() for pair in _decided(part, users)]
        pairs.append(frozenset(pair for pair in over if pair[1] not in shown))
    return pairs


def _users(node: Any) -> tuple[set[str], set[str]]:
    """The nodes that Inductor lists with the operands of this one; and the others among them that read one, without
    those that wait for one and do not read it: until they have run, Inductor takes it for one that is read later."""
    scheduler = node.scheduler
    reads = {read.name for part in node.get_nodes() for read in part.read_writes.reads}
    lists = (scheduler.name_to_donated_buffer, scheduler.name_to_buf)
    users = [user for of in lists for name in reads & of.keys() for user in of[name].users or ()]
    names, waiting = {user.get_name() for user in users}, {user.get_name() for user in users if user.is_weak}
    return names, names - waiting - {*node.get_operation_names()}


def _decided(part: Any, users: Collection[str]) -> list[tuple[str, str]]:
    """The pairs of one node of a kernel. `users`: those of its operands; of the nodes before this one, and of removed
    ones, the decision asks for them alone, and would copy the names of all."""
    from torch._inductor.virtualized import V

    never_reused, ancestors, removed = V.graph.never_reuse_buffers, part.ancestors, V.graph.removed_operations
    part.ancestors = type(ancestors)(name for name in users if name in ancestors)
    V.graph.removed_operations = type(removed)(name for name in users if name in removed)
    pairs: list[tuple[str, str]] = []
    refused: set[str] = set()
    try:
        while True:
            kernel = SimpleNamespace(args=SimpleNamespace(make_inplace=lambda *_: None), inplace_update_buffers={})
            with V.set_kernel_handler(kernel):
                part.decide_inplace_update()
            new = {*kernel.inplace_update_buffers.values()} - never_reused
            if not new:
                return pairs
            pairs += kernel.inplace_update_buffers.items()
            refused |= new
            never_reused.update(new)  # it may be another operand that is read last
    finally:
        part.ancestors, V.graph.removed_operations = ancestors, removed
        for name in refused:
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
