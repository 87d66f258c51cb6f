"""PICO's Figure 5: MACs of VGG16's first layers, fused, on 1 to 8 devices: per device, and of all together.

    python -m experiments.pico.figure5

The paper prints curves without numbers: "performs well at the start, but when the numbers of fused layers or devices
increase, the redundant calculation quickly grows". Equal row strips of the last fused layer, each device computing all
it needs from the input; the most loaded device, and the sum as a multiple of one device alone.
"""

from __future__ import annotations

from typing import Any

from downset.graph.cost import row_form, segment_macs
from downset.graph.row_form import equal_strips
from experiments.rows import save_rows
from zoo import graph

NAME = "pico_figure5"
FUSED = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18)
DEVICES = (1, 2, 3, 4, 5, 6, 7, 8)


def rows() -> list[dict[str, Any]]:
    network = graph("vgg16", weights=False, classifier=False)
    form = row_form(network)
    layers = [index for index, op in enumerate(network.ops) if op.kind in ("Conv", "MaxPool")]
    found = []
    for fused in FUSED:
        last = layers[fused - 1]
        ops, result = range(last + 1), network.ops[last].outputs[0]
        for devices in DEVICES:
            strips = equal_strips(form.rows[result], devices)
            each = [segment_macs(form, ops, {result: strip}) for strip in strips]
            whole = segment_macs(form, ops, {result: (0, form.rows[result])})
            found.append(
                {"fused": fused, "devices": devices, "most_macs": max(each), "all_macs": sum(each), "whole_macs": whole}
            )
    return found


def main() -> None:
    table = rows()
    by = {(row["fused"], row["devices"]): row for row in table}
    head = "| fused layers | " + " | ".join(f"{devices} devices" for devices in DEVICES) + " |"
    for title, cell in (
        ("(a) GMACs of the most loaded device", lambda row: f"{row['most_macs'] / 1e9:.2f}"),
        ("(b) GMACs of all, and the multiple of one device alone",
         lambda row: f"{row['all_macs'] / 1e9:.2f} ({row['all_macs'] / row['whole_macs']:.2f})"),
    ):  # fmt: skip
        print(title, head, "|---" * (len(DEVICES) + 1) + "|", sep="\n")
        for fused in FUSED:
            print(f"| {fused} | " + " | ".join(cell(by[fused, devices]) for devices in DEVICES) + " |")
    print("written:", save_rows(NAME, table))


if __name__ == "__main__":
    main()
