"""Optional libraries, imported when something first needs them; the error for a missing one says what installs it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from downset.errors import UnsupportedError

__all__ = [
    "environment_with",
    "installing",
    "onnxruntime_library",
    "optional_library",
    "requirements_of",
    "torch_library",
]

_OF_EXTRA = re.compile(r"""(.+?)\s*;\s*(?:(.+)\s+and\s+)?extra\s*==\s*["']([\w-]+)["']""")
_OURS = re.compile(r"downset\s*\[([\w,\s-]+)\]")


def optional_library(module: str, *, what: str, extra: str) -> Any:
    """The module of that name. Its import leaves the environment as it is. Where it is missing, raises
    UnsupportedError: `what` needs it, and the packages of `extra` bring it."""
    try:
        if module in sys.modules:
            return import_module(module)
        with environment_with({}):
            return import_module(module)
    except ImportError:
        advice = installing(extra)
        raise UnsupportedError(f"{what} needs the extra {extra}" + (f": {advice}" if advice else "")) from None


def installing(extra: str) -> str:
    """The command that installs what the extra needs, by the names of those packages: downset itself is on no index.
    Empty where the requirements are not known."""
    wanted = requirements_of(extra)
    return f"pip install {shlex.join(wanted)}" if wanted else ""


def requirements_of(extra: str) -> tuple[str, ...]:
    """The requirements of an extra and of the extras that it names, from the metadata of the installed package; empty
    where there are none, as in a source folder that is only on the path."""
    from importlib import metadata

    try:
        stated = metadata.requires("downset") or []
    except metadata.PackageNotFoundError:
        return ()
    requirements: dict[str, None] = {}
    for match in filter(None, map(_OF_EXTRA.fullmatch, stated)):
        requirement, condition, name = match.groups()
        if name != extra:
            continue
        if ours := _OURS.fullmatch(requirement):
            for other in ours[1].split(","):
                requirements.update(dict.fromkeys(requirements_of(other.strip())))
        else:
            requirements[f"{requirement}; {condition}" if condition else requirement] = None
    return tuple(requirements)


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
