"""The document of a network with merged operators: what was gained, or that there is nothing to gain."""

from __future__ import annotations

from typing import Any

from downset.messages import Message
from downset.reports.document import JSON_ONLY, TERMINAL, Column, Document, Facts, Section, Table, Verdict, named
from downset.results.merged import FileTimes, MergedNetwork
from downset.results.stages import percentile
from downset.text import format_seconds, printable

__all__ = ["merged_document"]


def merged_document(result: MergedNetwork, *, title: str = "Merges") -> Document:
    """The result of `export_merged`; docs/schemas/stage.json has its keys, below `merged`."""
    chosen = frozenset(place for place, one in enumerate(result.candidates) if one.name == result.chosen)
    caption = "candidates, with the geometric mean of their times over the original's"
    on = TERMINAL if result.chosen else JSON_ONLY  # one line says that there is nothing to gain
    tables = (
        Table(_CANDIDATES, result.candidates, caption, key="merged.candidates", marked=chosen, on=on),
        Table(_TIMES, result.times, "the original and the candidate, in fresh processes", key="merged.times", on=on),
    )
    sections = (Section("Candidates", tables), Section("In words", (Facts(tuple(_sentences(result))),)))
    data: dict[str, Any] = {
        **named(result, "chosen", "asked", "why", "operators", "slower", "other_sizes", "versions"),
        "ratio": result.ratio,
        "output": result.output_path or None,
        "inputs": {name: list(shape) for name, shape in result.sizes.items()},
        "notes": list(result.notes),
    }
    return Document(printable(title) if result.chosen else "", "", _verdict(result), sections, data={"merged": data})


def _verdict(result: MergedNetwork) -> Verdict:
    if not result.chosen:
        return Verdict("plain", f"nothing to gain: {result.why}")
    speed = f"{1 / result.ratio:.2f}x"
    if result.asked:
        slower = ", slower than the original" if result.slower else ""
        return Verdict("plain", f"{result.chosen} taken, as asked for: {speed}{slower}", result.why)
    return Verdict("good", f"{result.chosen}: {speed} in ONNX Runtime", result.why)


def _sentences(result: MergedNetwork) -> list[str]:
    lines: list[str] = [Message("note: ", note) for note in result.notes]
    if result.proof is None:
        return lines
    condition = "; condition: finite values" if result.proof.finite else ""
    rounding = "" if result.proof.exact else ", equal up to rounding"
    sizes = ", ".join(f"{name}={','.join(map(str, shape))}" for name, shape in result.sizes.items())
    others = f", and at {'; '.join(result.other_sizes)}" if result.other_sizes else ""
    proven = f"proven the same network at {sizes}{others}{rounding}{condition}"
    return [Message(proven), *lines]


def _middle(index: int, measure: str) -> Any:
    return lambda one: percentile([pair[index] for pair in getattr(one, measure)], 0.5)


def _counting(one: FileTimes) -> list[str]:
    """The measures that count."""
    return [*(["latency"] if one.latency_counts else []), *(["processor time"] if one.cpu_counts else [])]


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}"


_CANDIDATES = (
    Column("candidate", "name", key="name", left=True),
    Column("merges", "merges", key="merges"),
    Column("operators", "operators", key="operators"),
    Column("time against the original", "ratio", _ratio, key="ratio"),
    Column("", "worst_ratio", key="worst_ratio", on=JSON_ONLY),
    Column("", lambda one: one.proof.finite, key="finite", on=JSON_ONLY),
)
_TIMES = (
    Column("threads", "threads", key="threads"),
    Column("latency before", _middle(0, "latency_s"), format_seconds, key="original_s"),
    Column("latency after", _middle(1, "latency_s"), format_seconds, key="merged_s"),
    Column("processor time before", _middle(0, "cpu_s"), format_seconds, key="original_cpu_s"),
    Column("processor time after", _middle(1, "cpu_s"), format_seconds, key="merged_cpu_s"),
    Column("", "latency_ratio", key="latency_ratio", on=JSON_ONLY),
    Column("", "cpu_ratio", key="cpu_ratio", on=JSON_ONLY),
    Column("", _counting, key="counts", on=JSON_ONLY),
)
