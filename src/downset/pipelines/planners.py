"""Planners of pipelines: which device computes which operators on which rows. Each is a function of a `SplitProblem`
and a cluster; adding one is a file, a line here and a README row."""

from collections.abc import Callable

from downset.pipelines.blocks import blocks
from downset.pipelines.coedge import coedge
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.early_fused import early_fused
from downset.pipelines.exact import exact
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.layerwise import layerwise
from downset.pipelines.optimal_fused import optimal_fused
from downset.pipelines.pico import pico
from downset.pipelines.single import single

__all__ = ["PIPELINERS"]

PIPELINERS: dict[str, Callable[..., FoundPipeline]] = {
    "single": single,
    "blocks": blocks,
    "layerwise": layerwise,
    "early_fused": early_fused,
    "optimal_fused": optimal_fused,
    "coedge": coedge,
    "pico": pico,
    "exact": exact,
    "exhaustive": exhaustive,
}
