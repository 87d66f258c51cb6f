"""Bytes that a library allocates inside a call, in addition to its results: measured, not assumed.

A convolution on a processor copies its operands into layouts of its own, which may take more than its result; an
attention has rows of scores for each thread. Such a call runs twice on zeros, of the shapes and strides that it has in
the graph, and the allocator is watched the second time. What was measured is kept by operator, operands, number of
threads and instructions of the processor, in the process and in the compiler's cache folder, so that it is measured
once. Equal machines measure equal bytes; ranks on one machine read one table, and no plan moves a collective.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from downset.errors import UsageError
from downset.process.whole_files import write_whole

__all__ = ["measured_bytes", "most_allocated", "workspaces_of"]

_CALLS = (
    "aten.convolution.default",
    "aten.convolution_backward.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
)
_TABLE: dict[str, int] = {}
"""Bytes by call, of this process."""


def workspaces_of(nodes: Iterable[Any]) -> dict[Any, int]:
    """The bytes that a library allocates inside each of these nodes, for those that call one on a processor and have
    shapes that are known. Nothing is measured while the program itself is profiled."""
    import torch

    calls = {node: key for node in nodes if str(node.target) in _CALLS and (key := _key(node)) is not None}
    unknown = {key: node for node, key in calls.items() if key not in _TABLE}
    if unknown:
        table = _read()
        _TABLE.update({key: table[key] for key in unknown if key in table})
        missing = {key: node for key, node in unknown.items() if key not in _TABLE}
        if missing and not torch.autograd._profiler_enabled():
            _TABLE.update({key: _measured(node) for key, node in missing.items()})
            _write({**table, **{key: _TABLE[key] for key in missing}})
    return {node: _TABLE[key] for node, key in calls.items() if _TABLE.get(key)}


def measured_bytes(call: Any) -> int:
    """The most bytes that the allocator holds within the second of two calls, without those of its results."""
    call()
    results, most = most_allocated(call)
    results = results if isinstance(results, tuple) else (results,)
    storages = {of.untyped_storage()._cdata: of.untyped_storage().nbytes() for of in results if of is not None}
    return int(max(most - sum(storages.values()), 0))


def most_allocated(call: Callable[[], Any]) -> tuple[Any, int]:
    """(the results of a call, the most bytes of a processor's memory that it holds in addition to what was there)."""
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
        held += record.cpu_memory_usage()
        most = max(most, held)
    return results, most


def _measured(node: Any) -> int:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.no_grad():
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda of: _zeros(of.meta["val"]))
        try:
            return measured_bytes(lambda: node.target(*args, **kwargs))
        except RuntimeError:  # the compiler has to report what cannot run, or not enough memory
            return 0


def _zeros(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).zero_()


def _key(node: Any) -> str | None:
    """The call by its operator, operands and number of threads; None if it is not on a processor, or a size is not
    known."""
    import torch

    complete = True

    def described(of: Any) -> str:
        nonlocal complete
        value = of.meta.get("val")
        complete = complete and isinstance(value, torch.Tensor) and value.device.type == "cpu"
        complete = complete and all(isinstance(size, int) for size in (*value.shape, *value.stride()))
        return f"{tuple(value.shape)} {value.stride()} {value.dtype}" if complete else ""

    operands = torch.fx.map_arg((node.args, node.kwargs), described)
    return f"{torch.get_num_threads()} threads: {node.target} {operands}" if complete else None


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
