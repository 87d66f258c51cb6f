"""A pytest plugin (`-p tests.native.sanitized`): the native module of `make sanitize` in place of the installed one.

With QUICK in the environment only the tests next to this file run and those that draw their cases, a few each.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from hypothesis import is_hypothesis_test, settings

import downset

NAME = "downset._native"
(PATH,) = Path(os.environ["DOWNSET_SANITIZED"]).glob("_native*.so")


def load():
    assert b"__asan_init" in PATH.read_bytes(), f"{PATH} was built without sanitizers"
    loader = ExtensionFileLoader(NAME, str(PATH))
    module = module_from_spec(spec_from_loader(NAME, loader))
    sys.modules[NAME] = module
    loader.exec_module(module)
    downset._native = module


load()


def pytest_report_header():
    return f"sanitized: {PATH}"


def pytest_sessionstart(session):
    if not session.config.getoption("numprocesses"):  # what starts the workers hands the sanitizers on to them
        # Processes that the tests start have no need of the sanitizers, and no memory for them where it is limited.
        os.environ.pop("LD_PRELOAD", None)
    if os.environ.get("QUICK"):  # after conftest.py, before the tests are read
        settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
        settings.load_profile("quick")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("QUICK"):
        here = Path(__file__).parent
        left_out = [item for item in items if item.path.parent != here and not is_hypothesis_test(item.obj)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
