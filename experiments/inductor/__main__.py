"""A training step in eager PyTorch, compiled by Inductor, and compiled whole, in Inductor's order and in ours.

    python -m experiments.inductor [--quick] [--networks gpt,dlrm] [--ways ordered,within] [--again|--planning]
    python -m experiments.inductor --against-hand [--quick] [--networks gpt,dlrm] ...
    python -m experiments.inductor --ladder [--quick] [--networks lstm,guide] ...

Peak bytes are the profiler's allocations during a step, on this CPU, in addition to what is there before it (parameters
and the optimiser's state). Every way runs in a process of its own, with caches of its own under build/inductor: compile
time is the CPU seconds of a first step with empty caches, `planning` the share of them that our passes take. `within`
is the whole step in our order and within 0.6 of its estimated peak: some operators run again. `--again` measures only
the seconds of a step again, with what is compiled there, as a quiet machine should; `--planning` measures only what our
order of a recorded whole step takes. `--against-hand` and `--ladder` are other tables with options of their own
(`against_hand`, `ladder`).
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

from experiments.frame import Experiment, fields, names_of, run
from experiments.inductor.against_hand import AGAINST_HAND
from experiments.inductor.fresh_process import check_losses, row_of_process
from experiments.inductor.ladder import LADDER
from experiments.inductor.measure import WAYS, WITHIN
from experiments.inductor.networks import NETWORKS, OTHERS, REALISTIC
from experiments.rows import Row, load_rows

NAME = "inductor"
MEASURED = [name for name in NETWORKS if name not in (*OTHERS, *REALISTIC)]


def row_of(network: str, way: str, *, part: str = "") -> Row:
    """`part`: "step_s" or "planning_cpu_s" measures that again, and keeps the rest of the recorded row."""
    planning = ["--planning"] if part == "planning_cpu_s" else []
    row = row_of_process("measure", network, way, *planning, fresh=not part)
    return {**recorded(network, way), part: row[part]} if part else row


def recorded(network: str, way: str) -> Row:
    return next(row for row in load_rows(NAME) if (row["network"], row["way"]) == (network, way))


def rows(options: Namespace) -> Iterator[Row]:
    part = "step_s" if options.again else "planning_cpu_s" if options.planning else ""
    for network in ["gpt_tiny"] if options.quick else options.networks:
        eager: Row = {}
        for way in ("eager", "ordered") if options.quick else ("ordered",) if options.planning else options.ways:
            row = row_of(network, way, part=part)
            eager = row if way == "eager" else eager or recorded(network, "eager")
            check_losses(row, eager)
            yield row


def proof(row: Row) -> str | None:
    if "proven" not in row:
        return None
    return "proven" if row["proven"] else f"bound {row['bound']:,}"


def share(row: Row) -> str | None:
    return f"{row['planning_cpu_s'] / row['first_step_cpu_s']:.1%}" if "planning_cpu_s" in row else None


def of_eager(rows: Sequence[Row]) -> None:
    """The peaks of the other ways over that of eager PyTorch."""
    eager = {row["network"]: row["peak_bytes"] for row in rows if row["way"] == "eager"}
    for network, peak_bytes in eager.items():
        others = (row for row in rows if row["network"] == network and row["way"] != "eager")
        print(f"{network}: of eager, " + ", ".join(f"{r['way']} {r['peak_bytes'] / peak_bytes:.2f}" for r in others))


EXPERIMENT = Experiment(
    NAME,
    rows,
    (
        *fields("network", "way"),
        *fields("peak_bytes", spec=","),
        ("ms a step", "{step_s!m:.1f}"),
        ("CPU s of first step", "{first_step_cpu_s:.1f}"),
        *fields("nodes"),
        ("order", proof),
        ("search s", "{planning_s}"),
        ("planning CPU s", "{planning_cpu_s}"),
        ("planning, of compile", share),
    ),
    key=("network", "way"),
    quick="a tiny GPT, eager and in our order; nothing written",
    options={
        "--networks": {"type": names_of(NETWORKS), "default": MEASURED, "help": "some of them, between commas"},
        "--ways": {"type": names_of((*WAYS, WITHIN)), "default": WAYS, "help": "some of eager, inductor, ..."},
        "--again": {"action": "store_true", "help": "seconds of a step only, with what is compiled"},
        "--planning": {"action": "store_true", "help": "CPU seconds of planning whole steps only"},
    },
    after=of_eager,
)


def main() -> None:
    others = {"--against-hand": AGAINST_HAND, "--ladder": LADDER}
    asked = next((name for name in others if name in sys.argv), "")
    run(others.get(asked, EXPERIMENT), [argument for argument in sys.argv[1:] if argument != asked])


if __name__ == "__main__":
    main()
