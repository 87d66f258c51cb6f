"""Sessions of ONNX Runtime as data: how one is opened, and what it took. What measures is what prints and ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from downset.text import abridged

__all__ = ["DEFAULT", "FILE_ORDER", "FITTED", "Latency", "SessionSettings", "SessionTaken"]

Value = bool | int | str


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Everything that is set when a session is opened; what is not named here is as ONNX Runtime has it by default.

    `options`: attributes of `onnxruntime.SessionOptions`; an enumeration's member is written `Class.MEMBER`. `config`:
    entries of the session's configuration. `arena`: keys of the `OrtArenaCfg` of an arena that is registered in the
    environment, which the session then shares; empty where the session keeps an arena of its own.
    """

    name: str
    options: Mapping[str, Value]
    config: Mapping[str, str] = field(default_factory=dict)
    arena: Mapping[str, int] = field(default_factory=dict)

    __repr__ = abridged

    @property
    def follows_file(self) -> bool:
        """Whether the nodes of the file run as they are and in the file's order."""
        return self.options.get("graph_optimization_level") == _AS_WRITTEN

    @property
    def orders_nodes(self) -> bool:
        """Whether nodes run in the order of the file. ONNX Runtime's own order may be another one at every load."""
        return "execution_order" in self.options

    @property
    def region_bytes(self) -> int | None:
        """Bytes that the shared arena takes from the system first."""
        return self.arena.get(_REGION)

    def with_region(self, nbytes: int) -> SessionSettings:
        return replace(self, arena={**self.arena, _REGION: nbytes})


@dataclass(frozen=True, slots=True)
class Latency:
    """Time of one run. `median_s`: the median of `rounds`, in each of which the original ran by default, too. `ratio`:
    to that run of the same round, in the median, and the ends of its confidence interval (95 % or more, by order
    statistics: nothing is assumed of how times are distributed)."""

    median_s: float
    rounds: int
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True, slots=True)
class SessionTaken:
    """Memory and time of a session that was opened by these settings and run: measured, in bytes and seconds.

    `in_use_bytes`: the most that was in use in its CPU arena at a time, weights that kernels packed for themselves
    included. `held_bytes`: what that arena took from the system. `process_bytes`: by how much the resident memory of a
    fresh process grew at most, weights included; None where the system does not tell.
    """

    file: str
    settings: SessionSettings
    in_use_bytes: int
    held_bytes: int
    process_bytes: int | None = None
    latency: Latency | None = None

    __repr__ = abridged


_AS_WRITTEN = "GraphOptimizationLevel.ORT_DISABLE_ALL"
_REGION = "initial_chunk_size_bytes"
_ONE_THREAD: Mapping[str, Value] = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
_FREED_AT_ONCE: Mapping[str, Value] = {"enable_mem_pattern": False, "enable_mem_reuse": False}
"""Options without which a run takes one block for all tensors, and a buffer waits for the next tensor of its shape."""
_SHARED = {"session.use_env_allocators": "1"}
_SPLIT_TO_THE_BYTE = {"max_mem": 0, "arena_extend_strategy": 0, "max_dead_bytes_per_chunk": 1, _REGION: 1 << 20}
"""By default an arena hands out up to twice what is asked for."""
_IN_ORDER: Mapping[str, Value] = {"execution_order": "ExecutionOrder.PRIORITY_BASED"}
_ALL: Mapping[str, Value] = {"graph_optimization_level": "GraphOptimizationLevel.ORT_ENABLE_ALL"}

DEFAULT = SessionSettings("default", _ONE_THREAD)
"""The settings of a user who gives none, on one thread."""

FILE_ORDER = SessionSettings(
    "file order",
    {**_ONE_THREAD, "graph_optimization_level": _AS_WRITTEN, **_IN_ORDER, **_FREED_AT_ONCE},
    _SHARED,
    _SPLIT_TO_THE_BYTE,
)
"""The file's nodes in the file's order; no byte is held longer than needed."""

_OPTIMISED = SessionSettings("optimised", {**_ONE_THREAD, **_ALL, **_FREED_AT_ONCE}, _SHARED, _SPLIT_TO_THE_BYTE)
"""ONNX Runtime optimises the file for this processor when it loads it (blocked layouts), and runs it in an order of its
own; no byte is held longer than needed."""

_OPTIMISED_IN_ORDER = replace(_OPTIMISED, name="optimised, in order", options={**_OPTIMISED.options, **_IN_ORDER})

FITTED = (FILE_ORDER, _OPTIMISED, _OPTIMISED_IN_ORDER)
"""The settings by which a fitted file may be opened; which take least memory, and what that costs, is measured."""
