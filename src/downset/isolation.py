"""Runs a function of this package in a process of its own: runtimes print to C's stdout, abort, or crash on bad files.

    python -m downset.isolation MODULE FUNCTION ARGUMENTS.json RESULT.npz

The function gets the JSON arguments as keywords and returns a mapping of names to arrays.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import DownsetError, LimitReached, UnsupportedError
from downset.text import brief

__all__ = ["isolated"]

_NAMES = {"litert": "LiteRT", "ort_session": "ONNX Runtime", "tflm": "TFLite Micro"}
_FAILED = 3
"""Exit status of a worker whose function raised a DownsetError; its last line on stderr is the message."""


def isolated(
    module: str, function: str, arguments: Mapping[str, Any], *, timeout_s: float = 300.0
) -> tuple[dict[str, npt.NDArray[Any]], str]:
    """(the arrays the function returned, everything it printed). Raises UnsupportedError if it failed or crashed,
    LimitReached if it took longer than `timeout_s`."""
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        result = Path(folder) / "result.npz"
        request = Path(folder) / "arguments.json"
        request.write_text(json.dumps(dict(arguments)))
        command = [sys.executable, "-m", "downset.isolation", module, function, str(request), str(result)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            name = _NAMES.get(module.rpartition(".")[2], module)
            raise LimitReached(f"{name} took longer than {timeout_s:g} s and was stopped") from None
        printed = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
        if done.returncode:
            raise UnsupportedError(_reason(module, done.returncode, printed))
        with np.load(result) as arrays:
            return dict(arrays), printed


def _reason(module: str, status: int, printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if status == _FAILED and lines:
        cause = next((line for line in lines if "Didn't find op" in line or "not supported" in line), None)
        return f"{lines[-1]} ({brief(cause)})" if cause else lines[-1]
    name = _NAMES.get(module.rpartition(".")[2], module)
    how = f"crashed (signal {-status})" if status < 0 else "failed"
    telling = [line for line in lines if not line.startswith(("INFO", "Traceback", "File "))]
    return f"{name} {how}: {brief(telling[-1]) if telling else 'no reason given'}"


def _main() -> int:
    module, function, request, result = sys.argv[1:]
    try:
        arrays = getattr(importlib.import_module(module), function)(**json.loads(Path(request).read_text()))
    except DownsetError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return _FAILED
    np.savez(result, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
