"""LONG=1 runs the sweeps whole: more seeds, damaged files and networks, and every command on every hostile file."""

import os

__all__ = ["LONG"]

LONG = bool(os.environ.get("LONG"))
