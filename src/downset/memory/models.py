"""The table of memory models: which tensors each runtime or paper counts, and how it aligns, shares and overwrites
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from downset.errors import UsageError
from downset.graph.kinds import FUSED_CONV
from downset.memory.kernel_libraries import LIBRARIES, LITERT, kernel_library
from downset.memory.overlaps import ELEMENTWISE, KERNELS, KernelsName

__all__ = [
    "MEMORY_MODELS",
    "TFLM_WITHOUT_OFFSETS",
    "MemoryModel",
    "MemoryName",
    "memory_model",
    "stated_model",
    "without_overlaps",
    "without_scratch",
]

MemoryName = Literal[
    "live",
    "paper",
    "serenity",
    "tflm",
    "litert",
    "ort",
    "torch",
    "tflm-reference",
    "tflm-cmsis-nn-dsp",
    "tflm-cmsis-nn-mve",
    "tflm-cmsis-nn-dsp-apart",
    "tflm-cmsis-nn-mve-apart",
]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The rules by which a runtime keeps tensors in memory. Kinds of operators are named as in `graph.kinds`."""

    name: str
    counts: str
    """One sentence for users: which bytes are counted."""
    alignment: int = 1
    """Every storage is rounded up to a multiple of this many bytes."""
    rounds_offsets: bool = False
    """Whether the runtime itself rounds up offsets alone, and compares the sizes as they are."""
    inputs: str = "until last use"
    """Graph inputs: "until last use", "to the end", or "not counted"."""
    outputs_counted: bool = True
    outputs_apart: bool = False
    """Whether graph outputs never share bytes with other tensors: they are not views and not made in place."""
    inputs_apart: bool = False
    """Whether graph inputs never share bytes with other tensors: a reshape of an input is a copy."""
    views: frozenset[str] = frozenset()
    """Kinds whose first output has the same bytes as their first input."""
    concat_is_view: bool = False
    """Whether the result of a Concat consists of the bytes of its parts, which stay until its consumers have run."""
    rows_in_place: bool = False
    """Whether rows cut out of a tensor stay where they lie in it, if the operator states at which byte (attribute
    `lies_at`), and parts of a concatenation are made inside its result, if it lists their positions (`in_place`). The
    kernel then copies each byte onto itself."""
    states_in_place: bool = False
    """Whether the next value of a state in place is written over the old one. Its bytes are taken for the whole run."""
    accumulates: bool = False
    """Whether a Sum of partial results (attribute partial_sum=1) adds them up in the bytes of its result, from the
    first part on."""
    in_place: frozenset[str] = frozenset()
    """Kinds whose first output may overwrite an input of equal aligned size that no operator reads later."""
    in_place_only_reader: bool = False
    """Whether an operator may overwrite an input only if it reads it once and nothing else in the network does, not as
    the last of several."""
    in_place_input: Mapping[str, int] = field(default_factory=dict)
    """Kinds of which only the input at this position may be overwritten."""
    decoded_weights: bool = False
    """Whether weights that are dequantised count while they are read, where an operator makes what is dequantised. What
    is computed from constants of the file alone persists."""
    best_fit: bool = False
    """Whether the runtime gives each tensor the smallest free gap when it is made, wherever a plan places it."""
    kernels: KernelsName | None = None
    """The library whose kernels run: results may overlap inputs as the table of `memory.overlaps` states for it."""
    scratch: str = ""
    """The library, with its version, whose kernels' scratch counts while they run; none is counted without one."""


_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_ORT_IN_PLACE = frozenset(
    {
        "Relu",
        "LeakyRelu",
        "ThresholdedRelu",
        "Clip",
        "Sigmoid",
        "Tanh",
        "HardSigmoid",
        "Elu",
        "Selu",
        "Celu",
        "Softplus",
        "Softsign",
        "Shrink",
        "Softmax",
        "LogSoftmax",
        "Cast",
        "Trilu",
        "ScatterElements",
    }
)
"""Kinds whose kernels allocate nothing, according to ONNX Runtime's profile; arithmetic (Add, Mul, Exp, ...) does."""

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
        "cut out or joined lie where they are copied to; a state in place has one place for the whole run",
        alignment=16,
        rows_in_place=True,
        states_in_place=True,
    ),
    MemoryModel(
        "litert",
        "LiteRT's CPU arena without delegates: graph inputs to the end, reshapes share, arithmetic and softmax run in "
        "place over what only they read, graph outputs are always allocated, each tensor rounded up to 64 bytes, and "
        "what convolutions and means ask for counts while they run",
        alignment=64,
        rounds_offsets=True,
        inputs="to the end",
        outputs_apart=True,
        inputs_apart=True,
        views=_RESHAPES,
        in_place=frozenset({"Add", "Sub", "Mul", "Div", "Softmax"}),
        in_place_only_reader=True,
        decoded_weights=True,
        scratch=LITERT.name,
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
        # The fourth input is added to the result: partial sums accumulate in place.
        in_place_input={FUSED_CONV: 3},
        best_fit=True,
    ),
    MemoryModel(
        "torch",
        "PyTorch eager: inputs belong to the caller, reshapes and transposes are views",
        alignment=64,
        inputs="not counted",
        views=_RESHAPES | {"Transpose"},
    ),
)


_APART = "-apart"


def _with_overlaps(model: MemoryModel, kernels: KernelsName) -> MemoryModel:
    """The model of a library whose results may lie over inputs. Scratch counts where formulas for it are known."""
    scratch = kernels if LIBRARIES[kernels] else ""
    held = ", and their scratch counts while they run" if scratch else ""
    return replace(
        model,
        name=f"{model.name}-{kernels}",
        counts=f"{model.name}, where results may lie over inputs as the {kernels} kernels allow{held}; wrong with "
        "others",
        in_place=ELEMENTWISE,
        kernels=kernels,
        scratch=scratch,
    )


def _apart(model: MemoryModel) -> MemoryModel:
    return replace(
        model,
        name=model.name + _APART,
        counts=f"tflm, with the scratch of the {model.scratch} kernels while they run",
        in_place=frozenset(),
        kernels=None,
    )


def without_overlaps(model: MemoryModel) -> MemoryModel:
    """The model with the same scratch in which no result lies over an input as kernels allow it."""
    if model.kernels is None:
        return model
    return memory_model(model.name + _APART if model.scratch else "tflm")


def without_scratch(model: MemoryModel) -> MemoryModel:
    """The model of the tensors alone."""
    return replace(model, name=f"tensors alone of {model.name}", scratch="") if model.scratch else model


_OVERLAPPING = tuple(_with_overlaps(model, kernels) for model in _MODELS if model.name == "tflm" for kernels in KERNELS)
MEMORY_MODELS: Mapping[str, MemoryModel] = {
    model.name: model
    for model in (*_MODELS, *_OVERLAPPING, *(_apart(model) for model in _OVERLAPPING if model.scratch))
}
TFLM_WITHOUT_OFFSETS = replace(MEMORY_MODELS["tflm"], name="tflm, rows copied", rows_in_place=False)
"""TFLite Micro with a file that states no offsets: it gives every tensor a separate place."""


def memory_model(memory: str | MemoryModel) -> MemoryModel:
    """The memory model of that name, or the given one. Raises UsageError, which lists the names, for an unknown name,
    and for a model that differs from the built-in one of its name: plans hold the name alone."""
    if isinstance(memory, MemoryModel):
        if not memory.name:
            raise UsageError("this memory model has no name; plans hold the name of theirs, so give it one")
        built_in = (
            memory_model(memory.name) if memory.name.startswith(_WITH_SCRATCH) else MEMORY_MODELS.get(memory.name)
        )
        if built_in not in (None, memory):
            raise UsageError(
                f"this memory model differs from the built-in one of its name, {memory.name!r}; give it another name"
            )
        return memory
    try:
        return MEMORY_MODELS[memory]
    except (KeyError, TypeError):
        if isinstance(memory, str) and memory.startswith(_WITH_SCRATCH):
            return _with_scratch(memory)
        raise UsageError(f"unknown memory model {memory!r}; choose one of {', '.join(MEMORY_MODELS)}") from None


_WITH_SCRATCH = "tflm-esp-nn-"


@lru_cache(maxsize=64)
def _with_scratch(name: str) -> MemoryModel:
    """The model `tflm` with the scratch of ESP-NN's kernels. Raises UsageError for an unknown chip or version."""
    library = name.removeprefix("tflm-")
    kernel_library(library)
    counts = f"tflm, with the scratch of the {library} kernels while they run"
    return replace(MEMORY_MODELS["tflm"], name=name, counts=counts, scratch=library)


def stated_model(name: str, memory: str | MemoryModel | None, plan: str) -> MemoryModel:
    """The model of a plan that states the model's name ("": none), where the caller may pass the model: `memory`.

    `plan`: what it is, for messages. Raises UsageError where the name is that of no built-in model, or of none, and no
    model is passed, and where the passed model has another name than the plan states."""
    if memory is not None:
        model = memory_model(memory)
        if name and model.name != name:
            raise UsageError(f"the {plan} was planned under memory model {name!r}, not {model.name!r}")
        return model
    if not name:
        raise UsageError(f"the {plan} states no memory model: pass memory=, a name or the model")
    if name not in MEMORY_MODELS and not name.startswith(_WITH_SCRATCH):
        raise UsageError(f"the {plan} was planned under memory model {name!r}, which is not built in: pass memory=")
    return memory_model(name)
