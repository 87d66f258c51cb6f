"""The versions of the packages that took part in a result."""

from __future__ import annotations

import platform
from importlib import metadata

from downset import __version__

__all__ = ["package_version", "versions_of", "versions_of_target"]

_PACKAGES = {
    "tflm": ("ai-edge-litert", "tflite-micro"),
    "litert": ("ai-edge-litert",),
    "ort": ("onnx", "onnxruntime"),
    "torch": ("torch",),
}


def package_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions_of_target(target: str) -> dict[str, str]:
    """The versions, by name, of downset, Python, and the packages that read and run the files of a target."""
    return versions_of(*_PACKAGES.get(target, ()))


def versions_of(*packages: str) -> dict[str, str]:
    """The versions, by name, of downset, Python, NumPy and those of `packages` that are installed."""
    versions = {name: package_version(name) for name in ("numpy", *packages)}
    installed = {name: version for name, version in versions.items() if version is not None}
    return {"downset": __version__, "python": platform.python_version(), **installed}
