"""Checks that a plan's period and latency follow from its tasks, orders and cluster. Prices and the search for cycles
(relaxation over the plan's arcs) are written again here; nothing is shared with the planners."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from downset.errors import InvalidPlan
from downset.pipelines.check_buffers import check_named, check_places
from downset.results.pipelines import Pipeline, PipelineSchedule, Resource, Task

__all__ = ["check_times"]

_CLOSE = 1e-9


def check_times(plan: Pipeline) -> None:
    """Raise InvalidPlan for orders that leave a task out, list it twice or deadlock, and for a period, latency, bound
    or memory other than the plan's tasks and orders give."""
    if plan.comm not in ("resources", "paper"):
        raise InvalidPlan(f"comm is {plan.comm!r}, not resources or paper")
    for number, task in enumerate(plan.tasks):
        if not math.isfinite(_seconds(plan, task)):
            raise InvalidPlan(f"task {number} takes more seconds than can be counted")
        if not 0 <= _occupied_s(plan, task) < math.inf:
            raise InvalidPlan(f"task {number} occupies the network for a time that cannot be counted")
    if plan.comm == "paper":
        rounds = _rounds(plan)
        if plan.schedule is not None:
            raise InvalidPlan("comm is paper, which has no schedule, but there is one")
        _equal("period_s", plan.period_s, _paper_period_s(plan, rounds))
        _equal("latency_s", plan.latency_s, sum(seconds for _, _, seconds in rounds))
    else:
        if plan.schedule is None:
            raise InvalidPlan("comm is resources, but there is no schedule")
        seconds = _with_messages(plan)
        if not all(map(math.isfinite, seconds)):
            raise InvalidPlan("messages take more seconds than can be counted")
        check_named(plan, plan.schedule)
        occupied = [
            whole if task.transfer is None else _occupied_s(plan, task)
            for whole, task in zip(seconds, plan.tasks, strict=True)
        ]
        times = list(zip(seconds, occupied, strict=True))
        _check_orders(plan, plan.schedule)
        _check_loads(plan, plan.schedule, occupied)
        _check_period(plan, plan.schedule, times)
        _equal("latency_s", plan.latency_s, _lone_frame_s(plan, plan.schedule, times))
        check_places(plan, plan.schedule, [whole > part * (1 + _CLOSE) for whole, part in times])
    _check_memory(plan)
    evidence = plan.evidence
    if evidence.value != plan.period_s or not 0 <= evidence.bound <= evidence.value:
        raise InvalidPlan(
            f"the bound {evidence.bound} is not between 0 and the period {plan.period_s}, or the value is another"
        )
    if not 0 <= plan.floor_s <= plan.period_s or evidence.states < 0 or evidence.seconds < 0:
        raise InvalidPlan(f"the floor {plan.floor_s} is not below the period, or the search time is negative")
    if evidence.proven and evidence.bound != evidence.value:
        raise InvalidPlan(
            f"the plan is called proven, but its value is {evidence.value} and its bound {evidence.bound}"
        )


def _seconds(plan: Pipeline, task: Task) -> float:
    """Seconds of a task: alpha · MACs / mac_per_s plus moved bytes and weights at their rates, or a message's latency
    plus its bytes. The paper's equations ignore kinds, moved bytes and weights."""
    if task.transfer is not None:
        rate, latency = plan.cluster.link(task.transfer.source, task.transfer.target)
        return task.transfer.nbytes / rate + latency
    strip = plan.stages[task.stage].blocks[task.block].strips[task.strip]
    device = plan.cluster.devices[task.device]
    if plan.comm == "paper":
        return device.alpha * strip.macs / device.mac_per_s
    seconds, plain = 0.0, strip.macs
    for kind, macs in strip.macs_of.items():
        seconds += device.alpha_of.get(kind, device.alpha) * macs / device.mac_per_s
        plain -= macs
    byte_rate = device.mac_per_s / device.alpha if device.bytes_per_s is None else device.bytes_per_s
    if device.weight_bytes_per_s is not None:
        seconds += strip.weight_bytes / device.weight_bytes_per_s
    return seconds + device.alpha * plain / device.mac_per_s + strip.moved_bytes / byte_rate


def _occupied_s(plan: Pipeline, task: Task) -> float:
    """Seconds for which a message occupies its medium or ports: less than its time only if the cluster says so and
    devices overlap. 0 for a computation."""
    if task.transfer is None:
        return 0.0
    network, pair = plan.cluster.network, {task.transfer.source, task.transfer.target}
    own = next((link for link in network.links if set(link.pair) == pair), network)
    rate, fixed = own.bytes_per_s, own.latency_s
    if network.overlap:
        rate = rate if own.occupied_bytes_per_s is None else own.occupied_bytes_per_s
        fixed = fixed if own.occupied_latency_s is None else own.occupied_latency_s
    return task.transfer.nbytes / rate + fixed


def _with_messages(plan: Pipeline) -> list[float]:
    """Seconds of each task. The computations of a device last longer by the processor time of its messages, and by
    what it pays for those of others."""
    seconds, cluster = [_seconds(plan, task) for task in plan.tasks], plan.cluster
    for number, device in enumerate(cluster.devices):
        if device.messages is None:
            continue
        spent, costs = 0.0, device.messages
        for transfer in [task.transfer for task in plan.tasks if task.transfer is not None and cluster.network.overlap]:
            for end, cost in ((transfer.source, costs.send), (transfer.target, costs.receive)):
                spent += (end == number) * (cost.each_s + cost.byte_s * transfer.nbytes)
            spent += costs.others_s if number not in (transfer.source, transfer.target) else 0.0
        spent += costs.others_s * [number != plan.entry, number != plan.exit].count(True)
        for end, cost, nbytes in (
            (plan.entry, costs.frame, plan.frame_bytes),
            (plan.exit, costs.result, plan.result_bytes),
        ):
            spent += (end == number) * (cost.each_s + cost.byte_s * nbytes)
        own = [place for place, task in enumerate(plan.tasks) if task.transfer is None and task.device == number]
        whole = sum(seconds[place] for place in own)
        for place in own:
            seconds[place] = seconds[place] * (1 + spent / whole) if whole else spent / len(own)
    return seconds


def _rounds(plan: Pipeline) -> list[tuple[int, bool, float]]:
    """(stage, whether it transfers, seconds) of each round. A round is a run of tasks that move rows for one block, or
    compute it, and do not wait for each other. It takes the time of its busiest device; on a shared network transfers
    take the sum of all."""
    rounds: list[tuple[int, bool, float]] = []
    members: list[int] = []
    for number, task in enumerate(plan.tasks):
        first = plan.tasks[members[0]] if members else task
        alike = (first.stage, first.block, first.transfer is None) == (task.stage, task.block, task.transfer is None)
        if members and (not alike or set(task.after) & set(members)):
            rounds.append(_round(plan, members))
            members = []
        members.append(number)
    return [*rounds, _round(plan, members)] if members else rounds


def _round(plan: Pipeline, members: Sequence[int]) -> tuple[int, bool, float]:
    busy: dict[int, float] = {}
    transfers = False
    for task in (plan.tasks[number] for number in members):
        ends: tuple[int, ...] = (task.device,)
        if task.transfer is not None:
            transfers = True
            shared = plan.cluster.network.kind == "shared"
            ends = (-1,) if shared else (task.transfer.source, task.transfer.target)
        for end in ends:
            busy[end] = busy.get(end, 0.0) + _seconds(plan, task)
    return plan.tasks[members[0]].stage, transfers, max(busy.values())


def _paper_period_s(plan: Pipeline, rounds: Sequence[tuple[int, bool, float]]) -> float:
    """The period by eq. 11 and 12: the slowest stage; on a shared network at least the time of all bytes."""
    longest = medium = 0.0
    for stage in range(len(plan.stages)):
        computing = sum(seconds for place, transfers, seconds in rounds if place == stage and not transfers)
        sending = sum(seconds for place, transfers, seconds in rounds if place == stage and transfers)
        whole = max(computing, sending) if plan.cluster.network.overlap else computing + sending
        longest, medium = max(longest, whole), medium + sending
    return max(longest, medium) if plan.cluster.network.kind == "shared" else longest


def _holds(plan: Pipeline, task: Task) -> set[Resource]:
    """The resources that a task occupies."""
    network = plan.cluster.network
    if task.transfer is None:
        return {Resource("processor" if network.overlap else "device", task.device)}
    ends = (task.transfer.source, task.transfer.target)
    if network.kind == "shared":
        return {Resource("medium")} | (set() if network.overlap else {Resource("device", end) for end in ends})
    if not network.overlap:
        return {Resource("device", end) for end in ends}
    resources = set()
    for end, port in zip(ends, ("send", "receive"), strict=True):
        full = (plan.cluster.devices[end].duplex or network.duplex) == "full"
        resources.add(Resource("send" if port == "send" else "receive", end) if full else Resource("radio", end))
    return resources


def _check_orders(plan: Pipeline, schedule: PipelineSchedule) -> None:
    if schedule.window < 1:
        raise InvalidPlan(f"the window is {schedule.window}; at least one frame is inside")
    wanted: dict[Resource, set[int]] = {}
    for number, task in enumerate(plan.tasks):
        for resource in _holds(plan, task):
            wanted.setdefault(resource, set()).add(number)
    seen: set[Resource] = set()
    for order in schedule.orders:
        turns = [turn.task for turn in order.turns]
        name = f"{order.resource.kind} {order.resource.device}"
        if order.resource in seen:
            raise InvalidPlan(f"two orders of {name}")
        seen.add(order.resource)
        if len(turns) != len(set(turns)) or set(turns) != wanted.get(order.resource, set()):
            raise InvalidPlan(f"the order of {name} must list each of its tasks once, and no other task")
    for resource in wanted:
        if resource not in seen:
            raise InvalidPlan(f"no order of {resource.kind} {resource.device}")


def _check_loads(plan: Pipeline, schedule: PipelineSchedule, seconds: Sequence[float]) -> None:
    busiest = max((sum(seconds[turn.task] for turn in order.turns) for order in schedule.orders), default=0.0)
    if not busiest * (1 - _CLOSE) <= schedule.load_bound_s <= plan.period_s * (1 + _CLOSE):
        raise InvalidPlan(
            f"the load bound {schedule.load_bound_s:.9g} s is not between the busiest resource's {busiest:.9g} s and "
            f"the period {plan.period_s:.9g} s"
        )


Times = Sequence[tuple[float, float]]
"""By task: seconds from its start until it is done, and seconds for which it occupies its resources."""
Arcs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]


def _arcs(plan: Pipeline, schedule: PipelineSchedule, times: Times) -> Arcs:
    """(tail, head, seconds, frames): the head of frame k starts at least `seconds` after the tail of frame k - frames.
    The last two nodes begin and end a frame."""
    begin, end = len(plan.tasks), len(plan.tasks) + 1
    seconds, occupied = [whole for whole, _ in times], [part for _, part in times]
    arcs: list[tuple[int, int, float, int]] = [(end, begin, 0.0, schedule.window)]
    for number, task in enumerate(plan.tasks):
        arcs += [(begin, number, 0.0, 0), (number, end, seconds[number], 0)]
        arcs += [(other, number, seconds[other], 0) for other in task.after]
    for order in schedule.orders:
        for one, two in pairwise(order.turns):
            arcs.append((one.task, two.task, occupied[one.task], one.behind - two.behind))
        if order.turns:
            last, first = order.turns[-1], order.turns[0]
            arcs.append((last.task, first.task, occupied[last.task], 1 + last.behind - first.behind))
    slots: dict[tuple[int, int], int] = {}  # of several buffers of a pair of tasks the fewest slots count
    for buffer in schedule.buffers:
        for pair in ((one, two) for one in buffer.users for two in buffer.writers):
            slots[pair] = min(slots.get(pair, buffer.slots), buffer.slots)
    arcs += [(one, two, seconds[one], least) for (one, two), least in slots.items()]
    tails, heads, lengths, frames = zip(*arcs, strict=True)
    return np.array(tails), np.array(heads), np.array(lengths, np.float64), np.array(frames)


def _check_period(plan: Pipeline, schedule: PipelineSchedule, times: Times) -> None:
    tails, heads, lengths, frames = _arcs(plan, schedule, times)
    nodes = len(plan.tasks) + 2
    if np.abs(frames).max() > 1 << 30:
        raise InvalidPlan("an order is too many rounds behind")
    if _has_circle(tails, heads, 1.0 - (nodes + 1.0) * frames.astype(np.float64), nodes, 0.5):
        raise InvalidPlan("the orders deadlock: tasks wait for each other within one frame, or for later ones")
    period, longest = plan.period_s, float(lengths.max(initial=0.0))
    if not math.isfinite(period) or period < 0:
        raise InvalidPlan(f"the period is {period} s")
    least = 1e-12 * max(period, longest, 1e-300)
    if _has_circle(tails, heads, lengths - period * (1 + _CLOSE) * frames, nodes, least):
        raise InvalidPlan(f"the orders take longer than the stated period {period:.9g} s")
    shorter = period * (1 - _CLOSE)
    if period > 0 and not _has_circle(tails, heads, lengths - shorter * frames, nodes, least * 1e-2):
        raise InvalidPlan(f"the orders take less than the stated period {period:.9g} s")


def _has_circle(
    tails: npt.NDArray[np.int64],
    heads: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    nodes: int,
    least: float,
) -> bool:
    """Whether the weights of some cycle sum to more than 0; relaxation would then not end (Bellman-Ford)."""
    distance = np.zeros(nodes)
    for _ in range(nodes + 1):
        offered = distance.copy()
        np.maximum.at(offered, heads, distance[tails] + weights)
        if not (offered > distance + least).any():
            return False
        distance = offered
    return True


def _lone_frame_s(plan: Pipeline, schedule: PipelineSchedule, times: Times) -> float:
    """The time of a frame whose neighbours take no time: the longest path through its own tasks, over all frames that
    may be inside with it."""
    tails, heads, lengths, frames = (column.tolist() for column in _arcs(plan, schedule, times))
    nodes, inside = len(plan.tasks) + 2, 2 * schedule.window + 1
    waits = [[0] * nodes for _ in range(inside)]
    followers: list[list[tuple[int, float, int]]] = [[] for _ in range(nodes)]
    for tail, head, length, later in zip(tails, heads, lengths, frames, strict=True):
        followers[tail].append((head, length, later))
        for frame in range(max(0, later), min(inside, inside + later)):
            waits[frame][head] += 1
    done = [[0.0] * nodes for _ in range(inside)]
    ready = [(frame, node) for frame in range(inside) for node in range(nodes) if not waits[frame][node]]
    for frame, node in ready:  # the list grows during the loop
        for head, length, later in followers[node]:
            other = frame + later
            if 0 <= other < inside:
                own_s = length if frame == schedule.window else 0.0
                done[other][head] = max(done[other][head], done[frame][node] + own_s)
                waits[other][head] -= 1
                if not waits[other][head]:
                    ready.append((other, head))
    return done[schedule.window][-1]


def _check_memory(plan: Pipeline) -> None:
    seen = set()
    for occupied in plan.memory:
        if occupied.device not in range(len(plan.cluster.devices)) or occupied.device in seen:
            raise InvalidPlan(f"memory of device {occupied.device}, which is stated twice or does not exist")
        seen.add(occupied.device)
        if min(occupied.weights_bytes, occupied.overhead_bytes, occupied.arena_bytes) < 0:
            raise InvalidPlan(f"device {occupied.device} holds less than 0 bytes")
        limit = plan.cluster.devices[occupied.device].memory_bytes
        if limit is not None and occupied.total_bytes > limit:
            raise InvalidPlan(f"device {occupied.device} holds {occupied.total_bytes} bytes, more than its {limit}")


def _equal(field: str, stated: float, counted: float) -> None:
    if not abs(stated - counted) <= _CLOSE * max(abs(stated), abs(counted)):
        raise InvalidPlan(f"the plan states {field} {stated:.9g}, but its work takes {counted:.9g} s")
