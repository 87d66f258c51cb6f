"""A plan as lists by task, resource and buffer, from which `dispatch` decides.

Successive computations of one device on which nothing else depends in between are one step: they need one call. A call
takes milliseconds of the device's processor, which no plan counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from downset.errors import UnsupportedError
from downset.results.pipelines import Pipeline, Resource
from downset.results.task_times import plan_seconds, resources_of

__all__ = ["RunTables", "joined", "work_of"]


@dataclass(frozen=True, slots=True)
class RunTables:
    """`place[t]`: (rounds behind, position) of task t in the cyclic order of the first resource that it occupies; tasks
    are ordered by (frame + rounds behind, position). `held[t]`: the numbers of the resources that it occupies.
    `lanes[r]`: how many tasks run side by side on resource r: one, and on a medium one for each pair of devices.
    `written[t]`: the buffers that it writes; `used[t]`: those that it writes or reads. `slots[b]`: how many frames
    buffer b has room for. `users[b]`: how many tasks write or read it. `planned_s`: the planned seconds of each task.
    `steps[t]`: the tasks of the plan for which t stands, in order."""

    window: int
    after: tuple[tuple[int, ...], ...]
    followers: tuple[tuple[int, ...], ...]
    place: tuple[tuple[int, int], ...]
    transfers: tuple[bool, ...]
    lanes: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    written: tuple[tuple[int, ...], ...]
    used: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]
    users: tuple[int, ...]
    planned_s: tuple[float, ...]
    steps: tuple[tuple[int, ...], ...]


def work_of(plan: Pipeline) -> RunTables:
    """The tables of a plan. Raises UnsupportedError for plans by the paper's equations, which have no transfers between
    stages."""
    if plan.schedule is None:
        raise UnsupportedError(
            "a plan of comm=paper lists no transfers between stages and no orders; plan with comm=resources to run it"
        )
    tasks, schedule = plan.tasks, plan.schedule
    after = tuple(tuple(dict.fromkeys(task.after)) for task in tasks)
    pairs = max(1, len(plan.cluster.devices) // 2)
    followers: list[list[int]] = [[] for _ in tasks]
    for index, before in enumerate(after):
        for other in before:
            followers[other].append(index)
    number: dict[tuple[Resource, bool], int] = {}
    held = []
    for task in tasks:
        transfers = task.transfer is not None
        own = [(resource, transfers) for resource in dict.fromkeys(resources_of(plan.cluster, task))]
        held.append(tuple(number.setdefault(key, len(number)) for key in own))
    placed = {order.resource: {turn.task: k for k, turn in enumerate(order.turns)} for order in schedule.orders}
    behind = {turn.task: turn.behind for order in schedule.orders for turn in order.turns}
    place = []
    for index, task in enumerate(tasks):
        first = next((placed[r] for r in resources_of(plan.cluster, task) if r in placed), {})
        place.append((behind.get(index, 0), first.get(index, index)))
    written: list[list[int]] = [[] for _ in tasks]
    used: list[list[int]] = [[] for _ in tasks]
    for buffer, described in enumerate(schedule.buffers):
        _list(written, described.writers, buffer)
        _list(used, described.users, buffer)
    return RunTables(
        window=schedule.window,
        after=after,
        followers=tuple(map(tuple, followers)),
        place=tuple(place),
        transfers=tuple(task.transfer is not None for task in tasks),
        lanes=tuple(pairs if resource.kind == "medium" else 1 for resource, _ in number),
        held=tuple(held),
        written=tuple(map(tuple, written)),
        used=tuple(map(tuple, used)),
        slots=tuple(described.slots for described in schedule.buffers),
        users=tuple(len(described.users) for described in schedule.buffers),
        planned_s=tuple(plan_seconds(plan)),
        steps=tuple((index,) for index in range(len(tasks))),
    )


def joined(work: RunTables) -> RunTables:
    """The tables with every chain of computations as one task. In a chain each task occupies the same resources as the
    next, which waits for it alone and is the only task that waits for it."""
    chains = _chains(work)
    new = {old: number for number, chain in enumerate(chains) for old in chain}

    def anew(old: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(new[task] for task in old))

    def together(buffers: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(dict.fromkeys(b for task in chain for b in buffers[task])) for chain in chains)

    used = together(work.used)
    return RunTables(
        window=work.window,
        after=tuple(anew(work.after[chain[0]]) for chain in chains),
        followers=tuple(anew(work.followers[chain[-1]]) for chain in chains),
        place=tuple(work.place[chain[0]] for chain in chains),
        transfers=tuple(work.transfers[chain[0]] for chain in chains),
        lanes=work.lanes,
        held=tuple(work.held[chain[0]] for chain in chains),
        written=together(work.written),
        used=used,
        slots=work.slots,
        users=tuple(sum(buffer in one for one in used) for buffer in range(len(work.slots))),
        planned_s=tuple(sum(work.planned_s[task] for task in chain) for chain in chains),
        steps=tuple(tuple(step for task in chain for step in work.steps[task]) for chain in chains),
    )


def _chains(work: RunTables) -> list[list[int]]:
    """The chains of tasks, in the order of their first ones. Each task is in one chain."""
    tasks = range(len(work.after))
    following = {
        task: next_one
        for task in tasks
        if len(work.followers[task]) == 1 and not work.transfers[task]
        for next_one in work.followers[task]
        if work.after[next_one] == (task,) and work.held[next_one] == work.held[task] and not work.transfers[next_one]
    }
    inner, chains = set(following.values()), []
    for first in (task for task in tasks if task not in inner):
        chain = [first]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        chains.append(chain)
    return chains


def _list(by_task: list[list[int]], tasks: Sequence[int], buffer: int) -> None:
    for index in dict.fromkeys(tasks):
        by_task[index].append(buffer)
