"""No test asserts a time: the machines are shared. CI draws the same examples every time, so that a red run is news.
Threads of OpenMP sleep while they wait: on a shared machine those that spin wait for each other."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
settings.register_profile("downset", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "downset")
