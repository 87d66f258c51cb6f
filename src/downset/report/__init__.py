"""Plans as text and pictures: pure functions, plan in, words or SVG out."""

from downset.report.memory_map import memory_map
from downset.report.text import PeakCause, peak_cause, report

__all__ = ["PeakCause", "memory_map", "peak_cause", "report"]
