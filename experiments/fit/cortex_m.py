"""CMSIS-NN on emulated Cortex-M processors: the head and the tail of TFLite Micro's arena there, compared with what a
fit and its header say from this host.

    python -m experiments.fit.cortex_m [--m4 PROGRAM] [--m55 PROGRAM] [--quick]

The programs are built by cortex_m_program/build.sh from public sources of TFLite Micro and CMSIS-NN, and run in
qemu-system-arm: a Cortex-M4 with CMSIS-NN for DSP instructions (mps2-an386), a Cortex-M55 with that for MVE
(mps3-an547). Without programs the recorded rows are printed. Every file runs once on the same inputs; its outputs are
compared with those of the original on that processor.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from downset import fit
from downset.formats.kernel_scratch import kernel_scratch
from experiments.fit.models import installed, shared
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

MODELS = ("alexa.tflite", "vww_96_int8.tflite", "mobilenet_v2_0.35_160_rand_int8.tflite")
BOARDS = {
    "m4": ("cmsis-nn-dsp", "mps2-an386", "0x21800000"),
    "m55": ("cmsis-nn-mve", "mps3-an547", "0x61000000"),
}
"""By processor: the library of its kernels, the emulated board, and the address from which the program reads."""


def emulated(program: str, board: str, address: str, model: Path) -> dict[str, str]:
    """The figures that the program prints for a model, by name."""
    asked = ["qemu-system-arm", "-M", board, "-nographic", "-monitor", "none", "-serial", "none"]
    asked += ["-semihosting-config", "enable=on,target=native", "-kernel", program]
    asked += ["-device", f"loader,file={model},addr={address},force-raw=on"]
    printed = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=True).stdout
    return dict(re.findall(r"(used|head|tail|outputs) (\w+)", printed))


def rows(options: Namespace) -> Iterator[Row]:
    programs = {name: getattr(options, name) for name in BOARDS}
    models = [model.path for model in (*installed(), *shared()) if model.path.name in MODELS]
    models = [model for model in models if "pyopen" not in str(model)]
    for name, program in programs.items():
        if program is None:
            continue
        library, board, address = BOARDS[name]
        for model in models[: 1 if options.quick else None]:
            original = emulated(program, board, address, model)["outputs"]
            for kernels in (None, library):
                with tempfile.TemporaryDirectory() as folder:
                    output = Path(folder) / "fitted.tflite"
                    result = fit(model, output=output, kernels=kernels, time_limit_s=5.0)
                    ran = emulated(program, board, address, output)
                assert result.measured is not None
                parts = result.measured.details[result.shipped]
                above = kernel_scratch(result, library).above_bytes
                yield {
                    "processor": name,
                    "model": model.name,
                    "planned_with": kernels or "none",
                    "shipped": result.shipped,
                    "overlaps": result.assumed_kernels is not None,
                    "head_said": max(result.arena.after + above, parts["head_bytes"]),
                    "head": int(ran["head"]),
                    "tail_said": parts["cortex_m_tail_bytes"],
                    "tail_here": parts["tail_bytes"],
                    "tail": int(ran["tail"]),
                    "equal": ran["outputs"] == original,
                }


EXPERIMENT = Experiment(
    "fit_cortex_m",
    rows,
    (
        *fields("processor", "model", "planned_with"),
        ("head by formula", "{head_said:,}"),
        ("head there", "{head:,}"),
        ("tail here", "{tail_here:,}"),
        ("estimated", "{tail_said:,}"),
        ("tail there", "{tail:,}"),
        *fields("equal"),
    ),
    key=("processor", "model", "planned_with"),
    quick="one model, nothing written",
    options={
        "--m4": {"default": None, "help": "the program for a Cortex-M4"},
        "--m55": {"default": None, "help": "the program for a Cortex-M55"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
