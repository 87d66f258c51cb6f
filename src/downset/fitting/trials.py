"""Candidates compared with the original: bytes on disk and the time of a run, which the policy of what ships limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from downset.errors import DownsetError
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.formats.onnx.data_files import stored_bytes
from downset.formats.onnx.mapped import mapped_bytes
from downset.messages import Message, Setting
from downset.reports.fit_sentences import ratio_text
from downset.results.policy import Policy, Standing
from downset.results.sessions import Latency

__all__ = ["DECIDING_S", "Trials", "disk_bytes", "in_strips", "share_of_operators", "shipped_bytes"]

DECIDING_S = 5.0
"""Seconds of processor time in which a file and the original are timed, where that decides about a limit."""

_SHARES = (0.5, 0.8)
"""A plan that is too slow is followed by one of at least and at most this share of its further operators."""


def disk_bytes(path: Path) -> int:
    """The bytes of a model's files."""
    return stored_bytes(path) if path.suffix.lower() == ".onnx" else path.stat().st_size


def shipped_bytes(file: Candidate) -> int:
    """The bytes of what is written where this candidate ships."""
    return mapped_bytes(file.path) if file.mapped else disk_bytes(file.path)


def in_strips(file: Candidate) -> bool:
    """Whether a candidate computes a segment in strips of rows."""
    return any(rewrite.kind == "row-wise" for rewrite in file.rewrites)


def share_of_operators(limit: float, ratio: float) -> float:
    """The share of the further operators of a plan that took `ratio` times as long as the original with which another
    one may keep to the limit: each takes a time of its own."""
    least, most = _SHARES
    return most if ratio <= limit else max(least, min(most, (limit - 1) / (ratio - 1)))


def _key(file: Candidate) -> tuple[Path, str | None]:
    return file.path, None if file.settings is None else file.settings.name


@dataclass(slots=True)
class Trials:
    """The candidates of a job under a policy. Each is timed at most once, and only where it may ship."""

    job: Job
    original: Candidate
    policy: Policy
    latencies: dict[tuple[Path, str | None], Latency | None] = field(default_factory=dict)

    def timed(self, file: Candidate) -> Candidate:
        """The candidate with its latency; without one where the runtime is not timed, or measured nothing."""
        if file.latency is not None or file.measured is None or self.original.measured is None:
            return file
        key = _key(file)
        if key not in self.latencies:
            self.latencies[key] = self._latency(file)
        return replace(file, latency=self.latencies[key])

    def forget(self, file: Candidate) -> None:
        """Forget the time of a file that is no more: another one may get its name."""
        self.latencies.pop(_key(file), None)

    def _latency(self, file: Candidate) -> Latency | None:
        target, options, original = self.job.target, self.job.options, self.original
        given = {"shapes": options.shapes, "seed": options.seed}
        try:
            if target.sessions is not None:
                pairs = [(item.path, item.settings) for item in (original, file)]
                return target.sessions.time(pairs, budget_s=DECIDING_S, **given)[-1]
            if target.time is None or self.job.trusts_file:  # what PyTorch itself has read is not timed
                return None
            if file.path == original.path:
                return target.time([file.path], **given)[-1]
            return target.time([original.path, file.path], self.policy.slower, budget_s=DECIDING_S, **given)[-1]
        except DownsetError as error:
            self.job.notes.add(Message("not timed: ", error.message))
            return None

    def same_work(self, file: Candidate) -> bool:
        """Whether the candidate runs the original's operators one by one, in another order or at other places: then its
        time differs by chance, and only a file that is known to be slower is left out."""
        return not file.rewrites and self.job.target.sessions is None

    def standing(self, file: Candidate) -> Standing:
        """Where the candidate stands to the limit of time."""
        if self.policy.slower is None or (file.path == self.original.path and file.settings == self.original.settings):
            return "within"
        latency = self.timed(file).latency
        if latency is None:  # it computes as much as the original; what strips take is known only by a run
            return "near" if in_strips(file) else "within"
        standing = self.policy.standing(latency)
        return "within" if standing == "near" and self.same_work(file) else standing

    def keeps_size(self, file: Candidate) -> bool:
        return self.policy.keeps_size(disk_bytes(self.original.path), disk_bytes(file.path))

    def keeps(self, file: Candidate) -> bool:
        """Whether the candidate keeps to both limits."""
        return self.keeps_size(file) and self.standing(file) == "within"

    def note_near(self, file: Candidate, *, refused: bool = False) -> bool:
        """Whether the candidate's time is near the limit, so that another run may choose another file. Then adds a note
        about it. `refused`: the file was refused for its time."""
        if self.policy.slower is None:
            return False
        latency = self.timed(file).latency
        if (
            latency is None
            or file.name == self.original.name
            or self.same_work(file)
            or not self.policy.is_near(latency)
        ):
            return False
        limit = Setting("slower", self.policy.slower)
        which = f"a smaller {file.label} file, which was refused" if refused else f"the {file.label} file"
        said = f"the time of {which}, {ratio_text(latency)}, is near the limit ("
        self.job.notes.add(Message(said, limit, "): another run may choose another file"))
        return True
