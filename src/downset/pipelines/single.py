"""The whole network on the device that computes a frame fastest. Every split is compared with this plan."""

from __future__ import annotations

from downset.clusters.model import Cluster
from downset.errors import InfeasibleError
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.judging import load_s
from downset.pipelines.prices import PricedChain

__all__ = ["single", "single_draft"]


def single(
    problem: PricedChain,
    cluster: Cluster,
    *,
    accounting: Accounting | None = None,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> FoundPipeline:
    """One stage on the device of least load, of equals the first, among those that are not forbidden to run everything.
    The load counts what the device sends and receives as source or sink. Without `accounting`, and by the paper's
    equations, which have no source and sink, it is the fastest device. Complexity: O(devices). Raises InfeasibleError
    if all devices are forbidden."""
    able = [device for device in range(len(cluster.devices)) if (0, problem.cuts, device) not in forbidden]
    if not able:
        raise InfeasibleError("single: no device has the memory for the whole model; split it (method exact)")

    def load(device: int) -> float:
        if accounting is None or accounting.comm == "paper":
            return -cluster.devices[device].speed
        return load_s(problem, cluster, (single_draft(problem, device),), accounting)

    return FoundPipeline((single_draft(problem, min(able, key=load)),), 0.0)


def single_draft(problem: PricedChain, device: int) -> StageDraft:
    rows = problem.segment(0, problem.cuts).rows
    return StageDraft(device, (Split(0, problem.cuts, (Tile(device, 0, rows),)),))
