"""Sizes, durations and names as people write and read them. KB = KiB = 1024 bytes, as in all options."""

from __future__ import annotations

import json
import re
import reprlib
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

from downset.errors import UsageError

__all__ = [
    "abridged",
    "brief",
    "escaped",
    "format_bytes",
    "parse_bytes",
    "parse_factor",
    "parse_seconds",
    "parse_share",
    "printable",
]

_FACTORS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_bytes(text: str) -> int:
    """`256KB`, `256 KiB`, `1.5MB`, `262144` -> bytes. Raises UsageError for anything else, zero and negatives too."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?\s*", text, re.IGNORECASE)
    nbytes = int(float(match[1]) * _FACTORS[match[2].upper()]) if match else 0
    if nbytes <= 0:
        raise UsageError(f"{text!r} is not a size; write for example 256KB, 1.5MB or 262144")
    return nbytes


def parse_seconds(text: str, *, zero: bool = False) -> float:
    """`10s`, `500ms`, `2min`, `1.5` -> seconds. Raises UsageError for anything else, negatives too, and for zero
    unless `zero` (a moment, not a duration)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?\s*", text)
    factor = {None: 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
    seconds = float(match[1]) * factor[match[2]] if match else -1.0
    if seconds < 0 or (seconds == 0 and not zero):
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


def format_bytes(nbytes: float) -> str:
    """Bytes with thousands separators: exact figures are the product."""
    return f"{int(nbytes):,}"


def brief(text: object, most: int = 300) -> str:
    """What another library said, on one line; what is too long is cut between words."""
    return textwrap.shorten(str(text), most, placeholder=" ...")


def escaped(text: str) -> str:
    """JSON that a terminal may show: control characters in its strings, which JSON allows raw, are escaped."""
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1] for character in text
    )


def printable(text: str) -> str:
    """A name from a file as a terminal or a comment may show it: on one line, without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


_ABRIDGING = reprlib.Repr()
_ABRIDGING.maxstring = _ABRIDGING.maxother = 60


def abridged(value: Any) -> str:
    """The `repr` of a dataclass on one line: long fields are cut, and several dataclasses in one field are counted."""
    shown = (f"{field.name}={_abridged_field(getattr(value, field.name))}" for field in fields(value))
    return f"{type(value).__name__}({' '.join(', '.join(shown).split())})"


def _abridged_field(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 1 and is_dataclass(value[0]):
        return f"<{len(value)} {type(value[0]).__name__}>"
    return _ABRIDGING.repr(value)
