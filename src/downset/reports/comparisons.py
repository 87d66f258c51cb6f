"""A comparison of two networks in words: what is proven, what was run, and how far that tells."""

from __future__ import annotations

from downset.results import Comparison, Proof

__all__ = ["comparison_lines", "difference"]


def comparison_lines(found: Comparison) -> list[str]:
    """A line on the proof, a line on the runs, and a line on what runs cannot show."""
    lines = [] if found.proof is None else [_proof(found.proof)]
    if found.equal is None:
        return [*lines, found.note]
    if not found.runtime:
        return lines
    lines.append(f"outputs: {_outputs(found)}")
    if found.placed:
        lines.append("and in tflm, with the offsets of the file in force")
    if not found.telling:
        lines.append(
            "the outputs are the same for every input tried: runs say little about this network; --input takes your "
            "own data"
        )
    return lines


def difference(found: Comparison) -> str:
    """How the networks differ, of a comparison that says so."""
    if found.equal or (found.inside_note and found.rounds_alike):
        return f"the outputs agree, but inside {found.inside_note}"
    apart = found.note or f"largest absolute difference {found.max_abs_error:g}"
    return f"{apart}; inside {found.inside_note}" if found.inside_note else apart


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


def _outputs(found: Comparison) -> str:
    how = f"equal bit for bit in {found.runtime}"
    if not found.equal:
        worst = "" if found.max_abs_error is None else f"{found.max_abs_error:.2g} of outputs up to {found.largest:.3g}"
        how = f"equal up to rounding in {found.runtime}: largest difference {worst}"
        if not found.rounds_alike:
            how = f"differ in {found.runtime}: {found.note or f'largest difference {worst}'}"
        elif found.note:
            how += f" ({found.note})"
    elif found.note:
        how += f" ({found.note})"
    how += f", on {found.runs} input{'' if found.runs == 1 else 's'}"
    if found.inside and not found.inside_note:
        how += f", and so are {found.inside} tensors inside"
    elif found.inside_note:
        how += f"; inside {found.inside_note}"
    return how
