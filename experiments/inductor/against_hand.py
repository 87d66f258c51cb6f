"""Training steps against what an expert writes by hand: peak bytes and CPU milliseconds, with equal losses.

    python -m experiments.inductor --against-hand [--quick] [--networks gpt,moe] [--ways both,ours] [--rounds 3]

Every round runs every way of a network once, in turns, each in a process of its own (`by_hand`). Compiled code stays
under build/inductor from one round to the next; `--fresh` compiles again. Peaks are the profiler's allocations in
addition to what is there before a step; milliseconds are the median over rounds of the CPU time of a step.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence

from experiments.frame import Experiment, fields, names_of, run
from experiments.inductor.by_hand import HAND, WAYS
from experiments.inductor.fresh_process import check_losses, row_of_process
from experiments.inductor.networks import NETWORKS, OTHERS
from experiments.rows import Row

__all__ = ["AGAINST_HAND", "lost_to_hand", "of_rounds"]

MEASURED = [name for name in NETWORKS if name not in (*OTHERS, "resnet50_last", "residual")]
QUICK = ("eager", "both", "ours", "ours 0.6")


def of_rounds(rounds: Sequence[Row]) -> Row:
    """One row of several measurements of one way: the largest peak, the median time, and the equal losses."""
    first = rounds[0]
    for row in rounds[1:]:
        check_losses(row, first)
    return {
        **first,
        "peak_bytes": max(row["peak_bytes"] for row in rounds),
        "step_cpu_s": round(statistics.median(row["step_cpu_s"] for row in rounds), 5),
    }


def rows(options: Namespace) -> Iterator[Row]:
    for network in ["gpt_tiny"] if options.quick else options.networks:
        ways = QUICK if options.quick else ["eager", *(way for way in options.ways if way != "eager")]
        rounds: dict[str, list[Row]] = {way: [] for way in ways}
        for number in range(1 if options.quick else options.rounds):
            for way in ways:
                rounds[way].append(row_of_process("by_hand", network, way, fresh=options.fresh and not number))
                check_losses(rounds[way][-1], rounds["eager"][0])
        for way in ways:
            yield of_rounds(rounds[way])


def lost_to_hand(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Each point by hand, with those of ours that are at or below it in both peak and time."""
    pairs = []
    for hand in rows:
        if hand["way"] in HAND:
            ours = [row for row in rows if row["network"] == hand["network"] and row["way"].startswith("ours")]
            pairs.append((hand, [row for row in ours if _at_or_below(row, hand)]))
    return pairs


def _at_or_below(row: Row, other: Row) -> bool:
    return bool(row["peak_bytes"] <= other["peak_bytes"] and row["step_cpu_s"] <= other["step_cpu_s"])


def losses_to_hand(rows: Sequence[Row]) -> None:
    """Print, by network, the least peaks, and each point by hand that has no point of ours at or below it in both."""
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        hand = min((row for row in own if row["way"] in HAND), key=lambda row: row["peak_bytes"], default=None)
        ours = min(
            (row for row in own if row["way"].startswith("ours")), key=lambda row: row["peak_bytes"], default=None
        )
        if hand and ours:
            print(
                f"{network}: least peak by hand {hand['peak_bytes']:,} B ({hand['way']}), "
                f"ours {ours['peak_bytes']:,} B ({ours['way']}), {ours['peak_bytes'] / hand['peak_bytes']:.2f}; "
                f"CPU {ours['step_cpu_s'] / hand['step_cpu_s']:.2f}"
            )
    for hand_row, better in lost_to_hand(rows):
        if not better:
            print(f"{hand_row['network']}: no point of ours is at or below `{hand_row['way']}` in both peak and time")


AGAINST_HAND = Experiment(
    "inductor_by_hand",
    rows,
    (
        *fields("network", "way"),
        *fields("peak_bytes", "planned_bytes", spec=","),
        ("CPU ms a step", "{step_cpu_s!m:.1f}"),
    ),
    key=("network", "way"),
    quick="a tiny GPT, four ways; nothing written",
    options={
        "--networks": {"type": names_of(NETWORKS), "default": MEASURED, "help": "some of them, between commas"},
        "--ways": {"type": names_of(WAYS), "default": WAYS, "help": "some of eager, both, ours, ..."},
        "--rounds": {"type": int, "default": 3, "help": "how often each way runs"},
        "--fresh": {"action": "store_true", "help": "compile again, without what is compiled there"},
    },
    after=losses_to_hand,
)

if __name__ == "__main__":
    run(AGAINST_HAND)
