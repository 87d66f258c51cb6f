"""Small sets of tasks, known by hand or drawn at random: for the event graph and for the simulator."""

import random

from downset.pipelines.scheduling.events import Schedule, TimedTask
from downset.results.pipelines import Turn

TWO_BLOCKS = (
    TimedTask(3, (0,)),
    TimedTask(1, (1,)),
    TimedTask(1, (0,), (0, 1)),
    TimedTask(3, (1,), (0, 1)),
)
"""One stage of two blocks on two devices, the second of which needs all of the first: loads of 4, a period of 6 with
one frame inside and of 4 with two."""

WRITER_AND_READER = (TimedTask(1, (0,)), TimedTask(1, (1,), (0,)))
"""What one makes the other reads: a period of 2 with one slot between them, of 1 with two."""


def random_tasks(draw, count, resources, *, longest=4, late=False):
    """`late`: some tasks of every other set are done later than they occupy their resources."""
    late = late and draw.random() < 0.5
    tasks = []
    for index in range(count):
        held = tuple(sorted(draw.sample(range(resources), draw.choice([1, 1, 2][: 1 + resources]))))
        after = tuple(other for other in range(index) if draw.random() < 0.35)
        delay_s = draw.choice([0, 0, 1, 2, 2 * longest]) if late else 0
        tasks.append(TimedTask(draw.randint(0, longest), held, after, delay_s))
    return tasks


def random_schedule(draw, tasks, resources):
    behind = [draw.randint(0, 2) for _ in tasks]
    orders = []
    for resource in range(resources):
        own = [i for i, task in enumerate(tasks) if resource in task.resources]
        draw.shuffle(own)
        orders.append(tuple(Turn(i, behind[i]) for i in own))
    return Schedule(tuple(orders), draw.randint(1, 4))


def random_orders(name, count, *, late=False):
    """(seed, tasks, schedule) of so many draws; many of the schedules deadlock."""
    for seed in range(count):
        draw = random.Random(f"{name}/{seed}")
        resources = draw.randint(1, 4)
        tasks = random_tasks(draw, draw.randint(1, 6), resources, late=late)
        yield seed, tasks, random_schedule(draw, tasks, resources)
