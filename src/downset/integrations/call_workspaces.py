"""Bytes that a library allocates inside a call, in addition to its results: measured, not assumed.

A convolution copies its operands into layouts of its own, which may take more than its result; an attention has rows of
scores or sums. Such a call runs twice on zeros, of the shapes and strides that it has in the graph, and the allocator
is watched the second time. What was measured is kept by operator, operands and what its library is set to, in the
process and in the compiler's cache folder, so that it is measured once. Equal machines measure equal bytes; ranks on
one machine read one table, and no plan moves a collective.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from downset.errors import UsageError
from downset.process.whole_files import write_whole

__all__ = ["calls_library", "measured_bytes", "most_allocated", "workspaces_of"]

_ATTENTIONS = ("cudnn_attention", "efficient_attention", "flash_attention", "flash_attention_for_cpu")
_CALLS = (
    "aten.convolution.default",
    "aten.convolution_backward.default",
    *(f"aten._scaled_dot_product_{of}{way}.default" for of in _ATTENTIONS for way in ("", "_backward")),
)
Strides = tuple[Any, ...]

_TABLE: dict[str, int] = {}
"""Bytes by call, of this process."""


def calls_library(node: Any) -> bool:
    """Whether a node of a graph is a call in which a library may allocate."""
    return str(node.target) in _CALLS


def workspaces_of(nodes: Iterable[Any], strides: Mapping[Any, Sequence[Strides]] | None = None) -> dict[Any, int]:
    """The bytes that a library allocates inside each of these nodes, for those that call one on one device, a processor
    or CUDA's, and have shapes that are known. `strides`: those of a node's tensors, one after another, where the
    compiler lays them out otherwise than the graph says. Nothing is measured while the program itself is profiled."""
    import torch

    called = {node: _operands(node, (strides or {}).get(node, ())) for node in nodes if calls_library(node)}
    calls = {node: key for node, operands in called.items() if (key := _key(node, operands)) is not None}
    unknown = {key: node for node, key in calls.items() if key not in _TABLE}
    if unknown:
        table = _read()
        _TABLE.update({key: table[key] for key in unknown if key in table})
        missing = {key: node for key, node in unknown.items() if key not in _TABLE}
        if missing and not torch.autograd._profiler_enabled():
            measured = {key: _measured(node, called[node]) for key, node in missing.items()}
            kept = {key: of for key, of in measured.items() if of is not None}
            _TABLE.update({**dict.fromkeys(measured, 0), **kept})
            _write({**table, **kept})
    return {node: _TABLE[key] for node, key in calls.items() if _TABLE.get(key)}


def measured_bytes(call: Any, device: str = "cpu") -> int:
    """The most bytes that the allocator of this type of device holds within the second of two calls, without those of
    its results."""
    import torch

    call()
    results, most = most_allocated(call, device)
    made_here = [of for of in (results if isinstance(results, tuple) else (results,)) if isinstance(of, torch.Tensor)]
    storages = {of.untyped_storage()._cdata: of for of in made_here if of.device.type == device}
    return int(max(most - sum(of.untyped_storage().nbytes() for of in storages.values()), 0))


def most_allocated(call: Callable[[], Any], device: str = "cpu") -> tuple[Any, int]:
    """(the results of a call, the most bytes of this type of device, "cpu" or "cuda", that it holds in addition to what
    was there)."""
    import torch
    from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy

    experimental = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, experimental))
    try:
        results = call()
    finally:
        records = _disable_profiler_legacy()
    held = most = 0
    for record in (of for thread in records for of in thread if of.kind() == "memory_alloc"):
        held += record.cpu_memory_usage() if device == "cpu" else record.cuda_memory_usage()
        most = max(most, held)
    return results, most


def _operands(node: Any, strides: Sequence[Strides]) -> list[tuple[Any, Strides]]:
    """The values of a call's operands, one after another, with the strides of tensors: of the first ones those given. A
    compiler may take the last one out of a call, as the bias of a convolution."""
    import torch

    values: list[Any] = []
    torch.fx.map_arg((node.args, node.kwargs), lambda of: values.append(of.meta.get("val")))
    own = [tuple(of.stride()) if isinstance(of, torch.Tensor) else () for of in values]
    if all(len(one) == len(other) for one, other in zip(own, strides, strict=False)):
        own[: len(strides)] = strides[: len(own)]
    return [*zip(values, own, strict=True)]


def _measured(node: Any, operands: Sequence[tuple[Any, Strides]]) -> int | None:
    """The bytes inside a call; None where it does not run."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    device = _device_of(operands)
    assert device is not None
    with _disable_current_modes(), torch.no_grad():
        try:
            values = iter([_zeros(*of) for of in operands])
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda _: next(values))
            return measured_bytes(lambda: node.target(*args, **kwargs), device)
        except RuntimeError:  # the compiler has to report what cannot run, or not enough memory
            return None


def _zeros(value: Any, strides: Strides) -> Any:
    import torch

    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).zero_()


def _device_of(operands: Sequence[tuple[Any, Strides]]) -> str | None:
    """The type of the device on which a call runs, which may read numbers of the host; None if it is on another device
    than is measured, or not known."""
    import torch

    types = {of.device.type if isinstance(of, torch.Tensor) else "" for of, _ in operands}
    return max(types) if types <= {"cpu", "cuda"} and types else None


def _key(node: Any, operands: Sequence[tuple[Any, Strides]]) -> str | None:
    """The call by its operator, operands, device and what its library is set to; None if a size or the device is not
    known."""
    import torch

    device = _device_of(operands)
    if device is None or not all(isinstance(size, int) for of, by in operands for size in (*of.shape, *by)):
        return None
    described = iter([f"{tuple(of.shape)} {by} {of.dtype}" for of, by in operands])
    call = torch.fx.map_arg((node.args, node.kwargs), lambda _: next(described))
    return f"{_library(device)}: {node.target} {call}"


def _library(device: str) -> str:
    """The settings that decide the workspace of a call, in addition to its operands."""
    import torch

    if device == "cpu":
        return f"{torch.get_num_threads()} threads"
    cudnn = torch.backends.cudnn
    precision = cudnn.conv.fp32_precision if hasattr(cudnn, "conv") else cudnn.allow_tf32
    settings = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, precision)
    return f"{torch.cuda.get_device_name()} {torch.are_deterministic_algorithms_enabled()} {settings}"


def _file() -> Path | None:
    import torch
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if config.force_disable_caches:
        return None
    machine = f"{torch.__version__}_{torch.backends.cpu.get_cpu_capability()}"
    return Path(cache_dir()) / "downset" / f"workspaces_{machine.replace(' ', '_')}.json"


def _read() -> dict[str, int]:
    file = _file()
    try:
        table = json.loads(file.read_text()) if file is not None else {}
    except (OSError, ValueError):
        return {}
    return {key: of for key, of in table.items() if isinstance(of, int)} if isinstance(table, dict) else {}


def _write(table: Mapping[str, int]) -> None:
    """Replace the file in one move; a cache that cannot be written is measured again."""
    file = _file()
    if file is None:
        return
    with suppress(OSError, UsageError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(table).encode())
