"""The metadata of a fitted `.onnx` file: the version of downset that fitted it, and the target and sizes.

The keys are `downset.version`, `downset.target`, `downset.file` (what was made of the original), `downset.inputs` (the
sizes that were planned and measured), and, where ONNX Runtime was asked, `downset.session` and `downset.region_bytes`:
the name of the session's settings and the first region of its arena. A file that is for one processor names it in
`downset.processor` and `downset.runtime`, the version of ONNX Runtime; `downset.form` says what is for it: `layouts` of
operators, or `packed weights`, which can be left alone. Settings are only named, so that a forged file can
choose among downset's settings but cannot set others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.model_file import read_unfixed
from downset.formats.onnx.skeleton import streamed
from downset.formats.onnx.written import check_model
from downset.process.whole_files import write_whole

__all__ = ["add_metadata", "fitted_metadata", "foreign_operators", "write_metadata"]

_PREFIX = "downset."
_STANDARD = ("", "ai.onnx")
Named = str | os.PathLike[str]


def write_metadata(path: Named, output: Path, entries: Mapping[str, str]) -> None:
    """Write the file at `path` to `output`, whole or not at all, with these entries in its metadata, under the prefix
    `downset.`. Other metadata stay, the certificate too. What was written is compared with `path`, weights beside it
    included (`check_model`)."""
    model = read_skeleton(path)
    add_metadata(model, entries)
    write_whole(output, streamed(model), check=lambda part: check_model(model, Path(path), part, output))


def add_metadata(model: Any, entries: Mapping[str, str]) -> None:
    """Add these entries to the metadata of a model, under the prefix `downset.`, in place of earlier ones."""
    prefixed = {f"{_PREFIX}{key}": value for key, value in entries.items()}
    kept = [(entry.key, entry.value) for entry in model.metadata_props if entry.key not in prefixed]
    del model.metadata_props[:]
    for key, value in [*kept, *prefixed.items()]:
        model.metadata_props.add(key=key, value=value)


def fitted_metadata(path: Named) -> dict[str, str]:
    """The metadata under the prefix `downset.`, without the prefix; empty for a file that was not fitted. Raises
    LoadError for a file that is not an ONNX model."""
    model = read_unfixed(Path(path))
    return {
        entry.key.removeprefix(_PREFIX): entry.value for entry in model.metadata_props if entry.key.startswith(_PREFIX)
    }


def foreign_operators(path: Named) -> dict[str, int]:
    """The number of nodes of each kind that is not a standard operator, by kind."""
    nodes = read_skeleton(path).graph.node
    return dict(Counter(f"{node.domain}::{node.op_type}" for node in nodes if node.domain not in _STANDARD))
