"""Opens sessions with given settings, and writes the same as Python code. Both read the same lists, so that the printed
code does what was measured."""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import Any

from downset.errors import UnsupportedError
from downset.results.sessions import SessionSettings
from downset.text import brief

__all__ = ["open_session", "session_code"]


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
    optimised file there. Raises UnsupportedError where ONNX Runtime cannot load the file."""
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
        return library.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise UnsupportedError(f"ONNX Runtime cannot load {Path(path).name}: {brief(error)}") from None


def session_code(settings: SessionSettings) -> list[str]:
    """Lines of Python that register the arena and make `options`, as `open_session` does; `ort` is the library."""
    lines = []
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
