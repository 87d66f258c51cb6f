"""Clocks that do not depend on the load of the machine."""

import math
import sys
from contextlib import contextmanager

from downset import budget, native
from downset.budget import Budget, Clock

__all__ = ["few_calls_after", "over_after", "unlimited", "watch_compiled"]


def unlimited() -> Clock:
    """A clock whose time is never up."""
    return Budget(math.inf).start()


MOMENT_S = 0.01


def over_after(monkeypatch, looks):
    """Let every clock have a moment left until so many looks at one, and nothing from then on; returns the list of
    looks, which grows."""
    taken = []

    def left_s(clock):
        taken.append(clock)
        return 0.0 if len(taken) > looks else MOMENT_S

    monkeypatch.setattr(budget.Clock, "left_s", left_s)
    return taken


@contextmanager
def few_calls_after(taken, looks, most):
    """A context in which fewer calls than `most` follow the end of a clock of `over_after`, whose list is `taken`."""
    calls = 0

    def called(frame, event, argument):
        nonlocal calls
        if event in ("call", "c_call") and len(taken) > looks:
            calls += 1
            assert calls < most, "the time is over, and the method goes on"

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def watch_compiled(monkeypatch):
    """Let every compiled function fail that is given more seconds than a clock of `over_after` has."""

    class Watched:
        def __init__(self, module):
            self.module = module

        def __getattr__(self, name):
            found = getattr(self.module, name)
            if not callable(found) or isinstance(found, type):
                return found

            def call(*arguments, **named):
                seconds = [value for value in (*arguments, *named.values()) if isinstance(value, float)]
                assert all(value <= MOMENT_S for value in seconds), f"{name} may run for {seconds} s"
                return found(*arguments, **named)

            return call

    monkeypatch.setattr(native, "compiled", Watched(native.compiled))
