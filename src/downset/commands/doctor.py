"""`downset doctor`: what is installed here and what each extra would add, as text to paste into a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from typing import Any

import rich_click as click

from downset import __version__
from downset.commands.envelope import json_option, print_json
from downset.commands.options import console
from downset.extras import installing, requirements_of
from downset.runtimes.versions import package_version
from downset.text import format_size

__all__ = ["doctor"]

_EXTRAS = (
    ("onnx", ("onnx", "onnx-ir"), "reading and writing .onnx"),
    ("ort", ("onnxruntime",), "measuring in ONNX Runtime, fit of .onnx"),
    ("tflite", ("ai-edge-litert",), "reading and writing .tflite, comparing in LiteRT"),
    ("tflm", ("tflite-micro",), "measuring in TFLite Micro"),
    ("torch", ("torch",), "exported programs, stages, the executor"),
    ("report", ("jinja2",), "reports as pages (--report)"),
    ("cluster", ("ray", "cryptography"), "serve on devices"),
    ("service", ("aiohttp", "prometheus-client"), "frames from clients (serve --listen)"),
    ("executorch", ("executorch",), "plans for ExecuTorch"),
)
"""Extra, the packages that it brings, and what it adds."""
_CORE = ("numpy", "msgspec", "rich-click", "rich", "click")


@click.command()
@json_option("doctor")
def doctor(as_json: bool) -> None:
    """Versions of everything, runtimes, compilers and GPU, and what each extra adds: paste it into a bug report."""
    versions = _installed()
    if as_json:
        print_json("doctor", versions)
        return
    out = console()
    for line in _lines(versions):
        out.print(line, markup=False, soft_wrap=True)


def _installed() -> dict[str, Any]:
    from downset.process.limits import machine_bytes

    return {
        "downset": __version__,
        "native": _native(),
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "system": f"{platform.platform()}, {platform.machine()}",
        "processor": f"{_processor()}, {os.cpu_count()} threads",
        "memory_bytes": machine_bytes(),
        "packages": {name: package_version(name) for name in _CORE},
        "extras": [
            {
                "extra": extra,
                "adds": adds,
                "packages": {name: package_version(name) for name in packages},
                "requirements": list(requirements_of(extra)),
            }
            for extra, packages, adds in _EXTRAS
        ],
        "compilers": {name: _first_line(name, "--version") for name in ("c++", "g++", "clang++", "cmake")},
        "gpu": _first_line("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "browser": _first_line("chromium", "--version"),
    }


def _native() -> str:
    """Whether the compiled searches are installed; without them few planners run."""
    from downset.errors import UnsupportedError

    try:
        from downset.native import compiled
    except UnsupportedError as error:
        return f"missing: {error}"
    return "there" if compiled else "missing"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  a file of the kernel
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.processor() or "unknown"
    except OSError:
        return platform.processor() or "unknown"


def _first_line(program: str, *arguments: str) -> str | None:
    """The first line that a program prints; None if it is not installed or does not answer within five seconds."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer"
    return done.stdout.strip().split("\n")[0] or None


def _lines(versions: dict[str, Any]) -> list[str]:
    lines = [
        f"downset    {versions['downset']}, compiled searches: {versions['native']}",
        f"python     {versions['python']}",
        f"system     {versions['system']}",
        f"processor  {versions['processor']}",
        f"memory     {format_size(versions['memory_bytes'])}",
        f"gpu        {versions['gpu'] or 'none found'}",
        "packages   " + ", ".join(f"{name} {version or 'missing'}" for name, version in versions["packages"].items()),
        "compilers  " + ", ".join(f"{name}: {version or 'none'}" for name, version in versions["compilers"].items()),
        f"browser    {versions['browser'] or 'none'}",
        "",
        "extras:",
    ]
    for row in versions["extras"]:
        missing = [name for name, version in row["packages"].items() if version is None]
        there = ", ".join(f"{name} {version}" for name, version in row["packages"].items() if version is not None)
        state = f"needs {', '.join(missing)}" if missing else there
        lines.append(f"  {row['extra']:11} {state:44} {row['adds']}")
        if missing and (advice := installing(row["extra"])):
            lines.append(f"  {'':11} {advice}")
    return lines
