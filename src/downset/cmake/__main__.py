"""Prints the path of `downset.cmake`, for `include` in a CMakeLists.txt."""

from pathlib import Path

print(Path(__file__).with_name("downset.cmake").as_posix())
