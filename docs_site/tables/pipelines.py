"""Tables of pipelines: docs/results.md, docs/pipelines.md and docs/cluster.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs_site.tables.lines import lines
from experiments.pico.figures12_16 import STATEMENTS, share
from experiments.rows import Row, load_rows
from experiments.testbed.figures import page_table

__all__ = ["TABLES"]

PAPER_CLUSTER, CELL = "paper cluster, 2 MAC/cycle", "shared cell, 2 MAC/cycle"
PERIODS = (
    ("VGG16, the paper's cost model", "vgg16", PAPER_CLUSTER, "paper", 2),
    ("YOLOv2, the paper's cost model", "yolov2", PAPER_CLUSTER, "paper", 2),
    ("VGG16, by resources", "vgg16", PAPER_CLUSTER, "resources", 2),
    ("YOLOv2, by resources", "yolov2", PAPER_CLUSTER, "resources", 2),
    ("VGG16, one shared radio cell (one device alone: {single_s:.3f})", "vgg16", CELL, "resources", 1),
)
"""What a row is called, its network, cluster and cost model, and the digits of its ratio."""
COMPARED = {
    "vgg16": "VGG16",
    "yolov2": "YOLOv2",
    "resnet34": "ResNet34",
    "squeezenet": "SqueezeNet",
    "mobilenet_v3_large": "MobileNet V3",
    "inception_v3": "Inception V3",
}
CLUSTERS = ("pico_1mac", "pico_2mac", "pico_4mac", "pico_1mac_cell", "pico_2mac_cell", "pico_4mac_cell", "rpi_8")
FAULTS = {
    "process killed": "process killed",
    "device stopped": "device stopped",
    "machine dead": "all processes killed",
}


def numbers() -> dict[tuple[str, str, str], Row]:
    return {(row["network"], row["cluster"], row["comm"]): row for row in load_rows("pico_numbers")}


def periods() -> list[str]:
    rows, body = numbers(), []
    for name, network, cluster, comm, digits in PERIODS:
        row = rows[network, cluster, comm]
        ratio = f"{row['pico_s'] / row['exact_s']:.{digits}f}x"
        exact = f"{row['exact_s']:.3f} ({ratio}){', proven' * row['proven']}"
        body.append([name.format(**row), f"{row['pico_s']:.3f}", exact, f"{row['bound_s']:.3f}"])
    return lines(["", "`pico`", "`exact`", "bound"], body)


def tokens_over_devices() -> list[str]:
    head = ["planned on `rpi_8`", "period, ms", "devices of each stage", "computed twice", "most memory of a device, B"]
    body = (
        [
            f"`{row['method']}`{', proven' * row['proven']}",
            f"{row['period_ms']:.1f}",
            ", ".join(map(str, row["devices"])),
            f"{row['redundant']:.1%}",
            f"{row['memory_bytes']:,}",
        ]
        for row in load_rows("pico_tokens")
    )
    return lines(head, body)


def clusters() -> list[str]:
    rows = {(row["network"], row["cluster"]): row for row in load_rows("pico_compare")}

    def cell(row: Row) -> str:
        return f"{row['over_pico']:.2f} / {row['over_single']:.2f}"

    body = ([cluster, *(cell(rows[network, cluster]) for network in COMPARED)] for cluster in CLUSTERS)
    return lines(["`pico` / one device, over `exact`", *COMPARED.values()], body)


def skips() -> list[str]:
    body = []
    for row in (row for row in load_rows("pico_compare") if "direct" in row):
        before = f"{row['direct_before']:.3f}" if "direct_before" in row else "-"
        direct = f"{row['direct']:.3f} ({row['direct_over_single']:.2f}x one device), bound {row['direct_bound_s']:.3f}"
        connected = (
            f"{row['connected']:.3f} ({row['connected_over_single']:.2f}x), bound {row['connected_bound_s']:.3f}"
        )
        cells = [f"{row['single']:.3f}", f"{row['exact']:.3f}", before, direct, connected]
        body.append([row["network"], row["cluster"], *cells])
    head = ["network", "cluster", "one device", "leaders", "direct, one chain", "direct", "`connected`"]
    return lines(head, body)


def statements() -> list[str]:
    rows = load_rows("pico_figures12_16")
    return lines(
        ["figure", "the paper says", "by the equations", "by resources"],
        (
            [row["figure"], row["says"], *(share(row["name"], comm, rows) for comm in ("paper", "resources"))]
            for row in STATEMENTS.rows
        ),
    )


def replans() -> list[str]:
    body = [
        [
            f"{FAULTS[row['fault']]}, {'plan and shards ready' if row['prepared'] else 'nothing ready'}",
            f"{row['noticed_s']:.2f} s",
            f"{1000 * row['planning_s']:.0f} ms",
            f"{row['moved_bytes'] / 1e6:.1f} MB",
            f"{row['moving_s']:.2f} s",
            f"{row['longest_gap_s']:.1f} s",
        ]
        for row in load_rows("testbed_replans")
    ]
    head = ["what happened", "noticed", "planned in", "shards moved", "moved and opened in"]
    return lines([*head, "longest time without a result"], body)


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "periods": periods,
    "clusters": clusters,
    "networks with skips": skips,
    "tokens over devices": tokens_over_devices,
    "statements of PICO's figures": statements,
    "testbed": lambda: page_table(load_rows("testbed_periods")),
    "replans": replans,
}
