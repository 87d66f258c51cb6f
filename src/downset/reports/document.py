"""The result of `report`: text that can also be written as a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from downset.errors import UsageError
from downset.process.whole_files import write_whole
from downset.text import shortened

__all__ = ["PAGE_SUFFIXES", "Report"]

PAGE_SUFFIXES = (".html", ".htm")
"""The suffixes of the file of a page."""


class Report(str):
    """One screen of plain text, and the same as a self-contained HTML page: `page()` returns its markup, `save` writes
    it, and a notebook shows it. Pages need Jinja2 (extra `report`); the text does not."""

    _markup: Callable[[], str]

    def __new__(cls, text: str, markup: Callable[[], str]) -> Report:
        report = super().__new__(cls, text)
        report._markup = markup
        return report

    def __repr__(self) -> str:
        return f"Report({shortened(self.partition(chr(10))[0], 60)!r}, {len(self.splitlines())} lines)"

    def page(self) -> str:
        """The HTML text of the page. Raises UnsupportedError if Jinja2 is not installed."""
        return self._markup()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, completely or not at all. Raises UsageError if it cannot be written, or if the
        file's name does not end in .html or .htm; a pipe or a device may have any name."""
        file = Path(path)
        if file.suffix.lower() not in PAGE_SUFFIXES and (file.is_file() or not file.exists()):
            raise UsageError(f"save writes an HTML page: {file} must end in {' or '.join(PAGE_SUFFIXES)}")
        write_whole(path, self.page().encode())

    def _repr_html_(self) -> str | None:
        """The page for a notebook; None if Jinja2 is not installed, so that the notebook shows the text."""
        from downset.errors import UnsupportedError
        from downset.reports.page.render import embedded

        try:
            return embedded(self.page())
        except UnsupportedError:
            return None
