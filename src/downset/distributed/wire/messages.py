"""Messages: `!IQ` with the bytes of the header and of the payload, a header in MessagePack, and the payload.

The payload is the arrays of a transfer one after another, without gaps. Their shapes are not in the message: both ends
know them from the plan, and a payload of another size is refused before memory is taken for it.
"""

from __future__ import annotations

import struct

import msgspec

__all__ = [
    "ENTER",
    "MOST_HEADER_BYTES",
    "MOST_PAYLOAD_BYTES",
    "PREFIX",
    "RESULT",
    "VERSION",
    "BrokenConnection",
    "Credits",
    "DeviceReport",
    "Done",
    "Failed",
    "Header",
    "Hello",
    "MalformedMessage",
    "RowsOf",
    "header_bytes",
    "header_of",
]

VERSION = 1
PREFIX = struct.Struct("!IQ")
MOST_HEADER_BYTES = 1 << 16
MOST_PAYLOAD_BYTES = 1 << 36
"""Lengths beyond these are of no message: where the next one begins is not known any more."""
ENTER, RESULT = -1, -2
"""Stand in place of a task's number: a frame from the driver, and a result to it."""


class MalformedMessage(Exception):
    """A peer sent what the protocol does not allow. Nothing of the message counts, and the next one may follow."""


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True, forbid_unknown_fields=True):
    """The first message of a connection. `session`: of one driver, made at random; `sender`: a device's name, empty for
    the driver."""

    version: int
    session: str
    run: int
    sender: str


class RowsOf(msgspec.Struct, tag="rows", array_like=True, frozen=True, forbid_unknown_fields=True):
    """The rows of a transfer, or of a frame or result, are the payload."""

    run: int
    frame: int
    task: int


class Credits(msgspec.Struct, tag="credits", array_like=True, frozen=True, forbid_unknown_fields=True):
    """`below`: by task, the frame below which its rows may be sent."""

    run: int
    below: dict[int, int]


class Done(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A task that has ended, `ago_s` before the message was sent."""

    frame: int
    task: int
    seconds: float
    ago_s: float


class DeviceReport(msgspec.Struct, tag="report", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Tells the driver what a device has done since its last report."""

    run: int
    done: list[Done]


class BrokenConnection(msgspec.Struct, tag="broken", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Tells the driver that a connection with this peer ended."""

    run: int
    peer: str
    reason: str


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True, forbid_unknown_fields=True):
    """Tells the driver that a task cannot be done. `lost`: another device may do it."""

    run: int
    reason: str
    lost: bool


Header = Hello | RowsOf | Credits | DeviceReport | BrokenConnection | Failed
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Header)


def header_bytes(header: Header) -> bytes:
    """The header as it is sent."""
    return _ENCODER.encode(header)


def header_of(data: bytes | memoryview) -> Header:
    """The header that these bytes are. Raises MalformedMessage if they are none."""
    try:
        header: Header = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"a header that is none: {error}") from None
    return header
