"""Bytes that stay in a file until they are needed, and then are read piece by piece; and whether a file has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from downset.errors import InvalidPlan, LoadError

__all__ = ["FileRange", "FileState", "check_copy", "check_ranges", "check_state", "file_state", "sha256"]

FileState = tuple[int, int, int]
"""Inode, size and time of the last change of a file."""

_PIECE = 1 << 18
"""Larger pieces take memory from the system each time, page by page: up to four times the CPU time."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` bytes of the file at the absolute `path`, from the byte `start`. `state`: that of the
    file when the range was made; reading fails where it has changed."""

    path: str
    start: int
    nbytes: int
    state: FileState

    def pieces(self) -> Iterator[bytes]:
        """The bytes, in pieces of 256 KiB, of which the last may be shorter. Raises LoadError where the file is missing
        or has changed."""
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123  the path is a string
                _check(self.path, file_state(os.fstat(file.fileno())), self.state)
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
        return sha256(self.pieces())

    def same_bytes(self, other: FileRange) -> bool:
        """Whether both have the same bytes. Neither is held in memory. Bytes of one file are compared with others of
        it, but not with themselves."""
        if self.nbytes != other.nbytes:
            return False
        if (self.state, self.start) == (other.state, other.start) and Path(self.path).samefile(other.path):
            return True
        return all(one == two for one, two in zip(self.pieces(), other.pieces(), strict=True))


def check_ranges(output: Path, pairs: Iterable[tuple[FileRange, FileRange]]) -> None:
    """Raise InvalidPlan where the second range of a pair, which was written for `output`, has other bytes than the
    first. Both are read, unless they are one range of one file."""
    for proven, written in pairs:
        if not proven.same_bytes(written):
            raise InvalidPlan(
                f"{output} is not written: its bytes from {written.start} on are not those that were proven; the disk "
                "or another program changed them; write to another disk"
            )


def check_copy(original: Path, copy: Path, output: Path) -> None:
    """Raise InvalidPlan unless the file `copy`, which was written for `output`, has the bytes of `original`."""
    whole = [
        FileRange(str(path.absolute()), 0, path.stat().st_size, file_state(path.stat())) for path in (original, copy)
    ]
    check_ranges(output, [(whole[0], whole[1])])


def sha256(pieces: Iterable[bytes]) -> bytes:
    """The SHA-256 of the pieces one after the other."""
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.digest()


def file_state(status: os.stat_result) -> FileState:
    """The state of a file by which a change is noticed."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_state(path: str | os.PathLike[str], state: FileState) -> None:
    """Raise LoadError where the file is missing or its state is another."""
    try:
        now = file_state(os.stat(path))  # noqa: PTH116  the path may be a string
    except OSError as error:
        raise LoadError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from None
    _check(path, now, state)


def _check(path: str | os.PathLike[str], now: FileState, state: FileState) -> None:
    if now != state:
        raise LoadError(f"{os.fspath(path)} has changed since it was read; start again")
