"""Temporary files and folders whose names say which process made them, and the removal of those whose process was
killed.

A name holds the machine or container, the process, and when the process started, since numbers of processes are used
again. Only plain files and real folders of the same user are removed, and only those of a process that has ended.
Machines that share a folder must differ in name or in /etc/machine-id.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import zlib
from functools import cache
from pathlib import Path

from downset.process.supervisor import outliving_process

__all__ = ["owned_prefix", "remove_leftovers"]

_OWNED = re.compile(r"\.?downset-([0-9a-f]{8})-([0-9]{1,10})-([0-9a-f]{8})-[0-9a-z_]{8}(?:\.part)?")
_STATE, _START = 0, 19
"""Indices of a process's state and start among the fields of /proc/PID/stat that follow the process's name."""


def owned_prefix() -> str:
    """The beginning of a name that says that this process, or the one that watches it, made the file or folder. Eight
    random characters follow."""
    process = outliving_process()
    return f"downset-{_machine():08x}-{process}-{_started(process) or 0:08x}-"


def remove_leftovers(folder: Path) -> None:
    """Remove the files and folders that killed processes left in `folder`, where that is possible."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _OWNED.fullmatch(entry.name)
            if match is not None and int(match[1], 16) == _machine() and not _runs(int(match[2]), int(match[3], 16)):
                _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        if status.st_uid != os.geteuid():
            return
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif stat.S_ISREG(status.st_mode):
            Path(entry.path).unlink()


def _runs(process: int, started: int) -> bool:
    """Whether the process runs that started then. 0: when it started is not known."""
    now = _started(process)
    return now is not None and (now == started or not now or not started)


def _started(process: int) -> int | None:
    """A number that tells the process from any earlier or later one with its number; 0 where the system does not say
    when it started, None where it does not run."""
    with contextlib.suppress(OSError, IndexError):
        if str(Path("/proc/self").readlink()) == str(os.getpid()):  # else these are the numbers of another container
            fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
            ended = fields[_STATE] in (b"Z", b"X")  # killed, and its parent has not asked yet
            return None if ended else zlib.crc32(_boot() + fields[_START])
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:  # another user's
        pass
    return 0


@cache
def _boot() -> bytes:
    return _content("/proc/sys/kernel/random/boot_id")


@cache
def _machine() -> int:
    """A number for this machine or container, in which numbers of processes are valid."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return zlib.crc32(f"{platform.node()} {space} ".encode() + _content("/etc/machine-id"))


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
