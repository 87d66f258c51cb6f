"""Networks of today in strips: attention by rows of tokens, normalisations in two passes. Before and after in ONNX
Runtime.

    python -m experiments.partial.tokens [--quick] [--seconds SECONDS]

Each row is one call of `fit` with at most `STRIPS` strips of a segment. Nothing is computed twice in the transformer
and the UNet; the decoder computes again what it does not keep from the statistics of its normalisations to their
values. Peaks are of the plan's arena; what is held and the time are measured in ONNX Runtime, the time as a ratio to
the original by default, with the ends of its interval.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from downset import fit
from experiments.frame import Experiment, run
from experiments.partial.networks import NETWORKS, export_network
from experiments.rows import Row

STRIPS = 12


def rows(options: Namespace) -> Iterator[Row]:
    with TemporaryDirectory() as name:
        for network in NETWORKS:
            path = Path(name) / "network.onnx"
            export_network(network, path)
            most = None if network.startswith("decoder") else 0.0
            seconds = 5.0 if options.quick else options.seconds
            shipped = Path(name) / "fitted.onnx"
            result = fit(path, output=shipped, strips=STRIPS, max_recompute=most, time_limit_s=seconds)
            taken, measured = result.taken, result.measured
            assert taken is not None and taken.latency is not None and measured is not None
            yield {
                "network": network,
                "recomputing": most is None,
                "before_bytes": int(result.peak.before),
                "after_bytes": int(result.peak.after),
                "held_before_bytes": measured.before,
                "held_after_bytes": measured.after,
                "ratio": round(taken.latency.ratio, 3),
                "ratio_low": round(taken.latency.ratio_low, 3),
                "ratio_high": round(taken.latency.ratio_high, 3),
                "operators_before": len(result.original.ops) if result.original is not None else None,
                "operators": len(result.graph.ops),
                "shipped": result.shipped,
                "largest_difference": float(result.outputs.max_abs_error or 0.0),
            }


EXPERIMENT = Experiment(
    "partial_tokens",
    rows,
    (
        ("network", "{network}"),
        ("computes again", "{recomputing}"),
        ("peak before, B", "{before_bytes:,}"),
        ("after, B", "{after_bytes:,}"),
        ("held before, B", "{held_before_bytes:,}"),
        ("held after, B", "{held_after_bytes:,}"),
        ("time", "{ratio:.2f}x ({ratio_low:.2f} to {ratio_high:.2f})"),
        ("operators", "{operators_before} -> {operators}"),
        ("largest difference", "{largest_difference:.1e}"),
    ),
    key=("network", "recomputing"),
    quick="searches of 5 s, nothing written",
    options={"--seconds": {"type": float, "default": 20.0, "help": "the time limit of the searches of each fit"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
