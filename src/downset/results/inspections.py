"""The memory that a network needs in the order of its file: a result without a plan."""

from __future__ import annotations

from dataclasses import dataclass

from downset.graph.core import Tensor
from downset.results.sizes import OpenSize, OpenTensor
from downset.text import format_bytes

__all__ = ["Inspection", "StepNeed", "end_of"]


@dataclass(frozen=True, slots=True)
class StepNeed:
    """One operator of an order, and the bytes live while it runs; None where sizes are open."""

    step: int
    kind: str
    name: str
    live_bytes: int | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A summary of a network, and the memory that its file's order needs under the memory model `memory`.

    `tensors` counts activations. `width`: the most operators of which none needs another's result. `downsets`: the
    number of downsets, counted where `downsets_exact`, else estimated. An estimate is at most the largest float;
    `downsets_log10` is its logarithm. `peak_bytes`: the peak of the file's order. `open_sizes`: the sizes that the file
    leaves open. Where one of them is not known, figures in bytes that depend on sizes are None, and `missing` says
    which. `note`: what was assumed about open sizes."""

    model: str
    format: str
    memory: str
    operators: int
    tensors: int
    activation_bytes: int | None
    weight_bytes: int
    width: int
    downsets: int
    downsets_log10: float
    downsets_exact: bool
    peak_bytes: int | None
    inputs: tuple[Tensor | OpenTensor, ...]
    outputs: tuple[Tensor | OpenTensor, ...]
    steps: tuple[StepNeed, ...]
    open_sizes: tuple[OpenSize, ...] = ()
    missing: str = ""
    note: str = ""

    def __repr__(self) -> str:
        nbytes = "open" if self.peak_bytes is None else f"{format_bytes(self.peak_bytes)} B"
        peak = f"peak {nbytes}, memory {self.memory}"
        return f"<Inspection of {end_of(self.model)!r}: {self.operators} operators, {self.tensors} activations, {peak}>"


def end_of(path: str) -> str:
    """The end of a long path, where a model's name stands."""
    return path if len(path) <= 60 else f"...{path[-57:]}"
