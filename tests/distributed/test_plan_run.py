"""Runs of plans against a run of the orders turn by turn, and what every run keeps: turns, window, slots."""

import random
from itertools import pairwise

import pytest

from downset.distributed.plan_run import run_plan
from downset.distributed.simulated_run import Conditions, Disturbance
from downset.errors import InvalidPlan
from downset.pipelines.scheduling.events import TimedBuffer, TimedTask
from downset.pipelines.scheduling.schedule import cyclic_schedule, lone_frame_s
from downset.pipelines.scheduling.slots import fewest_slots, lone_latency_s
from downset.results.pipelines import Turn
from tests.distributed.plans_of_tasks import plan_of
from tests.oracles_schedule import run
from tests.pipelines.test_slots import random_buffers
from tests.schedule_cases import TWO_BLOCKS, WRITER_AND_READER, random_orders, random_schedule, random_tasks


def followed(plan, *, frames, arrival_s=None, jitter=0.0, disturbances=()):
    """The record of a run, and when every task of every frame ran."""
    ran = {}
    conditions = Conditions(len(plan.cluster.devices), jitter=jitter, seed=0, disturbances=disturbances)

    def observe(frame, task, begin, end):
        assert (frame, task) not in ran
        ran[frame, task] = (begin, end)

    record = run_plan(plan, conditions, frames=frames, arrival_s=arrival_s, observe=observe)
    return record, ran


def ended(record):
    return [when for _, when in record.left]


def test_frames_leave_when_a_run_turn_by_turn_says():
    """Orders at random, many of which deadlock: then the run says so."""
    stuck = 0
    for seed, tasks, schedule in random_orders("orders", 500):
        # The oracle's frames end with its last one; the simulator gives turns behind them to empty frames.
        wanted = run(tasks, schedule.orders, schedule.window, 20, empty=schedule.window - 1)
        plan = plan_of(tasks, schedule.orders, schedule.window)
        if wanted is None:
            stuck += 1
            with pytest.raises(InvalidPlan, match="deadlock"):
                followed(plan, frames=20)
        else:
            assert ended(followed(plan, frames=20)[0]) == wanted, seed
    assert 100 < stuck < 400


def scheduled_plans(count, *, longest=7):
    """(draw, tasks, schedule, period, buffers, plan) with slots that just keep the period."""
    for seed in range(count):
        draw = random.Random(f"scheduled/{seed}")
        tasks = random_tasks(draw, draw.randint(3, longest), 3)
        found = cyclic_schedule(tasks, 3, window=draw.choice([1, 2, None]))
        if not found.period_s:
            continue
        buffers = fewest_slots(tasks, found.schedule, found.period_s, random_buffers(draw, tasks))
        described = [
            (draw.randrange(3), buffer.nbytes, buffer.slots, buffer.writers, buffer.users) for buffer in buffers
        ]
        plan = plan_of(tasks, found.schedule.orders, found.schedule.window, buffers=described, period_s=found.period_s)
        yield draw, tasks, found.schedule, found.period_s, plan


def test_a_saturated_run_has_the_period_of_the_plan():
    for _, _, _, period, plan in scheduled_plans(80):
        left = ended(followed(plan, frames=400)[0])
        assert (left[350] - left[150]) / 200 == pytest.approx(period, rel=0.01)


@pytest.mark.parametrize("paced", [False, True])
def test_no_run_breaks_orders_window_or_slots(paced):
    """Times vary up to tenfold, frames come in time, too fast or too late: nothing overlaps that must not."""
    compared = 0
    for draw, tasks, schedule, period, plan in scheduled_plans(60):
        arrival = period * draw.choice([0.5, 1.0, 1.05, 1.7, 6.0]) if paced else None
        record, ran = followed(plan, frames=25, arrival_s=arrival, jitter=draw.choice([0.3, 1.0, 10.0]))
        assert len(record.left) == 25
        assert len(ran) == 25 * len(tasks)
        for (frame, index), (begin, _) in ran.items():
            assert all(ran[frame, other][1] <= begin for other in tasks[index].after)
            if frame:
                assert ran[frame - 1, index][1] <= begin
            if frame >= schedule.window:
                assert max(ran[frame - schedule.window, other][1] for other in range(len(tasks))) <= begin
            if paced:
                assert frame * arrival <= begin
        for number in range(3):
            spans = sorted(span for (_, index), span in ran.items() if number in tasks[index].resources)
            assert all(one[1] <= two[0] for one, two in pairwise(spans))
        for device in range(3):
            least, most = most_bytes(plan, ran, device)
            assert least <= record.most_buffer_bytes[device] <= most
        compared += 1
    assert compared > 40


def most_bytes(plan, ran, device):
    """From the times of the tasks alone: the most that is in a device's buffers, where what is given back at a moment
    is taken at the same one, and where it is not. No buffer is above its slots."""
    changes = []
    for buffer in plan.schedule.buffers:
        own = []
        for frame in range(25):
            taken = min(ran[frame, writer][0] for writer in buffer.writers)
            given = max(ran[frame, user][1] for user in (*buffer.writers, *buffer.readers))
            own += [(given, 0, -1), (taken, 1, 1)]
            if buffer.device == device:
                changes += [(given, 0, -buffer.nbytes), (taken, 1, buffer.nbytes)]
        assert highest(own) <= buffer.slots
    return highest(changes), highest((when, -later, change) for when, later, change in changes)


def highest(changes):
    level = most = 0
    for *_, change in sorted(changes):
        level += change
        most = max(most, level)
    return most


def alone_s(tasks, schedule, buffers):
    """How long the one frame takes whose tasks take any time, all others none: by relaxation of all that the orders,
    the slots and the window make it wait for."""
    behind = [turn.behind for order in schedule.orders for turn in order]
    real = schedule.window + max(behind) - min(behind) + 2
    frames = 2 * real
    waits = {(k, i): [(k, other) for other in tasks[i].after] for k in range(frames) for i in range(len(tasks))}
    for order in schedule.orders:
        line = [
            (n - turn.behind, turn.task) for n in range(2 * frames) for turn in order if 0 <= n - turn.behind < frames
        ]
        for first, second in pairwise(line):
            waits[second].append(first)
    for k in range(frames):
        if k >= schedule.window:
            for i in range(len(tasks)):
                waits[k, i] += [(k - schedule.window, other) for other in range(len(tasks))]
        for _, _, slots, writers, users in buffers:
            if k >= slots:
                for writer in writers:
                    waits[k, writer] += [(k - slots, user) for user in users]
    ends = dict.fromkeys(waits, 0)
    moved = True
    while moved:
        moved = False
        for (k, i), before in waits.items():
            end = max((ends[other] for other in before), default=0) + (tasks[i].seconds if k == real else 0)
            if end > ends[k, i]:
                ends[k, i], moved = end, True
    return max(ends[real, i] for i in range(len(tasks)))


def live_plans(count):
    """(draw, tasks, schedule, plan) of orders at random that do not deadlock, many with turns behind others."""
    for seed in range(count):
        draw = random.Random(f"live/{seed}")
        tasks = random_tasks(draw, draw.randint(2, 6), 3)
        schedule = random_schedule(draw, tasks, 3)
        if run(tasks, schedule.orders, schedule.window, 12) is not None:
            yield draw, tasks, schedule, plan_of(tasks, schedule.orders, schedule.window)


def test_a_frame_alone_takes_what_it_takes_among_empty_ones():
    passed = longer = 0
    whole = [(tasks, schedule, plan) for _, tasks, schedule, _, plan in scheduled_plans(40)]
    for tasks, schedule, plan in [*whole, *((tasks, schedule, plan) for _, tasks, schedule, plan in live_plans(120))]:
        buffers = [(b.device, b.nbytes, b.slots, b.writers, b.users) for b in plan.schedule.buffers]
        alone = alone_s(tasks, schedule, buffers)
        assert followed(plan, frames=4, arrival_s=1000.0)[0].latencies_s() == pytest.approx([alone] * 4)
        held = [TimedBuffer(b.nbytes, b.writers, b.users, b.slots) for b in plan.schedule.buffers]
        assert lone_latency_s(tasks, schedule, held) == pytest.approx(alone)
        longer += alone > lone_frame_s(tasks, schedule) * (1 + 1e-9)
        passed += any(len({turn.behind for turn in order}) > 1 for order in schedule.orders)
    assert passed > 25  # empty frames had to pass
    assert longer > 2  # and made the frame wait for tasks of its own


def test_every_frame_leaves_however_frames_come():
    for draw, tasks, schedule, plan in live_plans(150):
        gap = draw.choice([0.3, 1.0, 2.5, 7.0])
        record, ran = followed(plan, frames=15, arrival_s=gap, jitter=draw.choice([0.0, 1.0]))
        assert [frame for frame, _ in record.left] == list(range(15))
        for number, order in enumerate(schedule.orders):
            spans = sorted(span for (_, index), span in ran.items() if number in tasks[index].resources)
            assert len(spans) == 15 * len(order)
            assert all(one[1] <= two[0] for one, two in pairwise(spans))


def test_after_a_death_the_frames_leave_that_no_longer_need_the_device():
    """Whatever the orders: those whose tasks on it were done by then, as in a run without the death, and no other."""
    partly = 0
    for draw, tasks, _, plan in live_plans(150):
        _, calm = followed(plan, frames=20)
        device, dies_s = draw.randrange(3), draw.uniform(0, 30)
        own = [index for index, task in enumerate(tasks) if device in task.resources]
        past = [k for k in range(20) if max((calm[k, index][1] for index in own), default=0) <= dies_s]
        record, _ = followed(plan, frames=20, disturbances=[Disturbance(device, dies_s)])
        assert [frame for frame, _ in record.left] == past
        assert (record.stalled_at_s is None) == (len(past) == 20)
        assert record.stalled_at_s is None or record.stalled_at_s >= dies_s
        partly += 0 < len(past) < 20
    assert partly > 20


def test_latencies_do_not_grow_where_the_plan_keeps_up():
    for _, _, schedule, period, plan in scheduled_plans(60):
        for slower in (1.0, 1.02, 1.3, 2.2):
            record, _ = followed(plan, frames=120, arrival_s=period * slower)
            assert max(record.latencies_s()) <= (schedule.window + 2) * period * slower + 1e-6
            assert max(record.waiting()) <= 3


def test_a_buffer_of_one_slot_holds_its_writer_back():
    orders = ((Turn(0, 0),), (Turn(1, 0),))
    for slots, period in ((1, 2), (2, 1)):
        plan = plan_of(WRITER_AND_READER, orders, 2, buffers=[(1, 5, slots, (0,), (1,))])
        record, _ = followed(plan, frames=30)
        left = ended(record)
        assert left[20] - left[10] == 10 * period
        assert record.most_buffer_bytes == [0, 5 * slots]


def test_two_blocks_of_one_stage_need_two_frames_inside():
    for window, period in ((1, 6), (2, 4)):
        found = cyclic_schedule(TWO_BLOCKS, 2, window=window).schedule
        left = ended(followed(plan_of(TWO_BLOCKS, found.orders, window), frames=40)[0])
        assert left[30] - left[10] == 20 * period


def test_orders_that_are_not_of_the_plan_are_refused():
    tasks = [TimedTask(1, (0,)), TimedTask(1, (1,), (0,))]
    for orders, says in (
        (((Turn(0, 0),), ()), "no order"),
        (((Turn(0, 0), Turn(1, 0)), (Turn(1, 0),)), "each task of its resource once"),
        (((Turn(0, 0), Turn(0, 0)), (Turn(1, 0),)), "each task of its resource once"),
    ):
        with pytest.raises(InvalidPlan, match=says):
            followed(plan_of(tasks, orders, 1), frames=2)
    late = plan_of([TimedTask(1, (0,)), TimedTask(1, (0,), (0,))], ((Turn(0, 0), Turn(1, 1 << 40)),), 1 << 41)
    with pytest.raises(InvalidPlan, match="million rounds"):
        followed(late, frames=2)
