"""For tests that prove many files against one: a file is read once for its content, though every proof asks for it.

Files that these tests write are packed from the schema's objects, so that they are not packed once more to find damage
(`tests/fuzz` holds what that finds). Where an .onnx file keeps bytes beside it, a proof reads them when it compares.
"""

from functools import lru_cache
from pathlib import Path

from downset.equivalence import prove
from downset.formats.tflite import flatbuffer

__all__ = ["read_once"]


def read_once(monkeypatch):
    """`monkeypatch`: the test's, which undoes this."""

    @lru_cache(maxsize=4)
    def read(path, content):
        return plain_read(path)

    plain_read = prove._read
    monkeypatch.setattr(prove, "_read", lambda path: read(path, Path(path).read_bytes()))
    monkeypatch.setattr(flatbuffer, "_verified", lambda path: None)
