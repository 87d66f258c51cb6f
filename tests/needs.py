"""Programs that tests use although the README does not ask for them: without one its tests skip, and say what is
missing. CI has them all: there a skip is a failure, unless it stands in `MAY_SKIP`."""

import os
import re
import shutil

import pytest

__all__ = ["MAY_SKIP", "compiler", "forbidden_skip", "program"]

MAY_SKIP = {
    r"no package index here has ExecuTorch [\d.]+ for this platform": "ExecuTorch has wheels for few platforms",
    r"no package index here has the trainers for this platform": "their tokenizers have wheels for some platforms",
    r"only Linux says who waits for a processor": "macOS and some containers have no /proc/self/schedstat",
    r"no collected files beside this checkout": "they are not part of the project; made ones of their kinds are",
    r"other processors do not trap": "a division by zero is no signal on ARM",
}
"""Reasons (patterns) for which a test may skip in CI, and why that is right."""


def program(*names, brings):
    """The path of the first of these programs that is there; the test skips where none is. `brings`: what installs
    one."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no {' or '.join(names)} here: {brings}")
    return found


def compiler():
    """The C++ compiler, which the README asks for."""
    found = next(filter(None, map(shutil.which, [os.environ.get("CXX") or "g++", "c++", "clang++"])), None)
    assert found, "no C++ compiler, which the native module needs too"
    return found


def forbidden_skip(report, environment=os.environ):
    """Why this report of a test or of a file's collection is a failure in CI; None where it is none."""
    if not environment.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return None
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if any(re.fullmatch(pattern, reason) for pattern in MAY_SKIP):
        return None
    return f"skipped, and CI may skip for the reasons in tests/needs.py alone: {reason}"
