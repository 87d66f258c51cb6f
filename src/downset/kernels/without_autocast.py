"""A context for kernels that compute in the element types that the graph states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from downset.extras import torch_library

__all__ = ["without_autocast"]


@contextmanager
def without_autocast() -> Iterator[None]:
    """PyTorch's autocast of the caller, if there is one, changes no element type in this context. Autocast holds for
    the calling thread alone, so other lanes would compute in other types."""
    torch = torch_library()
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
