"""Sessions of ONNX Runtime as data: their settings, and the memory and time that were measured with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from downset.text import abridged

__all__ = [
    "BY_HAND",
    "DEFAULT",
    "EXTENDED",
    "FILE_ORDER",
    "FITTED",
    "MAPPED",
    "ONE_REGION",
    "TRIMMED",
    "WITH_PATTERN",
    "Latency",
    "SessionSettings",
    "SessionTaken",
]

Value = bool | int | str


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """All settings with which a session is opened; others keep ONNX Runtime's defaults.

    `options`: attributes of `onnxruntime.SessionOptions`; an enumeration's member is written `Class.MEMBER`. `config`:
    entries of the session's configuration. `arena`: keys of the `OrtArenaCfg` of an arena that is registered in the
    environment, which the session then shares; empty where the session uses a private arena. `malloc`: parameters of
    glibc's allocator, which hold for the whole process from there on; other C libraries do not have them. `providers`:
    those that run nodes, the first one that can; empty for the CPU's alone.
    """

    name: str
    options: Mapping[str, Value]
    config: Mapping[str, str] = field(default_factory=dict)
    arena: Mapping[str, int] = field(default_factory=dict)
    malloc: Mapping[str, int] = field(default_factory=dict)
    providers: tuple[str, ...] = ()

    __repr__ = abridged

    @property
    def follows_file(self) -> bool:
        """Whether the nodes of the file run without optimisation, in the file's order: the same at every load.
        Otherwise ONNX Runtime optimises the file when it loads it, and its blocking of layouts (NchwcTransformer) adds
        nodes in a sequence that depends on addresses in memory: the order differs from load to load."""
        return all(self.options.get(name) == FILE_ORDER.options[name] for name in _ORDERING)

    @property
    def region_bytes(self) -> int | None:
        """Bytes of the first region that the shared arena takes from the system; None where that is not set."""
        return self.arena.get(_REGION)

    def with_region(self, nbytes: int) -> SessionSettings:
        return replace(self, arena={**self.arena, _REGION: nbytes})

    @property
    def cap_bytes(self) -> int | None:
        """The most bytes that the shared arena may take; None where nothing limits it."""
        return self.arena.get(_CAP) or None

    def with_cap(self, nbytes: int) -> SessionSettings:
        return replace(self, arena={**self.arena, _CAP: nbytes})


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of one run. `median_s`: the median over `rounds`; in each round the original also ran by default.
    `ratio`: the median ratio to the original's run of the same round, with the ends of its confidence interval (at
    least 95 %, by order statistics, without an assumption about the distribution of times). `usual_s`: the median of
    the original over the same rounds."""

    median_s: float
    rounds: int
    ratio: float
    ratio_low: float
    ratio_high: float
    usual_s: float

    @property
    def run_s(self) -> float:
        """Seconds of a run where the original takes `usual_s`: that times the ratio. Medians of two files may differ by
        more or less than the ratio, because the machine changes its speed between rounds."""
        return self.usual_s * self.ratio

    def is_near(self, limit: float) -> bool:
        """Whether a limit lies in the interval of the ratio, or beside it by no more than its width: another run may
        then stand elsewhere."""
        width = self.ratio_high - self.ratio_low
        return self.ratio_low - width <= limit < self.ratio_high + width


@dataclass(frozen=True, slots=True)
class SessionTaken:
    """Measured memory (bytes) and time (seconds) of a session with these settings.

    `in_use_bytes`: the most bytes in use in its CPU arena, with the weights that kernels packed. `held_bytes`: bytes
    that the arena took from the system. `process_bytes`: the largest growth of the resident memory of a new process,
    weights included; None where the system does not report it.
    """

    file: str
    settings: SessionSettings
    in_use_bytes: int
    held_bytes: int
    process_bytes: int | None = None
    latency: Latency | None = None

    __repr__ = abridged


_CAP = "max_mem"
_REGION = "initial_chunk_size_bytes"
_ORDERING = ("graph_optimization_level", "execution_order")
_ONE_THREAD: Mapping[str, Value] = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
_FREED_AT_ONCE: Mapping[str, Value] = {"enable_mem_pattern": False, "enable_mem_reuse": False}
"""Options that free buffers at once. By default a run takes one block for all tensors, and keeps a buffer for the next
tensor of its shape."""
_SHARED = {"session.use_env_allocators": "1"}
_SPLIT_TO_THE_BYTE = {_CAP: 0, "arena_extend_strategy": 0, "max_dead_bytes_per_chunk": 1, _REGION: 1 << 20}
"""Arena settings that hand out no more bytes than requested; by default it may be up to twice as many."""

DEFAULT = SessionSettings("default", _ONE_THREAD)
"""ONNX Runtime's defaults, on one thread."""

EXTENDED = SessionSettings(
    "extended", {**_ONE_THREAD, "graph_optimization_level": "GraphOptimizationLevel.ORT_ENABLE_EXTENDED"}
)
"""The portable optimisations, which use no layout of a particular processor."""

FILE_ORDER = SessionSettings(
    "file order",
    {
        **_ONE_THREAD,
        "graph_optimization_level": "GraphOptimizationLevel.ORT_DISABLE_ALL",
        "execution_order": "ExecutionOrder.PRIORITY_BASED",
        **_FREED_AT_ONCE,
    },
    _SHARED,
    _SPLIT_TO_THE_BYTE,
)
"""The file's nodes in the file's order; no byte is held longer than needed."""

_OPTIMISED = SessionSettings(
    "optimised",
    {**_ONE_THREAD, "graph_optimization_level": "GraphOptimizationLevel.ORT_ENABLE_ALL", **_FREED_AT_ONCE},
    _SHARED,
    _SPLIT_TO_THE_BYTE,
)
"""ONNX Runtime optimises the file for this processor when it loads it (blocked layouts), and runs it in an order
that it chooses again at every load; no byte is held longer than needed."""

FITTED = (FILE_ORDER, _OPTIMISED)
"""The settings with which a fitted file may be opened. Memory and time of each are measured."""

_MALLOC: Mapping[str, int] = {"M_MMAP_THRESHOLD": 1 << 17, "M_TRIM_THRESHOLD": 1 << 17, "M_ARENA_MAX": 1}
"""Parameters by which glibc gives blocks of 128 KB and more back as soon as they are freed, where otherwise it keeps
what loading took."""
_PREPACKING_OFF = {"session.disable_prepacking": "1"}
_ARENA_OFF: Mapping[str, Value] = {**_ONE_THREAD, "enable_cpu_mem_arena": False, "enable_mem_pattern": False}

BY_HAND = (
    replace(DEFAULT, name="by hand: mmap threshold", malloc=_MALLOC),
    SessionSettings("by hand: arena and pattern off", _ARENA_OFF),
    SessionSettings("by hand: arena, pattern and prepacking off", _ARENA_OFF, _PREPACKING_OFF),
    SessionSettings("by hand: prepacking off, mmap threshold", _ONE_THREAD, _PREPACKING_OFF, malloc=_MALLOC),
    SessionSettings("by hand: all off, mmap threshold", _ARENA_OFF, _PREPACKING_OFF, malloc=_MALLOC),
)
"""The options that somebody who knows ONNX Runtime sets by hand for less memory."""


def _mapped(*, prepacking: bool, doubling: bool) -> SessionSettings:
    name = f"file order, trimmed{'' if prepacking else ', prepacking off'}{'' if doubling else ', exact regions'}"
    config = _SHARED if prepacking else {**_SHARED, **_PREPACKING_OFF}
    arena = {**_SPLIT_TO_THE_BYTE, "arena_extend_strategy": 0 if doubling else 1}
    return SessionSettings(name, FILE_ORDER.options, config, arena, _MALLOC)


MAPPED = tuple(_mapped(prepacking=on, doubling=doubling) for on in (True, False) for doubling in (True, False))
"""The settings for files whose weights are mapped: the file's order, with packed weights or without, and regions of the
arena that double or have the size that is asked for."""

ONE_REGION = {settings.name: replace(settings, name=f"{settings.name}, one region") for settings in MAPPED[::2]}
"""By the names of those that double: the same settings for an arena whose first region has the size in which a run
fits. Tensors fill it without the gaps at the ends of several regions."""

TRIMMED = (MAPPED[0], replace(_OPTIMISED, name="optimised, trimmed", malloc=_MALLOC))
"""`FITTED`, with the C library's allocator set to give back what is freed: for a model in one file."""


def _with_pattern(settings: SessionSettings) -> SessionSettings:
    options = {name: value for name, value in settings.options.items() if name != "enable_mem_pattern"}
    return replace(settings, name=f"{settings.name}, memory pattern", options=options)


WITH_PATTERN = {one.name: _with_pattern(one) for one in (*MAPPED, *ONE_REGION.values(), *TRIMMED)}
"""By the names of these: the same with ONNX Runtime's memory pattern. From its second run of a size on, a session takes
one block from the arena in place of one for each tensor, which is faster and may be more bytes."""
