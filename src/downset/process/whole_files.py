"""Writes files whole or not at all: into a temporary file beside the destination, which is then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from downset.errors import UsageError
from downset.process.leftovers import owned_prefix, remove_leftovers

__all__ = [
    "check_folder",
    "check_output",
    "copy_whole",
    "is_one_name",
    "link_whole",
    "make_private_folder",
    "part_beside",
    "settle_on_disk",
    "write_private",
    "write_whole",
]


Named = str | os.PathLike[str]
"""The path of a file or folder, as the user gives it."""


def check_output(path: Named, *, source: Named | Sequence[Named] | None = None) -> None:
    """Raise UsageError for an output path that cannot be written, before the work starts.

    `source`: the file or files being read, which are never overwritten.
    """
    if not os.fspath(path):
        raise UsageError("the output's name is empty; name a file")
    if "\0" in os.fspath(path):
        raise UsageError(f"output {path!r} holds a null byte, which no name of a file may")
    if os.fspath(path) == "-":
        raise UsageError(
            "output '-' names no file, and this is not written to stdout; for a file of that name write ./-"
        )
    try:
        _check(Path(path), _paths(source))
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder that is closed, links in a circle
        raise UsageError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def check_folder(folder: Named, *, sources: Sequence[Named], written: re.Pattern[str]) -> None:
    """Raise UsageError for an output folder that cannot be filled, before the work starts.

    `sources`: files being read; none of them may lie in the folder with a name that matches `written`."""
    if not os.fspath(folder):
        raise UsageError("the output folder's name is empty; name a folder")
    try:
        _check_folder(Path(folder), _paths(sources), written)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from None


def _check_folder(folder: Path, sources: Sequence[Path], written: re.Pattern[str]) -> None:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists() or place.is_symlink())
    if not there.is_dir():
        raise UsageError(f"output folder {folder}: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise UsageError(f"output folder {folder}: {there} is not writable")
    for entry in folder.iterdir() if there == folder else ():
        if written.fullmatch(entry.name) and any(_same(entry, source) for source in sources):
            raise UsageError(f"output {entry} is the file being read; choose another folder")


def _paths(sources: Named | Sequence[Named] | None) -> list[Path]:
    if sources is None:
        return []
    return [Path(sources)] if isinstance(sources, str | os.PathLike) else [Path(source) for source in sources]


def _same(path: Path, other: Path) -> bool:
    """Whether both paths are one file, also through links."""
    return path.exists() and other.exists() and path.samefile(other)


def is_one_name(path: Path, other: Path) -> bool:
    """Whether both, behind links, are one name of one file, also where its folder has several paths, or ignores case.
    Of two hard links each is a name of its own."""
    path, other = path.resolve(), other.resolve()
    if not _same(path, other):
        return False
    return path.name.casefold() == other.name.casefold() and path.parent.samefile(other.parent)


def _check(path: Path, sources: Sequence[Path]) -> None:
    if path.is_dir():
        raise UsageError(f"output {path} is a directory; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"output directory {path.parent} does not exist")
    if _is_device(path):
        return
    folder = path.resolve().parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise UsageError(f"output {path} is a link into {folder}, which does not exist")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"output directory {folder} is not writable")
    if any(_same(path, source) for source in sources):
        raise UsageError(f"output {path} is the file being read; choose another name")
    if path.exists() and any(os.path.samestat(path.stat(), stream) for stream in _streams()):
        raise UsageError(f"output {path} is where this process prints; choose another name")


def _streams() -> Iterator[os.stat_result]:
    """The files behind stdout and stderr; replacing one of them would disconnect the stream."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            yield os.fstat(number)


Check = Callable[[Path], object]
"""Raises where a file that was written, and does not have its name yet, is not to take it. Pipes and devices, which
cannot be read again, are not checked."""


def write_whole(
    path: str | os.PathLike[str],
    data: bytes | Iterable[bytes],
    *,
    source: Path | None = None,
    check: Check | None = None,
) -> None:
    """Replace `path` by `data`, bytes or pieces of them, in one step. Raises UsageError (unwritable, disk full, or the
    very file being read), and what making the pieces and `check` raise."""
    check_output(path, source=source)
    pieces = [data] if isinstance(data, bytes) else data

    def write(beside: Path) -> None:
        with _opened_pipe(beside) if beside.is_fifo() else beside.open("wb") as file:
            file.writelines(pieces)

    _place(Path(path), write, check)


def copy_whole(original: Path, path: Path, *, check: Check | None = None) -> None:
    """Replace `path` by a copy of `original` in one step. Raises UsageError like `write_whole`."""
    check_output(path)
    _place(path, lambda beside: shutil.copyfile(original, beside), check)


def link_whole(original: Path, path: Path, *, source: Path | None = None, check: Check | None = None) -> None:
    """Make `path` another name of `original`, which nobody changes any more; a copy, where its folder is on another
    file system or has no hard links. In one step. Raises UsageError like `write_whole`."""

    def write(beside: Path) -> None:
        try:
            os.link(original, beside)
        except OSError:
            shutil.copyfile(original, beside)

    check_output(path, source=source)
    _place(path, write, check)


_UNREAD_S = 10.0
"""Seconds to wait until a named pipe is opened for reading."""
_LOOK_S = 0.05


def _opened_pipe(path: Path) -> IO[bytes]:
    """A named pipe, opened for writing. Raises OSError where it is not opened for reading in time: opening it would
    otherwise wait forever."""
    until = time.monotonic() + _UNREAD_S
    while True:
        try:
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(
                    errno.ENXIO, f"nobody has opened this pipe for reading within {_UNREAD_S:.3g} s"
                ) from None
        time.sleep(_LOOK_S)
    os.set_blocking(number, True)
    return os.fdopen(number, "wb")


def _place(path: Path, write: Callable[[Path], object], check: Check | None) -> None:
    """Replace `path` by the file that `write` makes. Of a link, the target is replaced and the link stays. A replaced
    file keeps its permissions."""

    def checked(beside: Path) -> None:
        write(beside)
        if check is not None:
            check(beside)

    try:
        if _is_device(path):
            write(path)
            return
        target = path.resolve() if path.is_symlink() else path
        kept = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        _replace(target, checked, kept)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise UsageError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def _replace(path: Path, write: Callable[[Path], object], mode: int | None) -> None:
    """Replace `path` in one step by the file that `write` makes, with this mode. Raises OSError."""
    beside = part_beside(path)
    try:
        write(beside)
        if mode is not None:
            beside.chmod(mode)
        settle_on_disk(beside)
        beside.replace(path)
        settle_on_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def make_private_folder(folder: Path) -> None:
    """Make the folder, and those above it that are missing, with mode 700. Raises OSError."""
    for place in reversed((folder, *folder.absolute().parents)):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` in one step by a file that other users can never read, and that survives a crash whole. Raises
    OSError."""

    def write(beside: Path) -> None:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)

    _replace(path, write, 0o600)


def settle_on_disk(path: Path) -> None:
    """Wait until the file, or the names in the folder, are on the disk. Otherwise a rename could survive a crash
    without the data."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(opened)


def part_beside(path: Path) -> Path:
    """A path in the folder of `path` for a file or folder while it is written. What killed processes left there is
    removed first. The name is short, since names have a limit of length."""
    remove_leftovers(path.parent)
    return path.with_name(f".{owned_prefix()}{os.urandom(4).hex()}.part")


def _is_device(path: Path) -> bool:
    """Whether the path is a pipe or a device. These are written to; renaming a file onto one would replace it."""
    return path.exists() and not path.is_file() and not path.is_dir()
