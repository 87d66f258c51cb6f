"""Reads a model file and writes the same network with less memory, after a proof and runs of both files.

A target states which file the runtime executes and how it is measured (`runtimes.targets`); a format states what its
files can hold (`formats.writing`). The best *measured* candidate ships where the runtime can be measured, else the best
under its memory model. The original is always a candidate, so the result is never worse.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from downset.errors import DownsetError, InfeasibleError, LimitReached
from downset.fitting.candidates import Original
from downset.fitting.choosing import candidates_of
from downset.fitting.in_hops import InHops, in_hops, window_options, with_stream
from downset.fitting.job import FitOptions, Job, Listener, RewriteName, StatesName, check_options
from downset.fitting.measuring import Processes, measure_all
from downset.fitting.planning import list_candidates, plan
from downset.fitting.preparing import measure_original, read, start
from downset.fitting.processes import capped, choose_by_process, in_file_order, race_of
from downset.fitting.shipping import ship
from downset.fitting.stream_bytes import tell_streams_that_fit
from downset.fitting.summary import complete, summarise
from downset.fitting.verdict import check_process, check_ram
from downset.formats.onnx.data_files import model_files
from downset.formats.reading import check_readable
from downset.formats.writing import WRITERS
from downset.messages import Call, Message
from downset.process.file_ranges import FileState, check_state, file_state
from downset.process.limits import limits
from downset.results.fit import ExportedProgram, Fit
from downset.runtimes.feeds import read_feeds
from downset.runtimes.inputs import given_inputs
from downset.runtimes.targets import TargetName
from downset.text import unheard

__all__ = ["fit", "fit_model"]

States = dict[str, FileState]
"""The states of the files that hold the model, by path, before they were read."""


def fit(  # noqa: PLR0913 - users know its keywords
    model: str | os.PathLike[str] | ExportedProgram,
    *,
    output: str | os.PathLike[str] | None = None,
    target: TargetName | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int | range] | None = None,
    ram_bytes: int | None = None,
    arena_bytes: int | None = None,
    one_file: bool = False,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    seed: int = 0,
    rewrite: RewriteName = "auto",
    inexact: bool = False,
    max_recompute: float | None = None,
    strips: int | None = None,
    front: bool = False,
    kernels: str | None = None,
    int8: bool = False,
    states: StatesName = "variables",
    stream: int | Sequence[int] | None = None,
    slower: float | None = None,
    larger: float | None = None,
    session: str | os.PathLike[str] | None = None,
    trust: bool = False,
    inputs: Sequence[str | os.PathLike[str]] = (),
    progress: Callable[[str], None] | None = None,
    notice: Callable[[str], None] | None = None,
    takes_longer: Callable[[float], None] | None = None,
) -> Fit:
    """Order and place the network in `model` for least memory on `target`; verify, measure, and write `output`.

    `model`: a file, or what `torch.export.export` returns; then `Fit.program` is the fitted program.
    `output`: the file to write; without it nothing is written. `target`: by default tflm for .tflite (litert where
    TFLite Micro refuses the file and LiteRT runs it), ort for .onnx and torch for .pt2. `shapes`: of inputs, by name;
    `dims`: sizes that the file leaves open, as `load` takes them; of a range the largest is planned, and the file is
    compared and measured at others. `time_limit_s`: seconds of processor time that
    all searches share; reading, runs in the runtime and proofs take more. Notes say what was not searched for want of
    time. `work_limit`: states of each search, or choices of strips. Where only it limits the search
    (`time_limit_s=math.inf`), the plans do not depend on the machine. `seed`: of random choices.

    `slower` and `larger`: the file of least memory ships whose run takes at most so many times the original's processor
    time (the upper end of the confidence interval; 1.1 if not given) and that has at most so many times its bytes on
    disk (1.25; 2.2 where ONNX Runtime maps them). `ram_bytes`: bytes that may be measured, or that the arena may take
    if nothing is; in ONNX Runtime those by which a process may grow. `arena_bytes`: bytes that the arena of a session
    may hold in ONNX Runtime, which is also the most that it is allowed. `one_file`: no weights are put into a file
    beside the model, from which ONNX Runtime would map them. Where no file within the two limits fits, these do not
    count unless they are stated: the cheapest plan found that fits ships, with segments in strips of
    rows. `max_recompute` limits extra MACs, as a share (0 to 1) of the network's, and `strips` the strips of
    one segment. Either of them asks for the least memory in strips, whatever it costs in time and file size; in ONNX
    Runtime the arena then decides. `front`: also measure a few plans in strips.

    `rewrite`: "auto" also rewrites the graph where that lowers the peak; "off" does not, and makes strips only where
    `ram_bytes`, `max_recompute` or `strips` ask for them. `inexact`: also compute quantised sums part by part, which
    rounds each part. `int8`: fit the exact int8 form of a uint8 file, which TFLite Micro runs; its inputs and outputs
    are those of the file less 128. `states`: whether the file keeps states in "variables", as the runtimes do, or
    "in-place": each is an input and an output at one offset of the arena, which takes least in TFLite Micro and is
    wrong in any other runtime. The caller then initialises them, as `firmware` writes. "auto": in place where that is
    possible. `stream`: fit the stream that is called every so many rows of its input in place of `model`, which is
    called on windows: (hop, axis), or the hop alone along the axis that moves. It computes only what is new and keeps
    the rest from call to call. `kernels`: the library whose kernels run the file in TFLite Micro, "reference",
    "cmsis-nn-dsp", "cmsis-nn-mve", "esp-nn-s3", "esp-nn-p4" or "esp-nn-generic", with the version behind "@"
    ("esp-nn-s3@1.2.1"; without it the most that any known version takes counts). Their scratch is part of what is
    needed, and plans for ESP-NN place it. With the first three, results may lie over inputs where the library's loops
    allow that, and with other kernels the file is then wrong. None: nothing overlaps, no scratch is added. `session`:
    where to write a program that opens `output` by the measured settings. `trust`: PyTorch may load a .pt2 file, and
    run code in it. `inputs`: files of the user's data (.npy, or .npz by the inputs' names) on which outputs are
    compared, and on the first of which ONNX Runtime is measured; without them inputs are drawn from `seed`.
    `progress` is called with each step. `notice` is called before the searches if the runtime does not run `model`, so
    that the verdict about `ram_bytes` cannot be "fits". `takes_longer` is called with the seconds that runs in the
    runtime will take in addition to `time_limit_s`, estimated from a run of the original.

    Raises InfeasibleError if `ram_bytes` is proven too little, LimitReached if it was too little for what was found, or
    nothing was measured; other DownsetErrors for bad input. No output is written then.
    """
    in_memory = not isinstance(model, (str, os.PathLike)) and isinstance(model, ExportedProgram)
    options = FitOptions(
        "program.pt2" if in_memory else model,  # type: ignore[arg-type]
        output=output,
        target=target,
        shapes=shapes,
        dims=dims,
        ram_bytes=ram_bytes,
        arena_bytes=arena_bytes,
        one_file=one_file,
        time_limit_s=time_limit_s,
        work_limit=work_limit,
        seed=seed,
        rewrite=rewrite,
        inexact=inexact,
        max_recompute=max_recompute,
        strips=strips,
        front=front,
        kernels=kernels,
        int8=int8,
        states=states,
        stream=(stream,) if isinstance(stream, int) else stream,
        slower=slower,
        larger=larger,
        session=session,
        trust=trust,
        inputs=inputs,
    )
    listener = Listener(progress or unheard, notice or unheard, takes_longer=takes_longer or unheard)
    return _fit_program(model, options, listener) if in_memory else fit_model(options, listener)  # type: ignore[arg-type]


def _fit_program(program: ExportedProgram, options: FitOptions, listener: Listener) -> Fit:
    """Fit a program in memory by way of files, which exist as long as the fitted program does: its graph reads them."""
    from downset.formats.torch.exported import reloaded, saved

    folder = tempfile.TemporaryDirectory(prefix="downset-")
    try:
        source = saved(program, Path(folder.name) / options.model)
        output = Path(options.output or source.with_name("fitted.pt2"))
        result = fit_model(replace(options, model=source, output=output), listener)
        fitted = reloaded(output)
    except BaseException as error:
        folder.cleanup()
        if isinstance(error, DownsetError):
            own = f"{folder.name}{os.sep}"  # of which the caller knows nothing
            error.args = tuple(part.replace(own, "") if isinstance(part, str) else part for part in error.args)
        raise
    weakref.finalize(fitted, folder.cleanup)
    written = None if options.output is None else result.output_path
    result = replace(result, model=source.name, program=fitted, output_path=written)
    return result if result.command is None else replace(result, command=_own_call(result.command))


def _own_call(command: Call) -> Call:
    """The settings of a call on files that only this process knows, for the user's own call."""
    return Call(command.function, tuple(one for one in command.settings if one.name != "output"))


def fit_model(options: FitOptions, listener: Listener) -> Fit:
    """`fit`, with its keywords as one value."""
    target = check_options(options)
    check_readable(Path(options.model))
    states = _states([options.model])
    with tempfile.TemporaryDirectory(prefix="downset-") as scratch, _unchanged(states):
        job, asked = in_hops(start(options, target, Path(scratch), listener))
        original = read(job)
        if WRITERS[job.form].weights_outside:
            states |= _states(model_files(job.path)) | states  # the model's stays that from before it was read
        with limits(operators=len(original.graph.ops)), _measured_on_given(job, original):
            job, original = measure_original(job, original)
            with listener.searching():
                return _fitted(job, original, states, asked)


def _measured_on_given(job: Job, original: Original) -> AbstractContextManager[None]:
    """A context in which ONNX Runtime is measured on the user's first inputs."""
    if job.target.sessions is None or job.options.stream is not None or not job.options.inputs:
        return given_inputs(None, {})
    return given_inputs(job.scratch / "given.npz", read_feeds(original.graph, job.options.inputs[:1])[0])


@contextmanager
def _unchanged(states: States) -> Iterator[None]:
    """Where a file has changed since its state was noted, the LoadError about that takes the place of an error of the
    body, which may follow from it: steps of a fit read the files again."""
    try:
        yield
    except (DownsetError, OSError):
        _check_states(states)
        raise


def _states(files: Iterable[str | os.PathLike[str]]) -> States:
    return {os.fspath(file): file_state(os.stat(file)) for file in files if os.path.exists(file)}  # noqa: PTH110, PTH116


def _check_states(states: States) -> None:
    """Raise LoadError where one of the files has changed: what is shipped would mix two networks."""
    for file, state in states.items():
        check_state(file, state)


def _fitted_window(job: Job, asked: InHops) -> Fit | None:
    """The window's own fit; None, with a note, where it fails."""
    try:
        return fit_model(window_options(job, asked.shapes), Listener())
    except DownsetError as error:
        job.notes.add(Message("the window itself was not fitted: ", error.message))
        return None


def _fitted(job: Job, original: Original, states: States, asked: InHops | None) -> Fit:
    planned = plan(job, original.graph)
    race = race_of(job, original.file)
    job = job if race is None else in_file_order(job)
    others = list_candidates(job, original, planned)
    decide = None if race is None else Processes(race.most, race.each_s)
    candidates = candidates_of(job, planned, measure_all(job, original, others, decide))
    choice = capped(job, choose_by_process(job, planned, candidates, race))
    if choice.file.name == "original" and original.graph.states and original.executed != job.path:
        return fit_model(replace(job.options, states="variables"), job.listener)  # in place it takes no less
    job.listener.progress("writing the result")
    result = summarise(job, original, planned, candidates, choice)
    result = complete(job, planned, candidates, choice, result)
    try:
        result = check_process(job, check_ram(result, job.planned_limit, candidates.strips))
    except (InfeasibleError, LimitReached) as error:
        if asked is not None:
            tell_streams_that_fit(error, job, asked)
        raise
    if asked is not None:
        job.listener.progress("fitting the window")
        result = with_stream(job, asked, choice.file, result, _fitted_window(job, asked))
    _check_states(states)
    return ship(job, choice.file, result)
