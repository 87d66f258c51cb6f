"""Reads the plans and the cluster that a command is given. The errors name the command that makes a valid one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from downset.commands.wording import worded
from downset.errors import LoadError, UsageError
from downset.text import printable

if TYPE_CHECKING:
    from downset.clusters.model import Cluster
    from downset.results.pipelines import Pipeline
    from downset.results.plans import StagePlan

__all__ = ["dims_at_batch", "given_cluster", "pipeline_of", "stages_of", "tell_note"]

_Plan = TypeVar("_Plan")
_SPLIT = "downset split {model} --cluster CLUSTER -o plan.json"
_STAGE = "downset stage {model} -o plan.json"


def pipeline_of(path: str) -> Pipeline:
    """The pipeline in a plan file. Raises LoadError for a model in its place, UsageError for another plan, both with
    the command that makes one."""
    from downset.results.pipelines import Pipeline

    return _plan_of(path, Pipeline, "a pipeline plan", _SPLIT)


def stages_of(path: str) -> StagePlan:
    """The stages in a plan file; raises as `pipeline_of` does."""
    from downset.results.plans import StagePlan

    return _plan_of(path, StagePlan, "a plan of stages", _STAGE)


def _plan_of(path: str, kind: type[_Plan], what: str, command: str) -> _Plan:
    from downset.formats.plan_json import read_plan
    from downset.formats.reading import READERS
    from downset.text import shell_word

    suffix = Path(path).suffix.lower()
    if suffix in READERS and suffix != ".json":
        advice = command.format(model=shell_word(path))
        raise LoadError(f"{path} is a model, not a plan; make its plan first: `{advice}`")
    plan = read_plan(path)
    if not isinstance(plan, kind):
        raise UsageError(f"{path} is not {what}; make one with `{command.format(model='MODEL')}`")
    return plan


def dims_at_batch(
    model: str, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int], batch: int
) -> dict[str, int]:
    """`dims`, and `batch` for the open axes that are a batch and that neither `dims` nor `shapes` gives."""
    from downset.formats.reading import open_sizes

    sizes = open_sizes(model, shapes=shapes, dims=dims).sizes
    return {**dims, **{one.name: batch for one in sizes if one.assumed}}


def tell_note(talk: Any, note: str) -> None:
    """Print what was assumed about sizes that a file leaves open, if anything was."""
    if note:
        talk.print(f"note: {printable(worded(note))}", style="dim", markup=False, soft_wrap=True)


def given_cluster(path: str | None, *, otherwise: str = "") -> Cluster:
    """The cluster of `--cluster`. Without `path` raises UsageError that names the built-in clusters."""
    from downset.clusters.toml_file import cluster_names, load_cluster

    if path is None:
        raise UsageError(
            f"--cluster is missing{otherwise}: give a built-in cluster ({', '.join(cluster_names())}) or a TOML file "
            "of yours with one [network] and a [[device]] for each device"
        )
    return load_cluster(path)
