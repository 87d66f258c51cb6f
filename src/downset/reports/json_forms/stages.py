"""The JSON forms of a search for stages, and of a run of its plan."""

from __future__ import annotations

from statistics import median
from typing import Any

from downset.reports.next_steps import steps_json
from downset.reports.time_steps import stage_next_steps
from downset.results.stages import StageResult, StageRun, percentile

__all__ = ["stage_result_json", "stage_run_json"]


def stage_result_json(result: StageResult) -> dict[str, Any]:
    """docs/schemas/stage.json."""
    plan = result.plan
    return {
        "device": plan.device_name,
        "versions": plan.versions,
        "dtype": plan.dtype,
        "batch": plan.batch,
        "chosen": plan.evidence.method,
        "asked": result.asked,
        "speedup": result.speedup,
        "why": result.why,
        "candidates": [
            {
                "name": candidate.name,
                "p10_s": candidate.percentile(0.1),
                "p50_s": candidate.percentile(0.5),
                "p90_s": candidate.percentile(0.9),
                "stages": len(candidate.stages),
                "live_bytes": candidate.live_bytes,
            }
            for candidate in result.candidates
        ],
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "peers": [
            {"name": name, **{f"p{share}_s": percentile(seconds, share / 100) for share in (10, 50, 90)}}
            for name, seconds in result.peer_s.items()
        ],
        "next_steps": steps_json(stage_next_steps(result)),
        "notes": list(result.notes),
    }


def stage_run_json(run: StageRun) -> dict[str, Any]:
    """docs/schemas/run.json. An error that is not a finite number is null."""
    worst = run.max_relative_error
    return {
        "device": run.device_name,
        "p50_s": median(run.seconds),
        "runs": len(run.seconds),
        "max_relative_error": worst if worst is None or worst < float("inf") else None,
        "cast": run.cast or None,
    }
