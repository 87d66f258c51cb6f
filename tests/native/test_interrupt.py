"""A native search that runs when a user ends all searches ends too, whatever its limit."""

import random
from threading import Thread
from time import sleep

from downset.arenas.plan import plan_arena
from downset.memory.records import Record
from downset.native import compiled

HOUR_S = 3600.0
ENDS_S = 60.0
"""Seconds in which it ends on a busy machine."""


def test_a_search_that_runs_ends_at_once():
    numbers = random.Random(0)
    starts = [numbers.randrange(100) for _ in range(200)]
    records = [
        Record(str(number), start, start + numbers.randint(2, 30), numbers.randint(1, 10**6))
        for number, start in enumerate(starts)
    ]
    found = []

    def search():
        found.append(plan_arena(records, method="local_search", time_limit_s=HOUR_S))

    thread = Thread(target=search, daemon=True)
    thread.start()
    try:
        sleep(0.2)
        assert thread.is_alive(), "the search is too easy to be interrupted"
        compiled.interrupt(True)
        thread.join(ENDS_S)
        assert not thread.is_alive()
    finally:
        compiled.interrupt(False)
    (arena,) = found
    assert arena.arena_bytes >= arena.evidence.bound
