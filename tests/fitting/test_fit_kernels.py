"""`fit --kernels`: less memory where results lie over inputs; that is named wherever it is assumed, and in the file."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from downset.equivalence.prove import prove
from downset.errors import InvalidPlan, LimitReached, UsageError
from downset.fitting.fit import fit
from downset.fitting.verdict import check_ram
from downset.formats.firmware import firmware
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from downset.messages import Setting
from downset.reports.fit_document import fit_document
from downset.reports.json_form import json_of
from downset.reports.terminal import text_of
from tests.tflite_net import TfliteNet

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "fit.json").read_text())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """(the model, what was written, the result): 8 channels, 16 by a 1x1 convolution, depthwise, 4."""
    pytest.importorskip("tflite_micro")
    folder = tmp_path_factory.mktemp("kernels")
    net = TfliteNet(2, size=16, dtype="int8")
    path = net.save(folder / "m.tflite", [net.conv(net.depthwise(net.conv(net.input(8), 16)), 4)])
    output = folder / "f.tflite"
    return path, output, fit(path, output=output, kernels="reference", time_limit_s=2)


def test_results_lie_over_inputs_and_the_assumption_is_named(fitted):
    """The depthwise convolution takes 4,096 B and its lag of a row and a bit; apart, two tensors take 4,096 B each."""
    _, _, result = fitted
    assert result.shipped == "order+offsets"
    assert result.arena.before == 2 * 4096
    assert 4096 < result.arena.after == result.measured.details[result.shipped]["head_bytes"] < 4096 + 600
    assert result.peak.before == 2 * 4096
    assert result.peak.proven
    assert result.outputs.equal
    assert result.outputs.placed
    assert result.assumed_kernels == "reference"
    assert "as the reference kernels allow" in text_of(fit_document(result))
    assert "the reference kernels of TFLite Micro" in firmware(result).header
    assert ("right with the kernels", "reference") in [(one.title, one.text) for one in fit_document(result).foot]
    properties = SCHEMA["properties"]
    document = json_of(fit_document(result))
    assert document["kernels"] == "reference"
    jsonschema.validate(document["kernels"], properties["kernels"])


def test_offsets_of_a_file_are_held_to_the_kernels_that_it_names(fitted, tmp_path):
    """Without the name, with a library that allows less, and with one alignment less, the file is refused."""
    path, output, result = fitted
    assert prove(path, output).placed
    graph, arena = load(path), result.together.arena
    steps = result.together.order.steps
    (deep,) = [op for op in graph.ops if op.attrs.get("depthwise")]
    closer = dict(arena.tensor_offsets)
    closer[deep.inputs[0]] -= 16
    for offsets, kernels in ((arena.tensor_offsets, ""), (arena.tensor_offsets, "cmsis-nn-dsp"), (closer, "reference")):
        export_tflite(tmp_path / "w.tflite", graph, steps, offsets=offsets, kernels=kernels)
        with pytest.raises(InvalidPlan, match="overlaps"):
            prove(path, tmp_path / "w.tflite")


def test_kernels_are_for_tflite_micro(fitted):
    path, _, _ = fitted
    with pytest.raises(UsageError, match="target tflm"):
        fit(path, target="litert", kernels="reference")
    with pytest.raises(UsageError, match="kernels must be one of reference"):
        fit(path, kernels="xtensa")
    plain = fit(path, time_limit_s=1)
    assert plain.assumed_kernels is None
    assert np.all(plain.arena.after >= 2 * 4096)


@pytest.mark.parametrize("kernels", ["cmsis-nn-dsp", "cmsis-nn-mve"])
def test_a_network_fits_only_with_what_the_named_kernels_take(fitted, kernels):
    """What was measured ran the reference kernels: bytes for these alone are not enough. More bytes never harm."""
    path, _, _ = fitted
    result = fit(path, kernels=kernels, ram_bytes=1 << 20, time_limit_s=2)
    taken, needed = result.measured.after, result.ram.needed_bytes
    assert result.ram.state == "fits"
    assert result.ram.scratch_bytes == needed - taken
    assert needed == result.arena.after + result.measured.details[result.shipped]["tail_bytes"], "scratch is planned"
    assert needed > fit(path, kernels="reference", time_limit_s=2).measured.after
    for limit in (needed, needed + 16):
        assert fit(path, kernels=kernels, ram_bytes=limit, time_limit_s=2).ram.needed_bytes <= limit
    with pytest.raises(LimitReached) as refused:
        check_ram(result, Setting("ram_bytes", needed - 1))
    assert refused.value.result.ram.state == "not known"
    assert refused.value.result.ram.least_bytes <= taken


def test_an_operator_whose_scratch_is_not_known_leaves_the_verdict_open(fitted):
    path, _, _ = fitted
    result = fit(path, kernels="cmsis-nn-mve", time_limit_s=2)
    ops = tuple(replace(op, kind="tflite::CONV_2D") if op.kind == "Conv" else op for op in result.graph.ops)
    blind = replace(result, graph=replace(result.graph, ops=ops))
    with pytest.raises(LimitReached, match=r"cmsis-nn-mve kernels take for CONV_2D .*and 2 more, whose formula is not"):
        check_ram(blind, Setting("ram_bytes", 1 << 20))
    assert check_ram(replace(blind, kernels="reference"), Setting("ram_bytes", 1 << 20)).ram.state == "fits"
