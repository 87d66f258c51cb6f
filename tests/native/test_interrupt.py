"""A native search that runs when a user ends all searches ends too, whatever its limit."""

import random
import subprocess
import sys
from threading import Thread
from time import sleep

import pytest

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


@pytest.mark.parametrize("delay_us", [100, 300, 600, 1000, 1500, 2500])
def test_a_signal_while_the_module_is_imported_leaves_no_half_of_it(delay_us):
    """nanobind reports a critical error where a handler raises while it makes an enumeration."""
    code = f"""
import signal, sys
from downset import native
def stop(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
try:
    signal.setitimer(signal.ITIMER_REAL, {delay_us} / 1e6, 100e-6)
    native.compiled
except KeyboardInterrupt:
    signal.setitimer(signal.ITIMER_REAL, 0)
signal.setitimer(signal.ITIMER_REAL, 0)
print(native.compiled.__name__)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "nanobind" not in done.stderr
    assert done.stdout.strip() in ("downset._native", ""), "a signal may come between the lines"
