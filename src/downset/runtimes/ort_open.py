"""Opens a fitted file in ONNX Runtime, in this process, with the settings under which `fit` measured it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from downset.errors import LoadError, UsageError
from downset.extras import onnxruntime_library
from downset.formats.onnx.metadata import fitted_metadata
from downset.messages import Call, Setting
from downset.process.limits import machine_bytes
from downset.results.sessions import DEFAULT, FITTED, SessionSettings
from downset.runtimes.ort_settings import open_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

__all__ = ["named_settings", "ort_session", "session_settings"]

_ALL = {settings.name: settings for settings in (DEFAULT, *FITTED)}


def ort_session(path: str | os.PathLike[str]) -> InferenceSession:
    """A session of the fitted .onnx file at `path`, with the settings that its metadata name. `fit --session` writes a
    program that does the same. The session runs on one thread and shares its arena with no other.

    Raises UsageError for a file that was not
    fitted for ONNX Runtime, LoadError for one that cannot be read or whose settings are unknown, UnsupportedError where
    ONNX Runtime is missing or refuses the file.
    """
    settings = session_settings(path)
    return open_session(onnxruntime_library("opening a session"), path, settings)


def named_settings(path: str | os.PathLike[str]) -> SessionSettings | None:
    """The settings that the metadata of a fitted file name, without the region; None where they name none or unknown
    ones. Raises LoadError for a file that cannot be read."""
    return _ALL.get(fitted_metadata(path).get("session", ""))


def session_settings(path: str | os.PathLike[str]) -> SessionSettings:
    """The settings that the metadata of a fitted file name, with the region. Raises UsageError where they name none,
    LoadError where the name or the region is not valid."""
    entries = fitted_metadata(path)
    if "session" not in entries:
        writes = Call("fit", (Setting("target", "ort"),))
        raise UsageError(f"{path} does not say how it was measured: write it by `", writes, "`")
    settings, region = _ALL.get(entries["session"]), entries.get("region_bytes")
    if settings is None:
        raise LoadError(f"{path} names the unknown session settings {entries['session'][:40]!r}")
    if region is None or not settings.arena:
        return settings
    if not (region.isascii() and region.isdigit() and 0 < int(region[:19]) <= machine_bytes()):
        raise LoadError(f"{path} asks for an arena of {region[:40]!r} bytes")
    return settings.with_region(int(region))
