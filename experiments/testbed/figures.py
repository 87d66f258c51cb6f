"""PICO's measured figures and Table V as our testbed has them, from the committed rows of `measured`.

    python -m experiments.testbed.figures [--quick]

The table of docs/cluster.md comes first: planned and measured seconds of charged plans. Figure 12: speed-up over one
device; Figures 13 and 14: period and throughput by method; Figure 15: memory; Figures 17 and 18: exact plans against
PICO's; Table V: each device's utilisation, redundancy and memory. Ratios of methods can be set beside the paper's;
seconds cannot: our devices are shares of a core under Ray and TLS. Memory is the resident memory of a device's process,
with Python, Ray and ONNX Runtime in it, as the paper's has PyTorch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.frame import Experiment, run, show_table, table_lines
from experiments.pico.figures12_16 import PAPER as PAPER_12
from experiments.pico.table5 import PAPER
from experiments.rows import Row
from experiments.testbed.measured import NAME
from experiments.testbed.settings import EQUAL, METHODS, SHARE_PER_GHZ

FIGURE_12 = ("blocks", "pico", "exact", "exact_direct")
PAPER_NAMES = {
    "blocks": "PICO, blocks as a whole",
    "layerwise": "LW",
    "early_fused": "EFL",
    "optimal_fused": "OFL",
    "coedge": "CE",
    "pico": "PICO",
    "exact": "exact",
    "exact_direct": "exact, direct",
    "single": "one device",
}


def table(title: str, header: Sequence[str], body: Sequence[Sequence[Any]]) -> None:
    """Print the cells of `body` below the header, which may repeat a title; nothing where there are none."""
    if body:
        names = [f"cell_{place}" for place in range(len(header))]
        columns = [(column, f"{{{name}}}") for column, name in zip(header, names, strict=True)]
        show_table(columns, (dict(zip(names, line, strict=True)) for line in body), title)


Key = tuple[str, str, str]
"""Network, devices, medium."""


def key_of(row: Row) -> Key:
    share = f" of {row['asked_share']:g} core" if row.get("asked_share") else ""
    return row["network"], f"{row['devices']}{' equal' if row['equal'] else ''}{share}", row["medium"]


def groups(rows: Sequence[Row]) -> Iterator[tuple[Key, dict[str, Row]]]:
    """The rows of each key by method: those that measured a period, with most spare frames."""
    by_key: dict[Key, dict[str, Row]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: int(row["spare_frames"])):
        if row.get("measured_s"):
            by_key[key_of(row)][row["method"]] = row
    yield from sorted(by_key.items())


def periods(rows: Sequence[Row]) -> list[list[Any]]:
    alone = {key: by_method["single"]["measured_s"] for key, by_method in groups(rows) if "single" in by_method}
    body = []
    for row in sorted(rows, key=lambda row: (*key_of(row), row["spare_frames"])):
        key, measured, planned = key_of(row), row["measured_s"], row["planned_s"]
        if not measured:
            continue
        faster = f"{alone[key] / measured:.2f}x" if key in alone else None
        body.append(
            [
                *key,
                PAPER_NAMES[row["method"]],
                row["spare_frames"],
                planned,
                row["simulated_s"],
                measured,
                f"{measured / planned - 1:+.0%}",
                "yes" if row["overlap"] else "no",
                round(60 / measured, 1),
                faster,
                row["load"],
            ]
        )
    return body


def page_table(rows: Sequence[Row]) -> list[str]:
    """Lines of the table of docs/cluster.md: planned and measured seconds of charged plans, with most spare frames."""
    cells: list[dict[str, str]] = []
    for (network, devices, medium), by_method in groups([row for row in rows if row["overlap"]]):
        cells.append({"where": f"`{network}`, {devices}, {'one cell' if medium == 'shared' else medium}"})
        for method, row in by_method.items():
            planned, measured = row["planned_s"], row["measured_s"]
            cells[-1][method] = f"{planned:.3f}, {measured:.3f} ({round(100 * (measured / planned - 1)):+d} %)"
    methods = [method for method in METHODS if any(method in row for row in cells)]
    return table_lines(
        [("planned, measured", "{where}"), *((f"`{method}`", f"{{{method}}}") for method in methods)], cells
    )


def speed_ups(rows: Sequence[Row]) -> list[list[Any]]:
    """Figure 12: how many times as fast as one device alone so many equal devices are, beside the paper's at eight."""
    counts = sorted(EQUAL)
    by_line: dict[tuple[str, float, str], dict[int, float]] = defaultdict(dict)
    for (network, _, medium), by_method in groups([row for row in rows if row["equal"]]):
        for method in FIGURE_12 if medium == "links" and "single" in by_method else ():
            if row := by_method.get(method):
                share = row.get("asked_share") or SHARE_PER_GHZ[row["devices"]]
                faster = by_method["single"]["measured_s"] / row["measured_s"]
                by_line[network, share, method][row["devices"]] = faster
    return [
        [
            network,
            share,
            PAPER_NAMES[method],
            *(f"{by_count[count]:.2f}x" if count in by_count else None for count in counts),
            PAPER_12.figure(network=network, method=method),
        ]
        for (network, share, method), by_count in sorted(by_line.items())
    ]


def against_exact(rows: Sequence[Row]) -> list[list[Any]]:
    body = []
    for (network, devices, medium), by_method in groups(rows):
        exact, line = by_method.get("exact"), []
        if exact is None:
            continue
        for method in ("exact_direct", "pico", "optimal_fused", "early_fused", "coedge", "layerwise", "single"):
            row = by_method.get(method)
            line.append(f"{row['measured_s'] / exact['measured_s']:.2f}x" if row else None)
        body.append([network, devices, medium, exact["measured_s"], *line])
    return body


def by_device(rows: Sequence[Row]) -> list[list[Any]]:
    body = []
    for (network, devices, medium), by_method in groups(rows):
        for method, row in by_method.items():
            used = [one["computing_s"] / row["measured_s"] for one in row["by_device"]]
            redundant = [one["redundancy"] for one in row["by_device"]]
            memory = [one["rss_mb"] for one in row["by_device"]]
            count = len(row["by_device"])
            ours = (
                f"{100 * sum(used) / count:.0f}",
                f"{100 * sum(redundant) / count:.1f}",
                f"{sum(memory) / count:.0f}",
            )
            theirs = [
                PAPER.figure("average", network=network, method=method, quantity=quantity) if devices == "8" else None
                for quantity in ("utilisation", "redundancy", "memory_bytes")
            ]
            body.append(
                [
                    network,
                    devices,
                    medium,
                    PAPER_NAMES[method],
                    " ".join(f"{100 * one:.0f}" for one in used),
                    ours[0],
                    theirs[0],
                    ours[1],
                    theirs[1],
                    " ".join(f"{one:.0f}" for one in memory),
                    ours[2],
                    theirs[2],
                ]
            )
    return body


def resources(rows: Sequence[Row]) -> list[list[Any]]:
    """Planned against measured by device, of the plans that use several."""
    body = []
    for (network, devices, medium), by_method in groups(rows):
        for method in ("pico", "exact", "exact_direct"):
            for one in by_method.get(method, {}).get("by_device", ()):
                if one["planned_computing_s"]:
                    cells = [
                        f"{one[f'planned_{what}_s']} → {one[f'{what}_s']}"
                        for what in ("computing", "sending", "receiving")
                    ]
                    body.append([network, devices, medium, method, one["name"], *cells])
    return body


def show(rows: Sequence[Row]) -> None:
    print("\n".join(page_table(rows)))
    table(
        "Figures 12 to 14: periods in s (charged: plans by what messages take of processors, not all of their time), "
        "frames a minute, speed-up over the fastest device alone",
        (
            "network",
            "devices",
            "medium",
            "method",
            "spare",
            "planned",
            "simulated",
            "measured",
            "off",
            "charged",
            "a minute",
            "speed-up",
            "load",
        ),
        periods(rows),
    )
    table(
        "Figure 12: speed-up over one device, by the number of equal devices on links; the paper's at eight",
        ("network", "share of a core", "method", *map(str, sorted(EQUAL)), "paper"),
        speed_ups(rows),
    )
    table(
        "Figures 17 and 18: how many times the measured period of exact plans",
        ("network", "devices", "medium", "exact s", "direct", "PICO", "OFL", "EFL", "CE", "LW", "one device"),
        against_exact(rows),
    )
    table(
        "Table V and Figure 15: computing in % of the period, redundancy in %, memory (RSS) in MB; paper: averages",
        (
            "network",
            "devices",
            "medium",
            "method",
            "util. by device",
            "average",
            "paper",
            "redundancy",
            "paper",
            "RSS by device",
            "average",
            "paper",
        ),
        by_device(rows),
    )
    table(
        "Planned → measured seconds a frame, by device",
        ("network", "devices", "medium", "method", "device", "computing", "sending", "receiving"),
        resources(rows),
    )


EXPERIMENT = Experiment(NAME, lambda _options: (), quick="the same", after=show)


if __name__ == "__main__":
    run(EXPERIMENT)
