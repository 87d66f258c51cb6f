"""Bytes that stay in a file until they are needed, and then are read piece by piece."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from downset.errors import LoadError

__all__ = ["FileRange", "file_state"]

_PIECE = 1 << 18
"""Larger pieces take memory from the system each time, page by page: up to four times the CPU time."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` bytes of the file at the absolute `path`, from the byte `start`. `state`: inode, size and time of the
    last change of the file when the range was made; reading fails where they have changed."""

    path: str
    start: int
    nbytes: int
    state: tuple[int, int, int]

    def pieces(self) -> Iterator[bytes]:
        """The bytes, in pieces of 256 KiB, of which the last may be shorter. Raises LoadError where the file is missing
        or has changed."""
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123  the path is a string
                if file_state(os.fstat(file.fileno())) != self.state:
                    raise LoadError(f"{self.path} has changed since it was read; start again")
                end = self.start + self.nbytes
                file.seek(self.start)
                for place in range(self.start, end, _PIECE):
                    piece = file.read(min(_PIECE, end - place))
                    if len(piece) < min(_PIECE, end - place):
                        raise LoadError(f"{self.path} ends before its byte {end}: it has been cut short")
                    yield piece
        except OSError as error:
            raise LoadError(f"cannot read {self.path}: {error.strerror or error}") from None

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def digest(self) -> bytes:
        """The SHA-256 of the bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()

    def same_bytes(self, other: FileRange) -> bool:
        """Whether both have the same bytes. Neither is held in memory. Bytes of one file are compared with others of
        it, but not with themselves."""
        if self.nbytes != other.nbytes:
            return False
        if (self.state, self.start) == (other.state, other.start) and Path(self.path).samefile(other.path):
            return True
        return all(one == two for one, two in zip(self.pieces(), other.pieces(), strict=True))


def file_state(status: os.stat_result) -> tuple[int, int, int]:
    """The state of a file by which a change is noticed."""
    return status.st_ino, status.st_size, status.st_mtime_ns
