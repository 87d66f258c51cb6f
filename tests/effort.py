"""How much a run of the suite tries: a tenth of the random cases, and a part of the seeds and damaged files, by default; all of them, and
every command on every hostile file, with `make test LONG=1`."""

import math
import os

__all__ = ["LONG", "cases", "untimed"]

LONG = bool(os.environ.get("LONG"))


def cases(count):
    """Of `count` cases, as many as this run draws."""
    return count if LONG else max(count // 10, 1)


def untimed(states):
    """Limits of a search that end it at the same place under any load, as `states` / 100,000 seconds alone do."""
    return {"time_limit_s": math.inf, "work_limit": states}
