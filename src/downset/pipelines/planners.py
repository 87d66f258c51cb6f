"""Planners of pipelines: functions of a `PricedChain` and a cluster that decide which device computes which operators
on which rows. A new one takes a file, a line here and a row in docs/pipelines.md; then run
`python -m docs_site.tables`. Its `Method` on the line here says what it can do; its signature gives its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from downset.budget import Clock
from downset.methods import Contract, Method
from downset.pipelines.blocks import blocks
from downset.pipelines.coedge import coedge
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.early_fused import early_fused
from downset.pipelines.exact import exact
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.pico import Leader, Ties, pico
from downset.pipelines.single import single

__all__ = ["CONTRACT", "PIPELINERS", "PipelineOptions"]

CONTRACT = Contract(
    "pipelines",
    problem=("problem", "cluster"),
    settings=("comm", "accounting", "max_latency_s", "clock", "time_limit_s", "work_limit", "forbidden"),
    returns=FoundPipeline,
)
"""`forbidden`: (start, stop, device) that no stage may be, because the device has too little memory; a planner without
this parameter is not asked again."""


class PipelineOptions(TypedDict, total=False):
    """Options that only some methods take."""

    fused: int | None
    leader: Leader
    ties: Ties
    several_blocks: bool
    below_s: float
    deadline: Clock | None


PIPELINERS: Mapping[str, Method] = {
    "single": Method(single),
    "blocks": Method(blocks, chain="blocks"),
    "layerwise": Method(layerwise),
    "early_fused": Method(early_fused),
    "optimal_fused": Method(optimal_fused),
    "coedge": Method(coedge),
    "pico": Method(pico),
    "exact": Method(exact, proves=True, chain="relays"),
    "exhaustive": Method(exhaustive),
}
