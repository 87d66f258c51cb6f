"""Fits two real models from installed packages, prints both screens and writes a page for each: the main job, as a user
would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from experiments.fit.models import SHAPES, installed


def main() -> None:
    wanted = ("embedding_model.tflite", "model.onnx")
    models = [model for name in wanted for model in installed() if model.path.name == name][:2]
    if len(models) < 2:
        sys.exit("the demo needs its models: run make demo, which installs them")
    out = Path("out")
    out.mkdir(exist_ok=True)
    for model in models:
        target = out / f"{model.source}-fitted{model.path.suffix}"
        arguments = ["fit", str(model.path), "-o", str(target), "--report", str(target.with_suffix(".html"))]
        for name, shape in SHAPES.get(model.label, {}).items():
            arguments += ["--shape", f"{name}={','.join(map(str, shape))}"]
        print("\n$ downset", *arguments, flush=True)
        command = [str(Path(sys.executable).with_name("downset")), *arguments]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
