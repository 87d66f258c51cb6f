"""The processes that the product starts, as far as they are not the subject of a test.

Parsers and runtimes run in this process, where the product asks workers: twenty for one `fit`, half of its CPU seconds.
What measures a process runs in a fork of the server of workers, where the product starts an
interpreter with ONNX Runtime (0.3 s of CPU, seven for one `fit`); sessions are timed in few rounds, so that less is
known to be slower. Tests marked `own_processes("parsers")` have parsers and runtimes as users have them (damaged
files, crashes), those marked `own_processes("runtimes")`, and all of tests/fuzz, runtimes (random numbers, bytes that
this process reads), those marked `own_processes("torch")` PyTorch, and those marked `own_processes("measures")`
runtimes and what measures them (memory that processes report).

The product starts a new server where the environment has changed. Pytest writes the name of each test there, and tests
say where the cache is and what the terminal can do, which no worker reads."""

import ctypes
import importlib
import io
import json
import os
import sys
import tempfile

import numpy as np

from downset.errors import DownsetError
from downset.formats.onnx import inference, run_types
from downset.formats.tflite import flatbuffer
from downset.messages import Message
from downset.process import isolation, worker
from downset.runtimes import litert, litert_process, ort, ort_forms, ort_process, outputs, streams, tflm, torch_eager

__all__ = ["choose_processes", "keep_server"]

PARSERS = (inference, flatbuffer)
RUNTIMES = (litert, ort, ort_forms, outputs, run_types, streams, tflm)
RUN_HERE = {
    "apart_here",
    "litert_here",
    "measure_here",
    "optimise_here",
    "ort_here",
    "ort_hops_here",
    "outputs_here",
    "run_here",
    "run_on_here",
    "shapes_here",
    "tflm_here",
    "types_here",
}
"""Functions of runtimes that tell the same in any process: no addresses, and no times."""
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
    in_workers = {"parsers", "runtimes"}.intersection(own) or item.nodeid.startswith("tests/fuzz/")
    runtimes = isolation.isolated if "measures" in own else _forked if in_workers else _run_here
    for module in PARSERS:
        module.parsed = isolation.parsed if "parsers" in own else _here
    for module in RUNTIMES:
        module.isolated = runtimes
    for module in (ort_process, litert_process):
        module.isolated = isolation.isolated if "measures" in own else _forked
    torch_eager.isolated = isolation.isolated if "torch" in own else _here
    outputs.isolated = isolation.isolated if "torch" in own else _torch_here(runtimes)
    ort.session_seconds = SESSION_SECONDS if "measures" in own else _in_few_rounds


def _here(module, function, arguments, **_):
    return getattr(importlib.import_module(module), function)(**arguments), ""


def _torch_here(runtimes):
    def asked(module, function, arguments, **options):
        return (_here if function == "torch_here" else runtimes)(module, function, arguments, **options)

    return asked


def _run_here(module, function, arguments, **options):
    """What a worker would answer, made in this process: values that come through a file, errors as it words them, and
    what C code prints."""
    if function not in RUN_HERE:
        return _forked(module, function, arguments, **options)
    name, given = isolation._code(module, function)[0], json.loads(json.dumps(dict(arguments)))
    answer = io.BytesIO()
    with tempfile.TemporaryFile() as file:
        kept = _print_to(file)
        try:
            np.savez(answer, **getattr(importlib.import_module(module), function)(**given))
        except Exception as error:
            message = error.message if isinstance(error, DownsetError) else Message(str(error))
            said = {"error": type(error).__name__, "message": message.edited(worker._on_one_line).plain()}
            raise isolation._raised(name, said, _print_again(kept, file), 0) from None
        finally:
            printed = _print_again(kept, file)
    answer.seek(0)
    with np.load(answer, allow_pickle=False) as arrays:
        return dict(arrays), printed


def _print_to(file):
    kept = []
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
    for stream in (1, 2):
        kept.append(os.dup(stream))
        os.dup2(file.fileno(), stream)
    return kept


def _print_again(kept, file):
    """End what `_print_to` began; what was printed meanwhile."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
    while kept:
        os.dup2(kept[-1], len(kept))
        os.close(kept.pop())
    return isolation._text(file)


SESSION_SECONDS, ROUNDS = ort.session_seconds, 11


def _in_few_rounds(*arguments, rounds=(7, 101), **options):
    least, most = rounds
    return SESSION_SECONDS(*arguments, rounds=(least, max(least, min(most, ROUNDS))), **options)


def _forked(module, *arguments, fresh=False, **options):
    return isolation.isolated(FORKED.get(module, module), *arguments, **options)
