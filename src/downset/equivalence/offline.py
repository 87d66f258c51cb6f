"""The offsets for TFLite Micro in the metadata of a `.tflite` file, as TFLite Micro reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.equivalence.tflite_file import StoredFile, listed, plain, text
from downset.formats.certificates import KERNELS_KEY

__all__ = ["OFFLINE_KEY", "Offline", "read_offline"]

OFFLINE_KEY = "OfflineMemoryAllocation"
_BITS = {
    0: 32,
    1: 16,
    2: 32,
    3: 8,
    4: 64,
    6: 8,
    7: 16,
    8: 64,
    9: 8,
    10: 64,
    11: 128,
    12: 64,
    15: 32,
    16: 16,
    17: 4,
    18: 16,
}
"""Bits of an element by the number of its type; those of other types are not known."""


@dataclass(frozen=True, slots=True)
class Offline:
    """The offsets in a file for TFLite Micro. By tensor of the main graph: its offset (-1: none) and its bytes (-1: not
    known). `fault`: why TFLite Micro does not read these offsets from the file; else ""."""

    offsets: tuple[int, ...]
    nbytes: tuple[int, ...]
    fault: str = ""
    kernels: str = ""
    """The library whose kernels the offsets assume, where results overlap inputs; else ""."""


def read_offline(stored: StoredFile) -> Offline | None:
    """The offsets in the file's metadata, or None where it has none."""
    plans = [content for name, content in stored.metadata() if name == OFFLINE_KEY.encode()]
    kernels = [content for name, content in stored.metadata() if name == KERNELS_KEY.encode()]
    if not plans:
        return None
    graphs = stored.model.subgraphs
    nbytes = tuple(_nbytes(tensor) for tensor in listed(graphs[0].tensors))
    expected = sum(len(listed(graph.tensors)) for graph in graphs)
    plan = plans[-1] or b""
    offsets = np.frombuffer(plan[: len(plan) // 4 * 4], "<i4")
    fault = _fault(stored, plans, offsets, expected)
    main = tuple(int(offset) for offset in offsets[3 : 3 + len(nbytes)])
    return Offline(main, nbytes, fault, (kernels[0] or b"").decode(errors="replace") if kernels else "")


def _fault(stored: StoredFile, plans: list[bytes | None], offsets: npt.NDArray[np.int32], expected: int) -> str:
    """TFLite Micro takes the last of several plans, and trusts the count in its header."""
    if len(plans) > 1:
        return f"there are {len(plans)} lists of offsets"
    entry = next(entry for entry in stored.model.metadata if plain(entry.name) == OFFLINE_KEY.encode())
    if stored.model.buffers[entry.buffer].data is None:
        return "the offsets do not lie in the flatbuffer"
    stated = {len(plans[0] or b"") / 4 - 3, *map(int, offsets[2:3])} - {expected}
    if stated:
        return f"offsets for {min(stated):g} tensors, but the file has {expected}"
    if (offsets[3:] < -1).any():
        return f"the offset {offsets[3:].min()} lies before the arena"
    main = listed(stored.model.subgraphs[0].tensors)
    if (offsets[3 + len(main) :] != -1).any():
        return "they place tensors of other graphs than the main one, which cannot be checked"
    placed = zip(main, offsets[3:], strict=False)
    variable = next((tensor for tensor, offset in placed if tensor.isVariable and offset >= 0), None)
    return "" if variable is None else f"the variable {text(variable.name)!r} has one, but the runtime places variables"


def _nbytes(tensor: Any) -> int:
    bits = _BITS.get(tensor.type, -1)
    return -1 if bits < 0 else (math.prod(int(extent) for extent in listed(tensor.shape)) * bits + 7) // 8
