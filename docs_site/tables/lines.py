"""The lines of a Markdown table."""

from collections.abc import Iterable, Sequence

__all__ = ["lines"]


def lines(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Raises ValueError where a row has not the head's length."""
    rows = [list(row) for row in body]
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"a row of the table {head[0]!r} is not as long as its head")
    shown = [" ".join(f"| {cell}" if cell else "|" for cell in row) + " |" for row in (head, *rows)]
    return [shown[0], "|" + "---|" * len(head), *shown[1:]]
