"""Whether a file computes in ONNX Runtime what the original computes there, judged by the original's own rounding.

ONNX Runtime computes a file in another way at each level of optimisation. A file in another order, or one that holds
what the optimisation makes of the original, adds nothing to that: its outputs equal, bit for bit, those of the original
at one of the levels. Rows computed in strips and sums computed in parts may round in other ways. All are held to the
original as a user runs it: no output may be farther from it than `TIMES` times as far as the original without
optimisation. This is asked of each output in each run, on inputs of several ranges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.graph.kinds import kind_of
from downset.results.comparisons import Comparison, Proof, Rounding
from downset.results.sessions import DEFAULT, EXTENDED, FILE_ORDER, SessionSettings
from downset.runtimes.differences import compare_arrays, same_bits, vary
from downset.runtimes.feeds import Feeds
from downset.runtimes.outputs import Array, Named, ort_inside, worker_outputs

__all__ = [
    "LEVELS",
    "TIMES",
    "HeldFile",
    "first_beyond",
    "held_to_levels",
    "least_scales",
    "level_of",
    "over_ranges",
    "same_at_a_level",
]

Runs = Sequence[Sequence[Array]]
"""By run: the outputs; none of a run that failed."""

TIMES = 4.0
"""The largest difference allowed, in differences between two levels of the original: 2 were exceeded on crnn."""
_LAST_BITS, _LAST_BITS_OF_SUMS = 4.0, 64.0
"""The difference that is always allowed of floats, in steps of the largest value's last bit; the second of files whose
certificate is checked, as levels may agree bit for bit where sums in parts cannot."""
_OF_ONE = ("Sigmoid", "HardSigmoid")
"""Operators that add to a half: a small result is right to the last bits of 1, not to its own."""
_SCALES = (1 / 16, 16.0)
_INTEGERS = (1 << 8, 1 << 12)
LEVELS: Mapping[str, SessionSettings] = {"extended": EXTENDED, "none": FILE_ORDER, "all": DEFAULT}
"""The settings of each level, the levels of optimisation by ONNX Runtime's names in lower case."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that is held to an original. `settings`: with which it is opened. `form`: the file that holds what ONNX
    Runtime executes of the original: the original, or what the optimisation makes of it. `exact`: whether the file has
    the operators of `form` and computes every element as they do. `certified`: whether it is proven by a certificate to
    compute parts of these. `scales`: by output, the least value in whose last bits differences are counted
    (`least_scales`)."""

    path: Named
    settings: SessionSettings
    form: Named
    exact: bool
    certified: bool = False
    scales: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        path: Named,
        settings: SessionSettings,
        form: Named,
        proof: Proof | None,
        *,
        exact: bool,
        scales: tuple[float, ...],
    ) -> HeldFile:
        """The file with what a proof says of it; `exact`: what is said where there is no proof."""
        if proof is None or not proof.proven:
            return cls(path, settings, form, exact, scales=scales)
        same = proof.exact and not proof.rewrites
        return cls(path, settings, form, same, not same, scales)

    @property
    def last_bits(self) -> float:
        return _LAST_BITS_OF_SUMS if self.certified else _LAST_BITS


def least_scales(graph: Graph) -> tuple[float, ...]:
    """By output: 1 where its elements are those of a sigmoid, else 0."""
    made_by, scales = graph.producers(), []
    for output in graph.outputs:
        op = made_by[output]
        while op >= 0 and kind_of(graph.ops[op].kind).category in ("shape-only", "movement"):
            op = made_by[graph.ops[op].inputs[0]]
        scales.append(float(op >= 0 and graph.ops[op].kind in _OF_ONE))
    return tuple(scales)


def held_to_levels(original: Named, held: HeldFile, feeds: Feeds, inside: Sequence[str], *, ranged: bool) -> Comparison:
    """The comparison of a file with an original, with its `rounding`. `feeds`: inputs with which the original runs;
    with `ranged` they are also scaled to other ranges. `inside`: the tensors that `held.form` and the file both
    make. Raises UnsupportedError where ONNX Runtime does not run the file."""
    more = over_ranges(feeds) if ranged else []
    levels = _levels(original, feeds, more)
    ran = [run for run, outputs in enumerate(levels["all"]) if outputs]
    levels = {name: [runs[run] for run in ran] for name, runs in levels.items()}
    theirs = _kept(_outputs(held.path, feeds, more, held.settings), ran)
    usual = levels["all"]
    plain = levels.get("none", usual)
    level = level_of(levels, theirs)
    beyond = _runs_beyond(usual, plain, theirs, held)
    if held.exact and not level and not beyond:
        in_order = () if held.settings == FILE_ORDER else _kept(_outputs(held.path, feeds, more, FILE_ORDER), ran)
        if not in_order or not level_of(levels, in_order):
            beyond = "the original computes these outputs at no level of ONNX Runtime's optimisation"
    flat = [[value for run in runs for value in run] for runs in (usual, theirs, plain)]
    rounding = Rounding(level, compare_arrays(flat[0], flat[2]).max_abs_error, TIMES, beyond)
    return replace(
        compare_arrays(flat[0], flat[1], runtime="ort"),
        runs=len(ran),
        varies=vary(usual),
        inside=len(inside),
        inside_note=_inside(held, feeds[:1], inside),
        rounding=rounding,
    )


def same_at_a_level(original: Named, held: HeldFile, feeds: Feeds) -> bool:
    """Whether the file's outputs are those of the original at one of the levels, bit for bit: the likeliest is run
    first. Raises UnsupportedError where ONNX Runtime does not run the file."""
    theirs = _outputs(held.path, feeds, [], held.settings)
    likeliest = "all" if held.form == original else "extended"
    for name in sorted(LEVELS, key=lambda level: level != likeliest):
        with contextlib.suppress(UnsupportedError):
            if _same(_outputs(original, feeds, [], LEVELS[name]), theirs):
                return True
    return False


def _kept(runs: Runs, ran: Sequence[int]) -> Runs:
    if not all(runs[run] for run in ran):
        raise UnsupportedError("it fails on inputs with which the original runs")
    return [runs[run] for run in ran]


def over_ranges(feeds: Feeds) -> list[dict[str, Array]]:
    """The first run's inputs with their floats far smaller and far larger, and with further wide integers, which may be
    indices that a network does not take; none of a kind that no input has."""
    first, random = dict(feeds[0]), np.random.default_rng(0)
    runs: list[dict[str, Array]] = []
    floats = {name: value for name, value in first.items() if value.dtype.kind == "f"}
    if floats:
        scaled = ({name: np.asarray(value * scale, value.dtype) for name, value in floats.items()} for scale in _SCALES)
        runs += [{**first, **values} for values in scaled]
    wide = [name for name, value in first.items() if value.dtype.kind in "iu" and value.dtype.itemsize > 2]
    if wide:
        runs += [
            first | {name: random.integers(0, most, first[name].shape).astype(first[name].dtype) for name in wide}
            for most in _INTEGERS
        ]
    return runs


def level_of(levels: Mapping[str, Runs], outputs: Runs) -> str:
    """The level at which all outputs are these, bit for bit; "" where there is none."""
    return next((name for name, runs in levels.items() if _same(runs, outputs)), "")


def first_beyond(
    usual: Mapping[str, Array],
    plain: Mapping[str, Array],
    theirs: Mapping[str, Array],
    *,
    last_bits: float = _LAST_BITS,
    scales: Mapping[str, float] | None = None,
) -> str:
    """A message about the first tensor of `theirs` that is farther from `usual` than allowed, by how far `plain` is; ""
    where there is none. Tensors that one of them lacks are not compared. `scales`: see `least_scales`."""
    for name, value in usual.items():
        if name not in theirs:
            continue
        away, own = _apart(value, theirs[name]), _apart(value, plain.get(name, value))
        if away > TIMES * own + _step(value, last_bits, (scales or {}).get(name, 0.0)):
            up_to = f" of values up to {_largest(value):.3g}" if value.dtype.kind == "f" else ""
            return f"{name} differs by up to {away:.3g}{up_to}, ONNX Runtime's own optimisation moves it by {own:.3g}"
    return ""


def _runs_beyond(usual: Runs, plain: Runs, theirs: Runs, held: HeldFile) -> str:
    scales = {f"output {index}": scale for index, scale in enumerate(held.scales)}
    for ours, without, others in zip(usual, plain, theirs, strict=True):
        named = [{f"output {index}": value for index, value in enumerate(run)} for run in (ours, without, others)]
        if beyond := first_beyond(*named, last_bits=held.last_bits, scales=scales):
            return beyond
    return ""


def _levels(original: Named, feeds: Feeds, more: Feeds) -> dict[str, Runs]:
    """The runs of the original at each level at which ONNX Runtime runs it."""
    levels: dict[str, Runs] = {}
    for name, settings in LEVELS.items():
        try:
            levels[name] = _outputs(original, feeds, more, settings)
        except UnsupportedError:
            if name == "all":
                raise
    return levels


def _outputs(path: Named, feeds: Feeds, more: Feeds, settings: SessionSettings) -> Runs:
    """The outputs of all runs. Those on `more` may fail."""
    outputs = worker_outputs("ort_here", path, feeds, options={"settings": settings}).outputs
    if not more:
        return outputs
    return [*outputs, *worker_outputs("ort_here", path, more, options={"settings": settings, "failing": True}).outputs]


def _inside(held: HeldFile, feeds: Feeds, names: Sequence[str]) -> str:
    """How the first tensor inside differs from that of `held.form`, neither being optimised; "" where none does."""
    if not names:
        return ""
    ours, theirs = (ort_inside(path, feeds, names, settings=FILE_ORDER) for path in (held.form, held.path))
    differing = [name for name, value in ours.items() if name in theirs and not _same_array(value, theirs[name])]
    if not differing:
        return ""
    if held.exact:
        worst = _apart(ours[differing[0]], theirs[differing[0]])
        return f"{differing[0]!r} differs by up to {worst:.3g}, where every bit should be the same"
    optimised = ort_inside(held.form, feeds, names, settings=DEFAULT)
    return first_beyond({name: ours[name] for name in differing}, optimised, theirs, last_bits=held.last_bits)


def _same(one: Runs, other: Runs) -> bool:
    return all(
        len(ours) == len(theirs) and all(map(_same_array, ours, theirs))
        for ours, theirs in zip(one, other, strict=True)
    )


def _same_array(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and same_bits(one, other)


def _apart(one: Array, other: Array) -> float:
    """The largest difference; infinite where there is no number for it."""
    if _same_array(one, other):
        return 0.0
    worst: Any = compare_arrays([one], [other]).max_abs_error
    return float("inf") if worst is None else float(worst)


def _step(value: Array, last_bits: float, scale: float = 0.0) -> float:
    """The difference that is always allowed: some of the last bits of floats, of the largest value or of `scale`."""
    if value.dtype.kind != "f":
        return 0.0
    return last_bits * float(np.finfo(value.dtype).eps) * max(_largest(value), scale)


def _largest(value: Array) -> float:
    return float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) if value.dtype.kind == "f" else 0.0
