"""Worth of every option of a session, one by one: a fitted file by its settings, and by the same settings without one.

    python -m experiments.ort.options [--quick] [--only TEXT]

Each file is fitted by `downset fit`, and opened by the settings `file order` with the first region at which the arena
holds least. `without` names what is left as ONNX Runtime has it by default. Bytes are measured; milliseconds are
medians of interleaved rounds on one thread, and the ratio to all of the settings has a confidence interval of 95 %.
Models that are not there are printed from the committed table, marked `recorded`.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from downset import SessionSettings, fit
from downset.results.sessions import FILE_ORDER
from downset.runtimes import ort
from experiments.fit.models import SHAPES
from experiments.frame import Experiment, fields, run
from experiments.ort.sessions import Case, cases
from experiments.rows import Row

MODELS = ("basic-pitch: nmp.onnx", "zoo: swiftnet_hpd", "zoo: densenet121")
OPTIONS = ("graph_optimization_level", "execution_order", "enable_mem_pattern", "enable_mem_reuse")
DEAD = "max_dead_bytes_per_chunk"


def variants(settings: SessionSettings) -> dict[str, SessionSettings]:
    """The settings, and each of them without one thing, by its name."""
    variants_by_name = {"nothing": settings}
    for name in OPTIONS:
        variants_by_name[name] = replace(
            settings, options={key: settings.options[key] for key in settings.options if key != name}
        )
    variants_by_name["the arena in the environment"] = replace(settings, config={}, arena={})
    variants_by_name[DEAD] = replace(
        settings, arena={key: settings.arena[key] for key in settings.arena if key != DEAD}
    )
    variants_by_name["a first region of its size"] = replace(settings, arena=FILE_ORDER.arena)
    return variants_by_name


def rows_of(case: Case, folder: Path) -> Iterator[Row]:
    fitted = folder / "fitted.onnx"
    shapes = SHAPES.get(case.model)
    fit(case.path, output=fitted, shapes=shapes)
    settings, _ = ort.least_region(fitted, shapes=shapes)
    each = variants(settings)
    taken = ort.measure_sessions(fitted, list(each.values()), shapes=shapes)
    timed = ort.time_sessions([(fitted, one) for one in each.values()], shapes=shapes, budget_s=10.0)
    for name, bytes_, latency in zip(each, taken, timed, strict=True):
        yield {
            "model": case.model,
            "without": name,
            "in_use_bytes": bytes_.peak_bytes,
            "held_bytes": bytes_.held_bytes,
            "median_s": latency.median_s,
            "ratio": latency.ratio,
            "ratio_low": latency.ratio_low,
            "ratio_high": latency.ratio_high,
            "rounds": latency.rounds,
        }


def rows(options: Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder), quick=options.quick):
            wanted = case.model == MODELS[1] if options.quick else case.model in MODELS and options.only in case.model
            if wanted and not case.options:
                yield from rows_of(case, Path(folder))


EXPERIMENT = Experiment(
    "ort_options",
    rows,
    (
        *fields("model", "without"),
        *fields("in_use_bytes", "held_bytes", spec=","),
        ("ms", "{median_s!m:.2f}"),
        ("against all settings", "{ratio:.2f}x ({ratio_low:.2f} to {ratio_high:.2f})"),
    ),
    key=("model", "without"),
    quick="SwiftNet alone; the committed table is left alone",
    options={"--only": {"default": "", "help": "only models whose name contains this"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
