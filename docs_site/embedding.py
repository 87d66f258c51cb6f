"""The memory map that README and the first page of the site show: what `downset fit --ram 256KB --map` draws of
openWakeWord's embedding model, with lower panels and without the live bytes below.

    python -m docs_site.embedding

writes docs/embedding.svg. The model is inside the package pyopen-wakeword (extra `demo`), and TFLite Micro reports the
tail, so that everybody can draw the picture again; `tests/docs/test_pictures.py` does.
"""

from __future__ import annotations

import math
from importlib.metadata import files
from pathlib import Path

import downset as ds
from downset.reports.fit_document import fit_title, fit_views
from downset.text import format_bytes

__all__ = ["PICTURE", "fitted", "memory_map_of"]

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "embedding.svg"
MODEL = ("pyopen-wakeword", "embedding_model.tflite")
LIMIT_BYTES = 256 * 1024
WORK_LIMIT = 200_000
HEIGHT_PX = 184


def fitted() -> ds.Fit:
    """The fit that the picture shows; its searches do not depend on the load."""
    package, name = MODEL
    path = next(Path(str(file.locate())) for file in files(package) or () if file.name == name)
    return ds.fit(path, ram_bytes=LIMIT_BYTES, time_limit_s=math.inf, work_limit=WORK_LIMIT)


def memory_map_of(fit: ds.Fit) -> str:
    """The arenas before and after with tail, bound and limit, under a title with the peak."""
    caption = f"{fit_title(fit)}: peak of live bytes {format_bytes(fit.peak.after)} B"
    limit = None if fit.ram is None else fit.ram.limit_bytes
    return ds.memory_map(fit_views(fit), caption=caption, limit_bytes=limit, height_px=HEIGHT_PX, arenas_only=True)


if __name__ == "__main__":
    PICTURE.write_text(memory_map_of(fitted()))
