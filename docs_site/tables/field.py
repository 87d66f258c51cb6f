"""Tables of docs/results.md: models as packages bring them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from docs_site.tables.lines import lines
from experiments.rows import Row, load_rows

__all__ = ["TABLES"]

_MEGABYTE = 1 << 20


def field() -> list[str]:
    """A row a file, those that gain most first; files that are not fitted last."""
    rows = sorted(load_rows("field"), key=lambda row: (_gain(row), row["file"]))
    head = ["file", "options", "stays dynamic", "default, MB", "by hand", "onnxslim", "fitted", "at rest", "CPU"]
    return lines([*head, "fit, s", "ships"], map(_cells, rows))


def _gain(row: Row) -> float:
    return float(row["fitted_peak_bytes"] / row["default_peak_bytes"]) if "fitted_peak_bytes" in row else 9.0


def _cells(row: Row) -> list[str]:
    ships = row.get("shipped") or f"not fitted: {row.get('why', '')[:80]}".replace("|", "\\|")
    return [
        row["file"],
        str(row.get("options", "")),
        f"{row['dynamic']} of {row['open_axes']}" if "dynamic" in row else "",
        *(_size(row, kind) for kind in ("default", "by_hand", "onnxslim", "fitted")),
        f"{row['default_rest_bytes'] / _MEGABYTE:.1f} → {row['fitted_rest_bytes'] / _MEGABYTE:.1f}"
        if "fitted_rest_bytes" in row
        else "",
        f"{1000 * row['default_cpu_s']:.2f} ms → {row['fitted_ratio']:.2f}x" if "fitted_ratio" in row else "",
        f"{row['fit_s']:.0f}" if "fit_s" in row else "",
        f"{ships}, {row['settings']}" if row.get("settings") else ships,
    ]


def _size(row: Row, kind: str) -> str:
    if f"{kind}_peak_bytes" not in row:
        return ""
    peak, anonymous = (row[f"{kind}_{part}_bytes"] / _MEGABYTE for part in ("peak", "anonymous"))
    return f"{peak:.1f} ({anonymous:.1f})"


def summary() -> list[str]:
    rows = load_rows("field")
    measured = [row for row in rows if "fitted_peak_bytes" in row]
    large = [row for row in measured if row["default_peak_bytes"] >= 17 * _MEGABYTE]
    worst = max(row["fitted_peak_bytes"] / row["by_hand_peak_bytes"] for row in measured)
    body = [
        ["files", f"{len(rows)}"],
        ["read without any option", f"{_read(rows, 0)}"],
        ["read with at most one", f"{_read(rows, 1)}"],
        ["fitted and measured", f"{len(measured)}"],
        ["process at the peak, in times of the default's", _ratio(measured, "default")],
        [f"of the {len(large)} files whose default takes at least 17 MB", _ratio(large, "default")],
        ["in times of the best by hand", f"{_ratio(measured, 'by_hand')}; {worst:.2f} at most"],
        ["its anonymous part, in times of the default's", _ratio(measured, "default", "anonymous_bytes")],
        ["onnxslim's peak, in times of the default's", _ratio(measured, "default", of="onnxslim")],
        [
            "processor time, in times of the default's",
            f"{median(row['fitted_ratio'] for row in measured):.2f}; "
            f"{max(row['fitted_ratio'] for row in measured):.2f} at most",
        ],
        ["what lies above an empty session, in times of the default's", _above(measured)],
        ["seconds that a fit took", f"{median(row['fit_s'] for row in measured):.0f}"],
        ["of processor time", f"{median(row['fit_cpu_s'] for row in measured if 'fit_cpu_s' in row):.0f}"],
    ]
    return lines(["medians over the files", ""], body)


def _read(rows: Sequence[Row], most: int) -> int:
    return sum(row["loads"] and row["options"] <= most for row in rows)


def _ratio(rows: Sequence[Row], to: str, part: str = "peak_bytes", of: str = "fitted") -> str:
    each = [row[f"{of}_{part}"] / row[f"{to}_{part}"] for row in rows if f"{of}_{part}" in row]
    return f"{median(each):.2f}" if each else ""


def _above(rows: Sequence[Row]) -> str:
    """By how much a process grows more than that of an empty network: what is not the library's code."""
    parts = [
        [row[f"{kind}_peak_bytes"] - row["empty_peak_bytes"] for kind in ("fitted", "default")]
        for row in rows
        if "empty_peak_bytes" in row
    ]
    return f"{median(ours / usual for ours, usual in parts):.2f} ({len(parts)} files)" if parts else ""


def parts() -> list[str]:
    """What the process of a written file has at rest, those first that gain least."""
    rows = [row for row in load_rows("field") if "fitted_library_bytes" in row]
    head = ["file", "default's peak, MB", "written: peak", "an empty session", "at rest: library", "mapped weights"]
    body = []
    for row in sorted(rows, key=lambda row: (-_gain(row), row["file"])):
        rest, library, weights = (row[f"fitted_{part}_bytes"] for part in ("rest", "library", "weights"))
        sizes = [row["default_peak_bytes"], row["fitted_peak_bytes"], row["empty_peak_bytes"], library, weights]
        sizes += [rest - library - weights, row["arena_bytes"]]
        body.append([row["file"], *(f"{size / _MEGABYTE:.1f}" for size in sizes), f"{_gain(row):.2f}"])
    return lines([*head, "anonymous", "held by the arena", "of the default's"], body)


def independent() -> list[str]:
    """Figures as `fit` prints them, with those of new processes."""
    kinds = ("peak", "peak_anonymous", "rest", "rest_anonymous")
    head = ["file", "ships", "peak, MB", "anonymous", "at rest", "anonymous at rest", "default's peak", "CPU"]
    body = []
    for row in load_rows("field_independent"):
        pairs = [(row[f"said_{kind}"], row[f"true_{kind}"]) for kind in kinds]
        pairs.append((row["default_said_peak"], row["default_true_peak"]))
        sizes = [f"{said / _MEGABYTE:.1f} / {true / _MEGABYTE:.1f}" for said, true in pairs]
        equal = row["equal"] and row["equal_at_double"] is not False
        ratio = f"{row['said_ratio']:.2f} / {row['true_ratio']:.2f}"
        said = {True: "yes", False: "rounding", None: "-"}[row.get("said_equal")]  # None: recorded before it was kept
        body.append([row["file"], row["shipped"], *sizes, ratio, f"{said} / {'yes' if equal else 'no'}"])
    return lines([*head, "equal"], body)


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "field": field,
    "field summary": summary,
    "field independent": independent,
    "field parts": parts,
}
