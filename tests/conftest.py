"""No test asserts a time: the machines are shared. CI draws the same examples every time, so that a red run is news."""

import os

from hypothesis import settings

settings.register_profile("downset", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "downset")
