"""Operators as earlier versions of ONNX's operators have them: with constants as attributes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from downset.graph.core import Graph, Op

__all__ = ["of_version"]

_AS_INPUTS = {"Slice": (10, ("starts", "ends", "axes")), "Split": (13, ("split",))}
"""By kind: the version since which these are inputs, behind the first one."""


def of_version(graph: Graph, op: Op, version: int) -> Op:
    """The operator as this version of ONNX's operators has it. Its inputs behind the first one are constants, and a
    Slice takes steps of one."""
    since, names = _AS_INPUTS.get(op.kind, (0, ()))
    if version >= since or len(op.inputs) == 1:
        return op
    values = zip(names, op.inputs[1:], strict=False)
    attrs = {name: np.asarray(graph.constant(tensor)).reshape(-1).tolist() for name, tensor in values}
    return replace(op, inputs=op.inputs[:1], attrs={**op.attrs, **attrs})
