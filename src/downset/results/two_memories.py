"""The record that a `.tflite` file with moves holds of its two memories: how much of each it takes, and how far apart
they lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from downset.errors import LoadError

__all__ = ["ALIGNMENT", "MEMORIES_KEY", "MemorySide", "TwoMemories", "read_two_memories"]

MEMORIES_KEY = "downset.memories"
"""The key of the record in the metadata of `.tflite` files."""
ALIGNMENT = 16
"""Bytes to which TFLite Micro aligns tensors, and the distance of the memories is aligned."""
MemorySide = Literal["fast", "slow"]
_FORMATS: dict[MemorySide, int] = {"fast": 1, "slow": 2}
"""The format of the record by the memory that has the persistent part: format 1 does not name it."""


@dataclass(frozen=True, slots=True)
class TwoMemories:
    """Two memories that one table of offsets reaches. Offsets count from the memory that lies lower.

    `fast_bytes` and `slow_bytes`: sizes of the memories. `distance`: the address of slow memory less that of fast
    memory; negative where slow memory lies lower. `persistent_bytes`: at the end of the memory `persistent_in`, for
    what TFLite Micro keeps from run to run; no tensor lies there. `scratch_bytes`: at the beginning of the lower
    memory, for the scratch of kernels, which TFLite Micro puts into the first gap; no tensor lies there. `kernels`: the
    library whose scratch this is.
    """

    fast_bytes: int
    slow_bytes: int
    distance: int
    persistent_bytes: int
    scratch_bytes: int
    kernels: str
    persistent_in: MemorySide = "fast"

    @property
    def fast_base(self) -> int:
        """The offset of the first byte of fast memory."""
        return max(0, -self.distance)

    @property
    def slow_base(self) -> int:
        return max(0, self.distance)

    @property
    def fast_scratch_bytes(self) -> int:
        """The part of the scratch that lies in fast memory: all of it or nothing."""
        return self.scratch_bytes if self.distance > 0 else 0

    @property
    def slow_scratch_bytes(self) -> int:
        return self.scratch_bytes if self.distance < 0 else 0

    @property
    def fast_persistent_bytes(self) -> int:
        """The persistent part where it lies in fast memory; else 0."""
        return self.persistent_bytes if self.persistent_in == "fast" else 0

    @property
    def slow_persistent_bytes(self) -> int:
        return self.persistent_bytes if self.persistent_in == "slow" else 0

    @property
    def fast_first(self) -> int:
        """The offset of the first byte of fast memory in which a tensor may lie."""
        return self.fast_base + self.fast_scratch_bytes

    @property
    def slow_first(self) -> int:
        return self.slow_base + self.slow_scratch_bytes

    @property
    def fast_capacity(self) -> int:
        """Bytes of fast memory for tensors."""
        return self.fast_base + self.fast_bytes - self.fast_persistent_bytes - self.fast_first

    @property
    def slow_capacity(self) -> int:
        return self.slow_base + self.slow_bytes - self.slow_persistent_bytes - self.slow_first

    @property
    def span_bytes(self) -> int:
        """Bytes from the first one of the lower memory to the last one of the higher."""
        return max(self.fast_base + self.fast_bytes, self.slow_base + self.slow_bytes)

    @property
    def lower_bytes(self) -> int:
        """The size of the memory that lies lower, without the persistent part."""
        return self.fast_bytes - self.fast_persistent_bytes if self.distance > 0 else self.slow_end

    @property
    def slow_end(self) -> int:
        """The size of slow memory without the persistent part."""
        return self.slow_bytes - self.slow_persistent_bytes

    def is_fast(self, offset: int, nbytes: int) -> bool | None:
        """Whether a tensor at this offset lies in fast memory (True) or slow memory (False), where tensors may lie;
        None elsewhere."""
        if self.fast_first <= offset and offset + nbytes <= self.fast_first + self.fast_capacity:
            return True
        if self.slow_first <= offset and offset + nbytes <= self.slow_first + self.slow_capacity:
            return False
        return None

    def to_json(self) -> str:
        values = asdict(self)
        if self.persistent_in == "fast":
            del values["persistent_in"]
        return json.dumps({"format": _FORMATS[self.persistent_in], **values})


def read_two_memories(text: str | bytes) -> TwoMemories:
    """The record of this text. Raises LoadError for any other text; what it says is not checked."""
    try:
        said = json.loads(text)
        side = said.pop("persistent_in", "fast")
        if side not in get_args(MemorySide) or said.pop("format") != _FORMATS[side]:
            raise ValueError
        kernels = said.pop("kernels")
        if not isinstance(kernels, str) or any(type(value) is not int for value in said.values()):
            raise ValueError
        return TwoMemories(**said, kernels=kernels, persistent_in=side)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LoadError(
            f"its metadata {MEMORIES_KEY!r} are not a record of two memories that this version reads; fit the original"
        ) from None
