"""What workers are asked to do in tests/test_isolation.py: each a way in which somebody's library misbehaves."""

import contextlib
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from downset.errors import InfeasibleError, UsageError
from downset.messages import Setting


def process():
    return {"pid": np.array(os.getpid())}


_MARKS = []


def mark():
    """How often this has been called in this process."""
    _MARKS.append(None)
    return {"marks": np.array(len(_MARKS))}


def imported():
    return {"modules": np.array(sorted(sys.modules))}


def imported_by(module, function, arguments):
    """The modules that a call imports."""
    called = getattr(importlib.import_module(module), function)
    before = set(sys.modules)
    called(**arguments)
    return {"modules": np.array(sorted(set(sys.modules) - before), np.str_)}


ort_here = imported  # by this name `isolation` knows what it calls


def fill(nbytes):
    return {"sum": np.ones(nbytes, np.uint8).sum(keepdims=True)}


def crash():
    os.abort()


def parse_here(path, token):
    """In place of the reader of .onnx files."""
    assert path
    assert token
    os.abort()


def leave():
    os._exit(0)


def sleep(path=""):
    """Sleep, once the file at `path` names the server, this process, and one that it has started."""
    if path:
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        written = Path(f"{path}.part")
        written.write_text(f"{os.getppid()} {os.getpid()} {started.pid}")
        written.rename(path)
    time.sleep(600)


def compute(seconds):
    while time.process_time() < seconds:
        pass
    return {}


def refuse():
    raise InfeasibleError("two\nlines")


def name_settings():
    raise UsageError("give ", Setting("shapes", {"x": [1, 3]}), " or\n", Setting("trust"))


def break_down():
    raise RecursionError("too\ndeep")


def talk(text):
    os.write(1, text.encode())
    return {}


def current_folder():
    return {"on_path": np.array("" in sys.path or str(Path.cwd()) in sys.path)}


def where():
    return {"folder": np.array(str(Path.cwd()))}


def leave_files(seconds):
    """Two temporary files that are not removed: Python's, and one of a library that reads the environment."""
    import tempfile

    python, number = tempfile.mkstemp()[1], os.getpid()
    environment = f"{os.environ['TMPDIR']}/{number}"
    Path(environment).write_bytes(b"content")
    time.sleep(seconds)
    return {
        name: np.frombuffer(place.encode(), np.uint8)
        for name, place in (("python", python), ("environment", environment))
    }


def surroundings():
    """What this process has of the one that its server was forked from."""
    import signal
    import threading

    files = []
    for file in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the folder itself, which was open
            files.append(str(file.readlink()))
    handled = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
    print("printed")
    return {
        "files": np.array(files, np.str_),
        "handled": np.array(handled),
        "session": np.array(os.getsid(os.getppid())),
        "threads": np.array(len(list(Path(f"/proc/{os.getppid()}/task").iterdir())) + threading.active_count()),
        "modules": np.array(sorted(sys.modules)),
        "path": np.array(sys.path),
    }


def ask_another():
    """A call in a worker of this worker."""
    from downset.process.isolation import isolated

    return isolated("tests.workers", "process", {})[0]
