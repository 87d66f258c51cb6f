"""The shards on a device's disk, named by the hash of their content, in a folder whose size is limited.

A file is used only if its content has the hash of its name, each time that it is read: it may be damaged, or another's.
The shards of the program in use, and those that came for the next one, are kept whatever the limit. If room is needed,
the other shards are removed, the longest unused first. Shards for plans that may come do not displace each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Collection
from pathlib import Path

from downset.errors import UnsupportedError
from downset.process.leftovers import remove_leftovers
from downset.process.whole_files import make_private_folder, write_private
from downset.text import format_bytes

__all__ = ["LIMIT_BYTES", "KeptShards"]

LIMIT_BYTES = 4 << 30
_FREE_DISK_BYTES = 64 << 20


class KeptShards:
    """Shards kept on disk. Safe to use from several threads. Files of an earlier process count, and beyond the limit
    they are removed."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._needed: set[str] = set()
        self._ahead: set[str] = set()
        self._lock = threading.Lock()
        try:
            make_private_folder(folder)
            remove_leftovers(folder)
        except OSError as error:
            raise UnsupportedError(f"cannot keep shards in {folder}: {error.strerror or error}") from None
        self._make_room(0, self._needed)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.onnx"))

    def _path(self, shard: str) -> Path:
        return self._folder / f"{shard}.onnx"

    def content(self, shard: str) -> bytes | None:
        """The content of a shard. None if it is not there, or not as it came: then its file is removed."""
        path = self._path(shard)
        try:
            data = _regular_file(path)
            if hashlib.sha256(data).hexdigest() == shard:
                return data
        except FileNotFoundError:
            return None
        except OSError:  # a disk that cannot read it, or something that is not a file
            pass
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def use(self, shards: Collection[str]) -> None:
        """Note that a program begins that needs these shards and no others."""
        with self._lock:
            self._needed, self._ahead = set(shards), set()
            for shard in shards:
                with contextlib.suppress(OSError):
                    os.utime(self._path(shard), follow_symlinks=False)

    def keep(self, shard: str, data: bytes, *, ahead: bool = False) -> list[str]:
        """Write a shard; returns the shards that were removed to make room for it. `ahead`: it is for a plan that may
        come.

        Raises UnsupportedError if its content does not have the hash of its name, if the disk is full, or if a shard
        that is kept ahead has no room within the limit."""
        if hashlib.sha256(data).hexdigest() != shard:
            raise UnsupportedError("a shard arrived damaged")
        with self._lock:
            stays = self._needed | (self._ahead if ahead else set())
            removed = list[str]()
            if self.content(shard) is None:
                removed = self._make_room(len(data), stays)
                if ahead and self._taken() + len(data) > self._limit_bytes:
                    raise UnsupportedError(f"no room for another shard within {format_bytes(self._limit_bytes)} bytes")
                self._write(shard, data)
            (self._ahead if ahead else self._needed).add(shard)
            return removed

    def _taken(self) -> int:
        return sum(path.lstat().st_size for path in self._folder.glob("*.onnx"))

    def _make_room(self, nbytes: int, stays: Collection[str]) -> list[str]:
        """Remove the longest unused shards until `nbytes` fit or none may be removed; returns the removed ones."""
        others = (path for path in self._folder.glob("*.onnx") if path.stem not in stays)
        taken, removed = self._taken(), []
        for path in sorted(others, key=lambda path: (path.lstat().st_mtime_ns, path.stem)):
            if taken + nbytes <= self._limit_bytes:
                break
            taken -= path.lstat().st_size
            path.unlink()
            removed.append(path.stem)
        return removed

    def _write(self, shard: str, data: bytes) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < len(data) + _FREE_DISK_BYTES:
            raise UnsupportedError(
                f"the disk of {self._folder} is full: a shard takes {format_bytes(len(data))} bytes and "
                f"{format_bytes(free)} are left"
            )
        try:
            write_private(self._path(shard), data)
        except OSError as error:
            raise UnsupportedError(f"cannot keep a shard: {error.strerror or error}") from None


def _regular_file(path: Path) -> bytes:
    """The content of a file that is neither a link, whose target may be anything, nor a pipe, which may have no end."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "not a file")
        return file.read()
