"""Results over inputs as kernels allow it, and uint8 files in their int8 form: bytes measured in TFLite Micro.

Its reference kernels run here, whatever library the table of overlaps is of.

    python -m experiments.fit.kernels [--quick]

Models come from ../shared/models, a folder beside the checkout that need not be there; rows of absent models are
printed as they were recorded.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from downset import fit
from downset.memory.overlaps import KERNELS
from experiments.fit.models import shared
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

SETTINGS = {
    "vww_96_int8.tflite": [{"kernels": None}, *({"kernels": name} for name in KERNELS)],
    "swiftnet_hpd_vwwc224_uint8.tflite": [{"int8": True}],
}


def rows(options: Namespace) -> Iterator[Row]:
    for model in shared():
        for setting in SETTINGS.get(model.path.name, ()):
            result = fit(model.path, time_limit_s=5.0 if options.quick else 20.0, **setting)
            measured = result.measured
            details = {} if measured is None else measured.details
            yield {
                "model": model.path.name,
                "kernels": setting.get("kernels") or "none",
                "int8": "int8" in setting,
                "arena_bytes": result.arena.after,
                "proven": result.arena.proven,
                "before_bytes": None if measured is None else measured.before,
                "after_bytes": None if measured is None else measured.after,
                "details": dict(details),
                "equal": result.outputs.equal,
            }


EXPERIMENT = Experiment(
    "fit_kernels",
    rows,
    (
        *fields("model", "kernels", "int8", "proven", "equal"),
        ("arena", "{arena_bytes:,}"),
        ("measured before", "{before_bytes:,}"),
        ("after", "{after_bytes:,}"),
    ),
    key=("model", "kernels", "int8"),
    quick="shorter time limits, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
