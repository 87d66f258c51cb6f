"""The bytes that kernels ask of the arena beyond the tensors, for a network: those of a library in TFLite Micro, beyond
its reference kernels, by the formulas of `cmsis_nn` and `esp_nn`; LiteRT's own by those of `litert_kernels`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from downset.graph.core import Graph, Op
from downset.memory import cmsis_nn, esp_nn
from downset.memory.kernel_libraries import LITERT, KernelLibrary, kernel_library
from downset.memory.kernel_request import Request
from downset.memory.litert_kernels import litert_request
from downset.memory.records import align_up

__all__ = ["KernelNeeds", "kernel_needs", "operator_scratch", "request_of", "scratch_asked"]


@dataclass(frozen=True, slots=True)
class KernelNeeds:
    """The bytes that a library of kernels asks for beyond the reference kernels, at most, in whole units of the
    runtime's alignment.

    `buffers`: of scratch, by operator. `kept_bytes`: what all operators keep from one run to the next. `unknown`: the
    operators whose formula is not known; the bytes leave them out. `overruns`: the operators whose kernels may write
    beyond the scratch that they ask for, a fault of the library."""

    buffers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    kept_bytes: int = 0
    unknown: tuple[str, ...] = ()
    overruns: tuple[str, ...] = ()

    @property
    def scratch_bytes(self) -> int:
        """The most that one operator asks for while it runs."""
        return max(map(sum, self.buffers.values()), default=0)

    @property
    def most_bytes(self) -> int:
        """An upper bound where tensors have fixed offsets: scratch above all of them, and what is kept."""
        return self.scratch_bytes + self.kept_bytes


def kernel_needs(graph: Graph, kernels: str | None, bodies: Collection[str] = ()) -> KernelNeeds:
    """The needs of these kernels for a network. `bodies`: the operators inside bodies of control flow, which the graph
    does not hold, by their names in TFLite's schema. Raises UsageError for an unknown library or version."""
    if kernels is None or kernels == "reference":
        return KernelNeeds()
    library = LITERT if kernels == LITERT.name else kernel_library(kernels)
    if library not in graph.facts:
        graph.facts[library] = _of_graph(graph, library)
    needs: KernelNeeds = graph.facts[library]
    asking = esp_nn.ASKING if library.chip else cmsis_nn.ASKING
    inside = tuple(f"{name} in a body" for name in sorted(set(bodies) & asking))
    return replace(needs, unknown=needs.unknown + inside) if inside else needs


def operator_scratch(graph: Graph, op: Op, kernels: str) -> int:
    """The bytes of scratch that one operator asks for, aligned; none where the formula is not known."""
    alignment = (LITERT if kernels == LITERT.name else kernel_library(kernels)).alignment
    return sum(align_up(nbytes, alignment) for nbytes in scratch_asked(graph, op, kernels))


def scratch_asked(graph: Graph, op: Op, kernels: str) -> tuple[int, ...]:
    """The bytes of each buffer of scratch that one operator asks for; none where the formula is not known."""
    request = request_of(graph, op, LITERT if kernels == LITERT.name else kernel_library(kernels))
    return () if request is None else tuple(nbytes for nbytes in request.buffers if nbytes)


def _of_graph(graph: Graph, library: KernelLibrary) -> KernelNeeds:
    buffers: dict[int, tuple[int, ...]] = {}
    kept, unknown, overruns = 0, [], []
    for index, op in enumerate(graph.ops):
        request = request_of(graph, op, library)
        name = f"{op.kind.removeprefix('tflite::')} {op.name!r}"
        if request is None:
            unknown.append(name)
            continue
        if request.overruns:
            overruns.append(name)
        if any(request.buffers):
            buffers[index] = tuple(align_up(nbytes, library.alignment) for nbytes in request.buffers if nbytes)
        kept += sum(align_up(nbytes, library.alignment) for nbytes in request.kept)
    return KernelNeeds(buffers, kept, tuple(unknown), tuple(overruns))


def request_of(graph: Graph, op: Op, library: KernelLibrary) -> Request | None:
    """The request of this library's kernel for an operator, without alignment. Empty where the reference kernel asks
    for the same; None where the formula is not known: the file states no options, or types or shapes are others than
    the library computes with."""
    if library == LITERT:
        return litert_request(graph, op)
    if library.chip:
        return esp_nn.esp_request(graph, op, library.chip, library.versions)
    return cmsis_nn.cmsis_request(graph, op, mve=library.name == "cmsis-nn-mve")
