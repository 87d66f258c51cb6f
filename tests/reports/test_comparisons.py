"""Every comparison that `compare` can return has a document, whatever was proven and run."""

from itertools import product

import pytest

from downset.reports.comparisons import comparison_document
from downset.reports.json_form import json_of
from downset.results.comparisons import Comparison, Proof

PROOFS = (None, Proof(True), Proof(False, reason="the input 'x' differs"))


@pytest.mark.parametrize("proof", PROOFS, ids=["none", "proven", "not proven"])
def test_every_comparison_has_a_headline_and_its_values(proof):
    outcomes = product((None, False, True), ("", "tflm"), (None, 0.0, 2.0), ("", "it was not run"))
    for equal, runtime, largest_difference, note in outcomes:
        comparison = Comparison(equal, largest_difference, runtime, note=note, proof=proof)
        document = comparison_document(comparison)
        values = json_of(document)
        assert isinstance(document.verdict.headline, str)
        assert (values["equal"], values["runtime"], values["reason"]) == (equal, runtime, comparison.reason)
