"""The fields that are set in a message of an `.onnx` file, also those that the installed version of ONNX lacks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

__all__ = ["float_bits", "set_fields", "unknown_fields"]


def set_fields(message: Any, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """(name, value) of every field that is set. The values of fields in `without` are not read: they may be large."""
    for field in message.DESCRIPTOR.fields:
        if field.name in without:
            continue
        if field.is_repeated:
            value = getattr(message, field.name)
            if len(value):
                yield field.name, value
        elif message.HasField(field.name):
            yield field.name, getattr(message, field.name)


def unknown_fields(message: Any) -> tuple[Hashable, ...]:
    """(number, wire type, data) of every field of the message itself that the installed version of ONNX lacks."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    return _unknown(UnknownFieldSet(message))


def _unknown(fields: Any) -> tuple[Hashable, ...]:
    return tuple(
        (
            entry.field_number,
            entry.wire_type,
            entry.data if isinstance(entry.data, int | bytes) else _unknown(entry.data),
        )
        for entry in fields
    )


def float_bits(message: Any, name: str) -> bytes:
    """The bytes of a float field or of repeated floats, as the file stores them: Python's floats change the bits of
    some NaNs."""
    import numpy as np

    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    values = np.asarray(value if field.is_repeated else [value], np.float32)
    if not np.isnan(values).any():
        return values.tobytes()
    alone = type(message)()
    alone.CopyFrom(message)
    for other in message.DESCRIPTOR.fields:
        if other.name != name:
            alone.ClearField(other.name)
    alone.DiscardUnknownFields()
    data = alone.SerializeToString()
    if field.is_packed:
        return bytes(data[len(data) - 4 * len(values) :])
    return np.frombuffer(data, [("tag", "u1"), ("value", "<u4")])["value"].tobytes()
