"""Row-wise partial execution on one device: peak against recomputed work, on MobileNet v2 and SwiftNet.

    python -m experiments.serenity.row_strips [--quick]

An early segment is computed strip by strip with halos. Peaks are planned (`live`: inputs from start to last use, no
aliasing, every order proven or with its bound), before and after; the work that is added is counted, never more than
the limit. The zoo's networks are written as .onnx and run by ONNX Runtime: the outputs differ by what is printed
(float sums in other blocks). The .tflite files are planned only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from downset import Graph, export, load, plan_order
from downset.executor.arena import seeded_inputs
from downset.graph.cost import macs
from downset.rewrites.row_strips import choose_row_strips
from experiments.rows import load_rows, save_rows
from zoo import ZOO

NAME = "serenity_row_strips"
MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
FILES = {
    "MobileNet v2, uint8 .tflite": MODELS / "mobilenet_v2_1.0_224_quant.tflite",
    "SwiftNet HPD, uint8 .tflite": MODELS / "swiftnet_hpd_vwwc224_uint8.tflite",
}
NETWORKS = {"MobileNet v2, float .onnx": "mobilenet_v2", "SwiftNet HPD, float .onnx": "swiftnet_hpd"}
LIMITS = (0.02, 0.05, 0.1, 0.25)


def difference(before: Path, after: Path, graph: Graph) -> float:
    """The largest difference of any output through ONNX Runtime, relative to the largest output."""
    import onnxruntime

    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    given = dict(zip(names, seeded_inputs(graph), strict=True))
    one, two = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, given)
        for path in (before, after)
    )
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(one, two, strict=True))


def rows(name: str, graph: Graph, path: Path | None) -> list[dict[str, Any]]:
    found = []
    for limit in LIMITS:
        chosen = choose_row_strips(graph, max_recompute=limit)
        order = plan_order(chosen.graph)
        ran = None
        if path is not None and chosen.segments:
            export(path.with_suffix(".strips.onnx"), chosen.graph, order)
            ran = difference(path, path.with_suffix(".strips.onnx"), graph)
        extra = sum(segment.extra_macs for segment in chosen.segments)
        found.append(
            {
                "network": name, "limit": limit, "peak_before": chosen.peak_bytes_before, "peak": order.peak_bytes,
                "proven": order.evidence.proven, "macs": macs(graph), "extra_macs": extra,
                "segments": [[s.first, s.last, s.strips] for s in chosen.segments], "ort_difference": ran,
            }
        )  # fmt: skip
        print(shown(found[-1]), flush=True)
    return found


def shown(row: dict[str, Any]) -> str:
    short = [[name.split(";")[0] for name in segment[:2]] + segment[2:] for segment in row["segments"]]
    segments = "; ".join(f"{first} … {last} in {count}" for first, last, count in short) or "-"
    ran = "-" if row["ort_difference"] is None else f"{row['ort_difference']:.1e}"
    return (
        f"| {row['network']} | {row['limit']:.0%} | {row['peak_before']:,} | {row['peak']:,} "
        f"| {row['peak'] / row['peak_before']:.3f} | {'yes' if row['proven'] else 'no'} "
        f"| {row['extra_macs'] / row['macs']:.2%} | {segments} | {ran} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="print the recorded rows")
    arguments = parser.parse_args()
    recorded = load_rows(NAME)
    print("| network | limit | peak before | peak | ratio | proven | extra MACs | segments | ONNX Runtime differs by |")
    print("|---|---|---|---|---|---|---|---|---|")
    if arguments.quick:
        print("\n".join(shown(row) for row in recorded), "\nrecorded")
        return
    table: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for name, network in NETWORKS.items():
            path = Path(folder) / f"{network}.onnx"
            onnx.save(ZOO[network](), str(path))
            table += rows(name, load(path), path)
    for name, path in FILES.items():
        if path.exists():
            table += rows(name, load(path), None)
        else:
            old = [row for row in recorded if row["network"] == name]
            table += old
            print("\n".join(f"{shown(row)} recorded" for row in old))
    print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
