"""The options of a fit to two memories, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from downset.errors import UsageError
from downset.fitting.job import FilePath, call_of, check_factor, check_limits, check_result_path
from downset.memories.of_graph import Prices
from downset.memory.kernel_libraries import kernel_library
from downset.messages import Call, Message, Setting
from downset.methods import check_choice
from downset.results.two_memories import ALIGNMENT, MemorySide
from downset.text import check_path, format_bytes

__all__ = ["LARGEST_OFFSET", "TwoMemoriesOptions", "check_memories_options", "memories_call"]

LARGEST_OFFSET = (1 << 31) - 1
"""Offsets in a `.tflite` file are whole numbers of 32 bits."""
_PRICES = tuple(one.name for one in fields(Prices))


@dataclass(frozen=True, slots=True)
class TwoMemoriesOptions:
    """The options of `fit_memories`, which explains them, under the names of its keywords."""

    model: FilePath
    fast_bytes: int
    slow_bytes: int
    distance_bytes: int | None = None
    output: FilePath | None = None
    kernels: str | None = None
    persistent: MemorySide = "fast"
    prices: Mapping[str, float] | None = None
    larger: float | None = None
    time_limit_s: float = 10.0
    work_limit: int | None = None
    seed: int = 0
    inputs: Sequence[FilePath] = ()
    incumbent: FilePath | None = None

    @property
    def distance(self) -> int:
        """The distance of the memories; by default slow memory begins where fast memory ends."""
        stated = self.distance_bytes
        return -(-self.fast_bytes // ALIGNMENT) * ALIGNMENT if stated is None else stated

    @property
    def library(self) -> str:
        """The library of the kernels: the reference kernels where none is given."""
        return self.kernels or "reference"

    @property
    def byte_prices(self) -> Prices:
        return Prices(**(self.prices or {}))


def check_memories_options(options: TwoMemoriesOptions) -> None:
    """Raise UsageError where an option has no meaning, alone or with the others."""
    check_path(options.model, "model")
    path = Path(options.model)
    if path.suffix.lower() != ".tflite":
        raise UsageError(
            Message(Setting("fast_bytes"), f" is for .tflite files, which TFLite Micro executes, not for {path.suffix}")
        )
    if options.output is not None:
        check_path(options.output, "output")
        check_result_path(path, options.output)
    if options.incumbent is not None:
        check_path(options.incumbent, "incumbent")
    check_limits(options.time_limit_s, options.work_limit)
    if options.kernels is not None:
        kernel_library(options.kernels)
    for name in ("fast_bytes", "slow_bytes"):
        if getattr(options, name) < ALIGNMENT:
            raise UsageError(
                Setting(name, getattr(options, name)),
                f": a memory has at least {ALIGNMENT} bytes, to which TFLite Micro aligns tensors",
            )
    check_choice("persistent", options.persistent, get_args(MemorySide))
    check_factor("larger", options.larger)
    _check_distance(options)
    _check_prices(options)


def _check_distance(options: TwoMemoriesOptions) -> None:
    distance = options.distance
    lower, name = (options.fast_bytes, "fast") if distance > 0 else (options.slow_bytes, "slow")
    stated = Setting("distance_bytes", distance)
    if distance % ALIGNMENT:
        raise UsageError(Message(stated, f" is not a multiple of {ALIGNMENT}, to which TFLite Micro aligns tensors"))
    if abs(distance) < lower:
        raise UsageError(
            Message(stated, f": the memories overlap, as the lower one ({name}) has {format_bytes(lower)} B")
        )
    higher = options.slow_bytes if distance > 0 else options.fast_bytes
    end = abs(distance) + higher
    if end > LARGEST_OFFSET:
        both = (Setting("fast_bytes", options.fast_bytes), " and ", Setting("slow_bytes", options.slow_bytes))
        large = options.fast_bytes + options.slow_bytes > LARGEST_OFFSET
        raise UsageError(
            *(both if large else (stated,)),
            f": offsets in a .tflite file end at {LARGEST_OFFSET:,} B, and the higher memory would end at {end:,} B; ",
            "give smaller memories" if large else "choose memories that lie nearer to each other",
        )


def _check_prices(options: TwoMemoriesOptions) -> None:
    for name in options.prices or {}:
        if name not in _PRICES:
            raise UsageError(Setting("prices"), f" has {name!r}; it takes {', '.join(_PRICES)}")
    options.byte_prices.whole()


def memories_call(options: TwoMemoriesOptions) -> Call:
    """The call of `fit_memories` with these options: those that are not the defaults."""
    defaults = TwoMemoriesOptions(options.model, options.fast_bytes, options.slow_bytes)
    return call_of("fit_memories", options, defaults, "fast_bytes", "slow_bytes")
