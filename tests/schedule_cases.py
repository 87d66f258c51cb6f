"""Small sets of tasks with schedules that are known by hand: for the event graph and for the simulator."""

from downset.pipelines.scheduling.events import TimedTask

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
