"""Describes the open sizes of inputs to the user, with the setting that fixes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downset.messages import Message, Setting
from downset.text import brief, printable

__all__ = ["sizes_wanted"]

_LETTERS = "NMKLPQRSTUVWXYZ"


def sizes_wanted(inputs: Mapping[str, Sequence[int | str] | None]) -> Message:
    """The numbers to choose and the `shapes` to add, for inputs by name. A size is a number, or the name of an
    open axis ("" where the file gives none); None where the file does not state the number of axes.

    Axes of one name share a letter. A name without letters, such as `?`, says nothing: each such axis has its own. No
    size is proposed, because the figures of a plan are for its sizes alone.
    """
    letters: dict[object, str] = {}
    meant: dict[str, list[str]] = {}
    shapes: dict[str, tuple[int | str, ...]] = {}
    for name, sizes in inputs.items():
        shown = repr(brief(printable(name), 60))
        if sizes is None:
            meant.setdefault("", []).append(f"how many axes {shown} has, and their sizes")
            shapes[name] = ("N", "...")
            continue
        written: list[int | str] = []
        for axis, size in enumerate(sizes):
            if isinstance(size, int):
                written.append(size)
                continue
            named = any(character.isalpha() for character in size)
            letter = letters.setdefault(size if named else (name, axis), _letter(len(letters)))
            called = f" ({brief(printable(size), 40)})" if named else ""
            meant.setdefault(letter, []).append(f"axis {axis} of {shown}{called}")
            written.append(letter)
        shapes[name] = tuple(written)
    listed = "; ".join(f"{letter} = {', '.join(axes)}" if letter else ", ".join(axes) for letter, axes in meant.items())
    return Message(
        f"sizes are left open: {listed}; add ",
        Setting("shapes", shapes),
        " with numbers in place of letters: the sizes that you run most, as every figure is for these alone",
    )


def _letter(number: int) -> str:
    return _LETTERS[number] if number < len(_LETTERS) else f"N{number}"
