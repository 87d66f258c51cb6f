"""The libraries of kernels that TFLite Micro runs with, by name and version, as users and files write them:
"cmsis-nn-dsp", "esp-nn-s3@1.2.1"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from downset.errors import UsageError
from downset.memory import cmsis_nn, esp_nn
from downset.memory.overlaps import KERNELS
from downset.messages import Setting
from downset.text import brief

__all__ = ["LIBRARIES", "LITERT", "KernelLibrary", "kernel_library"]

_ESP_NN = "esp-nn-"
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "reference": (),
    **{name: (cmsis_nn.VERSION,) for name in KERNELS if name != "reference"},
    **{_ESP_NN + chip: esp_nn.VERSIONS for chip in esp_nn.CHIPS},
}
"""By name: the versions whose formulas are known, the oldest first."""


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """A library of kernels. `versions`: those whose formulas count: the one that was named, or all that are known."""

    name: str
    versions: tuple[str, ...]

    @property
    def chip(self) -> str:
        """The chip of ESP-NN's kernels; empty for the other libraries."""
        return self.name.removeprefix(_ESP_NN) if self.name.startswith(_ESP_NN) else ""

    @property
    def alignment(self) -> int:
        """Bytes to which the runtime aligns each buffer."""
        return 64 if self.name == "litert" else 16

    @property
    def exact(self) -> bool:
        """Whether its formulas give what a kernel asks for, and not the most that it may."""
        return bool(self.chip) and len(self.versions) == 1

    @property
    def source(self) -> str:
        """Library, versions and where its formulas come from, for people."""
        if not self.chip:
            return cmsis_nn.SOURCES
        first, *_, last = (*self.versions, *self.versions)
        versions = first if first == last else f"the most of versions {first} to {last}"
        return f"ESP-NN, {versions}, {esp_nn.CHIP_NAMES[self.chip]}; {esp_nn.SOURCES}"


LITERT = KernelLibrary("litert", ())
"""LiteRT's built-in kernels, which no firmware runs: users do not choose them."""


def kernel_library(text: str) -> KernelLibrary:
    """The library of this name, "NAME" or "NAME@VERSION". Raises UsageError, which lists what is known, for another."""
    if not isinstance(text, str):
        raise UsageError(Setting("kernels"), f" must be a name such as 'cmsis-nn-dsp', not {brief(repr(text))}")
    name, mark, version = text.partition("@")
    if name == "esp-nn":
        chips = ", ".join(f"{_ESP_NN}{chip} ({esp_nn.CHIP_NAMES[chip]})" for chip in esp_nn.CHIPS)
        raise UsageError(Setting("kernels", text), f": the sizes of ESP-NN differ by chip; name {chips}")
    if name not in LIBRARIES:
        raise UsageError(Setting("kernels"), f" must be one of {', '.join(LIBRARIES)}, not {text!r}")
    versions = LIBRARIES[name]
    if not mark:
        return KernelLibrary(name, versions)
    if version not in versions:
        names = ", ".join(versions) or "none: they are those of the runtime that is measured"
        raise UsageError(f"kernels {text!r}: no formulas are known for this version; known versions: {names}")
    return KernelLibrary(name, (version,))
