"""The options of `fit`, checked before anything is read, and the job that is made from them."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from downset.budget import INTERRUPTED, Budget, check_work_limit, moment_s
from downset.errors import UsageError
from downset.fitting.ranges import SizeRanges
from downset.formats.reading import READERS, refused
from downset.messages import Call, Message, Setting
from downset.process.whole_files import check_output
from downset.results.policy import LARGER, LARGER_MAPPED, NO_LIMITS, SLOWER, Policy
from downset.runtimes.targets import TARGETS, Target, TargetName, targets_of, with_kernels
from downset.text import check_path, unheard

__all__ = [
    "FitOptions",
    "Job",
    "Listener",
    "Notes",
    "RewriteName",
    "SearchTime",
    "StatesName",
    "call_of",
    "check_factor",
    "check_limits",
    "check_options",
    "check_result_path",
    "policy_of",
]

RewriteName = Literal["auto", "off"]
StatesName = Literal["variables", "in-place", "auto"]
FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options of `fit`, which explains them, under the names of its keywords."""

    model: FilePath
    output: FilePath | None = None
    target: TargetName | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    dims: Mapping[str, int | range] | None = None
    ram_bytes: int | None = None
    arena_bytes: int | None = None
    one_file: bool = False
    time_limit_s: float = 10.0
    work_limit: int | None = None
    seed: int = 0
    rewrite: RewriteName = "auto"
    inexact: bool = False
    max_recompute: float | None = None
    strips: int | None = None
    front: bool = False
    kernels: str | None = None
    int8: bool = False
    states: StatesName = "variables"
    stream: Sequence[int] | None = None
    slower: float | None = None
    larger: float | None = None
    session: FilePath | None = None
    trust: bool = False
    inputs: Sequence[FilePath] = ()

    @property
    def limits_strips(self) -> bool:
        """Whether an option asks for segments in strips, whatever they cost in time and file size."""
        return self.max_recompute is not None or self.strips is not None

    @property
    def states_policy(self) -> bool:
        """Whether an option states a limit of what ships, which then holds also where a memory limit is exceeded."""
        return self.slower is not None or self.larger is not None

    def policy(self, *, mapped: bool = False) -> Policy:
        """The limits of what ships: those stated, else the defaults, or none where options ask for strips whatever they
        cost. `mapped`: further bytes on disk are mapped from the file and stay clean."""
        larger = LARGER_MAPPED if mapped else LARGER
        default = NO_LIMITS if self.limits_strips else Policy(SLOWER, larger)
        return Policy(self.slower or default.slower, self.larger or default.larger)


@dataclass(frozen=True, slots=True)
class Listener:
    """The functions by which a caller hears how a job goes on; `fit` explains them."""

    progress: Callable[[str], None] = unheard
    notice: Callable[[str], None] = unheard
    not_measured: Callable[[str], None] = unheard
    """Called before the searches with the reason why the target's runtime measured nothing."""
    takes_longer: Callable[[float], None] = unheard
    measuring: Callable[[int, float], None] = unheard
    """Called before candidates are measured with about how many runs in the runtime follow, and their seconds."""
    searching: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """A context around all that follows the first measurement of the original: from there on there is a result."""


@dataclass(slots=True)
class Notes:
    """The notes of a result, in the sequence of its phases, each once. `not_measured`: why the target's runtime did not
    measure the files; empty where it did. `not_in_tflm`: why TFLite Micro does not run the file, where the target
    became LiteRT for that."""

    lines: list[str] = field(default_factory=list)
    not_measured: str = ""
    not_in_tflm: str = ""

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def add(self, *lines: str) -> None:
        self.lines += [line for line in dict.fromkeys(lines) if line not in self.lines]

    def add_not_measured(self, reason: str) -> None:
        self.not_measured = self.not_measured or reason
        self.add(Message("not measured: ", reason))


class SearchTime:
    """The seconds of processor time that all searches of a job share. They pass while one of them is `running`: neither
    what is read, measured, proven and written counts, nor the time between searches. None are left where a user has
    ended the search, and after `BUSY` times as many real seconds."""

    __slots__ = ("_began", "_left_s", "_now", "cut")

    def __init__(self, seconds: float, now: Callable[[], float] = time.process_time) -> None:
        self._now = now
        self._left_s = (seconds, seconds)
        self._began: tuple[float, float] | None = None
        self.cut = False
        """Whether a limit of time ended something on which the choice of a file may depend."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context in which the time passes; inside another one it changes nothing."""
        if self._began is not None:
            yield
            return
        self._began = moment_s(self._now)
        try:
            yield
        finally:
            self._left_s, self._began = self._left(), None

    @property
    def left_s(self) -> float:
        return 0.0 if INTERRUPTED.is_set() else max(min(self._left()), 0.0)

    @property
    def over(self) -> str:
        """Why no further search begins; empty where one may."""
        if INTERRUPTED.is_set():
            return "the search was interrupted"
        return "" if min(self._left()) > 0 else "the time limit was over"

    def _left(self) -> tuple[float, float]:
        """The seconds left by each time of `moment_s`."""
        if self._began is None:
            return self._left_s
        passed = (now - began for now, began in zip(moment_s(self._now), self._began, strict=True))
        processor, real = (left - spent for left, spent in zip(self._left_s, passed, strict=True))
        return processor, real


@dataclass(frozen=True, slots=True)
class Job:
    """A network that is fitted to a target. `path`: its file, which is the model or its int8 form. `scratch`: the
    folder in which candidates are written. `notes`: those of the result, which each phase adds to. `search_time`: that
    of all its searches. `ranges`: the sizes that are given as ranges; the options hold the largest of each."""

    path: Path
    target: Target
    options: FitOptions
    scratch: Path
    listener: Listener = Listener()
    notes: Notes = field(default_factory=Notes)
    search_time: SearchTime = field(default_factory=lambda: SearchTime(math.inf))
    ranges: SizeRanges | None = None
    asked_for: FitOptions | None = None
    """The options of the call, where the job fits a file in place of the model: a stream of it."""

    def budget(self, seconds: float) -> Budget:
        """The budget of one search: at most so many of the seconds that are left."""
        return Budget(min(seconds, self.search_time.left_s), self.options.work_limit, self.options.seed)

    def may_search(self, without: str) -> bool:
        """Whether a further search may begin. If not, adds a note about what the result is without."""
        if why := self.search_time.over:
            self.notes.add(f"{without}: {why}")
        return not why

    @property
    def stated(self) -> FitOptions:
        """The options of a call that asks for the same: it fixes no size that has a range."""
        if self.asked_for is not None:
            return self.asked_for
        return self.options if self.ranges is None else replace(self.options, shapes=self.ranges.shapes)

    @property
    def planned_limit(self) -> Setting | None:
        """The memory limit that plans are made for: of the arena where sessions have one, whose process is judged as it
        was measured; None where there is none."""
        name = "ram_bytes" if self.target.sessions is None else "arena_bytes"
        limit = getattr(self.options, name)
        return None if limit is None else Setting(name, limit)

    @property
    def planned_bytes(self) -> int | None:
        limit = self.planned_limit
        return None if limit is None else limit.value  # type: ignore[return-value]

    @property
    def form(self) -> str:
        """The suffix of the file, in small letters."""
        return self.path.suffix.lower()

    @property
    def trusts_file(self) -> bool:
        """Whether PyTorch itself may load the file. Trust means nothing for files that bring no code."""
        return self.options.trust and READERS[self.form].brings_code


def policy_of(options: FitOptions, target: Target) -> Policy:
    """The limits of what ships for a target. Sessions of ONNX Runtime are held to stated limits alone."""
    return options.policy() if target.sessions is None else Policy(options.slower, options.larger)


def call_of(name: str, options: Any, defaults: Any, *stated: str) -> Call:
    """The call of a function whose keywords are the fields of `options`, and the first of them its argument: with those
    that are not the defaults, and those `stated`."""
    values = {field.name: getattr(options, field.name) for field in fields(options)[1:]}
    values["inputs"] = tuple(map(os.fspath, options.inputs))
    settings = tuple(
        Setting(name, os.fspath(value) if isinstance(value, os.PathLike) else value)
        for name, value in values.items()
        if name in stated or (value != getattr(defaults, name) and value not in ((), {}))
    )
    return Call(name, settings, (os.fspath(options.model),))


def check_options(options: FitOptions) -> Target:
    """The target of these options. Raises UsageError where an option has no meaning, alone or with the others."""
    check_path(options.model, "model")
    for name in ("output", "session"):
        if getattr(options, name) is not None:
            check_path(getattr(options, name), name)
    path = Path(options.model)
    target = _with_kernels(_target_of(path, options.target), options.kernels)
    check_limits(options.time_limit_s, options.work_limit)
    _check_values(options)
    if options.states == "in-place" and not target.offsets:
        raise UsageError(f"states in place are for TFLite Micro (target tflm): {target.name} ignores offsets")
    check_factor("slower", options.slower)
    check_factor("larger", options.larger)
    _check_arena(options, target)
    if options.output is not None:
        check_result_path(path, options.output)
    if options.session is not None:
        _check_session(path, target, options.output, options.session)
    return target


def _target_of(path: Path, target: str | None) -> Target:
    """The target of that name, or by default the first for files of this suffix. Raises what `refused` returns where
    there is none, and UsageError for a directory."""
    targets: dict[str, Target] = {row.name: row for row in targets_of(path.suffix.lower())}
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give a model file")
    if not targets:
        suffixes = dict.fromkeys(suffix for row in TARGETS.values() for suffix in row.suffixes)
        reads = f"fit reads {', '.join(suffixes)} files; for a plain graph use `"
        raise refused(path, Message(reads, Call("plan_order"), "`"))
    if target is None:
        return next(iter(targets.values()))
    if target not in targets:
        raise UsageError(f"target {target!r} does not run {path.suffix} files; choose {' or '.join(targets)}")
    return targets[target]


def _with_kernels(target: Target, kernels: str | None) -> Target:
    """The target with the memory model of these kernels. Raises UsageError for an unknown library or version, or a
    target other than tflm."""
    if kernels is None:
        return target
    adapted = with_kernels(target, kernels)
    if target.name != "tflm":
        raise UsageError(
            Setting("kernels"), f" is for offsets that TFLite Micro follows (target tflm), not for {target.name}"
        )
    return adapted


def check_limits(time_limit_s: float, work_limit: int | None) -> None:
    """Raise UsageError for limits that leave no search."""
    check_work_limit(work_limit)
    if not time_limit_s > 0:
        raise UsageError(f"a time limit of {time_limit_s:g} s leaves no time; give more than 0")


def _check_values(options: FitOptions) -> None:
    if options.rewrite not in ("auto", "off"):
        raise UsageError(Setting("rewrite"), f" must be 'auto' or 'off', not {options.rewrite!r}")
    if options.states not in get_args(StatesName):
        raise UsageError(
            Setting("states"), f" must be {' or '.join(map(repr, get_args(StatesName)))}, not {options.states!r}"
        )
    if options.max_recompute is not None and not 0 <= options.max_recompute <= 1:
        raise UsageError(Setting("max_recompute"), f" must be a share from 0 to 1, not {options.max_recompute:g}")
    if options.strips is not None and options.strips < 2:
        raise UsageError(Setting("strips"), f" must be at least 2, not {options.strips}")


def check_factor(name: str, factor: float | None) -> None:
    """Raise UsageError where a factor that is given is below 1."""
    if factor is not None and not factor >= 1:
        raise UsageError(Setting(name), f" must be a factor from 1, for example 1.1, not {factor:g}")


def _check_arena(options: FitOptions, target: Target) -> None:
    if options.one_file and target.sessions is None:
        raise UsageError(
            Setting("one_file"), f" is for ONNX Runtime (target ort); for {target.name} a fitted model is one file"
        )
    if options.arena_bytes is None:
        return
    if target.sessions is None:
        raise UsageError(
            Setting("arena_bytes"),
            f" is for a session's arena (target ort), not for {target.name}: give ",
            Setting("ram_bytes"),
        )
    if options.ram_bytes is not None:
        raise UsageError(
            Setting("ram_bytes"),
            " is for the whole process, ",
            Setting("arena_bytes"),
            " for its arena alone: give one of them",
        )


def _check_session(path: Path, target: Target, output: FilePath | None, session: FilePath) -> None:
    if target.sessions is None:
        raise UsageError(Setting("session"), f" is for ONNX Runtime (target ort), not for {target.name}")
    if output is None:
        raise UsageError(Setting("session"), " opens the written file: give ", Setting("output"), ", too")
    check_output(session, source=path)
    if Path(os.path.realpath(session)) == Path(os.path.realpath(output)):
        raise UsageError(
            Setting("output"), " and ", Setting("session"), f" both name {session}; give each a file of its own"
        )


def check_result_path(path: Path, output: FilePath) -> None:
    """Raise UsageError where the result cannot be written there: over the model, or as a file of another format."""
    check_output(output, source=path)
    if Path(output).suffix.lower() != path.suffix.lower():
        raise UsageError(f"output {output} must end in {path.suffix}, like the model")
