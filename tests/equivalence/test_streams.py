"""A stream that is proven computes its window's outputs hop by hop, and what is proven of a changed stream is true."""

from __future__ import annotations

from downset.equivalence.prove import prove
from tests.effort import cases
from tests.equivalence.stream_cases import apart, onnx_case, onnx_hops

ROUNDING = 2e-5
"""Of float32 in ONNX Runtime, whose kernels add up terms in a sequence that depends on the number of rows."""


def held(case, hops, allowed, refusals):
    """The law of one drawn window: its stream is proven and computes the window's outputs, or is refused by name."""
    if case.refused:
        refusals.append(case.refused)
        return
    proof = prove(case.window, case.stream)
    worst = apart(*hops(case))
    assert worst <= allowed, (case.hop, worst, proof)
    if not proof.proven:
        assert proof.reason
        refusals.append(proof.reason)
    else:
        assert proof.stream is not None and proof.stream.hop == case.hop


def test_random_onnx_streams_are_proven_and_compute_their_windows(tmp_path):
    refusals: list[str] = []
    count = cases(750) // 5 if cases(5) < 5 else 750
    for seed in range(count):
        held(onnx_case(seed, tmp_path), onnx_hops, ROUNDING, refusals)
    assert len(refusals) <= 0.02 * count + 1, refusals
