"""Opens sessions with given settings, or with those that a fitted file names, and writes the same as Python code. All
read the same lists, so that the printed code does what was measured."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from downset.errors import LoadError, UnsupportedError, UsageError
from downset.extras import onnxruntime_library
from downset.formats.onnx.metadata import fitted_metadata
from downset.messages import Call, Setting
from downset.process.limits import machine_bytes
from downset.results.sessions import (
    BY_HAND,
    DEFAULT,
    FITTED,
    MAPPED,
    ONE_REGION,
    TRIMMED,
    WITH_PATTERN,
    SessionSettings,
)
from downset.runtimes.processors import processor
from downset.text import brief

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

__all__ = [
    "MALLOPT",
    "has_mallopt",
    "named_settings",
    "open_session",
    "ort_session",
    "session_code",
    "session_outputs",
    "session_settings",
]

Array = npt.NDArray[Any]
MALLOPT: Mapping[str, int] = {"M_TRIM_THRESHOLD": -1, "M_MMAP_THRESHOLD": -3, "M_ARENA_MAX": -8}
"""The numbers of glibc's parameters, as malloc.h has them."""
_FULL_BYTES = 1 << 20
"""The most bytes that are left of a disk on which a write of megabytes failed for want of room."""
_ALL = {
    settings.name: settings
    for settings in (DEFAULT, *FITTED, *BY_HAND, *MAPPED, *ONE_REGION.values(), *TRIMMED, *WITH_PATTERN.values())
}


def has_mallopt() -> bool:
    """Whether the C library of this process is glibc, whose allocator has parameters (`mallopt`)."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")


def open_session(
    library: Any,
    path: str | os.PathLike[str],
    settings: SessionSettings,
    *,
    profile_prefix: str | None = None,
    optimised_path: str | None = None,
) -> Any:
    """An InferenceSession with these settings. If they have an arena, a new one is registered, so that no earlier
    session shares it. With `profile_prefix` the session records a profile; with `optimised_path` it writes the
    optimised file there. Parameters of glibc's allocator are skipped under other C libraries. Raises UnsupportedError
    where ONNX Runtime cannot load the file, and UsageError where the disk has no room for the optimised one, which ONNX
    Runtime does not say."""
    if settings.malloc and has_mallopt():
        libc = ctypes.CDLL(None)
        for parameter, nbytes in settings.malloc.items():
            libc.mallopt(MALLOPT[parameter], nbytes)
    if settings.arena:
        memory = library.OrtMemoryInfo(
            "Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT
        )
        library.create_and_register_allocator(memory, library.OrtArenaCfg(dict(settings.arena)))
    options = library.SessionOptions()
    for name, value in settings.options.items():
        setattr(options, name, reduce(getattr, value.split("."), library) if isinstance(value, str) else value)
    for name, value in settings.config.items():
        options.add_session_config_entry(name, value)
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    if optimised_path is not None:
        options.optimized_model_filepath = optimised_path
    try:
        providers = list(settings.providers) or ["CPUExecutionProvider"]
        return library.InferenceSession(os.fspath(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        if optimised_path is not None and _is_full(Path(optimised_path).parent):
            full = f"{os.strerror(errno.ENOSPC)}; TMPDIR may name another folder ({brief(error)})"
            raise UsageError(f"cannot write {optimised_path}: {full}") from None
        raise UnsupportedError(f"ONNX Runtime cannot load {Path(path).name}: {brief(error)}") from None


def _is_full(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free < _FULL_BYTES
    return False


def session_outputs(session: Any, feeds: Mapping[str, Array], names: Sequence[str] = ()) -> list[Array]:
    """The outputs of these names, or all outputs, of a run on the arrays in `feeds` that the session takes. Raises
    UnsupportedError where ONNX Runtime cannot run the file, and for an output that is not a tensor."""
    input_names = {value.name for value in session.get_inputs()}
    output_names = list(names) or [value.name for value in session.get_outputs()]
    try:
        values = session.run(output_names, {name: value for name, value in feeds.items() if name in input_names})
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise UnsupportedError(f"ONNX Runtime cannot run it: {brief(error)}") from None
    return [_plain(name, value) for name, value in zip(output_names, values, strict=True)]


def _plain(name: str, value: Any) -> Array:
    """An output as an array without Python objects, which cannot be passed between processes."""
    if not isinstance(value, np.ndarray):
        raise UnsupportedError(f"output {name!r} is not a tensor: sequences and maps are not compared")
    return value.astype(str) if value.dtype == object else value


def session_code(settings: SessionSettings) -> list[str]:
    """Lines of Python that register the arena and make `options`, as `open_session` does; `ort` is the library."""
    lines = []
    if settings.malloc:
        lines += [
            'if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # glibc; the whole process',
            *(f"    libc.mallopt({MALLOPT[name]}, {value})  # {name}" for name, value in settings.malloc.items()),
        ]
    if settings.arena:
        lines += [
            'memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)',
            "arena = {",
            *(f'    "{name}": {value},' for name, value in settings.arena.items()),
            "}",
            "ort.create_and_register_allocator(memory, ort.OrtArenaCfg(arena))",
        ]
    lines.append("options = ort.SessionOptions()")
    for name, value in settings.options.items():
        lines.append(f"options.{name} = {f'ort.{value}' if isinstance(value, str) else value}")
    lines += [f'options.add_session_config_entry("{name}", "{value}")' for name, value in settings.config.items()]
    return lines


def ort_session(path: str | os.PathLike[str]) -> InferenceSession:
    """A session of the fitted .onnx file at `path`, with the settings that its metadata name. `fit --session` writes a
    program that does the same. The session runs on one thread and shares its arena with no other. On a processor, or
    with a version of ONNX Runtime, other than those that packed weights in the file are for, these are left alone.

    Raises UsageError for a file that was not fitted for ONNX Runtime, LoadError for one that cannot be read or whose
    settings are unknown, UnsupportedError where ONNX Runtime is missing or refuses the file, and where operators in it
    are for another processor or version.
    """
    library = onnxruntime_library("opening a session")
    return open_session(library, path, _for_here(library, path, session_settings(path)))


def _for_here(library: Any, path: str | os.PathLike[str], settings: SessionSettings) -> SessionSettings:
    """The settings on this processor and by this library."""
    entries = fitted_metadata(path)
    made_for = (entries.get("processor"), entries.get("runtime"))
    if made_for in ((None, None), (processor(), library.__version__)):
        return settings
    if entries.get("form") == "packed weights":
        return replace(settings, config={**settings.config, "session.disable_prepacking": "1"})
    raise UnsupportedError(
        f"{path} was fitted for another processor or version of ONNX Runtime ({made_for[1]}): fit the original here"
    )


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
    settings, region, cap = _ALL.get(entries["session"]), entries.get("region_bytes"), entries.get("arena_bytes")
    if settings is None:
        raise LoadError(f"{path} names the unknown session settings {entries['session'][:40]!r}")
    if not settings.arena:
        return settings
    for nbytes, most in ((region, machine_bytes()), (cap, 1 << 60)):
        if nbytes is not None and not (nbytes.isascii() and nbytes.isdigit() and 0 < int(nbytes[:20]) <= most):
            raise LoadError(f"{path} asks for an arena of {nbytes[:40]!r} bytes")
    settings = settings if region is None else settings.with_region(int(region))
    return settings if cap is None else settings.with_cap(int(cap))
