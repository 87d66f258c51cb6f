"""Describes a comparison of two networks: what is proven, what was run, and what the runs cannot show."""

from __future__ import annotations

from downset.results import Comparison, Proof

__all__ = ["comparison_lines", "difference"]


def comparison_lines(comparison: Comparison) -> list[str]:
    """A line on the proof, a line on the runs, and a line on what runs cannot show."""
    lines = [] if comparison.proof is None else [_proof(comparison.proof)]
    if comparison.equal is None:
        return [*lines, comparison.note]
    if not comparison.runtime:
        return lines
    lines.append(f"outputs: {_outputs(comparison)}")
    if comparison.placed:
        lines.append("outputs in tflm, with the offsets of the file in force: equal, too")
    if comparison.unshown:
        lines.append(f"the runs do not show a difference that the files have: {comparison.unshown}")
    elif not comparison.telling:
        lines.append(
            "the outputs are the same for every input tried: runs say little about this network; downset verify with "
            "--input compares on your own data"
        )
    return lines


def difference(comparison: Comparison) -> str:
    """How the networks differ, for a comparison in which they do."""
    if comparison.equal or (comparison.inside_note and comparison.rounds_alike):
        return f"the outputs agree, but inside {comparison.inside_note}"
    apart = comparison.note or f"largest absolute difference {comparison.max_abs_error:g}"
    return f"{apart}; inside {comparison.inside_note}" if comparison.inside_note else apart


def _proof(proof: Proof) -> str:
    if not proof.proven:
        return f"not proven the same network: {proof.reason}"
    same = "proven the same network"
    if proof.rewrites:
        same += f", rewritten: {proof.rewrites} tensors hold parts of its tensors or of its sums"
        if not proof.exact:
            same += ", and sums are added up in another order"
    if proof.optimised:
        same += "; ONNX Runtime's own optimisation of it is compared by running"
    return same


def _outputs(comparison: Comparison) -> str:
    how = f"equal bit for bit in {comparison.runtime}"
    if not comparison.equal:
        worst = (
            ""
            if comparison.max_abs_error is None
            else f"{comparison.max_abs_error:.2g} of outputs up to {comparison.largest:.3g}"
        )
        how = f"equal up to rounding in {comparison.runtime}: largest difference {worst}"
        if not comparison.rounds_alike:
            how = f"differ in {comparison.runtime}: {comparison.note or f'largest difference {worst}'}"
        elif comparison.note:
            how += f" ({comparison.note})"
    elif comparison.note:
        how += f" ({comparison.note})"
    how += f", on {comparison.runs} input{'' if comparison.runs == 1 else 's'}"
    if comparison.inside and not comparison.inside_note:
        how += f", and so are {comparison.inside} tensors inside"
    elif comparison.inside_note:
        how += f"; inside {comparison.inside_note}"
    return how
