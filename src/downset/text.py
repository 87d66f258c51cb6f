"""Sizes, durations and names as users write and read them. KB = KiB = 1024 bytes, as in all options."""

from __future__ import annotations

import json
import os
import re
import reprlib
import select
import stat
import sys
import textwrap
import time
import unicodedata
from dataclasses import fields, is_dataclass
from typing import Any

from downset.errors import LoadError, UsageError

__all__ = [
    "EXPORT",
    "abridged",
    "brief",
    "check_path",
    "counted",
    "escaped",
    "format_bytes",
    "format_seconds",
    "format_size",
    "is_plain",
    "of_pytorch",
    "operator_name",
    "parse_bytes",
    "parse_factor",
    "parse_hop",
    "parse_seconds",
    "parse_share",
    "printable",
    "range_text",
    "read_file",
    "read_stdin",
    "shell_word",
    "shortened",
    "unheard",
    "wrapped",
]

_PLAIN = frozenset({str, int, float, bool, type(None)})


def is_plain(value: object) -> bool:
    """Whether a value is the same in every form of a document: a text, a number, None, or a dictionary of these."""
    return type(value) in _PLAIN or (type(value) is dict and all(type(one) in _PLAIN for one in value.values()))


_MOST = 1 << 62
"""The most bytes of a size; larger ones would overflow sums."""
_LONGEST_S = 1e9
"""The longest duration in seconds, about thirty years; operating systems do not wait longer."""
_FACTORS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_bytes(text: str) -> int:
    """`256KB`, `256 KiB`, `1.5MB`, `262144` -> bytes. Raises UsageError for other text, and for sizes below 1."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?\s*", text, re.IGNORECASE)
    nbytes = min(float(match[1]) * _FACTORS[match[2].upper()], _MOST) if match else 0
    if not 1 <= nbytes < _MOST:
        raise UsageError(f"{text!r} is not a size; write for example 256KB, 1.5MB or 262144")
    return int(nbytes)


def parse_seconds(text: str, *, zero: bool = False) -> float:
    """`10s`, `500ms`, `2min`, `1.5` -> seconds. Raises UsageError for other text, for negative numbers, and for
    zero unless `zero` (of a moment, which may be 0)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?\s*", text)
    factor = {None: 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
    seconds = float(match[1]) * factor[match[2]] if match else -1.0
    if not 0 <= seconds < _LONGEST_S or (seconds == 0 and not zero):
        raise UsageError(f"{text!r} is not a {'time' if zero else 'duration'}; write for example 10s, 500ms or 2min")
    return seconds


def parse_share(text: str) -> float:
    """ "10%" or "0.1" -> 0.1; between 0 and 1."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"{text!r} is not a share; write for example 10% or 0.1")
    return share


def parse_factor(text: str) -> float:
    """ "1.1x" or "1.1" -> 1.1; at least 1."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*x?\s*", text)
    factor = float(match[1]) if match else 0.0
    if factor < 1:
        raise UsageError(f"{text!r} is not a factor from 1; write for example 1.1x")
    return factor


def parse_hop(text: str) -> tuple[int, ...]:
    """ "8" -> (8,), "8@1" -> (8, 1), "" -> ()."""
    match = re.fullmatch(r"\s*(?:(\d{1,9})(?:@(\d{1,3}))?)?\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a hop; write for example 8, or 8@1 for rows along axis 1 of the input")
    return tuple(int(number) for number in match.groups() if number is not None)


def range_text(sizes: range) -> str:
    """A range of sizes as `--dim` takes it: "1..512"."""
    return f"{sizes[0]}..{sizes[-1]}"


def format_bytes(nbytes: float) -> str:
    """Exact bytes with thousands separators: "1,234,567"."""
    return f"{int(nbytes):,}"


def format_size(nbytes: float) -> str:
    """Bytes in the largest unit that they reach, to three digits: "196 KB", "1.5 MB". KB = 1024 bytes."""
    for factor, unit in ((1024**3, "GB"), (1024**2, "MB"), (1024, "KB")):
        if abs(nbytes) >= factor:
            value = nbytes / factor
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
    return f"{int(nbytes)} B"


def format_seconds(seconds: float) -> str:
    """Seconds in the unit that shows them best, to four digits: "1.25 s", "3.1 ms", "42 µs"."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs" if seconds else "0 s"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 stage", "1,200 operators". The noun takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """The text in at most `most` characters. A longer one loses its middle, since the ends of a name identify it."""
    if len(text) <= most:
        return text
    if most < 3:
        return text[: max(most, 0)]
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


_WORD_OR_MEASURE = re.compile(r"[^\w\s]*\d(?:[\d.,^e+-]*\d)? +[^\W\d_]\S*|\S+")
"""A word, or a number together with the word behind it, which may be its unit."""


def wrapped(line: str, columns: int) -> list[str]:
    """The line in pieces of at most so many columns, broken between words only, and not between a number and its unit
    where both fit. A longer word has a piece of its own. Indentation and the sign of a C comment are repeated."""
    indent = " " * min(len(line) - len(line.lstrip(" ")), columns // 2)
    pieces, piece, end = [], "", 0
    for match in _WORD_OR_MEASURE.finditer(line):
        whole = _columns(match[0]) <= columns - len(indent)
        for word in [match] if whole else re.compile(r"\S+").finditer(line, match.start(), match.end()):
            longer = piece + line[end : word.start()] + word[0]
            if piece and _columns(longer) > columns:
                pieces.append(piece)
                longer = f"{indent}{'// ' if ' // ' in f' {piece}' else ''}{word[0]}"
            piece, end = longer, word.end()
    return [*pieces, piece]


def _columns(text: str) -> int:
    """How many columns of a terminal the text takes: wide characters take two."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


_NAMED, _NAME_WIDTH = 2, 60
"""How many of the operators that were fused into one are named, and in how many characters."""


def operator_name(name: str) -> str:
    """An operator's name for a line. TensorFlow joins the names of fused operators by semicolons: the first ones are
    shown, the others counted. A long name loses its middle."""
    fused = name.split(";")
    more = f" and {len(fused) - _NAMED} more" if len(fused) > _NAMED else ""
    return f"{shortened(';'.join(fused[:_NAMED]), _NAME_WIDTH)}{more}"


def brief(text: object, most: int = 300) -> str:
    """The message of another library on one line; a long one is cut between words."""
    return textwrap.shorten(str(text), most, placeholder=" ...")


_UNOPENED_S = 10.0
"""Seconds to wait until a named pipe is opened for writing."""
_LOOK_S = 0.05
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)


_EXPORTED = "torch.export.export(model, example_inputs)"
EXPORT = f"torch.export.save({_EXPORTED}, 'model.pt2')"
"""The program that writes a readable file of PyTorch's, for messages."""


def of_pytorch(value: object) -> str:
    """The end of a message that says how PyTorch's own object becomes a file; empty for all other values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"; write a file with {EXPORT}"
    if torch is not None and isinstance(value, torch.export.ExportedProgram):
        return f"; write a file with {EXPORT.replace(_EXPORTED, 'program')}"
    return ""


def check_path(value: object, name: str = "path") -> None:
    """Raise UsageError for a value that is not the path of a file."""
    if not isinstance(value, (str, os.PathLike)):
        given = brief(repr(value), 60) + of_pytorch(value)
        raise UsageError(f"{name} must be the path of a file, such as 'net.onnx'; given {given}")


def read_file(path: str | os.PathLike[str], *, most_bytes: int = 1 << 30, unopened_s: float = _UNOPENED_S) -> bytes:
    """The bytes of a file or a pipe. Raises LoadError for a device, for more than `most_bytes`, and for a pipe that is
    not opened for writing within `unopened_s` seconds; OSError where it cannot be read."""
    check_path(path)
    name = os.fspath(path)  # `open` would take a number for an open file, and close it
    with open(name, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE)) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise LoadError(f"{path} is a device; give a file")
        if stat.S_ISFIFO(status.st_mode):
            data = _read_pipe(file.fileno(), str(path), most_bytes, unopened_s)
        else:
            data = b"" if status.st_size > most_bytes else file.read(most_bytes + 1)
    if max(len(data), status.st_size) > most_bytes:
        raise LoadError(f"{path} has more than {format_size(most_bytes)}; no file of its kind is so large")
    return data


def _read_pipe(number: int, path: str, most_bytes: int, unopened_s: float) -> bytes:
    """The bytes of a non-blocking pipe. A folder from a stranger may hold a named pipe that no process ever opens for
    writing, so opening has a time limit; a writer that has opened it may take any time."""
    data, until = bytearray(), time.monotonic() + unopened_s
    opened = False
    while len(data) <= most_bytes:
        try:
            chunk = os.read(number, 1 << 20)
        except BlockingIOError:  # somebody has it open for writing
            select.select([number], [], [])
            opened = True
            continue
        data += chunk
        if not chunk and (data or opened):
            break
        if not chunk:
            opened = bool(select.select([number], [], [], _LOOK_S)[0])  # written into, or closed again
            if not opened and time.monotonic() > until:
                raise LoadError(f"{path} is a pipe that nobody has opened for writing within {unopened_s:.3g} s")
    return bytes(data)


def read_stdin(*, most_bytes: int = 1 << 30) -> bytes:
    """The bytes of the standard input. Raises LoadError for more than `most_bytes`."""
    data = sys.stdin.buffer.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise LoadError(f"the standard input has more than {format_size(most_bytes)}; no file of its kind is so large")
    return data


def escaped(text: str) -> str:
    """The JSON text with control characters in its strings escaped, so that a terminal can show it."""
    if text.replace("\n", "").isprintable():
        return text
    return "\n".join(
        line
        if line.isprintable()
        else "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)
        for line in text.split("\n")
    )


def printable(text: str) -> str:
    """A name from a file for a terminal or a comment: on one line, without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shell_word(text: str) -> str:
    """A word with names from a file, quoted so that a shell executes no part of it when a user pastes it."""
    return "'" + printable(text).replace("'", "'\\''") + "'"


_ABRIDGING = reprlib.Repr()
_ABRIDGING.maxstring = _ABRIDGING.maxother = 60


def abridged(value: Any) -> str:
    """The `repr` of a dataclass on one line: fields at their default are left out, long fields are cut, and several
    dataclasses in one field are counted."""
    held = ((field, getattr(value, field.name)) for field in fields(value))
    shown = (f"{field.name}={_abridged_field(one)}" for field, one in held if one is not field.default)
    return f"{type(value).__name__}({' '.join(', '.join(shown).split())})"


def _abridged_field(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 1 and is_dataclass(value[0]):
        return f"<{len(value)} {type(value[0]).__name__}>"
    return _ABRIDGING.repr(value)


def unheard(*arguments: object) -> None:
    """Ignore reports of progress: the default receiver."""
