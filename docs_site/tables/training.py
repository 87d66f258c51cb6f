"""Tables of training steps: docs/pytorch.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs_site.tables.lines import lines
from experiments.inductor.__main__ import MEASURED
from experiments.inductor.ladder import RUNGS
from experiments.inductor.measure import WAYS
from experiments.rows import Row, load_rows

__all__ = ["TABLES"]

SETTINGS = {"pytorch": "PyTorch's budget", "downset": "our limit"}


def by_network() -> dict[str, dict[str, Row]]:
    rows = load_rows("inductor")
    return {name: {row["way"]: row for row in rows if row["network"] == name} for name in MEASURED}


def steps() -> list[str]:
    body = []
    for network, ways in by_network().items():
        rows = [ways[way] for way in WAYS]
        peaks = [f"{row['peak_bytes']:,}" for row in rows]
        body.append(
            [
                f"`{network}`",
                *peaks,
                "yes" if ways["ordered"]["proven"] else "no",
                " / ".join(f"{1000 * row['step_s']:.1f}" for row in rows),
                " / ".join(f"{row['first_step_cpu_s']:.0f}" for row in rows[1:]),
            ]
        )
    head = ["network", "eager", "Inductor", "whole step", "whole step, our order", "proven"]
    return lines([*head, "ms a step", "CPU s of the first step"], body)


def recomputation() -> list[str]:
    def order(row: Row) -> tuple[int, bool, float]:
        return networks.index(row["network"]), row["way"] == "downset", -row["setting"]

    networks = ("residual", "gpt", "dlrm", "unet")
    body = [
        [
            f"`{row['network']}`",
            f"{SETTINGS[row['way']]} {row['setting']}",
            *(f"{row[column]:,}" if column in row else "-" for column in ("peak_bytes", "estimate", "again")),
            f"{row['of_first']:.2f}",
        ]
        for row in sorted(load_rows("inductor_recompute"), key=order)
    ]
    return lines(["network", "setting", "peak bytes", "estimate", "operators that run again", "time"], body)


def against_hand() -> list[str]:
    body = [
        [f"`{row['network']}`", row["way"], f"{row['peak_bytes']:,}", f"{1000 * row['step_cpu_s']:.1f}"]
        for row in load_rows("inductor_by_hand")
    ]
    return lines(["network", "way", "peak bytes", "CPU ms a step"], body)


def on_a_gpu() -> list[str]:
    body = [
        [
            f"`{row['network']}`",
            row["way"],
            f"{row['peak_bytes']:,}",
            f"{row['limit_bytes']:,}" if "limit_bytes" in row else "-",
            f"{1000 * row['step_s']:.1f}",
            f"{row['first_step_s']:.0f}",
        ]
        for row in load_rows("inductor_gpu")
        if not row["way"].endswith("moving")
    ]
    return lines(["network", "way", "peak bytes", "limit", "ms a step", "s of the first step"], body)


def held() -> list[str]:
    """Planned and measured peaks of steps within a limit."""
    body = [
        [
            f"`{row['network']}`",
            f"{row['planned_bytes']:,}",
            f"{row['peak_bytes']:,}",
            f"{row['peak_bytes'] / row['planned_bytes'] - 1:+.1%}",
        ]
        for row in load_rows("inductor_by_hand")
        if row["way"].startswith("ours ") and "planned_bytes" in row
    ]
    return lines(["network", "planned", "measured", "difference"], body)


def rungs() -> list[str]:
    """Peak bytes and CPU milliseconds, with the time as a share of the rung to the left."""
    by_network: dict[str, dict[str, Row]] = {}
    for row in load_rows("inductor_ladder"):
        by_network.setdefault(row["network"], {})[row["rung"]] = row

    def cell(row: Row | None) -> str:
        if row is None:
            return "-"
        share = "" if row["of_below"] is None else f" ({row['of_below']:.2f}x)"
        return f"{row['peak_bytes']:,}, {1000 * row['step_cpu_s']:.2f}{share}"

    order = RUNGS[::-1]
    body = [[f"`{network}`", *(cell(of.get(rung)) for rung in order)] for network, of in by_network.items()]
    return lines(["network", *order], body)


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "against the hand": against_hand,
    "held within a limit": held,
    "steps on a GPU": on_a_gpu,
    "rungs": rungs,
    "training steps": steps,
    "recomputation": recomputation,
}
