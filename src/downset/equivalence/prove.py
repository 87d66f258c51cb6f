"""The question that `verify` and `fit` ask: is it the same network? Answered from the files, without running them."""

from __future__ import annotations

import os
from pathlib import Path

from downset.equivalence.bijection import check_bijection, find_bijection
from downset.equivalence.network import Network
from downset.equivalence.placement import check_placement
from downset.equivalence.read_onnx import read_onnx
from downset.equivalence.read_tflite import Offline, read_tflite
from downset.errors import InvalidPlan
from downset.results import Proof

__all__ = ["prove"]

Named = str | os.PathLike[str]


def prove(original: Named, other: Named) -> Proof:
    """Whether two .tflite or two .onnx files hold the same network.

    A proof is a correspondence of all operators and tensors under which nothing differs. Without one the reason is
    given: the first difference. Raises LoadError for damaged files, and InvalidPlan where offsets that `other` carries
    for TFLite Micro would overwrite what is still needed: then the same network computes something else.
    """
    (first, _), (second, offline) = _read(original), _read(other)
    if offline is not None:
        wrong = check_placement(second, offline)
        if wrong is not None:
            raise InvalidPlan(f"{other}: the offsets that it carries for TFLite Micro are wrong: {wrong}")
    difference = check_bijection(first, second, find_bijection(first, second))
    return Proof(difference is None, placed=offline is not None, reason=difference or "")


def _read(path: Named) -> tuple[Network, Offline | None]:
    if Path(path).suffix.lower() == ".tflite":
        return read_tflite(path)
    return read_onnx(path), None
