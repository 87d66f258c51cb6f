"""PICO's Figure 5: MACs of VGG16's first layers, fused, on 1 to 8 devices: per device, and of all together.

    python -m experiments.pico.figure5 [--quick]

The paper prints curves without numbers: "performs well at the start, but when the numbers of fused layers or devices
increase, the redundant calculation quickly grows". Equal row strips of the last fused layer, each device computing all
it needs from the input; the most loaded device, and the sum as a multiple of one device alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence

from downset.graph.cost import row_form, segment_macs
from downset.graph.row_form import equal_strips
from experiments.frame import Column, Experiment, fields, run, show_table
from experiments.rows import Row
from zoo import graph

FUSED = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18)
DEVICES = (1, 2, 3, 4, 5, 6, 7, 8)


def rows(_options: Namespace) -> Iterator[Row]:
    network = graph("vgg16", weights=False, classifier=False)
    form = row_form(network)
    layers = [index for index, op in enumerate(network.ops) if op.kind in ("Conv", "MaxPool")]
    for fused in FUSED:
        last = layers[fused - 1]
        ops, result = range(last + 1), network.ops[last].outputs[0]
        for devices in DEVICES:
            strips = equal_strips(form.rows[result], devices)
            each = [segment_macs(form, ops, {result: strip}) for strip in strips]
            whole = segment_macs(form, ops, {result: (0, form.rows[result])})
            row = {"fused": fused, "devices": devices, "most_macs": max(each)}
            yield row | {"all_macs": sum(each), "whole_macs": whole}


def tables(rows: Sequence[Row]) -> None:
    by = {(row["fused"], row["devices"]): row for row in rows}

    def columns(cell: Callable[[Row], str]) -> list[Column]:
        return [(f"{count} devices", lambda row, count=count: cell(by[row["fused"], count])) for count in DEVICES]

    lines = [{"fused": fused} for fused in FUSED]
    most = columns(lambda row: f"{row['most_macs'] / 1e9:.2f}")
    show_table((*fields("fused"), *most), lines, "(a) GMACs of the most loaded device, by fused layers")
    every = columns(lambda row: f"{row['all_macs'] / 1e9:.2f} ({row['all_macs'] / row['whole_macs']:.2f})")
    show_table((*fields("fused"), *every), lines, "(b) GMACs of all, and the multiple of one device alone")


EXPERIMENT = Experiment("pico_figure5", rows, after=tables)

if __name__ == "__main__":
    run(EXPERIMENT)
