"""The growth of a process that opens a session of ONNX Runtime and runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from downset.process.isolation import isolated
from downset.process.limits import RUNNING_S, worker_s
from downset.results.processes import ProcessGrowth
from downset.results.sessions import SessionSettings
from downset.runtimes.growth import figures_of, growths_of, in_turns
from downset.runtimes.inputs import random_array

__all__ = ["fixed_shapes", "growth_here", "plain_sessions", "plain_settings", "process_growths"]

Named = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]


def process_growths(
    sessions: Sequence[tuple[Named, SessionSettings]],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    rounds: int = 1,
    timed: bool = True,
) -> list[list[ProcessGrowth]]:
    """The readings of each session, one for each of the `rounds`; in a round every session has its turn, every second
    round in reverse sequence. A session has no readings where one of its processes failed, and where the system does
    not report resident memory. Each process may take the time limit of a worker. Without `timed` there is one further
    run instead of many, and its time says little."""
    each_s = worker_s(RUNNING_S)
    arguments = plain_sessions(sessions, shapes, seed) | {"rounds": rounds, "timed": timed, "each_s": each_s}
    most_s = each_s * (1 + rounds * len(sessions))
    arrays, _ = isolated(__name__, "growth_here", arguments, fresh=True, timeout_s=most_s)
    return growths_of(arrays["figures"])


def plain_sessions(
    sessions: Sequence[tuple[Named, SessionSettings]], shapes: Mapping[str, Sequence[int]] | None, seed: int
) -> dict[str, Any]:
    """Sessions as arguments of a worker."""
    listed = [(os.fspath(path), plain_settings(settings)) for path, settings in sessions]
    return {"sessions": listed, "shapes": fixed_shapes(shapes), "seed": seed}


def plain_settings(settings: SessionSettings) -> Any:
    import msgspec

    return msgspec.to_builtins(settings)


def fixed_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def growth_here(
    sessions: Sequence[tuple[str, Any]], shapes: Shapes, seed: int, rounds: int, timed: bool, each_s: float
) -> dict[str, npt.NDArray[Any]]:
    """`process_growths` inside a worker that has imported no library: each session runs in a child, which imports
    it."""
    asked = [partial(_figures, path, fields, shapes, seed, timed) for path, fields in sessions]
    return {"figures": in_turns(asked, rounds=rounds, limit_s=each_s)}


def _figures(
    path: str, fields: Any, shapes: Shapes, seed: int, timed: bool, settled: Callable[[], None]
) -> list[float]:
    import msgspec

    from downset.runtimes.ort_session import made_feeds_of, quiet_library
    from downset.runtimes.ort_settings import open_session

    settings, library = msgspec.convert(fields, SessionSettings), quiet_library()
    random_array((1,), "float32", seed=seed, position=0)  # what makes inputs is imported first

    def opened() -> Callable[[], object]:
        session = open_session(library, path, settings)
        return partial(session.run, None, made_feeds_of(session, shapes, seed))

    return figures_of(opened, timed=timed, settled=settled)
