"""Tables of training steps: docs/pytorch.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs_site.tables.lines import lines
from experiments.inductor.__main__ import MEASURED
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


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "against the hand": against_hand,
    "training steps": steps,
    "recomputation": recomputation,
}
