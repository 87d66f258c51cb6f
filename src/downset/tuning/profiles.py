"""Keeps measured latencies of stages for later runs, in a SQLite file in the user's cache folder.

Several processes may read and write it at once. A damaged file is moved aside and a new one is begun. Every row has a
checksum: a timing is used only as it was kept. A file that other users could have written is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar

from downset.errors import UnsupportedError, UsageError
from downset.extras import optional_library
from downset.messages import Call, Setting
from downset.process.whole_files import make_private_folder

__all__ = ["Key", "Profiles", "cache_folder", "default_path", "row_checksum"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS timings (
    device TEXT NOT NULL, versions TEXT NOT NULL, dtype TEXT NOT NULL, batch INTEGER NOT NULL, signature TEXT NOT NULL,
    seconds REAL NOT NULL CHECK (seconds >= 0), taken_at REAL NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (device, versions, dtype, batch, signature)
) WITHOUT ROWID
"""
_SOUND = "checksum = row_checksum(device, versions, dtype, batch, signature, seconds, taken_at)"
_ODD = f"""
SELECT 1 FROM timings WHERE typeof(device) != 'text' OR typeof(versions) != 'text' OR typeof(dtype) != 'text' OR
    typeof(batch) != 'integer' OR typeof(signature) != 'text' OR typeof(seconds) != 'real' OR seconds > 1e9 OR
    typeof(taken_at) != 'real' OR taken_at NOT BETWEEN 0 AND 1e11 OR NOT {_SOUND} LIMIT 1
"""
"""Finds damaged rows: SQLite stores values of any type in a column, and times may be out of range."""
_FOREIGN = "SELECT 1 FROM sqlite_master WHERE type NOT IN ('table', 'index') OR tbl_name != 'timings' LIMIT 1"
"""Finds views and triggers: a view in place of the table could have rows without end."""
_WAIT_S = 10.0
_Answer = TypeVar("_Answer")


class Key(NamedTuple):
    """The conditions of a timing. `versions`: of the libraries and of downset. `signature`: names the stage."""

    device: str
    versions: str
    dtype: str
    batch: int
    signature: str


def cache_folder(what: str, *, extra: str) -> Path:
    """`$DOWNSET_CACHE`, or the folder `downset` in the user's cache folder. `what`, for messages, says who needs it;
    `extra` is the extra that installs platformdirs, which finds it. Raises UsageError if the user has no home."""
    chosen = os.environ.get("DOWNSET_CACHE")
    if chosen:
        return Path(chosen)
    platformdirs = optional_library("platformdirs", what=what, extra=extra)
    try:
        folder = Path(platformdirs.user_cache_dir("downset", appauthor=False))
    except RuntimeError:  # newer Pythons raise this without a home; older ones leave the ~
        folder = Path("~")
    if not folder.is_absolute():
        raise UsageError(f"{what} needs a folder, and this user has no home: set DOWNSET_CACHE to one")
    return folder


def default_path() -> Path:
    """The path of the file of timings."""
    return cache_folder("keeping measurements", extra="torch") / "profiles.sqlite"


def row_checksum(*row: object) -> int:
    """The checksum of a row: of its values, and of their types. SQLite has none of its own."""
    return zlib.crc32(repr(row).encode())


def _opened(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made where there is none, for its user alone."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(path, timeout=_WAIT_S)
    connection.create_function("row_checksum", 7, row_checksum, deterministic=True)
    return connection


def _check_owner(path: Path) -> None:
    """Raise PermissionError if users other than this one could have written the file."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        if status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "other users can write it (chmod go-w)")


def _is_damage(error: Exception) -> bool:
    """Whether the error means that the file is damaged. A file that is locked or read-only is not damaged."""
    if isinstance(error, UnicodeDecodeError):  # names in the file are not UTF-8
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.OperationalError)  # text in a row is not UTF-8
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):  # the higher bits give details
        return True
    return bool(code == sqlite3.SQLITE_ERROR)  # another schema, such as a missing column


class Profiles:
    """Timings by key, in the file at `path`. `notes` says if the file was damaged and moved."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self.notes: list[str] = []
        try:
            make_private_folder(self.path.parent)
            _check_owner(self.path)
            with closing(_opened(self.path)) as connection:
                connection.execute(_SCHEMA)
                if connection.execute(_FOREIGN).fetchone():
                    raise sqlite3.OperationalError("views or triggers that no measurement has")
                (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                odd = connection.execute(_ODD).fetchone()
            if health != "ok" or odd:
                self._move_aside("values that no measurement has" if health == "ok" else str(health))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _is_damage(error):
                self._move_aside(str(error))
            else:
                raise self._unusable(error) from None
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> UnsupportedError:
        return UnsupportedError(
            f"{self.path}: {error}; close what uses it, set DOWNSET_CACHE to another folder, or measure again: `",
            Call("tune_stages", (Setting("profiles", None),)),
            "`",
        )

    def _move_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.stem}.damaged-{time.time_ns()}{self.path.suffix}")
        try:
            for suffix in ("-journal", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self.path.replace(aside)
            with closing(_opened(self.path)) as connection:
                connection.execute(_SCHEMA)
        except FileNotFoundError:  # another process moved it first, and begins a new one
            return
        except (OSError, sqlite3.Error, UnicodeDecodeError) as worse:
            raise self._unusable(worse) from None
        self.notes.append(f"{self.path} was damaged ({why}); it was moved to {aside.name}, and a new one was begun")

    def _ask(self, question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        """The answer of the file. If the file turns out to be damaged, it is moved aside and a new one is asked."""
        for again in (False, True):
            try:
                with closing(_opened(self.path)) as connection, connection:
                    connection.execute(_SCHEMA)
                    return question(connection)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if again or not _is_damage(error):
                    raise self._unusable(error) from None
                self._move_aside(str(error))
            except OSError as error:
                raise self._unusable(error) from None
        raise AssertionError("asked twice, and neither answered nor refused")

    def get(self, key: Key) -> float | None:
        """The seconds kept for a key, or None."""
        key_is = "(device, versions, dtype, batch, signature) = (?, ?, ?, ?, ?)"
        text = f"SELECT seconds FROM timings WHERE {key_is} AND {_SOUND}"
        row = self._ask(lambda connection: connection.execute(text, key).fetchone())
        return None if row is None else float(row[0])

    def matching(self, device: str, versions: str, dtype: str, batch: int) -> dict[str, float]:
        """The seconds of every stage under these conditions, by signature."""
        conditions = "(device, versions, dtype, batch) = (?, ?, ?, ?)"
        text = f"SELECT signature, seconds FROM timings WHERE {conditions} AND {_SOUND}"
        rows = self._ask(lambda connection: connection.execute(text, (device, versions, dtype, batch)).fetchall())
        return {str(signature): float(seconds) for signature, seconds in rows}

    def put(self, timings: Sequence[tuple[Key, float]]) -> None:
        """Keep these timings; a timing of the same key is replaced."""
        values = [(*key, float(seconds), time.time()) for key, seconds in timings]
        rows = [(*row, row_checksum(*row)) for row in values]
        text = "INSERT OR REPLACE INTO timings VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._ask(lambda connection: connection.executemany(text, rows))

    def forget(self, keys: Sequence[Key]) -> int:
        """Remove the timings of these keys; returns how many there were."""
        text = "DELETE FROM timings WHERE (device, versions, dtype, batch, signature) = (?, ?, ?, ?, ?)"
        return self._ask(lambda connection: max(0, connection.executemany(text, keys).rowcount) if keys else 0)

    def summary(self) -> list[tuple[str, str, str, int, int, float]]:
        """(device, versions, dtype, batch, number of timings, time of the last one in seconds since 1970), a tuple for
        each combination."""
        text = (
            "SELECT device, versions, dtype, batch, count(*), max(taken_at) FROM timings "
            "GROUP BY device, versions, dtype, batch ORDER BY device, versions, dtype, batch"
        )
        return [tuple(row) for row in self._ask(lambda connection: connection.execute(text).fetchall())]

    def clear(self) -> int:
        """Remove all timings; returns how many there were."""
        return self._ask(lambda connection: connection.execute("DELETE FROM timings").rowcount)
