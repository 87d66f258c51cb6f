"""Proves from two files, without running them, that they hold the same network; `verify` and `fit` use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from downset.arenas.check_overlaps import reads_before_it_writes
from downset.equivalence.bijection import check_bijection, find_bijection
from downset.equivalence.file_network import FileNetwork
from downset.equivalence.folded import with_folded
from downset.equivalence.layouts import layouts_difference
from downset.equivalence.moves import moves_fault, without_moves
from downset.equivalence.parts import check_parts
from downset.equivalence.placement import May, check_placement, nothing
from downset.equivalence.read_onnx import at_sizes, read_onnx, with_shapes
from downset.equivalence.read_tflite import Offline, read_tflite
from downset.equivalence.states import Unproven, one_call, states_fault, states_of, without_states
from downset.equivalence.stream import check_stream
from downset.errors import InvalidPlan, LoadError
from downset.formats.certificates import Certificate, read_certificate
from downset.formats.stream_records import record_of
from downset.formats.tflite.read import load_tflite
from downset.graph.core import ABSENT
from downset.memory.overlaps import ELEMENTWISE, TABLE
from downset.results.comparisons import Proof
from downset.results.streams import StreamRecord

__all__ = ["prove", "same_in_layouts"]

Named = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]


def prove(original: Named, other: Named, *, shapes: Shapes | None = None) -> Proof:
    """Whether two files, both .tflite, .onnx or .pt2, are proven to hold the same network.

    A proof is a correspondence of all operators and tensors under which nothing differs. Where `other` holds a
    certificate of rewriting, a proof may also show for each of its tensors which part of the original's tensors it
    holds. Without a proof, `reason` names the first difference. `shapes` fixes inputs of .onnx files by name, since
    rewriting is proven for given sizes. Raises LoadError for damaged files, and InvalidPlan where offsets in `other`
    for TFLite Micro would overwrite bytes that are still needed, separate the two values of a state in place, or lie
    outside the two memories of a file with moves.
    """
    suffixes = {Path(path).suffix.lower() for path in (original, other)}
    if suffixes not in ({".tflite"}, {".onnx"}, {".pt2"}):
        return Proof(False, reason="only two .tflite, two .onnx or two .pt2 files are read for a proof")
    try:
        first, second = _read(original), _read(other)
    except LoadError as error:
        if suffixes != {".pt2"}:
            raise
        return Proof(False, reason=error.message)  # `load` with trust may read it
    if second.offline is not None:
        may = _allowed_overlaps(other, second.offline)
        wrong = check_placement(second.network, second.offline, may)
        if wrong is not None:
            raise InvalidPlan(f"{other}: the offsets that it carries for TFLite Micro are wrong: {wrong}")
    lost = states_fault(second.network, second.offline) or moves_fault(second.network, second.offline)
    if lost is not None:
        raise InvalidPlan(f"{other} is for TFLite Micro, and {lost}")
    first, second = (replace(one, network=without_moves(one.network)) for one in (first, second))
    record = record_of(other)
    if record is not None and record_of(original) is None:
        return _stream((original, other), first.network, second, record, shapes)
    placed, states = second.offline is not None, len(states_of(second.network))
    if states and not states_of(first.network):
        try:
            first = replace(first, network=one_call(first.network, second.network))
        except Unproven as error:
            return Proof(False, placed=placed, reason=str(error))
        second = replace(second, network=without_states(second.network))
    difference = check_bijection(first.network, second.network, find_bijection(first.network, second.network))
    if difference is None or second.certificate is None:
        return Proof(difference is None, placed=placed, reason=difference or "", states=states)
    try:
        certificate = read_certificate(second.certificate)
        sized = first.network
        if Path(original).suffix.lower() == ".onnx":
            sized = with_folded(with_shapes(sized, original, shapes), second.network, Path(original), shapes)
    except LoadError as error:
        return Proof(False, placed=placed, reason=error.message)
    outcome = check_parts(sized, second.network, certificate)
    return Proof(
        not outcome.unproven,
        outcome.exact,
        finite=outcome.finite,
        rewrites=len(certificate.parts) + len(certificate.joined),
        placed=placed,
        reason=outcome.unproven,
        states=states,
    )


def same_in_layouts(original: Named, other: Named) -> str:
    """Why an .onnx file of fixed sizes is not proven to hold the network of `original` in the layouts of ONNX Runtime's
    optimisation; "" where it is. Raises LoadError for damaged files."""
    networks = [at_sizes(_read(path).network, path, None) for path in (original, other)]
    return layouts_difference(networks[0], networks[1])


def _stream(
    paths: tuple[Named, Named], window: FileNetwork, second: _File, record: StreamRecord, shapes: Shapes | None
) -> Proof:
    """The proof that a stream computes what the original does on windows."""
    original, other = paths
    network = second.network
    try:
        certificate = Certificate(1, {}) if second.certificate is None else read_certificate(second.certificate)
        if Path(original).suffix.lower() == ".onnx":
            window, network = at_sizes(window, original, shapes), at_sizes(network, other, None)
            window = with_folded(window, network, Path(original), shapes, amounts=True)
    except LoadError as error:
        return Proof(False, placed=second.offline is not None, reason=error.message)
    return check_stream(window, network, certificate, record, second.offline)


def _allowed_overlaps(path: Named, offline: Offline) -> May:
    """A function of (result, its offset, input, its offset), tensors by their index in the file: whether the kernels
    that the file names let an operator's result overlap its input there."""
    if offline.kernels not in TABLE:
        return nothing
    graph = load_tflite(path)
    number = {place: tensor for tensor, place in enumerate(graph.source.tensor_index)}
    makes = {op.outputs[0]: op for op in graph.ops if len(op.outputs) == 1 and op.outputs[0] != ABSENT}

    def may(output: int, offset: int, read: int, read_offset: int) -> bool:
        op = makes.get(number.get(output, ABSENT))
        if op is None or number.get(read) not in op.inputs:
            return False
        if op.kind in ELEMENTWISE:
            return offset == read_offset and offline.nbytes[output] == offline.nbytes[read]
        return number[read] == op.inputs[0] and reads_before_it_writes(graph, op, offline.kernels, read_offset, offset)

    return may


@dataclass(frozen=True, slots=True)
class _File:
    network: FileNetwork
    offline: Offline | None
    certificate: bytes | None


def _read(path: Named) -> _File:
    if Path(path).suffix.lower() == ".tflite":
        return _File(*read_tflite(path))
    if Path(path).suffix.lower() == ".pt2":
        from downset.equivalence.read_torch import read_torch

        network, certificate = read_torch(path)
    else:
        network, certificate = read_onnx(path)
    return _File(network, None, certificate)
