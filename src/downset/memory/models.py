"""The memory models, one table: what each runtime, or paper, counts, aligns, shares and overwrites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from downset.errors import UsageError
from downset.graph.kinds import FUSED_CONV
from downset.memory.overlaps import ELEMENTWISE, KERNELS, KernelsName

__all__ = ["MEMORY_MODELS", "MemoryModel", "MemoryName", "memory_model"]

MemoryName = Literal[
    "live", "paper", "serenity", "tflm", "litert", "ort", "torch", "tflm-reference", "tflm-cmsis-nn-dsp",
    "tflm-cmsis-nn-mve",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The rules by which a runtime keeps tensors in memory. Kinds are operator kinds of the graph vocabulary."""

    name: str
    counts: str
    """One sentence for people: what is counted, and why."""
    alignment: int = 1
    inputs: str = "until last use"
    """Graph inputs: "until last use", "to the end", or "not counted"."""
    outputs_counted: bool = True
    outputs_apart: bool = False
    """Graph outputs always have bytes of their own: never views, never made in place."""
    inputs_apart: bool = False
    """Graph inputs are nobody's bytes but their own: what would be a view of one is a copy."""
    views: frozenset[str] = frozenset()
    """Kinds whose first output is the same bytes as their first input."""
    concat_is_view: bool = False
    """A Concat of activations has no bytes of its own: its parts stay until its consumers ran."""
    rows_in_place: bool = False
    """Rows that are cut out of a tensor lie in it, where the operator says at which byte (attribute `lies_at`), and
    parts of a concatenation are made in it, where it lists their positions (`in_place`): each byte is copied onto
    itself."""
    accumulates: bool = False
    """A Sum of partial results (attribute partial_sum=1) happens in the result's own bytes, from the first part on."""
    in_place: frozenset[str] = frozenset()
    """Kinds whose first output may overwrite an input of equal aligned size that nobody reads later."""
    in_place_only_reader: bool = False
    """Whether an operator works in place only where it is the one reader in the network, not the last of several."""
    in_place_input: Mapping[str, int] = field(default_factory=dict)
    """The same, where only the input at this position may be overwritten."""
    kernels: KernelsName | None = None
    """The library whose kernels run: results may overlap inputs as its table says (`memory.overlaps`)."""


_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_ORT_IN_PLACE = frozenset(
    {
        "Relu", "LeakyRelu", "ThresholdedRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "Elu", "Selu", "Celu",
        "Softplus", "Softsign", "Shrink", "Softmax", "LogSoftmax", "Cast", "Trilu", "ScatterElements",
    }
)  # fmt: skip
"""Found by asking ONNX Runtime's profile which kernels allocate nothing; arithmetic (Add, Mul, Exp, ...) does."""

_MODELS = (
    MemoryModel(
        "live",
        "every activation; inputs from the start to their last use, outputs from production to the end; no aliasing",
    ),
    MemoryModel(
        "paper",
        "intermediates only, without graph inputs and outputs: what the memory-management paper counts",
        inputs="not counted",
        outputs_counted=False,
    ),
    MemoryModel(
        "serenity",
        "live, with concat as a zero-copy view and partial sums accumulated in place: what SERENITY's figures without "
        "the allocator count; not what TFLite executes",
        concat_is_view=True,
        accumulates=True,
    ),
    MemoryModel(
        "tflm",
        "TFLite Micro's arena head: live, each tensor rounded up to 16 bytes; where a rewrite says so, rows that are "
        "cut out or joined lie where they are copied to",
        alignment=16,
        rows_in_place=True,
    ),
    MemoryModel(
        "litert",
        "LiteRT's CPU arena without delegates: graph inputs to the end, reshapes share, sums and products run in place "
        "over what only they read, graph outputs are always allocated, each tensor rounded up to 64 bytes; without "
        "what kernels ask for beside the tensors",
        alignment=64,
        inputs="to the end",
        outputs_apart=True,
        inputs_apart=True,
        views=_RESHAPES,
        in_place=frozenset({"Add", "Sub", "Mul"}),
        in_place_only_reader=True,
    ),
    MemoryModel(
        "ort",
        "ONNX Runtime's CPU arena: inputs belong to the caller, reshapes share, activation functions run in place, "
        "FusedConv adds to its fourth input in place, graph outputs are always allocated, each tensor rounded up to "
        "256 bytes",
        alignment=256,
        inputs="not counted",
        outputs_apart=True,
        views=_RESHAPES,
        in_place=_ORT_IN_PLACE,
        # The fourth input is added to the result: partial sums that accumulate in place.
        in_place_input={FUSED_CONV: 3},
    ),
    MemoryModel(
        "torch",
        "PyTorch eager: inputs belong to the caller, reshapes and transposes are views",
        alignment=64,
        inputs="not counted",
        views=_RESHAPES | {"Transpose"},
    ),
)


def _with_overlaps(model: MemoryModel, kernels: KernelsName) -> MemoryModel:
    return replace(
        model,
        name=f"{model.name}-{kernels}",
        counts=f"{model.name}, where results may lie over inputs as the {kernels} kernels allow; wrong with others",
        in_place=ELEMENTWISE,
        kernels=kernels,
    )


_OVERLAPPING = tuple(_with_overlaps(model, kernels) for model in _MODELS if model.name == "tflm" for kernels in KERNELS)
MEMORY_MODELS: Mapping[str, MemoryModel] = {model.name: model for model in (*_MODELS, *_OVERLAPPING)}


def memory_model(memory: str | MemoryModel) -> MemoryModel:
    """The model of that name; raises UsageError that lists the names."""
    if isinstance(memory, MemoryModel):
        return memory
    try:
        return MEMORY_MODELS[memory]
    except KeyError:
        raise UsageError(f"unknown memory model {memory!r}; choose one of {', '.join(MEMORY_MODELS)}") from None
