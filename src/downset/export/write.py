"""Files are written whole or not at all: beside the destination first, then renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from downset.errors import UsageError

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes, *, source: Path | None = None) -> None:
    """Replace `path` by `data` in one step. Raises UsageError (unwritable, disk full, or the very file being read)."""
    path = Path(path)
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"output {path} is the model itself; choose another name")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
