"""A stream that is proven computes its window's outputs hop by hop; no changed stream is proven that does not."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import onnx
import pytest
from ai_edge_litert.tools import flatbuffer_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.equivalence.prove import prove
from downset.equivalence.read_onnx import read_onnx, with_shapes
from downset.equivalence.stream_motion import motions
from downset.errors import DownsetError
from downset.partial import stream_rows
from downset.results.streams import STREAM_KEY
from tests.effort import LONG
from tests.equivalence.mutants import (
    onnx_attributes,
    onnx_constants,
    onnx_edges,
    onnx_interface,
    onnx_operands,
    tflite_attributes,
    tflite_constants,
    tflite_edges,
    tflite_operands,
    tflite_order,
    tflite_quantization,
)
from tests.equivalence.stream_cases import (
    apart,
    cut,
    in_place,
    in_place_hops,
    litert_hops,
    onnx_case,
    onnx_hops,
    sequence,
    tensors_of,
    tflite_case,
    tflm_hops,
)
from tests.strip_networks import VALID, StripNet, strip_networks

ROUNDING = 2e-5
"""Of float32 in ONNX Runtime, whose kernels add up terms in a sequence that depends on the number of rows."""

CHAINS = [(dtype, hop) for dtype in ("float32", "int8") for hop in (2, 3)] if LONG else [("float32", 3), ("int8", 2)]
"""The second hop is not a multiple of the stride."""


def held(case, hops, allowed, refusals):
    """The law of one drawn window: its stream computes the window's outputs, and is proven or refused by name."""
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


def at_most_two_percent(refusals, count):
    """`pytest -rP` shows the count. Of fewer than 50 networks one may be refused."""
    print(f"refused: {len(refusals)} of {count}", *sorted(set(refusals)), sep="\n")
    assert len(refusals) <= max(0.02 * count, 1), refusals


def test_random_onnx_streams_are_proven_and_compute_their_windows(tmp_path):
    refusals: list[str] = []
    count = 750 if LONG else 24
    for seed in range(count):
        held(onnx_case(seed, tmp_path), onnx_hops, ROUNDING, refusals)
    at_most_two_percent(refusals, count)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_random_tflite_streams_are_proven_and_compute_their_windows_bit_for_bit(tmp_path, dtype):
    """In TFLite Micro; in LiteRT floats may differ by rounding."""
    refusals: list[str] = []
    drawn = []

    @given(strip_networks(dtype), st.integers(0, 99))
    @settings(max_examples=375 if LONG else 24, derandomize=True, database=None)
    def law(network, hop):
        net, outputs = network
        drawn.append(net)
        case = tflite_case(net, outputs, hop, tmp_path)
        held(case, tflm_hops, 0.0, refusals)
        if not case.refused:
            assert apart(*litert_hops(case, 2)) <= (ROUNDING if dtype == "float32" else 0.0), case.hop

    law()
    at_most_two_percent(refusals, len(drawn))


def with_record(model, record):
    """A copy of an .onnx model or .tflite model with another record."""
    text = record.to_json()
    if hasattr(model, "SerializeToString"):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        next(entry for entry in copy.metadata_props if entry.key == STREAM_KEY).value = text
        return copy
    copy = flatbuffer_utils.read_model_from_bytearray(bytearray(flatbuffer_utils.convert_object_to_bytearray(model)))
    buffer = next(entry.buffer for entry in copy.metadata if entry.name == STREAM_KEY.encode())
    copy.buffers[buffer].data = np.frombuffer(text.encode(), np.uint8)
    return copy


def changed_records(record):
    """(what was changed, another record) for every number and name of a record."""
    for name, step in (("window", 1), ("hop", 1), ("hop", -1), ("axis", 1), ("first_exact", -1)):
        yield f"{name} {step:+}", replace(record, **{name: getattr(record, name) + step})
    yield "exact from hop 0 on", replace(record, first_exact=0)
    for index, state in enumerate(record.states):
        rest = record.states[:index], record.states[index + 1 :]
        low, high = state.rows
        others = {
            "rows moved": replace(state, rows=(low + 1, high + 1)),
            "a row more": replace(state, rows=(low, high + 1)),
            "rows before": replace(state, rows=(low - 1, high - 1)),
            "shift +1": replace(state, shift=state.shift + 1),
            "shift -1": replace(state, shift=state.shift - 1),
            "axis +1": replace(state, axis=state.axis + 1),
            "age +1": replace(state, age=state.age + 1),
            "another tensor": replace(state, tensor=record.input + "?"),
        }
        for what, other in others.items():
            yield f"{what} of {state.name}", replace(record, states=(*rest[0], other, *rest[1]))
        yield f"without {state.name}", replace(record, states=rest[0] + rest[1])
        for other in record.states[index + 1 :]:
            renamed = {state.name: other, other.name: state}
            swapped = tuple(
                replace(one, name=renamed[one.name].name, next=renamed[one.name].next) if one.name in renamed else one
                for one in record.states
            )
            yield f"{state.name} for {other.name}", replace(record, states=swapped)


def wrong_if_proven(case, hops, mutants, folder, allowed):
    """The law of changed streams: none is proven, or it computes what the window does. Returns how many there were of
    each kind."""
    counts = {"rejected": 0, "equal": 0, "refused": 0}
    for number, (what, save) in enumerate(mutants):
        path = folder / f"mutant{number % 2}{case.stream.suffix}"
        save(path)
        try:
            proof = prove(case.window, path)
        except DownsetError as error:
            assert error.message
            counts["rejected"] += 1
            continue
        if not proof.proven:
            counts["rejected"] += 1
            continue
        changed = replace(case, stream=path, hop=proof.stream.hop)
        try:
            worst = apart(*hops(changed))
        except Exception as error:
            if "onnxruntime" not in type(error).__module__ and not isinstance(error, RuntimeError):
                raise
            counts["refused"] += 1  # by the runtime, as it loads the file
            continue
        assert worst <= allowed, f"{what}: proven, but differs by {worst}"
        counts["equal"] += 1
    return counts


def saved_as(model):
    def save(path):
        if hasattr(model, "SerializeToString"):
            path.write_bytes(model.SerializeToString())
        else:
            path.write_bytes(flatbuffer_utils.convert_object_to_bytearray(model))

    return save


def mutants_of(model, record):
    """(what was changed, how it is written) of everything that is changed in a stream's file."""
    if hasattr(model, "SerializeToString"):
        kinds = (onnx_attributes, onnx_constants, onnx_edges, onnx_operands)
    else:
        kinds = (tflite_attributes, tflite_constants, tflite_edges, tflite_operands, tflite_order)
    for what, other in changed_records(record):
        yield what, saved_as(with_record(model, other))
    for kind in kinds:
        for mutant in kind(model):
            yield mutant.what, mutant.save


@pytest.mark.parametrize("seed", range(8 if LONG else 2))
def test_no_changed_onnx_stream_is_proven_that_computes_something_else(tmp_path, seed):
    case = onnx_case(100 + seed, tmp_path)
    assert not case.refused and prove(case.window, case.stream).proven
    model = onnx.load(case.stream)
    mutants = list(mutants_of(model, case.record))
    counts = wrong_if_proven(
        case, onnx_hops, mutants if LONG else mutants[:: 1 + len(mutants) // 30], tmp_path, ROUNDING
    )
    assert counts["rejected"] > counts["equal"] and counts["refused"] < 5, counts


@pytest.mark.parametrize(("dtype", "hop"), CHAINS)
def test_no_changed_tflite_stream_is_proven_that_computes_something_else(tmp_path, dtype, hop):
    case = chain(dtype, hop, tmp_path)
    assert prove(case.window, case.stream).proven
    model = flatbuffer_utils.read_model(str(case.stream))
    mutants = list(mutants_of(model, case.record))
    counts = wrong_if_proven(case, tflm_hops, mutants if LONG else mutants[:: 1 + len(mutants) // 30], tmp_path, 0.0)
    assert counts["rejected"] > counts["equal"] and counts["refused"] < 5, counts


def chain(dtype, hop, folder):
    """A window of three convolutions, of which one moves by two rows and one is dilated, and a pool."""
    net = StripNet(3, dtype=dtype)
    x = net.start(20, 3, 2)
    for channels, kernel, stride, dilation in ((3, (3, 1), 2, 1), (2, (2, 3), 1, 2), (2, (2, 1), 1, 1)):
        sizes = net._window(x, kernel, (stride, 1), (dilation, 1), VALID)
        options = {"strideH": stride, "strideW": 1, "padding": VALID, "dilationHFactor": dilation, "dilationWFactor": 1}
        weights = net._weights(x, (channels, *kernel, net.channels(x)), 0)
        x = net.add_op("CONV_2D", (x, *weights), (1, *sizes, channels), "Conv2DOptions", **options)
    return tflite_case(net, [x], hop - 1, folder)


@pytest.mark.parametrize(("dtype", "hop"), CHAINS)
def test_states_in_place_are_proven_and_hold_from_a_noisy_arena(tmp_path, dtype, hop):
    """A changed offset of any tensor is rejected, or nothing that is needed lies there."""
    case = in_place(chain(dtype, hop, tmp_path), tmp_path)
    proof = prove(case.window, case.stream)
    assert proof.proven and proof.placed and proof.stream.form == "in_place", proof
    assert apart(*in_place_hops(case)) == 0.0
    model = flatbuffer_utils.read_model(str(case.stream))
    mutants = [*changed_records_of(model, case.record), *offset_mutants(model)]
    counts = wrong_if_proven(
        case, in_place_hops, mutants if LONG else mutants[:: 1 + len(mutants) // 25], tmp_path, 0.0
    )
    assert counts["rejected"] > counts["equal"] and counts["refused"] < 5, counts


@pytest.mark.parametrize("form", ["variables", "in place", "states"])
def test_what_a_stream_takes_and_leaves_has_the_form_of_what_it_is_said_to_hold(tmp_path, form):
    """Another scale, type or shape of an input or output: no operator makes what a call begins with, so nothing else
    would show that its bytes mean something else."""
    case = onnx_case(100, tmp_path) if form == "states" else chain("int8", 3, tmp_path)
    case = in_place(case, tmp_path) if form == "in place" else case
    assert prove(case.window, case.stream).proven
    if form == "states":
        mutants = list(onnx_interface(onnx.load(case.stream)))
    else:
        model = flatbuffer_utils.read_model(str(case.stream))
        ends = {f" of {tensor} of 0" for held in ("inputs", "outputs") for tensor in getattr(model.subgraphs[0], held)}
        mutants = [one for one in tflite_quantization(model) if one.what.endswith(tuple(ends))]
    hops = {"variables": tflm_hops, "in place": in_place_hops, "states": onnx_hops}[form]
    counts = wrong_if_proven(case, hops, [(one.what, one.save) for one in mutants], tmp_path, 0.0)
    assert counts["rejected"] == len(mutants) > 5, counts


def test_a_state_that_is_moved_on_in_its_queue_keeps_its_shape_in_litert(tmp_path):
    """A RESHAPE has two statements of its result's shape; LiteRT goes by the constant that it reads, TFLite Micro by
    the file's tensor."""
    case = chain("int8", 3, tmp_path)
    model = flatbuffer_utils.read_model(str(case.stream))
    graph, codes = model.subgraphs[0], [code.builtinCode for code in model.operatorCodes]
    reshapes = [one for one in graph.operators if codes[one.opcodeIndex] == 22]
    assert len(reshapes) > 1
    for reshape in reshapes:
        shape = list(graph.tensors[reshape.outputs[0]].shape)
        again = pickle.loads(pickle.dumps(model))
        main = again.subgraphs[0]
        place = graph.operators.index(reshape)
        constant = pickle.loads(pickle.dumps(main.tensors[reshape.inputs[1]]))
        constant.buffer = len(again.buffers)
        again.buffers.append(pickle.loads(pickle.dumps(again.buffers[1])))
        again.buffers[-1].data = np.frombuffer(np.asarray(shape[::-1], "<i4").tobytes(), np.uint8)
        main.tensors.append(constant)
        main.operators[place].inputs = np.asarray([reshape.inputs[0], len(main.tensors) - 1], np.int32)
        changed = tmp_path / "changed.tflite"
        saved_as(again)(changed)
        assert not prove(case.window, changed).proven
        with pytest.raises(RuntimeError):
            litert_hops(replace(case, stream=changed))


def test_states_in_place_that_its_metadata_do_not_place_are_not_proven(tmp_path):
    """Without them nothing keeps the offset of a state and that of its next value together."""
    case = in_place(chain("int8", 2, tmp_path), tmp_path)
    model = flatbuffer_utils.read_model(str(case.stream))
    model.metadata = [entry for entry in model.metadata if entry.name != b"downset.states"]
    mutants = [("without states", saved_as(model)), *((what, save) for what, save in offset_mutants(model))]
    changed = tmp_path / "changed.tflite"
    for what, save in mutants:
        save(changed)
        try:
            assert not prove(case.window, changed).proven, what
        except DownsetError as error:
            assert error.message


def changed_records_of(model, record):
    return [(what, saved_as(with_record(model, other))) for what, other in changed_records(record)]


def offset_mutants(model):
    """Each tensor of the arena at the place of each other, and without a place."""
    buffer = next(entry.buffer for entry in model.metadata if entry.name == b"OfflineMemoryAllocation")
    offsets = np.frombuffer(model.buffers[buffer].data.tobytes(), np.int32)
    places = sorted({int(offset) for offset in offsets[3:]})
    for tensor in np.flatnonzero(offsets[3:] >= 0):
        for place in places:
            if place != offsets[3 + tensor]:
                changed = offsets.copy()
                changed[3 + tensor] = place
                copy = pickle.loads(pickle.dumps(model))
                copy.buffers[buffer].data = np.frombuffer(changed.tobytes(), np.uint8)
                yield f"tensor {tensor} at {place}", saved_as(copy)


def test_rows_move_as_the_lemma_of_shifts_says(tmp_path):
    """Oracle: ONNX Runtime's own values of every tensor, on two windows of one sequence."""
    moving = 0
    for seed in range(400 if LONG else 40):
        case = onnx_case(seed, tmp_path)
        if case.refused:
            continue
        record, model = case.record, onnx.load(case.window)
        network = with_shapes(read_onnx(case.window)[0], case.window, None)
        data = network.bodies[0].inputs[0]
        found = motions(network, data, record.axis, record.hop)
        by_hops: dict[int, list[int]] = {}
        for value, motion in found.of.items():
            by_hops.setdefault(motion.hops, []).append(value)
        for hops, values in by_hops.items():
            rows, axis, _ = sequence(case, 2 * hops + record.window)
            windows = [
                tensors_of(model, cut(rows, axis, first, first + record.window)) for first in (0, hops * record.hop)
            ]
            for value in values:
                motion, name = found.of[value], network.values[value].label
                low, high = motion.rows
                shift = motion.rate * hops
                assert shift.denominator == 1
                if name in windows[0] and low + shift < high:
                    earlier, later = windows[0][name], windows[1][name]
                    same = cut(earlier, motion.axis, low + int(shift), high)
                    other = cut(later, motion.axis, low, high - int(shift))
                    assert apart([[same]], [[other]]) <= ROUNDING, (seed, name, motion)
                    moving += 1
    assert moving > (1000 if LONG else 100)


def test_a_writer_that_takes_rows_at_edges_for_shifted_ones_is_found_out(tmp_path, monkeypatch):
    """Its record and its certificate agree with what it wrote; the lemma over the window's network alone does not."""
    right = stream_rows._Shifts._result

    def wrong(self, index):
        shift = right(self, index)
        return shift and replace(shift, lo=0, hi=self.moving.form.ops[index].rows)

    monkeypatch.setattr(stream_rows._Shifts, "_result", wrong)
    rejected = 0
    for seed in range(200 if LONG else 30):
        case = onnx_case(seed, tmp_path)
        if case.refused:
            continue
        proof = prove(case.window, case.stream)
        rejected += "depend on an edge of the window" in proof.reason
        assert not proof.proven or apart(*onnx_hops(case)) <= ROUNDING, seed
    assert rejected > 3
