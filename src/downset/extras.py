"""Optional libraries, imported when something first needs them; a missing one is an error that names its extra."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from downset.errors import UnsupportedError

__all__ = ["environment_with", "onnxruntime_library", "optional_library", "torch_library"]


def optional_library(module: str, *, what: str, extra: str) -> Any:
    """The module of that name. Its import leaves the environment as it is. Where it is missing, raises
    UnsupportedError: `what` needs it, and `extra` installs it."""
    try:
        if module in sys.modules:
            return import_module(module)
        with environment_with({}):
            return import_module(module)
    except ImportError:
        raise UnsupportedError(f"{what} needs an extra: pip install 'downset[{extra}]'") from None


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """The caller's environment with these variables while a library reads them. Afterwards it is as it was, whatever
    the library has set."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def onnxruntime_library(what: str = "running .onnx files", *, extra: str = "ort") -> Any:
    """The onnxruntime module. Its telemetry is off unless the environment says otherwise: it looks there when it is
    imported. Raises UnsupportedError where it is missing."""
    off = {} if "ORT_DISABLE_TELEMETRY" in os.environ else {"ORT_DISABLE_TELEMETRY": "1"}
    with environment_with(off):
        return optional_library("onnxruntime", what=what, extra=extra)


@cache
def torch_library(what: str = "executing graphs") -> Any:
    """The torch module. Raises UnsupportedError where it is missing."""
    return optional_library("torch", what=what, extra="torch")
