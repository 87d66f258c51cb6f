"""The certificate of a rewritten network as bytes, which files hold in their metadata."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec

from downset.errors import LoadError
from downset.graph.parts import ChannelPiece, Part

__all__ = [
    "KERNELS_KEY",
    "METADATA_KEY",
    "Certificate",
    "packed_certificate",
    "read_certificate",
    "write_certificate",
]

METADATA_KEY = "downset.certificate"
"""The key in metadata_props of .onnx files (JSON) and in the metadata of .tflite files (JSON compressed by zlib)."""

KERNELS_KEY = "downset.kernels"
"""The key in the metadata of .tflite files of the library whose kernels the offsets assume, where results lie over
inputs."""
_VERSION = 1
_LARGEST = 1 << 28


class Certificate(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """By name of a tensor in the file: the part of the original's tensors that it holds, or the pieces that it holds
    one after another along the channels."""

    version: int
    parts: dict[str, Part]
    joined: dict[str, tuple[ChannelPiece, ...]] = {}


def write_certificate(parts: Mapping[str, Part], joined: Mapping[str, tuple[ChannelPiece, ...]] | None = None) -> bytes:
    """A certificate as JSON."""
    return msgspec.json.encode(Certificate(_VERSION, dict(parts), dict(joined or {})))


def packed_certificate(parts: Mapping[str, Part]) -> bytes:
    """A certificate as JSON compressed by zlib, because a microcontroller stores the file in its flash memory."""
    return zlib.compress(write_certificate(parts), 9)


def read_certificate(data: bytes) -> Certificate:
    """A certificate of either form. Raises LoadError for other data and other versions."""
    try:
        if not data.startswith(b"{"):
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(data, _LARGEST)
        certificate = msgspec.json.decode(data, type=Certificate)
    except (zlib.error, msgspec.DecodeError) as error:
        raise LoadError(f"its certificate is damaged: {error}") from None
    if certificate.version != _VERSION:
        raise LoadError(f"its certificate is of version {certificate.version}; this downset reads {_VERSION}")
    return certificate
