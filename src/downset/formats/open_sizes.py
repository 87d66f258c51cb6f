"""Describes the open sizes of inputs to the user, with the options that fix them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downset.text import brief, printable, shell_word

__all__ = ["sizes_wanted"]

_LETTERS = "NMKLPQRSTUVWXYZ"


def sizes_wanted(inputs: Mapping[str, Sequence[int | str] | None]) -> str:
    """The numbers to choose and the `--shape` to add, for inputs by name. A size is a number, or the name of an
    open axis ("" where the file gives none); None where the file does not state the number of axes.

    Axes of one name share a letter. A name without letters, such as `?`, says nothing: each such axis has its own. No
    size is proposed, because the figures of a plan are for its sizes alone.
    """
    letters: dict[object, str] = {}
    meant: dict[str, list[str]] = {}
    words = []
    for name, sizes in inputs.items():
        shown = repr(brief(printable(name), 60))
        if sizes is None:
            meant.setdefault("", []).append(f"how many axes {shown} has, and their sizes")
            words.append(shell_word(f"{name}=N,..."))
            continue
        written = []
        for axis, size in enumerate(sizes):
            if isinstance(size, int):
                written.append(str(size))
                continue
            named = any(character.isalpha() for character in size)
            letter = letters.setdefault(size if named else (name, axis), _letter(len(letters)))
            called = f" ({brief(printable(size), 40)})" if named else ""
            meant.setdefault(letter, []).append(f"axis {axis} of {shown}{called}")
            written.append(letter)
        words.append(shell_word(f"{name}={','.join(written)}"))
    listed = "; ".join(f"{letter} = {', '.join(axes)}" if letter else ", ".join(axes) for letter, axes in meant.items())
    example = " ".join(f"--shape {word}" for word in words)
    return (
        f"sizes are left open: {listed}; add {example} with numbers in place of letters: the sizes that you run most, "
        "as every figure is for these alone"
    )


def _letter(number: int) -> str:
    return _LETTERS[number] if number < len(_LETTERS) else f"N{number}"
