"""Records as CSV, the form of minimalloc: `id,lower,upper,size[,alignment][,gaps][,offset][,hint]`, `upper` exclusive.

As in minimalloc, columns may have other names: `buffer` and `buffer_id` for id, `start` and `begin` for lower, and
`end` for an upper that is inclusive; with `end` the ends of gaps are inclusive too. Gaps are `low-high` pairs separated
by blanks. A value in `offset` pins the record. The column `object` is ignored. A column of any other name is an error,
because a misspelt name would change the result.
"""

from __future__ import annotations

import csv
import io
import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from downset.errors import LoadError, UnsupportedError
from downset.memory.records import Record, faults
from downset.text import read_file, read_stdin

__all__ = ["read_records", "records_from_csv", "records_to_csv"]

_COLUMNS = {
    "id": "id",
    "buffer": "id",
    "buffer_id": "id",
    "lower": "lower",
    "start": "lower",
    "begin": "lower",
    "upper": "upper",
    "end": "upper",
    "size": "size",
    "alignment": "alignment",
    "gaps": "gaps",
    "offset": "offset",
    "hint": "hint",
    "object": "object",  # written by `downset arena --form objects`; ignored here
}
_REQUIRED = ("id", "lower", "upper", "size")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}").fullmatch
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""Separators of columns that spreadsheets use in place of commas, with their names for errors."""
_FIELDS = {"id": "id", "stop": "upper", "nbytes": "size", "alignment": "alignment", "gaps": "gaps", "offset": "offset"}
"""The column of each field of Record that can be at fault."""


def read_records(path: str | os.PathLike[str]) -> tuple[Record, ...]:
    """The records in a CSV file, or in the standard input if `path` is "-".

    Raises LoadError that names file, line and column of the first error, and UnsupportedError for a gap that frees only
    part of a record."""
    try:
        data = read_stdin() if str(path) == "-" else read_file(path)
        return _records(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), str(path))
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise LoadError(f"{path} is not text; records are CSV with the columns {','.join(_REQUIRED)}") from None


def records_from_csv(text: str, *, name: str = "records") -> tuple[Record, ...]:
    """The records in a text of CSV. Errors call the text `name`, and are those of `read_records`."""
    return _records(io.StringIO(text, newline=""), name)


def _records(text: Iterable[str], name: str) -> tuple[Record, ...]:
    rows = csv.reader(text)
    header: dict[str, int] = {}
    inclusive, plain = 0, False
    records: list[Record] = []
    lines = array("q")
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if not header:
                header = _header(cells, f"{name}:{rows.line_num}")
                inclusive = int(cells[header["upper"]] == "end")
                plain = list(header) == list(_REQUIRED)
                continue
            if len(cells) != len(header):
                raise LoadError(f"{name}:{rows.line_num}: {len(cells)} cells in a row of {len(header)} columns")
            if plain and all(map(_WHOLE_NUMBER, cells[1:])):
                start, stop, nbytes = map(int, cells[1:])
                records.append(Record(cells[0], start, stop + inclusive, nbytes))
            else:
                records.append(_record(_Cells(cells, header, name, rows.line_num), inclusive))
            lines.append(rows.line_num)
    except csv.Error as error:
        raise LoadError(f"{name}:{rows.line_num}: {error}") from None
    if not header:
        raise LoadError(f"{name} is empty; records are CSV with the columns {','.join(_REQUIRED)}")
    for index, field, reason in faults(records):
        reason = re.sub(r"record (\d+)$", lambda match: f"line {lines[int(match[1])]}", reason)
        raise LoadError(f"{name}:{lines[index]}: column {_FIELDS[field]}: {reason}")
    return tuple(records)


def _header(cells: Sequence[str], where: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for column, cell in enumerate(cells):
        if cell not in _COLUMNS:
            apart = next((word for mark, word in _SEPARATORS.items() if mark in cell), None)
            if apart is not None:
                raise LoadError(
                    f"{where}: the header has {apart} between its columns; records are CSV with commas: "
                    f"{','.join(_REQUIRED)}"
                )
            raise LoadError(
                f"{where}: unknown column {cell!r}; the columns are {', '.join(dict.fromkeys(_COLUMNS.values()))}"
            )
        if _COLUMNS[cell] in columns:
            raise LoadError(f"{where}: two columns give the {_COLUMNS[cell]}")
        columns[_COLUMNS[cell]] = column
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise LoadError(f"{where}: no column {missing[0]!r}; records need {','.join(_REQUIRED)}")
    return columns


class _Cells(NamedTuple):
    """The cells of one row."""

    cells: Sequence[str]
    header: Mapping[str, int]
    name: str
    line: int

    def optional(self, column: str) -> int | None:
        text = self.cells[self.header[column]] if column in self.header else ""
        return self.parsed(column, text) if text else None

    def parsed(self, column: str, text: str) -> int:
        # int() would accept 1_000 and digits of other scripts. A number of 18 digits fits into 64 bits.
        if not _WHOLE_NUMBER(text):
            raise LoadError(f"{self.where()}: column {column}: {text!r} is not a whole number of at most 18 digits")
        return int(text)

    def where(self) -> str:
        return f"{self.name}:{self.line}"


def _record(row: _Cells, inclusive: int) -> Record:
    identity, *texts = [row.cells[row.header[column]] for column in _REQUIRED]
    start, stop, nbytes = map(row.parsed, _REQUIRED[1:], texts)
    if len(row.header) == len(_REQUIRED):
        return Record(identity, start, stop + inclusive, nbytes)
    alignment = row.optional("alignment")
    gaps = _gaps(row, inclusive) if "gaps" in row.header else ()
    return Record(
        identity,
        start,
        stop + inclusive,
        nbytes,
        1 if alignment is None else alignment,
        row.optional("offset"),
        gaps,
        row.optional("hint"),
    )


def _gaps(row: _Cells, inclusive: int) -> tuple[tuple[int, int], ...]:
    gaps = []
    for text in row.cells[row.header["gaps"]].split():
        if "@" in text:
            raise UnsupportedError(
                f"{row.where()}: column gaps: {text!r} frees only part of the record; write whole gaps"
            )
        match = re.fullmatch(r"([0-9]+)-([0-9]+)", text)
        if not match:
            raise LoadError(f"{row.where()}: column gaps: {text!r} is not a pair like 3-7")
        gaps.append((row.parsed("gaps", match[1]), row.parsed("gaps", match[2]) + inclusive))
    return tuple(gaps)


def records_to_csv(
    records: Sequence[Record], *, offsets: Sequence[int] | None = None, object_of: Sequence[int] | None = None
) -> str:
    """The records as CSV that `read_records` reads. There are columns `alignment`, `gaps` and `hint` if any record has
    one, `offset` if `offsets` are given or a record is pinned, and `object` if `object_of` is given."""
    columns: dict[str, Iterable[object]] = {
        "id": (record.id for record in records),
        "lower": (record.start for record in records),
        "upper": (record.stop for record in records),
        "size": (record.nbytes for record in records),
    }
    if any(record.alignment != 1 for record in records):
        columns["alignment"] = (record.alignment for record in records)
    if any(record.gaps for record in records):
        columns["gaps"] = (" ".join(f"{low}-{high}" for low, high in record.gaps) for record in records)
    if any(record.hint is not None for record in records):
        columns["hint"] = ("" if record.hint is None else record.hint for record in records)
    if offsets is not None:
        columns["offset"] = offsets
    elif any(record.offset is not None for record in records):
        columns["offset"] = ("" if record.offset is None else record.offset for record in records)
    if object_of is not None:
        columns["object"] = object_of
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
