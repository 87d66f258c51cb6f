"""Checks of the arguments of `fit`, before anything is read: the target, the options, and the paths of results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from downset.errors import UsageError
from downset.fitting.summary import BLOCK_BYTES
from downset.formats.reading import refused
from downset.memory.models import memory_model
from downset.memory.overlaps import KERNELS, KernelsName
from downset.messages import Call, Message
from downset.process.whole_files import check_output
from downset.runtimes.targets import TARGETS, Target, targets_of

__all__ = [
    "check_options",
    "check_result_path",
    "check_session",
    "check_slower",
    "check_strips",
    "target_of",
    "with_overlaps",
]


def target_of(path: Path, target: str | None) -> Target:
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


def with_overlaps(target: Target, kernels: KernelsName | None) -> Target:
    """The target with the memory model in which results may overlap inputs as the library allows. Raises UsageError for
    an unknown library, or a target other than tflm."""
    if kernels is None:
        return target
    if kernels not in KERNELS:
        raise UsageError(f"kernels must be one of {', '.join(KERNELS)}, not {kernels!r}")
    if target.name != "tflm":
        raise UsageError(f"kernels is for offsets that TFLite Micro follows (target tflm), not for {target.name}")
    return replace(target, memory=memory_model(f"tflm-{kernels}").name)  # type: ignore[arg-type]


def check_strips(max_recompute: float | None, strips: int | None) -> None:
    if max_recompute is not None and not 0 <= max_recompute <= 1:
        raise UsageError(f"max_recompute must be a share from 0 to 1, not {max_recompute:g}")
    if strips is not None and strips < 2:
        raise UsageError(f"strips must be at least 2, not {strips}")


def check_options(time_limit_s: float, rewrite: str, on_chip: Sequence[int]) -> None:
    if not time_limit_s > 0:
        raise UsageError(f"a time limit of {time_limit_s:g} s leaves no time; give more than 0")
    if rewrite not in ("auto", "off"):
        raise UsageError(f"rewrite must be 'auto' or 'off', not {rewrite!r}")
    if any(size < BLOCK_BYTES for size in on_chip):
        raise UsageError(
            f"on-chip memory of {min(on_chip)} bytes cannot hold a cache block; give at least {BLOCK_BYTES}"
        )


def check_slower(slower: float | None, target: Target) -> None:
    if slower is None:
        return
    if not slower >= 1:
        raise UsageError(f"slower must be a factor from 1, for example 1.1, not {slower:g}")
    if target.sessions is None:
        raise UsageError(f"slower needs measured times, which target ort has, not {target.name}")


def check_session(
    path: Path, target: Target, output: str | os.PathLike[str] | None, session: str | os.PathLike[str]
) -> None:
    if target.sessions is None:
        raise UsageError(f"session is for ONNX Runtime (target ort), not for {target.name}")
    if output is None:
        raise UsageError("a session opens the written file: give an output, too")
    check_output(session, source=path)
    if Path(os.path.realpath(session)) == Path(os.path.realpath(output)):
        raise UsageError(f"output and session both name {session}; give each a file of its own")


def check_result_path(path: Path, output: str | os.PathLike[str]) -> None:
    check_output(output, source=path)
    if Path(output).suffix.lower() != path.suffix.lower():
        raise UsageError(f"output {output} must end in {path.suffix}, like the model")
