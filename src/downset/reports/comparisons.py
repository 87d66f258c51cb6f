"""Describes a comparison of two networks: what is proven, what was run, and what the runs cannot show."""

from __future__ import annotations

from typing import Any, Literal

from downset.messages import Call, Message, Setting
from downset.reports.document import Document, Facts, Section, Verdict, named
from downset.results.comparisons import Comparison, Proof, Rounding, StreamProof
from downset.text import counted

__all__ = ["comparison_data", "comparison_document", "comparison_lines", "difference", "not_proven", "proof_line"]


def comparison_document(comparison: Comparison) -> Document:
    """The result of `compare`; docs/schemas/verify.json has its keys."""
    headline, *lines = comparison_lines(comparison) or [comparison.reason]
    state: Literal["good", "unknown"] = "good" if comparison.proven else "unknown"
    section = Section("What was run", (Facts(tuple(lines)),))
    return Document("", "", Verdict(state, headline), (section,), data=comparison_data(comparison))


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The values of a comparison, for the documents of a comparison and of a fit."""
    proof, rounding = comparison.proof, comparison.rounding
    return {
        **named(
            comparison, "proven", "reason", "runtime", "equal", "max_abs_error", "inside_note", "tried", "other_sizes"
        ),
        "largest_output": comparison.largest,
        "inputs_tried": comparison.runs,
        "outputs_vary": comparison.varies,
        "tensors_inside": comparison.inside,
        "equal_with_offsets": comparison.placed,
        "unshown_difference": comparison.unshown,
        "reached_difference": comparison.reached,
        "stream_runs": None if comparison.stream_runs is None else named(comparison.stream_runs, "warm", "noise"),
        "rounding": None if rounding is None else named(rounding, "level", "own_error", "times", "beyond"),
        "proof": None
        if proof is None
        else {
            **named(proof, "proven", "exact", "finite", "optimised", "rewrites", "states", "reason"),
            "stream": None
            if proof.stream is None
            else named(proof.stream, "window", "hop", "form", "states", "first_exact", "warm"),
        },
    }


def comparison_lines(comparison: Comparison) -> list[str]:
    """A line on the proof, and lines on the runs and on what they cannot show."""
    lines = [] if comparison.proof is None else [proof_line(comparison)]
    if comparison.equal is None:
        return [*lines, comparison.note]
    if not comparison.runtime:
        return lines
    lines.append(Message("outputs: ", _outputs(comparison)))
    if comparison.placed:
        lines.append("outputs in tflm, with the offsets of the file in force: equal, too")
    if comparison.tried:
        lines.append(f"equal, too: {'; '.join(comparison.tried)}")
    if comparison.unshown:
        lines.append(f"the runs do not show a difference that the files have: {comparison.unshown}")
    elif not comparison.telling:
        lines.append(
            Message(
                "the outputs are the same for every input tried: runs say little about this network; ",
                Call("compare"),
                " with ",
                Setting("inputs"),
                " compares on your own data",
            )
        )
    return lines


def proof_line(comparison: Comparison) -> str:
    """Whether the files are proven the same, and why not."""
    proof = comparison.proof
    if proof is None or not comparison.proven:
        return Message("not proven the same network: ", comparison.reason)
    if proof.stream is not None:
        return _proven_stream(proof, proof.stream)
    same = "proven the same network"
    if proof.rewrites:
        same += f", rewritten: {proof.rewrites} tensors hold parts of its tensors or of its sums"
        if not proof.exact:
            same += ", and sums are added up in another order, equal up to rounding"
        if proof.finite:
            same += "; condition: finite values"
    if proof.states:
        same += (
            f", by induction over its calls: {counted(proof.states, 'state')} in place, for TFLite Micro alone; the "
            "proof assumes that they begin with their initial bytes, and that nothing else writes to the arena between "
            "calls"
        )
    return same


_FORMS = {
    "variables": "as variables of the file",
    "in_place": "in place, in TFLite Micro alone",
    "states": "which the caller passes on",
}


def _proven_stream(proof: Proof, stream: StreamProof) -> str:
    """The sentence on a proven stream, and from which hop on its outputs count."""
    line = (
        f"proven by induction over hops: called on {stream.hop} new rows, it computes what the network computes on the "
        f"last {stream.window}, from hop {stream.first_exact} on"
    )
    if stream.states:
        line += f"; it keeps {stream.states} state{'' if stream.states == 1 else 's'}, {_FORMS[stream.form]}"
    return line if proof.exact else f"{line}; sums are added up in another order, equal up to rounding"


def not_proven(comparison: Comparison) -> str:
    """Why two networks that agree in all runs are not proven the same, and what the runs say of them."""
    if comparison.equal is None:
        runs = comparison.note
    elif comparison.unshown:
        runs = Message(
            f"the runs do not show a difference that the files have: {comparison.unshown}; give data that takes this "
            "part with ",
            Setting("inputs"),
        )
    elif not comparison.telling:
        runs = Message(
            "their outputs are the same for every input tried, so comparing them says nothing; give your own data ",
            "with ",
            Setting("inputs"),
        )
    else:
        tried = "; ".join([f"{comparison.runs} inputs", *comparison.tried])
        runs = f"all that was tried in {comparison.runtime} agrees ({tried})"
    return Message(comparison.reason, "; ", runs)


def difference(comparison: Comparison) -> str:
    """How the networks differ, for a comparison in which they do."""
    if comparison.reached:
        return comparison.reached
    if comparison.equal or (comparison.inside_note and comparison.rounds_alike):
        return f"the outputs agree, but inside {comparison.inside_note}"
    beyond = comparison.rounding.beyond if comparison.rounding else ""
    apart = comparison.note or beyond or f"largest absolute difference {comparison.max_abs_error:g}"
    return Message(apart, f"; inside {comparison.inside_note}") if comparison.inside_note else apart


def _by_level(rounding: Rounding) -> str:
    """How the outputs of a file that differ from the original's by default relate to its own rounding."""
    if rounding.beyond:
        return rounding.beyond
    moved = "" if rounding.own_error is None else f", which its optimisation moves by {rounding.own_error:.2g}"
    if not rounding.level:
        return f"in each output and run within {rounding.times:g} times what ONNX Runtime's optimisation moves" + (
            "" if rounding.own_error is None else f": {rounding.own_error:.2g}"
        )
    levels = {"none": "without optimisation", "all": "by default"}
    how = levels.get(rounding.level, f"at ONNX Runtime's optimisation level {rounding.level}")
    return f"bit for bit the original's {how}{moved}"


def _outputs(comparison: Comparison) -> Message:
    said = comparison.note or (_by_level(comparison.rounding) if comparison.rounding and not comparison.equal else "")
    note: tuple[str, ...] = (" (", said, ")") if said else ()
    how = Message(f"equal bit for bit in {comparison.runtime}", *note)
    if not comparison.equal:
        worst = (
            ""
            if comparison.max_abs_error is None
            else f"{comparison.max_abs_error:.2g} of outputs up to {comparison.largest:.3g}"
        )
        how = Message(f"equal up to rounding in {comparison.runtime}: largest difference {worst}", *note)
        if not comparison.rounds_alike:
            how = Message(f"differ in {comparison.runtime}: ", comparison.note or f"largest difference {worst}")
    ran = f", on {comparison.runs} input{'' if comparison.runs == 1 else 's'}"
    if comparison.stream_runs is not None:
        ran = f", on {comparison.runs} hops and their windows, after {comparison.stream_runs.warm} hops"
        ran += ", from states of noise" if comparison.stream_runs.noise else ""
    if comparison.inside and not comparison.inside_note:
        ran += f", and so are {comparison.inside} tensors inside"
    elif comparison.inside_note:
        ran += f"; inside {comparison.inside_note}"
    if comparison.other_sizes:
        ran += f"; held to the original at other sizes, too: {'; '.join(comparison.other_sizes)}"
    return Message(how, ran)
