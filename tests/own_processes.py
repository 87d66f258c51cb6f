"""The processes that the product starts, as far as they are not the subject of a test.

Parsers and PyTorch run in this process, where the product asks a worker (which imports PyTorch for each file). What
measures a session runs in a fork of the server of workers, where the product starts an interpreter with ONNX Runtime
(0.3 s of CPU, seven for one `fit`); sessions are timed in few rounds, so that less is known to be slower. Tests marked
`own_processes("parsers")` have the first as users have it (damaged files, crashes), those marked
`own_processes("torch")` the second, and those marked `own_processes("measures")` all others (memory that processes
report).

The product starts a new server where the environment has changed. Pytest writes the name of each test there, and tests
say where the cache is and what the terminal can do, which no worker reads."""

import importlib

from downset.formats.onnx import inference
from downset.formats.tflite import flatbuffer
from downset.process import isolation
from downset.runtimes import litert_process, ort, ort_process, outputs, torch_eager

__all__ = ["choose_processes", "keep_server"]

PARSERS = (inference, flatbuffer)
FORKED = {ort_process.__name__: "forked.ort_process"}
"""By module: that which measures the growth of forks, in tests/not_imported, which is on the path of workers."""
UNREAD = {"PYTEST_CURRENT_TEST", "DOWNSET_CACHE", "COLUMNS", "TERM", "FORCE_COLOR", "NO_COLOR"}
"""Variables that no worker reads."""


def keep_server():
    """A server stays when a variable changes that no worker reads."""
    environment = isolation._environment
    isolation._environment = lambda: {name: text for name, text in environment().items() if name not in UNREAD}


def choose_processes(item):
    """For the test that begins, and the fixtures that it makes."""
    marker = item.get_closest_marker("own_processes")
    own = () if marker is None else marker.args
    for module in PARSERS:
        module.parsed = isolation.parsed if "parsers" in own else _here
    for module in (ort, ort_process, litert_process):
        module.isolated = isolation.isolated if "measures" in own else _forked
    torch_eager.isolated = isolation.isolated if "torch" in own else _here
    outputs.isolated = isolation.isolated if "torch" in own else _torch_here
    ort.session_seconds = SESSION_SECONDS if "measures" in own else _in_few_rounds


def _here(module, function, arguments, **_):
    return getattr(importlib.import_module(module), function)(**arguments), ""


def _torch_here(module, function, arguments, **options):
    return (_here if function == "torch_here" else isolation.isolated)(module, function, arguments, **options)


SESSION_SECONDS, ROUNDS = ort.session_seconds, 11


def _in_few_rounds(*arguments, rounds=(7, 101), **options):
    least, most = rounds
    return SESSION_SECONDS(*arguments, rounds=(least, max(least, min(most, ROUNDS))), **options)


def _forked(module, *arguments, fresh=False, **options):
    return isolation.isolated(FORKED.get(module, module), *arguments, **options)
