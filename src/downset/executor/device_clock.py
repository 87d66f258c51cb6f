"""The CUDA device, and seconds that it takes for a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.messages import Call, Setting

__all__ = ["DeviceClock", "need_cuda"]

_LEAST_SPIN_S, _MOST_SPIN_S = 1e-4, 0.05
_CYCLES_S = 2.2e9
"""Cycles of a second at a clock that no device of today exceeds: a spin never ends early."""


def need_cuda() -> Any:
    """The torch module. Raises UnsupportedError if there is no CUDA device."""
    torch = torch_library()
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "no CUDA device on this machine (torch.cuda.is_available() is false); a plan for the CPU is made with `",
            Call("tune_stages", (Setting("device", "cpu"),)),
            "`",
        )
    return torch


class DeviceClock:
    """Seconds that the device takes for a call, without the host's time for its launches.

    The event that begins a measurement stands behind a kernel that spins until the host has issued the whole call. The
    spin is lengthened until that is so. `exposed`: calls whose launches the longest spin did not hide; their seconds
    include some of the host's time. A call that issues more work than the device's queue takes is one of them."""

    def __init__(self) -> None:
        self._torch, self._spin_s, self.exposed = need_cuda(), _LEAST_SPIN_S, 0

    def seconds(self, call: Callable[[], Any]) -> float:
        """Measured seconds of one call on the current stream, without what was issued before."""
        cuda = self._torch.cuda
        while True:
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            cuda.synchronize()
            cuda._sleep(int(self._spin_s * _CYCLES_S))
            begin.record()
            call()
            end.record()
            hidden = not begin.query()
            cuda.synchronize()
            if hidden or self._spin_s >= _MOST_SPIN_S:
                self.exposed += not hidden
                return float(begin.elapsed_time(end)) / 1e3
            self._spin_s *= 2
