"""Runs that aim at what two files differ in, where it is not proven that they hold the same network.

Three things are tried until one shows a difference: inputs over the range of numbers; inputs by which an operator with
another constant reads values around that constant; graphs inside operators, each made to run. Everything runs in the
files' order without a runtime's optimisation. A difference counts if it is larger than rounding, and larger than what
inputs that differ by rounding change in the first file.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.equivalence.unshown import OtherConstant, Unshown
from downset.errors import DownsetError, LimitReached, UnsupportedError
from downset.formats.reading import load
from downset.results.comparisons import ROUNDING, Comparison
from downset.results.sessions import FILE_ORDER
from downset.runtimes.bodies import ways, with_output
from downset.runtimes.differences import compare_arrays
from downset.runtimes.feeds import FeedSource
from downset.runtimes.outputs import worker_outputs
from downset.runtimes.ranges import SIZES, Fed, Inputs, RangedInputs, ranged_inputs

__all__ = ["Reached", "reach"]

Array = npt.NDArray[Any]
Named = str | os.PathLike[str]

_ROUNDS = 5
"""How often inputs are aimed again at a constant along one direction."""
_CONSTANTS, _NUMBERS = 6, 4
"""The number of constants, and of numbers in each, that are aimed at."""
_BATCH_BYTES = 1 << 26
_CALL_S = 3.0
"""The least time of a call of a runtime, in seconds."""


@dataclass(frozen=True, slots=True)
class Reached:
    """`difference`: how the files differ on a run; "" where no run shows it. `tried`: what was tried. `places`: of the
    operators of the first file's main graph whose graphs all ran; None among them where that holds of the graphs that
    are called by number."""

    difference: str = ""
    tried: tuple[str, ...] = ()
    places: frozenset[int | None] = frozenset()


def reach(first: Named, second: Named, differences: Unshown, source: FeedSource, time_limit_s: float) -> Reached:
    """Run two files on inputs that aim at their `differences`, until one run shows one or the time is over. The seed
    and the shapes of `source` hold for these inputs. Files that are the same but for rounding are not told apart."""
    search = _Search(time.monotonic() + time_limit_s, source, "litert_here" if _is_tflite(first) else "ort_here")
    try:
        with tempfile.TemporaryDirectory(prefix="downset-") as folder:
            difference = _searched(search, (first, second), differences, Path(folder))
    except LimitReached:
        difference = ""
        search.tried.append("the time limit ended the search for a difference")
    return Reached(difference, tuple(search.tried), frozenset(search.places))


def _is_tflite(path: Named) -> bool:
    return Path(path).suffix.lower() == ".tflite"


def _searched(search: _Search, files: tuple[Named, Named], differences: Unshown, folder: Path) -> str:
    inputs = search.inputs_of(files[0])
    constants = differences.constants[:_CONSTANTS]
    searches: list[Callable[[], str]] = [
        *(partial(_aimed, search, files, inputs, constant, folder) for constant in constants),
        lambda: search.differ(files, inputs.ranges([value for each in constants for value in _numbers(each)])),
        lambda: _inside(search, files, differences, folder),
    ]
    if differences.graphs:  # what differs may lie inside
        searches.insert(0, searches.pop())
    return next((difference for each in searches if (difference := each())), "")


def _inside(search: _Search, files: tuple[Named, Named], differences: Unshown, folder: Path) -> str:
    """Every graph inside operators, those that differ first."""
    others = {(graphs.first, graphs.second) for graphs in differences.graphs}
    operators = sorted(differences.operators, key=lambda pair: pair not in others)
    failed: set[int | None] = set()
    for way in ways(*files, operators, folder):
        try:
            inputs = search.inputs_of(way.first).few()
            runs, difference = search.compare((way.first, way.second), inputs)
        except DownsetError as error:
            if isinstance(error, LimitReached):
                raise
            runs, difference = 0, ""
        if difference:
            return f"{way.what}: {difference}"
        search.tried.append(way.what if runs else f"{way.what}, which did not run")
        (search.places if runs and way.whole else failed).add(way.place)
    search.places -= failed
    return ""


@dataclass(slots=True)
class _Search:
    """`end`: the moment on the clock at which the search ends. `function`: the one of `runtimes.outputs` that runs."""

    end: float
    source: FeedSource
    function: str
    tried: list[str] = field(default_factory=list)
    places: set[int | None] = field(default_factory=set)

    def inputs_of(self, path: Named) -> RangedInputs:
        return ranged_inputs(load(path, shapes=self.source.shapes), self.source.seed)

    def outputs(self, path: Named, inputs: Inputs) -> Sequence[Sequence[Array]]:
        left_s = self.end - time.monotonic()
        if left_s <= 0:
            raise LimitReached("the time is over")
        options = {"failing": True} | ({"settings": FILE_ORDER} if self.function == "ort_here" else {})
        call_s = max(left_s / 3, _CALL_S)  # a loop may run for ever on some inputs
        try:
            return worker_outputs(
                self.function, path, [fed for _, fed in inputs], options=options, timeout_s=call_s
            ).outputs
        except LimitReached as error:
            raise UnsupportedError(error.message) from None

    def differ(self, files: tuple[Named, Named], groups: Iterator[tuple[str, Inputs]]) -> str:
        """How the files differ on one input; "" where they do not. `groups`: each may crash the runtime."""
        for what, inputs in groups:
            try:
                runs, difference = self.compare(files, inputs)
            except LimitReached:
                raise
            except DownsetError:
                runs, difference = 0, ""
            if difference:
                return difference
            if runs:
                self.tried.append(f"{runs} inputs: {what}")
        return ""

    def compare(self, files: tuple[Named, Named], inputs: Inputs) -> tuple[int, str]:
        """(the number of inputs on which both ran, how they differ on one; "" where they do not)."""
        runs = 0
        for batch in _batches(inputs):
            ours, theirs = (self.outputs(path, batch) for path in files)
            both = [(bool(one), bool(other)) for one, other in zip(ours, theirs, strict=True)]
            runs += both.count((True, True))
            difference = self.difference(files[0], batch, ours, theirs) or self.refused(files, batch, both)
            if difference:
                return runs, difference
        return runs, ""

    def difference(
        self, path: Named, inputs: Inputs, ours: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]]
    ) -> str:
        """How the outputs of a run differ beyond rounding; "" where none do."""
        comparisons = {
            run: compare_arrays(one, other)
            for run, (one, other) in enumerate(zip(ours, theirs, strict=True))
            if one and other
        }
        differing = {run: each for run, each in comparisons.items() if not each.rounds_alike}
        if not differing:
            return ""
        moved = self.outputs(path, [(what, _rounded(fed, self.source.seed)) for what, fed in inputs])
        for run, comparison in differing.items():
            if moved[run] and _larger(comparison, compare_arrays(ours[run], moved[run])):
                worst, largest = comparison.max_abs_error, comparison.largest
                difference = comparison.note or f"outputs differ by up to {worst:.3g} of values up to {largest:.3g}"
                return f"{difference}, on {inputs[run][0]}"
        return ""

    def refused(self, files: tuple[Named, Named], inputs: Inputs, ran: Sequence[tuple[bool, bool]]) -> str:
        """The first input on which one file runs and the other fails, also alone; "" where there is none."""
        for one, pair in zip(inputs, ran, strict=True):
            if pair[0] != pair[1] and [bool(self.outputs(path, [one])[0]) for path in files] == list(pair):
                return f"the {'second' if pair[0] else 'first'} fails and the other does not, on {one[0]}"
        return ""


def _larger(difference: Comparison, rounding: Comparison) -> bool:
    """Whether a difference is clearly larger than what inputs that differ by rounding change."""
    if difference.max_abs_error is None:
        return rounding.max_abs_error is not None  # another shape, which rounding does not change
    return rounding.max_abs_error is not None and difference.max_abs_error > 2 * rounding.max_abs_error


def _rounded(fed: Fed, seed: int) -> dict[str, Array]:
    """Inputs of which each float differs by rounding."""
    random = np.random.default_rng(seed)
    return {
        name: np.asarray(value * (1 + ROUNDING * random.choice((-1.0, 1.0), value.shape)), value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in fed.items()
    }


def _batches(inputs: Inputs) -> Iterator[Inputs]:
    nbytes = sum(value.nbytes for value in inputs[0][1].values()) if inputs else 0
    size = min(max(_BATCH_BYTES // max(nbytes, 1), 4), 32)
    yield from (inputs[start : start + size] for start in range(0, len(inputs), size))


def _numbers(constant: OtherConstant) -> list[float]:
    """Some of the numbers that differ, in each file, and between them."""
    ours, theirs = constant.ours.reshape(-1), constant.theirs.reshape(-1)
    if ours.shape != theirs.shape or not ours.size:
        return []
    differing = np.flatnonzero((ours != theirs) & np.isfinite(ours) & np.isfinite(theirs))[:_NUMBERS]
    pairs = [(float(ours[each]), float(theirs[each])) for each in differing]
    return [sign * number for one, other in pairs for number in (one, other, (one + other) / 2) for sign in (1, -1)]


def _aimed(
    search: _Search, files: tuple[Named, Named], inputs: RangedInputs, constant: OtherConstant, folder: Path
) -> str:
    """Runs in which what is read with the constant takes values around it."""
    numbers = _numbers(constant)
    for index, label in constant.beside[:2] if numbers else ():
        watched = folder / "watched"
        watched.mkdir(exist_ok=True)
        difference = ""
        try:
            shown = with_output(files[0], label, index, watched)
            for what, direction in inputs.directions():
                difference = difference or _followed(search, files, shown, _Aim(inputs, direction, what, numbers))
        except LimitReached:
            raise
        except DownsetError:
            continue
        if difference:
            return f"{difference}, where {label!r} is near numbers that differ"
        search.tried.append(f"inputs that bring {label!r} near numbers that differ")
    return ""


@dataclass(frozen=True, slots=True)
class _Aim:
    """Inputs along one direction, and the numbers that a tensor inside is to take."""

    inputs: RangedInputs
    direction: Mapping[str, Array]
    what: str
    numbers: Sequence[float]

    def closer(self, seen: Mapping[float, Array]) -> list[float]:
        """Sizes at which the tensor lies nearer to the numbers, by what it was at the sizes seen so far."""
        sizes = sorted(seen)
        proposed: dict[float, None] = {}
        for one, other in pairwise(sizes):
            before, after = (np.asarray(seen[size], np.float64).reshape(-1) for size in (one, other))
            for number in self.numbers:
                crossing = np.flatnonzero((before - number) * (after - number) < 0)
                if (
                    crossing.size
                    and np.isfinite(low := before[crossing[0]])
                    and np.isfinite(high := after[crossing[0]])
                ):
                    share = (number - low) / (high - low)
                    proposed |= {one + part * (other - one): None for part in (float(share), 0.5)}
                    if one * other > 0:
                        proposed[float(np.sign(one) * np.sqrt(one * other))] = None
        return [size for size in proposed if size not in seen][:32]


def _followed(search: _Search, files: tuple[Named, Named], shown: Path, aim: _Aim) -> str:
    seen: dict[float, Array] = {}
    sizes = [0.0, *(sign * size for size in SIZES[:10] for sign in (1, -1))]
    for _ in range(_ROUNDS):
        inputs = aim.inputs.along(aim.what, aim.direction, sizes)
        values = [outputs for batch in _batches(inputs) for outputs in search.outputs(shown, batch)]
        seen |= {size: outputs[-1] for size, outputs in zip(sizes, values, strict=True) if outputs}
        _, difference = search.compare(files, inputs)
        if difference:
            return difference
        sizes = aim.closer(seen)
        if not sizes:
            break
    return ""
