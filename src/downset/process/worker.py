"""The program of a worker, which `isolation` starts: it calls what it is asked for, and writes what came of it.

python -P -m downset.process.worker PARENT MEMORY_BYTES
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import queue
import re
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from downset.errors import DownsetError
from downset.messages import Message
from downset.process.supervisor import die_with

__all__: list[str] = []


def _main() -> None:
    parent, memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    _limit_memory(memory_bytes)
    reply = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print goes where the parent looks for it
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        if "function" not in request:
            with contextlib.suppress(Exception):  # the caller that asks it something learns it
                importlib.import_module(request["module"])
            continue
        reply.write(json.dumps(_answer(request)).encode() + b"\n")


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Queue the requests that the parent sends. A closed pipe means that the parent has ended."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if "folder" in request:  # names of files are meant from there
            os.chdir(request["folder"])
        # The caller removes the folder, also where this process is killed.
        tempfile.tempdir = os.environ["TMPDIR"] = os.path.dirname(request["result"])  # noqa: PTH120
        function = getattr(importlib.import_module(request["module"]), request["function"])
        np.savez(request["result"], **function(**request["arguments"]))
    except MemoryError:
        return {"error": "MemoryError", "message": []}
    except Exception as error:
        message = error.message if isinstance(error, DownsetError) else Message(str(error))
        return {"error": type(error).__name__, "message": message.edited(_on_one_line).plain()}
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what libraries printed
    return {}


def _on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _limit_memory(nbytes: int) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    allowed = nbytes if most == resource.RLIM_INFINITY else min(nbytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _main()
