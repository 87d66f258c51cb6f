"""How many cases a test draws: a third by default, so that the suite stays short; all with `make test LONG=1`."""

import os

LONG = bool(os.environ.get("LONG"))


def cases(count):
    """Of `count` cases, as many as this run draws."""
    return count if LONG else max(count // 3, 1)
