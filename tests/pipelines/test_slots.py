"""Buffers: no run holds more than is stated, the worked case of one convolution, and bytes that may be shared."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from downset.pipelines.scheduling.events import Schedule, TimedBuffer, TimedTask, check_live, event_graph, period_s
from downset.pipelines.scheduling.schedule import cyclic_schedule, one_at_a_time, sequence
from downset.pipelines.scheduling.slots import conflicts, fewest_slots, frames_between
from tests.effort import cases
from tests.oracles_schedule import run
from tests.schedule_cases import random_tasks


def random_buffers(draw, tasks):
    """What each task leaves for those behind it."""
    found = []
    for index in range(len(tasks)):
        readers = tuple(other for other, task in enumerate(tasks) if index in task.after)
        if readers:
            found.append(TimedBuffer(draw.randint(1, 9), (index,), readers))
    return found


def apart(buffers, between):
    return set(combinations(range(len(buffers)), 2)) - set(conflicts(buffers, between))


def jittered(draw, tasks, schedule, buffers, frames):
    """Starts of a run of the orders in which every task of every frame takes a time of its own, and how long it takes,
    by relaxation of all waits; nothing but the definition of the orders, the window and the slots. Tasks with a delay
    occupy their resources for a part of that time."""
    length = {(k, i): draw.choice([0, 1, 1, 2, 5]) for k in range(frames) for i in range(len(tasks))}
    occupied = {(k, i): draw.choice([0, length[k, i] / 2]) if tasks[i].delay_s else length[k, i] for k, i in length}
    turns = {node: [] for node in length}
    waits = {(k, i): [(k, other) for other in task.after] for k in range(frames) for i, task in enumerate(tasks)}
    for order in schedule.orders:
        line = [
            (n - turn.behind, turn.task) for n in range(frames + 9) for turn in order if 0 <= n - turn.behind < frames
        ]
        for first, second in pairwise(line):
            turns[second].append(first)
    for k in range(frames):
        for i in range(len(tasks)):
            if k >= schedule.window:
                waits[k, i] += [(k - schedule.window, other) for other in range(len(tasks))]
        for buffer in buffers:
            if k >= buffer.slots:
                for writer in buffer.writers:
                    waits[k, writer] += [(k - buffer.slots, user) for user in buffer.users]
    starts = dict.fromkeys(waits, 0)
    for _ in range(len(starts) + 1):
        moved = False
        for node, before in waits.items():
            done = [starts[other] + length[other] for other in before]
            at = max([0, *done, *(starts[other] + occupied[other] for other in turns[node])])
            if at > starts[node]:
                starts[node], moved = at, True
        if not moved:
            return starts, length
    raise AssertionError("deadlock")


def test_tasks_of_next_to_no_time_do_not_wait_for_each_other():
    """A cycle of such tasks within one frame gains no more than rounding does, and is a deadlock."""
    shortest = 0
    for seed in range(cases(1500)):
        draw = random.Random(f"instant/{seed}")
        tasks = random_tasks(draw, draw.randint(4, 8), 4)
        tasks = [replace(task, seconds=task.seconds or draw.choice([0, 1e-24, 1e-14])) for task in tasks]
        found = cyclic_schedule(tasks, 4)
        if not found.period_s:
            continue
        buffers = fewest_slots(tasks, found.schedule, found.period_s, random_buffers(draw, tasks))
        check_live(event_graph(tasks, found.schedule, buffers))
        shortest += any(0 < task.seconds < 1 for task in tasks)
    assert shortest


def test_slots_keep_the_period_and_hold_in_runs_with_any_delays():
    shared = 0
    for seed in range(150):
        draw = random.Random(f"slots/{seed}")
        tasks = random_tasks(draw, draw.randint(3, 7), 3, late=True)
        found = cyclic_schedule(tasks, 3, window=draw.choice([1, 1, 2, None]))
        if not found.period_s:
            continue
        buffers = fewest_slots(tasks, found.schedule, found.period_s, random_buffers(draw, tasks))
        graph = event_graph(tasks, found.schedule, buffers)
        assert period_s(graph) == pytest.approx(found.period_s, rel=1e-9)
        assert all(1 <= buffer.slots <= found.schedule.window for buffer in buffers)
        between = frames_between(tasks, found.schedule, buffers)
        pairs = apart(buffers, between)
        shared += len(pairs)
        for _ in range(3):
            starts, length = jittered(draw, tasks, found.schedule, buffers, 20)
            spans = []
            for buffer in buffers:
                own = [
                    (
                        min(starts[k, w] for w in buffer.writers),
                        max(starts[k, u] + length[k, u] for u in buffer.users),
                    )
                    for k in range(20)
                ]
                spans.append(own)
                times = sorted({begin for begin, _ in own})
                assert max(sum(b <= at < e for b, e in own) for at in times) <= buffer.slots
                assert buffer.slots >= between[np.ix_(buffer.users, buffer.writers)].max()
            for one, two in pairs:
                assert not any(max(b1, b2) < min(e1, e2) for b1, e1 in spans[one] for b2, e2 in spans[two]), (
                    seed,
                    one,
                    two,
                )
    assert shared > 8


def convolution(*, leader):
    """A 1x1 convolution, 64 to 64 channels, on 1x64x64x64 float32, four workers of 16 rows each, source and
    sink apart: devices 0 … 3 work, 4 gives, 5 takes. Buffers by device."""
    strip, whole = 64 * 16 * 64 * 4, 64 * 64 * 64 * 4
    tasks, buffers = [], {device: [] for device in range(6)}
    if leader:
        tasks.append(TimedTask(4.0, (4, 0)))
        gathered = []
        computed = [len(tasks)]
        tasks.append(TimedTask(1.0, (0,), (0,)))
        for device in (1, 2, 3):
            tasks.append(TimedTask(1.0, (0, device), (0,)))
            tasks.append(TimedTask(1.0, (device,), (len(tasks) - 1,)))
            tasks.append(TimedTask(1.0, (device, 0), (len(tasks) - 1,)))
            gathered.append(len(tasks) - 1)
        tasks.append(TimedTask(4.0, (0, 5), (*computed, *gathered)))
        scatters = [index - 2 for index in gathered]
        buffers[0] = [
            TimedBuffer(whole, (0,), (1, *scatters)),
            TimedBuffer(whole, (1, *gathered), (len(tasks) - 1,)),
        ]
    else:
        for device in range(4):
            first = len(tasks)
            tasks += [
                TimedTask(1.0, (4, device)),
                TimedTask(1.0, (device,), (first,)),
                TimedTask(1.0, (device, 5), (first + 1,)),
            ]
            buffers[device] = [
                TimedBuffer(strip, (first,), (first + 1,)),
                TimedBuffer(strip, (first + 1,), (first + 2,)),
            ]
    return tasks, buffers


def test_one_convolution_over_four_workers():
    weights = 64 * 64 * 4 + 64 * 4
    tasks, buffers = convolution(leader=False)
    single = one_at_a_time(tasks, 6, sequence(tasks))
    period = period_s(event_graph(tasks, single))
    own = fewest_slots(tasks, single, period, buffers[0])
    assert sum(buffer.nbytes * buffer.slots for buffer in own) + weights == 540_928
    assert sum(buffer.nbytes * slots for buffer, slots in zip(own, (2, 1), strict=True)) + weights == 803_072
    tasks, buffers = convolution(leader=True)
    single = one_at_a_time(tasks, 6, sequence(tasks))
    period = period_s(event_graph(tasks, single))
    own = fewest_slots(tasks, single, period, buffers[0])
    assert max(buffer.nbytes * buffer.slots for buffer in own) == 1_048_576 > 600_000


def test_buffers_in_turn_share_their_bytes():
    tasks = [TimedTask(1, (0,)), TimedTask(1, (0,), (0,)), TimedTask(1, (0,), (1,)), TimedTask(1, (0,), (2,))]
    buffers = [TimedBuffer(5, (0,), (1,), 1), TimedBuffer(5, (2,), (3,), 1)]
    schedule = Schedule(one_at_a_time(tasks, 1, range(4)).orders, 1)
    assert apart(buffers, frames_between(tasks, schedule, buffers)) == {(0, 1)}
    assert run(tasks, schedule.orders, 1, 3)[-1] == 12
