"""One run of a command in which every write, flush and rename fails once, and ends the process once, in turn.

    python -m tests.fuzz.faults FOLDER MADE,MADE,... COMMAND...

Where the command is about to write for the n-th time, this process is copied twice. In one copy that write fails, and
the command goes on from there; the other copy is killed there, behind a half of the write. After each the files are
looked at and put back, and then the command itself goes on. So it plans once, whatever it writes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from downset.clusters.toml_file import load_cluster
from downset.formats.reading import load

__all__ = ["check_whole", "content"]


class Faults:
    """The files that the command makes, and how often it has written."""

    def __init__(self, folder: Path, made: list[str]) -> None:
        self.folder, self.made, self.writes = folder, made, 0
        self.before = {name: content(folder / name) for name in made}
        self.copy = self.looking = False

    def counted(self, function: Callable[..., Any], tear: Callable[..., object] | None = None) -> Callable[..., Any]:
        """The function, before which both faults are tried; `tear` does half of its work."""

        def called(*arguments: Any, **options: Any) -> Any:
            if self.copy:  # in a copy everything behind the fault fails too: a disk that is full stays full
                raise OSError(errno.ENOSPC, "No space left on device")
            if not self.looking:  # reading what was written writes for itself
                self.writes += 1
                for kill in (False, True):
                    self.trial(kill, lambda: tear(*arguments) if tear is not None else None)
            return function(*arguments, **options)

        return called

    def trial(self, kill: bool, tear: Callable[[], object]) -> None:
        """One copy of this process, its end, and the files after it. In the copy where a write fails, this raises that
        failure."""
        folder, scratch = Folder(self.folder), Folder(Path(tempfile.gettempdir()))
        with tempfile.TemporaryFile() as errors:
            process = os.fork()
            if not process:
                self.copy = True
                os.dup2(errors.fileno(), 2)
                tear()
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.ENOSPC, "No space left on device")
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            errors.seek(0)
            said = errors.read().decode()
        scratch.put_back()
        self.looking = True
        self.check(kill, status, said)
        self.looking = False
        folder.put_back()

    def check(self, kill: bool, status: int, said: str) -> None:
        """Raise AssertionError where a copy left anything but what was there, or the whole of what it writes."""
        at = f"write {self.writes}, {'killed' if kill else 'failing'}: status {status}, stderr {said!r}"
        if kill:
            assert status == -signal.SIGKILL, at
            for entry in [*self.folder.rglob("*.part")]:  # the next process that writes there removes them
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        else:
            assert status == 2, at
            assert said.startswith("downset: error: ") and said.count("\n") == 1 and "No space left" in said, at
        check_whole(self.folder, self.made, self.before)


class Folder:
    """What is in a folder, to be put back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[Path, tuple[int, str | bytes | None]] = {}
        for entry in sorted(path.rglob("*")):
            self.entries[entry] = _state(entry)

    def put_back(self) -> None:
        """What is as it was stays: a model that is written again has changed."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        for entry in sorted(self.path.rglob("*"), reverse=True):
            if entry not in self.entries or _state(entry) != self.entries[entry]:
                if entry.is_dir() and not entry.is_symlink():
                    entry.chmod(0o700)
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        for entry, (mode, held) in self.entries.items():
            if entry.exists() or entry.is_symlink():
                continue
            if isinstance(held, str):
                entry.symlink_to(held)
                continue
            if held is None:
                entry.mkdir()
            else:
                with entry.open("wb") as file:
                    file.write(held)
            entry.chmod(mode)


def _state(entry: Path) -> tuple[int, str | bytes | None]:
    """Its permissions, and where a link leads, the content of a file, or None for a folder."""
    content = str(entry.readlink()) if entry.is_symlink() else entry.read_bytes() if entry.is_file() else None
    return stat.S_IMODE(entry.lstat().st_mode), content


def content(path: Path) -> dict[str, bytes] | bytes | None:
    """The bytes of a file, or of all files of a folder by their names; None where there is neither."""
    if path.is_dir():
        return {
            str(entry.relative_to(path)): entry.read_bytes() for entry in sorted(path.rglob("*")) if entry.is_file()
        }
    return path.read_bytes() if path.exists() else None


def check_whole(folder: Path, made: Sequence[str], before: Mapping[str, object]) -> None:
    """Every output is as it was, or reads as a whole file of its kind."""
    left = [entry.name for entry in folder.rglob("*") if entry.name.endswith(".part")]
    assert not left
    for name in made:
        path = folder / name
        if content(path) == before[name]:
            continue
        if path.suffix in (".onnx", ".tflite"):
            load(path)
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                assert all(arrays[key].size for key in arrays.files)
        elif name == "shards":
            if (path / "shards.json").exists():
                index = json.loads((path / "shards.json").read_text())
                assert all((path / shard["file"]).is_file() for shard in index["shards"])
        elif path.suffix == ".toml":
            load_cluster(path)
        elif path.suffix == ".h":
            assert path.read_text().splitlines()[-1].startswith("#endif"), name
        elif name != "keys":  # keys: a folder that was begun is not taken for whole
            assert path.read_bytes().rstrip().endswith((b"}", b"</svg>", b"8", b"0")), name


def torn(path: Path, data: bytes) -> None:
    with Path(path).open("wb") as file:
        file.write(data[: len(data) // 2])


def main() -> None:
    folder, made = Path(sys.argv[1]), sys.argv[2].split(",")
    sys.argv[:] = ["downset", *sys.argv[3:]]
    faults = Faults(folder, made)
    copyfile, write_bytes = shutil.copyfile, Path.write_bytes
    from downset.cli import main as command
    from tests.fuzz.stand_in import without_devices

    without_devices()

    place = {"fsync": (os, None), "replace": (Path, None), "write_bytes": (Path, torn)}
    for name, (where, tear) in place.items():
        setattr(where, name, faults.counted(getattr(where, name), tear))
    shutil.copyfile = faults.counted(copyfile, lambda one, two: torn(two, Path(one).read_bytes()))
    status = 0
    try:
        command()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    if faults.copy:
        os._exit(status)
    Path.write_bytes = write_bytes
    assert status == 0, status
    assert all(content(folder / name) != faults.before[name] for name in made)
    print(faults.writes)


if __name__ == "__main__":
    main()
