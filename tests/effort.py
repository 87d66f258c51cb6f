"""How much a run of the suite tries: a tenth of the random cases, and a part of the seeds and damaged files, by
default; all of them, and every command on every hostile file, with `make test LONG=1`."""

import math
import os

__all__ = ["LONG", "LONGEST", "cases", "untimed"]

LONG = bool(os.environ.get("LONG"))


def cases(count):
    """Of `count` cases, as many as this run draws."""
    return count if LONG else max(count // 10, 1)


LONGEST = (
    "cluster",
    "inductor",
    "tests.integrations.test_executorch.py",
    "tests.integrations.test_training_loops.py",
    "tests.fitting.test_loads.py",
    "tests.docs.test_site.py",
    "tests.docs.test_readme_pages.py",
    "tests.docs.test_guides.py",
    "tests.experiments.test_field.py",
    "tests.pipelines.test_direct.py",
    "tests.fuzz.test_no_network.py",
)
"""Groups of few tests, or of many files, that take longest: begun last, one of them would run alone at the end."""


def untimed(states):
    """Limits of a search that end it at the same place under any load, as `states` / 100,000 seconds alone do."""
    return {"time_limit_s": math.inf, "work_limit": states}
