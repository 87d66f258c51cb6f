"""Files are written whole or not at all: beside the destination first, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from downset.errors import UsageError

__all__ = ["check_output", "copy_whole", "write_whole"]


def check_output(path: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None) -> None:
    """Say what is wrong with an output path before the work starts, not after it: raises UsageError.

    `source`: the file being read, which is never written over.
    """
    if os.fspath(path) == "-":
        raise UsageError(
            "output '-' names no file, and this is not written to stdout; for a file of that name write ./-"
        )
    try:
        _check(Path(path), None if source is None else Path(source))
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _check(path: Path, source: Path | None) -> None:
    if path.is_dir():
        raise UsageError(f"output {path} is a directory; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"output directory {path.parent} does not exist")
    if _is_device(path):
        return
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"output directory {path.parent} is not writable")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"output {path} is the file being read; choose another name")


def write_whole(path: str | os.PathLike[str], data: bytes, *, source: Path | None = None) -> None:
    """Replace `path` by `data` in one step. Raises UsageError (unwritable, disk full, or the very file being read)."""
    check_output(path, source=source)
    _place(Path(path), lambda beside: beside.write_bytes(data))


def copy_whole(original: Path, path: Path) -> None:
    """Replace `path` by a copy of `original` in one step. Raises UsageError like `write_whole`."""
    check_output(path)
    _place(path, lambda beside: shutil.copyfile(original, beside))


def _place(path: Path, write: Callable[[Path], object]) -> None:
    device = _is_device(path)
    # short, for a name may be as long as the file system takes
    beside = path if device else path.with_name(f".downset-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        write(beside)
        if not device:
            beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if not device:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """Pipes and devices are written to; renaming a file onto one would take its place."""
    return path.exists() and not path.is_file() and not path.is_dir()
