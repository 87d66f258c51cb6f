"""The processes that the product starts, as far as they are not the subject of a test.

Parsers run in this process, where the product asks a worker; what measures a session runs in a fork of the server of
workers, where the product starts an interpreter with ONNX Runtime (0.3 s of CPU, seven for one `fit`). Tests marked
`own_processes("parsers")` have the first as users have it (damaged files, crashes), and those marked
`own_processes("measures")` the second (memory that processes report).

The product starts a new server where the environment has changed, and pytest writes the name of each test there."""

import importlib

from downset.formats.onnx import inference
from downset.formats.tflite import flatbuffer
from downset.process import isolation
from downset.runtimes import ort, ort_process

__all__ = ["choose_processes", "keep_server"]

PARSERS = (inference, flatbuffer)


def keep_server():
    """A server stays when pytest names the next test in the environment."""
    environment = isolation._environment
    isolation._environment = lambda: {
        name: text for name, text in environment().items() if name != "PYTEST_CURRENT_TEST"
    }


def choose_processes(item):
    """For the test that begins, and the fixtures that it makes."""
    marker = item.get_closest_marker("own_processes")
    own = () if marker is None else marker.args
    for module in PARSERS:
        module.parsed = isolation.parsed if "parsers" in own else _here
    for module in (ort, ort_process):
        module.isolated = isolation.isolated if "measures" in own else _forked


def _here(module, function, arguments, **_):
    return getattr(importlib.import_module(module), function)(**arguments), ""


def _forked(*arguments, fresh=False, **options):
    return isolation.isolated(*arguments, **options)
