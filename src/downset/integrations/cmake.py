"""The path of `downset.cmake`, a function that fits a model while a firmware is built. `python -m
downset.integrations.cmake` prints it, for `include` in a CMakeLists.txt."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PATH"]

PATH = Path(__file__).with_name("downset.cmake")

if __name__ == "__main__":
    print(PATH.as_posix())
