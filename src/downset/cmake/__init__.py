"""A CMake function that fits a model while a firmware is built. `python -m downset.cmake` prints the file's path."""
