"""Reads the plans and the cluster that a command is given. The errors name the command that makes a valid one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from downset.errors import LoadError, UsageError

if TYPE_CHECKING:
    from downset.clusters.model import Cluster
    from downset.results.pipelines import Pipeline
    from downset.results.plans import StagePlan

__all__ = ["given_cluster", "pipeline_of", "shapes_at_batch", "stages_of"]

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


def shapes_at_batch(model: str, shapes: Mapping[str, tuple[int, ...]], batch: int) -> dict[str, tuple[int, ...]]:
    """`shapes`, and `batch` samples for each other input of an .onnx file whose first axis alone is open."""
    if Path(model).suffix.lower() != ".onnx":
        return dict(shapes)
    from downset.formats.onnx.model_file import batch_shapes
    from downset.formats.reading import check_readable

    check_readable(Path(model))
    return {**batch_shapes(model, batch), **shapes}


def given_cluster(path: str | None, *, otherwise: str = "") -> Cluster:
    """The cluster of `--cluster`. Without `path` raises UsageError that names the built-in clusters."""
    from downset.clusters.toml_file import cluster_names, load_cluster

    if path is None:
        raise UsageError(
            f"--cluster is missing{otherwise}: give a built-in cluster ({', '.join(cluster_names())}) or a TOML file "
            "of yours with one [network] and a [[device]] for each device"
        )
    return load_cluster(path)
