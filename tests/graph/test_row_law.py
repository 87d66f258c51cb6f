"""The column `rows` of the table of kinds, held to the kernels: a row of a result depends on its halo alone.

Every kernel case with rows that can be cut is run twice: as drawn, and with all input rows changed that the halo of one
output row leaves out. That output row must stay the same.
"""

import numpy as np
import pytest
import torch

from downset.formats.reading import load
from downset.graph.core import ABSENT
from downset.graph.halos import extent, input_map, is_whole, spatial_axis
from downset.graph.kinds import kind_of
from downset.kernels.table import KERNELS
from tests.intervals import input_interval
from tests.kernel_cases import KINDS, saved_case

SEEDS = 12
MET_BY_NO_CASE = {"Slice", "SkipLayerNormalization"}
"""Kinds of which no case has rows that can be cut and rows outside a halo; shards hold them to ONNX Runtime."""


def changed(values):
    return ~values if values.dtype == bool else values + 3


def rows_left_out(graph, op, given):
    """(axis of the result, its row, inputs with everything outside that row's halo changed), where there is any."""
    for axis in (0, 1):
        out = spatial_axis(graph, op.outputs[0], axis)
        if out is None or extent(graph, op.outputs[0], axis) < 2 or is_whole(graph, op, axis):
            continue
        row = extent(graph, op.outputs[0], axis) // 2
        for position, tensor in enumerate(op.inputs):
            cut = spatial_axis(graph, tensor, axis) if tensor in given else None
            if cut is None or input_map(graph, op, position, axis) is None:
                continue
            low, high = input_interval(op, graph, position, (row, row + 1), axis)
            outside = np.ones(given[tensor].shape[cut], bool)
            outside[low:high] = False
            if outside.any():
                values = given[tensor].copy()
                index = (slice(None),) * cut + (outside,)
                values[index] = changed(values[index])
                yield out, row, {**given, tensor: values}


def compute(graph, op, given):
    values = [
        None if tensor == ABSENT else torch.from_numpy(np.array(given.get(tensor, graph.constant(tensor))))
        for tensor in op.inputs
    ]
    return KERNELS[op.kind](op, values, [graph.tensors[t].shape for t in op.outputs if t != ABSENT])[0]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_row_depends_on_its_halo_alone(tmp_path, kind):
    met = 0
    rules = set()
    for seed in range(SEEDS):
        _, feeds, _ = saved_case(tmp_path / "one.onnx", kind, seed)
        graph = load(tmp_path / "one.onnx")
        op = graph.ops[0]
        rules.add(kind_of(op.kind).rows)
        given = {tensor: np.array(value) for tensor, value in zip(graph.inputs, feeds.values(), strict=True)}
        if op.kind not in KERNELS:
            continue
        for out, row, other in rows_left_out(graph, op, given):
            met += 1
            torch.testing.assert_close(
                compute(graph, op, other).narrow(out, row, 1),
                compute(graph, op, given).narrow(out, row, 1),
                equal_nan=True,
                rtol=1e-5,
                atol=1e-6,
            )
    windows = {"window", "transposed window", "resize", "pad"}
    assert met or kind in MET_BY_NO_CASE or not rules & windows, f"no case of {kind} has rows outside a halo"
