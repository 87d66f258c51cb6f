"""Tables of stages: docs/results.md and docs/stages.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs_site.tables.lines import lines
from downset.stages.planners import STAGERS
from experiments.ios.cpu import verdict
from experiments.ios.networks import NETWORKS
from experiments.rows import Row, load_rows

__all__ = ["TABLES"]

METHODS = {
    "sequential": "one unit after another",
    "greedy": "everything that is ready",
    "ios": "all endings priced, r = 3, s = 8",
    "lazy": "optimistic search, budget of 200",
}
TITLES = {**NETWORKS, "resnet50": "ResNet-50"}
PEERS = {"downset": "downset", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch.compile": "torch.compile"}


def searched() -> dict[str, Row]:
    """By network: its search by the limits of the paper."""
    limits = (3, 8, "both")
    rows = load_rows("ios_search")
    return {row["network"]: row for row in rows if (row["max_ops"], row["max_groups"], row["strategy"]) == limits}


def methods() -> list[str]:
    searches = searched()
    simulated = {row["network"]: row["simulated_s"] for row in load_rows("ios_fig6")}

    def cell(method: str, network: str) -> str:
        if method in ("sequential", "greedy"):
            return f"{1000 * simulated[network][method]:.3f}"
        cost, timings = ("full_cost_s", "ios_timings") if method == "ios" else ("lazy_cost_s", "lazy_timings")
        return f"{1000 * searches[network][cost]:.3f} ({searches[network][timings]:,} timed)"

    body = ([f"`{name}`", METHODS[name], *(cell(name, network) for network in searches)] for name in STAGERS)
    return lines(["method", "what it is", *(NETWORKS[network] for network in searches)], body)


def limits() -> list[str]:
    head = ["network", "full, ms", "IOS's timings", "once", "lazy, ms", "timed", "lazy / full"]
    return lines(
        head,
        (
            [
                NETWORKS[network],
                f"{1000 * row['full_cost_s']:.3f}",
                f"{row['ios_timings']:,}",
                f"{row['once']:,}",
                f"{1000 * row['lazy_cost_s']:.3f}",
                f"{row['lazy_timings']:,}",
                f"{row['lazy_cost_s'] / row['full_cost_s']:.4f}",
            ]
            for network, row in searched().items()
        ),
    )


def against_sequential() -> list[str]:
    body = [
        [
            TITLES[row["network"]],
            duel["name"],
            f"{duel['ratio']:.2f}x",
            f"{duel['low']:.2f} to {duel['high']:.2f}",
            f"{duel['faster_rounds']} of {duel['rounds']}",
            verdict(duel),
        ]
        for row in load_rows("ios_cpu")
        for duel in row["duels"]
    ]
    head = ["network", "schedule", "against sequential, median", "95 % interval", "rounds won", "verdict"]
    return lines(head, body)


def peers() -> list[str]:
    body = []
    for row in load_rows("ios_peers"):
        times = row["p50_s"]
        others = min(times[peer] for peer in PEERS if peer != "downset")
        body.append(
            [
                NETWORKS[row["network"]],
                str(row["batch"]),
                *(f"{1000 * times[peer]:,.1f}" for peer in PEERS),
                f"{others / times['downset']:.2f}",
                min(times, key=times.get),
            ]
        )
    return lines(["network", "batch", *PEERS.values(), "fastest peer / downset", "which"], body)


def on_a_gpu() -> list[str]:
    """Ratios are of device seconds; those to the compiler are of end-to-end seconds, too."""
    body = []
    for row in load_rows("ios_gpu"):
        timed = {name: timing for name, timing in row["timed"].items() if isinstance(timing, dict)}
        medians = {one["name"]: one["p50_s"] for one in row["candidates"]}
        chosen, other = timed["chosen"], timed.get("reduce-overhead")
        by = chosen["device_ratio"]

        def against(*names: str, medians: Mapping[str, float] = medians) -> str:
            seconds = [medians[name] for name in names if name in medians]
            return f"{medians['sequential'] / min(seconds):.2f}" if seconds else "same"

        def compiler(key: str, chosen: Row = chosen, other: Row | None = other) -> str:
            return "-" if other is None else f"{other[key]['p50'] / chosen[key]['p50']:.2f}x"

        body.append(
            [
                TITLES.get(row["network"], row["network"].replace("_", " ")),
                str(row["batch"]),
                f"{1000 * timed['sequential']['device_s']['p50']:.3f}",
                f"{1000 * chosen['device_s']['p50']:.3f}",
                f"{by['median']:.2f}x ({by['low']:.2f} to {by['high']:.2f})",
                row["chosen"],
                against("greedy"),
                against("parallel", "parallel, barriers"),
                against("merge"),
                against("both", "both, barriers"),
                compiler("device_s"),
                compiler("end_to_end_s"),
            ]
        )
    head = ["network", "batch", "sequential, ms", "chosen, ms", "gain (95 %)", "which", "greedy", "parallel", "merge"]
    return lines([*head, "both", "torch.compile / chosen, device", "end to end"], body)


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "stages": methods,
    "limits of stages": limits,
    "stages against sequential": against_sequential,
    "stages on a GPU": on_a_gpu,
    "peers of stages": peers,
}
