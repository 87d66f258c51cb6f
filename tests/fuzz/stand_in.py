"""The command line where a cluster that was measured before stands for one that is measured: no device is started.

python -m tests.fuzz.stand_in profile-cluster --devices d0,d1 --local -o FILE
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from downset.cli import main
from downset.distributed.profiling import joined, measure
from downset.distributed.profiling.costs import DeviceRates, LinkRates
from downset.distributed.profiling.measured import MeasuredCluster, MeasuredDevice

__all__ = ["joined_cluster", "measure_cluster", "without_devices"]


@contextlib.contextmanager
def joined_cluster(names: Sequence[str], **_: Any) -> Iterator[None]:
    """Joins nobody."""
    yield


def measure_cluster(_fleet: Any, names: Sequence[str], probes: Any, **_: Any) -> MeasuredCluster:
    """The same rates of every device."""
    assert probes
    rates = DeviceRates(mac_per_s=1e9, alpha_of={"Gemm": 0.5}, bytes_per_s=1e10, spread=0.1, samples=3)
    devices = tuple(MeasuredDevice(name, rates, 1 << 30, 1 << 26) for name in names)
    return MeasuredCluster(devices, "links", "half", LinkRates(1e7, 1e-3, 0.1, 3))


def without_devices() -> None:
    """From now on `profile-cluster` joins nobody and measures these rates."""
    joined.joined_cluster, measure.measure_cluster = joined_cluster, measure_cluster  # type: ignore[assignment]


if __name__ == "__main__":
    without_devices()
    main()
