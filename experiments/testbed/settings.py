"""Settings of the measured experiments: devices, networks, models and methods, with the paper's speed ratios."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx

from zoo import ZOO

__all__ = ["CLUSTERS", "EQUAL", "METHODS", "MODELS", "RATE_MBPS", "Setting", "device_names", "write_model"]

RATE_MBPS = 50.0
SHARE_PER_GHZ = {2: 0.1, 4: 0.15, 6: 0.1, 8: 0.1}
"""Shares of one core a GHz, by number of devices: what two cores can give in addition to the driver. A core of the
build machines computes about 50 GMAC/s in ONNX Runtime: a gigahertz of the paper is then 7.5 or 5 GMAC/s."""
CLUSTERS = {
    4: (2.2, 1.5, 1.2, 0.8),
    8: (2.2, 2.2, 1.5, 1.5, 1.2, 1.2, 0.8, 0.8),
}
"""GHz: all eight devices of PICO's section 6.1, and one of each."""
EQUAL = {count: (1.0,) * count for count in (2, 4, 6, 8)}
"""GHz, for Figure 12: so many devices of one speed."""
METHODS = ("single", "blocks", "layerwise", "early_fused", "optimal_fused", "coedge", "pico", "exact", "exact_direct")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vgg16": ("vgg16", {"classifier": False}),
    "yolov2": ("yolov2", {"passthrough": False}),
    "yolov2_half": ("yolov2", {"passthrough": False, "narrower": 2}),
    "resnet34": ("resnet34", {}),
    "inception_v3": ("inception_v3", {}),
}
"""Networks of the zoo, as in the analytic experiments, at the paper's image sides. yolov2_half has half the inner
channels: a quarter of the multiplications, which two cores carry."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A testbed. `ghz`: by device. `share`: of one core a GHz; None: that of `SHARE_PER_GHZ`."""

    ghz: tuple[float, ...]
    medium: Literal["links", "shared"]
    rate_mbps: float = RATE_MBPS
    share: float | None = None

    @property
    def cpu_shares(self) -> tuple[float, ...]:
        share = SHARE_PER_GHZ[len(self.ghz)] if self.share is None else self.share
        return tuple(one * share for one in self.ghz)


def device_names(ghz: tuple[float, ...]) -> tuple[str, ...]:
    """The paper's names of the devices, numbered."""
    return tuple(f"d{number}@{one:g}" for number, one in enumerate(ghz))


def write_model(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    if not path.exists():
        built, options = MODELS[name]
        onnx.save(ZOO[built](**options), str(path))
    return path
