"""The formulas for ESP-NN's scratch against ESP-NN's own functions, compiled on this host.

    python -m experiments.fit.esp_nn --library PATH [--quick]

PATH is a clone of github.com/espressif/esp-nn with its history (bare, or with files). From each version the functions
that return sizes are cut out and compiled by gcc; nothing of them is kept. Rows hold how many shapes were compared.
"""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

from downset.memory.esp_nn import CHIPS, VERSIONS, EspWindow, esp_convolution, esp_softmax
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

REVISIONS = {version: f"v{version}" for version in VERSIONS} | {
    "1.2.1": "79d59ae",
    "1.2.2": "def4d7a",
    "1.2.3": "5f0a807",
}
SHAPES, QUICK = 100_000, 2_000
ENDS = {"s3": "esp32s3", "p4": "esp32p4", "generic": "opt"}
COMMON = """#include <stdint.h>
#include <stddef.h>
#define max(x, y) ((x) > (y) ? (x) : (y))
#define min(x, y) ((x) < (y) ? (x) : (y))
#define L1D_BUDGET 32768
"""
SIZE = re.compile(r"^int(?:32_t)? (esp_nn_get_\w*scratch_size_(?:esp32s3|esp32p4|opt))\(", re.MULTILINE)


def git(library: str, *arguments: str) -> str:
    return subprocess.run(["git", "-C", library, *arguments], capture_output=True, text=True, check=True).stdout


def functions(source: str) -> list[str]:
    """The functions of a C file that return sizes."""
    bodies = []
    for match in SIZE.finditer(source):
        end, depth = source.index("{", match.start()), 0
        while True:
            depth += {"{": 1, "}": -1}.get(source[end], 0)
            end += 1
            if depth == 0:
                break
        bodies.append(source[match.start() : end])
    return bodies


def compiled(library: str, version: str, folder: str) -> ctypes.CDLL:
    revision = REVISIONS[version]
    files = git(library, "ls-tree", "-r", "--name-only", revision).split()
    sources = [git(library, "show", f"{revision}:{file}") for file in files if re.fullmatch(r"src/.*\.c", file)]
    types = re.sub(r"#include[^\n]*", "", git(library, "show", f"{revision}:include/esp_nn_defs.h"))
    text = "\n".join([COMMON, types, *(function for source in sources for function in functions(source))])
    file = Path(folder) / f"{version}.c"
    file.write_text(text)
    subprocess.run(["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", str(file.with_suffix(".so")), str(file)], check=True)
    return ctypes.CDLL(str(file.with_suffix(".so")))


def theirs(library: ctypes.CDLL, chip: str, *, depthwise: bool) -> Callable[[EspWindow], int]:
    """ESP-NN's function for convolutions. A chip without one of its own uses that of all others."""
    name = f"esp_nn_get_{'depthwise_' if depthwise else ''}conv_scratch_size_"
    function = getattr(library, name + ENDS[chip], None) or getattr(library, name + "opt")

    def size(window: EspWindow) -> int:
        kernel, image, result = ((ctypes.c_int32 * 4)(pair[1], pair[0], 0, 1) for pair in window[1::-1] + window[3:4])
        image[2], result[2] = window.depth, window.channels
        each = [window.channels // window.depth] if depthwise else []
        strides, pads = window.stride[::-1], window.pads[::-1]
        parameters = [0, 0, *each, *strides, *pads, 0, 0, -128, 127]
        return int(function(image, kernel, result, (ctypes.c_int32 * len(parameters))(*parameters)))

    return size


def shape(numbers: random.Random, *, depthwise: bool) -> EspWindow:
    """A random convolution: ordinary ones, small images and odd sizes."""
    kernel = numbers.choice([(1, 1), (3, 3), (5, 5), (1, numbers.randint(1, 9)), (numbers.randint(1, 7),) * 2])
    stride = numbers.choice([(1, 1), (1, 1), (2, 2), (numbers.randint(1, 4), numbers.randint(1, 4))])
    most = numbers.choice([20, 100, 400])
    image = (numbers.randint(1, most), numbers.randint(1, most))
    depth = numbers.choice([numbers.randint(1, 20), 8 * numbers.randint(1, 20), 16 * numbers.randint(1, 12)])
    channels = depth * numbers.choice([1, 1, 1, 2, 3, 4, 8]) if depthwise else numbers.randint(1, 130)
    if numbers.random() < 0.5:  # SAME
        result = tuple(-(-size // step) for size, step in zip(image, stride, strict=True))
        over = (
            max(0, (made_ - 1) * step + taps - size)
            for made_, step, taps, size in zip(result, stride, kernel, image, strict=True)
        )
        pads = tuple(size // 2 for size in over)
    else:
        image = (max(image[0], kernel[0]), max(image[1], kernel[1]))
        result = tuple((size - taps) // step + 1 for size, taps, step in zip(image, kernel, stride, strict=True))
        pads = (0, 0)
    return EspWindow(image, kernel, stride, result, pads, depth, channels)


def rows(options: Namespace) -> Iterator[Row]:
    if options.library is None:
        return
    count = QUICK if options.quick else SHAPES
    with tempfile.TemporaryDirectory() as folder:
        for version in VERSIONS:
            library = compiled(options.library, version, folder)
            for chip in CHIPS:
                for depthwise in (False, True):
                    numbers, size = random.Random(7), theirs(library, chip, depthwise=depthwise)
                    windows = [shape(numbers, depthwise=depthwise) for _ in range(count)]
                    pairs = [
                        (esp_convolution(window, chip, version, depthwise=depthwise), size(window))
                        for window in windows
                    ]
                    yield row(version, chip, "depthwise" if depthwise else "convolution", pairs)
                name = "esp_nn_get_softmax_scratch_size_"
                function = getattr(library, name + ENDS[chip], None) or getattr(library, name + "opt")
                yield row(
                    version, chip, "softmax", [(esp_softmax(size), function(size, 7)) for size in range(1, count)]
                )


def row(version: str, chip: str, kernel: str, pairs: list[tuple[int, int]]) -> Row:
    return {
        "version": version,
        "chip": chip,
        "kernel": kernel,
        "compared": len(pairs),
        "different": sum(ours != other for ours, other in pairs),
        "most_bytes": max(other for _, other in pairs),
    }


EXPERIMENT = Experiment(
    "fit_esp_nn",
    rows,
    (
        *fields("version", "chip", "kernel"),
        ("shapes compared", "{compared:,}"),
        ("different", "{different:,}"),
        ("most bytes", "{most_bytes:,}"),
    ),
    key=("version", "chip", "kernel"),
    quick="fewer shapes, nothing written",
    options={"--library": {"help": "a clone of github.com/espressif/esp-nn; without it recorded rows are printed"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
