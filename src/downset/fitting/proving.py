"""Proves that the chosen file holds the original's network, and runs what it is opened with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from downset.equivalence.prove import prove
from downset.errors import DownsetError, InvalidPlan, LimitReached, UnsupportedError
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.fitting.other_sizes import axes_of, held_at_other_sizes
from downset.fitting.shipping import program_code
from downset.fitting.trials import in_strips
from downset.formats.reading import load
from downset.messages import Message, joined
from downset.reports.comparisons import difference
from downset.results.comparisons import Comparison, Proof
from downset.results.fit import Fit, LoadsHeld
from downset.results.sessions import DEFAULT, FILE_ORDER, SessionSettings
from downset.runtimes import ort
from downset.runtimes.compare import RUNTIMES, Opened, RuntimeName, compare_outputs, with_offsets
from downset.runtimes.differences import not_compared
from downset.runtimes.feeds import FeedSource
from downset.runtimes.rounding import HeldFile, least_scales

__all__ = ["at_other_sizes", "compare", "compare_form", "note_differences", "processes_of_program", "run_program"]

_PROCESSES = {True: 3, False: 5}
"""Fresh processes in which the written program is run, by whether its session follows the order of the file."""


def compare(job: Job, original: Candidate, chosen: Candidate) -> Comparison:
    """Prove that the chosen file holds the original's network, and run both on the same inputs. For a rewritten network
    the target's runtime is tried first, since LiteRT's optimised integer kernels round by a channel's place among all.

    For ONNX Runtime, where there is no proof against the original, it is against the optimised form of the original,
    which is compared with the original by runs only. Raises LimitReached where runs take too long and there is no proof
    against the original. Raises InvalidPlan where the files differ by more than rounding, where offsets are wrong, and
    where there is neither a proof nor an output that depends on the input.
    """
    if chosen.name == original.name:
        return Comparison(True, 0.0, "", "the file is shipped as it is", proof=Proof(True), runs=0)
    proof = _proof(job, original, chosen)
    reasons = []
    runners = [name for name in job.target.runners if job.form in RUNTIMES[name].suffixes]
    for name in reversed(runners) if chosen.rewrites else runners:
        try:
            comparison = _outputs_of(job, original, chosen, name, proof)
        except (UnsupportedError, LimitReached) as error:
            if isinstance(error, LimitReached) and (not proof.proven or proof.optimised):
                raise
            reasons.append(Message(f"{name}: ", error.message))
            continue
        if not job.options.shapes:
            comparison = with_offsets(original.path, chosen.path, comparison, FeedSource(seed=job.options.seed))
        return at_other_sizes(job, chosen, _judged(chosen, comparison))
    if chosen.rewrites and not proof.proven:
        raise InvalidPlan("it could not be compared with the original (", joined("; ", reasons), ")")
    return replace(not_compared(joined("; ", reasons)), proof=proof)


def _proof(job: Job, original: Candidate, chosen: Candidate) -> Proof:
    proof, executed = prove(original.path, chosen.path, shapes=job.options.shapes), _executed(chosen)
    if proof.proven or executed == original.path:
        return proof
    if executed == chosen.path:
        return Proof(True, optimised=True)
    return replace(prove(executed, chosen.path, shapes=job.options.shapes), optimised=True)


def _executed(chosen: Candidate) -> Path:
    """The file from which the chosen one was planned: the original, or the runtime's optimised form of it."""
    return chosen.path if chosen.plan is None else Path(chosen.plan.graph.source.path)


def _judged(chosen: Candidate, comparison: Comparison) -> Comparison:
    """The comparison, if the file may be shipped. Raises InvalidPlan otherwise."""
    inexact = chosen.plan is not None and chosen.plan.inexact
    if not comparison.equal and inexact and comparison.max_abs_error is not None:
        return replace(comparison, note="rounded part by part, as asked for")
    if not comparison.rounds_alike or (comparison.inside_note and not inexact):
        raise InvalidPlan(f"it gave other outputs in {comparison.runtime} (", difference(comparison), ")")
    proven = comparison.proof is not None and comparison.proof.proven
    if not proven and not comparison.telling:
        reason = comparison.proof.reason if comparison.proof is not None else ""
        raise InvalidPlan(f"it is not proven the same ({reason}), and the outputs are the same for every input tried")
    return comparison


def compare_form(
    job: Job, original: Candidate, source: Candidate, chosen: Candidate, outputs: Comparison
) -> Comparison:
    """The comparison of a form that ONNX Runtime made of a planned file, which equals the original bit for bit
    (`outputs`): with what is proven of that file, and at other sizes. Raises InvalidPlan as `compare` does."""
    proof = _proof(job, original, source)
    proof = replace(proof, optimised=True) if proof.proven else proof
    return at_other_sizes(job, chosen, _judged(chosen, replace(outputs, proof=proof)))


def at_other_sizes(job: Job, chosen: Candidate, comparison: Comparison) -> Comparison:
    """The comparison with the other sizes at which the file was held to the original, where the original leaves sizes
    open. Raises InvalidPlan where it fails at one, and for strips that could be held to it at none."""
    axes = axes_of(job)
    if not axes:
        return comparison
    executed, settings = _executed(chosen), chosen.settings or DEFAULT
    network = load(job.path, shapes=job.options.shapes)  # for its inputs and outputs
    held = HeldFile.of(
        chosen.path, settings, executed, comparison.proof, exact=not chosen.rewrites, scales=least_scales(network)
    )
    sizes = held_at_other_sizes(job, network, held, in_strips=in_strips(chosen))
    if not sizes:
        if in_strips(chosen):
            raise InvalidPlan("rows are cut at the given sizes, and the original runs at no others that were tried")
        job.notes.add("the original runs at no other sizes that were tried: the file was compared at these alone")
    return replace(comparison, other_sizes=sizes)


def _outputs_of(
    job: Job, original: Candidate, chosen: Candidate, runtime: RuntimeName, proof: Proof | None = None
) -> Comparison:
    usual = FILE_ORDER if job.target.file_order else DEFAULT
    return compare_outputs(
        original.path,
        chosen.path,
        runtime=runtime,
        source=FeedSource(job.options.shapes, job.options.seed, job.options.inputs),
        opened=Opened(chosen.settings or usual, _executed(chosen), exact=not chosen.rewrites, trust=job.options.trust),
        proof=proof,
    )


def note_differences(job: Job, original: Candidate, chosen: Candidate, outputs: Comparison) -> None:
    """Add a note where the outputs of a rewritten file equal the original's in TFLite Micro, but not in LiteRT."""
    if not (chosen.rewrites and outputs.equal and outputs.runtime == "tflm"):
        return
    try:
        comparison = _outputs_of(job, original, chosen, "litert")
    except (UnsupportedError, LimitReached):
        return
    if not comparison.equal and comparison.max_abs_error is not None:
        job.notes.add(
            "equal in TFLite Micro; in LiteRT's optimised kernels outputs differ by up to "
            f"{comparison.max_abs_error:.3g}: its integer DEPTHWISE_CONV_2D rounds by a channel's place among all (its "
            "reference kernels do not)"
        )


def processes_of_program(settings: SessionSettings) -> int:
    """The number of fresh processes in which the written program is run."""
    return _PROCESSES[settings.follows_file]


def run_program(job: Job, chosen: Candidate, result: Fit) -> Fit:
    """The result with what the program that opens the chosen file holds in fresh processes. If one of them held more
    than was measured, that is what the file takes, and it does not hold at every load. Nothing is run for targets
    without sessions, and where nothing was measured."""
    measured = result.measured
    if measured is None or chosen.settings is None:
        return result
    program = job.scratch / "opened.py"
    program.write_text(program_code(job, chosen, result, (chosen.path, program)))
    try:
        printed = ort.program_bytes(program, processes_of_program(chosen.settings))
    except DownsetError as error:
        job.notes.add(Message("the program that opens the file did not run: ", error.message))
        return result
    most_in_use = max(in_use for in_use, _ in printed)
    held_bytes = [measured.after, *(nbytes for _, nbytes in printed)]
    most = max(held_bytes)
    loads = LoadsHeld(len(printed), min(held_bytes), most, chosen.settings.follows_file and most == measured.after)
    rows = tuple(
        replace(row, in_use_bytes=max(row.in_use_bytes, most_in_use), held_bytes=max(held_bytes))
        if (row.file, row.settings) == (chosen.name, chosen.settings)
        else row
        for row in measured.rows
    )
    return replace(result, measured=replace(measured, after=max(held_bytes), rows=rows, loads=loads))
