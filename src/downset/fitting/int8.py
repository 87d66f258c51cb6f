"""Writes a uint8 file in the int8 form that TFLite Micro runs, and compares both in LiteRT."""

from __future__ import annotations

from pathlib import Path

from downset.errors import InvalidPlan, UnsupportedError, UsageError
from downset.formats.reading import load
from downset.formats.tflite.int8_form import fault, less_128, uses_uint8, write_int8_form
from downset.messages import Message, Setting
from downset.runtimes.feeds import made_feeds
from downset.runtimes.outputs import in_litert

__all__ = ["as_int8", "int8_note"]


def as_int8(path: Path, folder: Path, *, seed: int = 0) -> tuple[Path, list[str]]:
    """(path of the int8 form in `folder`, notes). Raises UsageError where the file does not compute on uint8,
    UnsupportedError where it has no exact int8 form, and InvalidPlan where the two differ in LiteRT."""
    if path.suffix.lower() != ".tflite":
        raise UsageError(f"{path}: int8 is for .tflite files")
    graph = load(path)
    if not uses_uint8(path):
        raise UsageError(f"{path} does not compute on uint8: leave int8 out")
    folder.mkdir()
    rewritten = folder / path.name
    write_int8_form(path, rewritten)
    said = "the exact int8 form of the file is fitted: its inputs and outputs are those of the file less 128"
    names = [graph.tensors[tensor].name for op in graph.ops for tensor in op.outputs if tensor >= 0]
    feeds = made_feeds(graph, seed=seed)
    try:
        ours = in_litert(path, feeds, inside=names)
        theirs = in_litert(
            rewritten, [{name: less_128(value) for name, value in run.items()} for run in feeds], inside=names
        )
    except UnsupportedError as error:
        return rewritten, [Message(f"{said}; it was not compared with the file (", error.message, ")")]
    pairs = [pair for runs in zip(ours.outputs, theirs.outputs, strict=True) for pair in zip(*runs, strict=True)]
    pairs += [(value, theirs.inside[name]) for name, value in ours.inside.items() if name in theirs.inside]
    if any(less_128(one).tobytes() != other.tobytes() for one, other in pairs):
        raise InvalidPlan(f"{path}: the int8 form computes something else in LiteRT; nothing written")
    return rewritten, [
        f"{said}; LiteRT's kernels compute the same for both, bit for bit, on {len(feeds)} inputs, and in "
        f"{len(ours.inside)} tensors inside"
    ]


def int8_note(path: Path) -> tuple[bool, list[str]]:
    """(whether a file that TFLite Micro refuses computes on uint8 and has an exact int8 form, a note that says so); no
    note for files that do not compute on uint8."""
    if not uses_uint8(path):
        return False, []
    reason = fault(path)
    if reason is None:
        parts = (
            "TFLite Micro does not run uint8; the file has an exact int8 form, which ",
            Setting("int8", True),
            " fits",
        )
        return True, [Message(*parts)]
    return False, [f"TFLite Micro does not run uint8, and the file has no exact int8 form: {reason}"]
