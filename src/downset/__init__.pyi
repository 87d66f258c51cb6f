"""The public names and their types. `__init__.py` imports each when it is first used."""

from downset.arenas.plan import plan_arena as plan_arena
from downset.arenas.plan import plan_shared as plan_shared
from downset.clusters.model import Cluster as Cluster
from downset.clusters.toml_file import load_cluster as load_cluster
from downset.distributed.service.client import AsyncServiceClient as AsyncServiceClient
from downset.distributed.service.client import ServiceClient as ServiceClient
from downset.distributed.serving.serve import RunningPipeline as RunningPipeline
from downset.distributed.serving.serve import serve as serve
from downset.distributed.simulator import Disturbance as Disturbance
from downset.distributed.simulator import simulate as simulate
from downset.errors import DownsetError as DownsetError
from downset.errors import InfeasibleError as InfeasibleError
from downset.errors import InvalidPlan as InvalidPlan
from downset.errors import LimitReached as LimitReached
from downset.errors import LoadError as LoadError
from downset.errors import UnsupportedError as UnsupportedError
from downset.errors import UsageError as UsageError
from downset.executor.device import TorchDevice as TorchDevice
from downset.executor.device import open_device as open_device
from downset.executor.stage_engine import run_stages as run_stages
from downset.fitting.fit import fit as fit
from downset.fitting.memories import fit_memories as fit_memories
from downset.formats.firmware import Firmware as Firmware
from downset.formats.firmware import firmware as firmware
from downset.formats.plan_json import Plan as Plan
from downset.formats.plan_json import read_plan as read_plan
from downset.formats.plan_json import write_plan as write_plan
from downset.formats.reading import load as load
from downset.formats.records_csv import read_records as read_records
from downset.formats.shards.write import Shard as Shard
from downset.formats.shards.write import export_shards as export_shards
from downset.formats.writing import export as export
from downset.graph.core import Graph as Graph
from downset.graph.core import Op as Op
from downset.graph.core import Tensor as Tensor
from downset.integrations import inductor as inductor
from downset.integrations.stage_backend import stage_backend as stage_backend
from downset.integrations.stage_module import stage_module as stage_module
from downset.integrations.step_plan import plan_step as plan_step
from downset.joint.check import verify as verify
from downset.joint.order_and_arena import plan_together as plan_together
from downset.memories.of_graph import Prices as Prices
from downset.memories.plan import plan_memories as plan_memories
from downset.memory.liveness import OrderProblem as OrderProblem
from downset.memory.liveness import Storage as Storage
from downset.memory.liveness import order_problem as order_problem
from downset.memory.models import MEMORY_MODELS as MEMORY_MODELS
from downset.memory.models import MemoryModel as MemoryModel
from downset.memory.records import Record as Record
from downset.methods import Method as Method
from downset.orders.check import lifetimes as lifetimes
from downset.orders.check import peak_bytes as peak_bytes
from downset.orders.plan import plan_order as plan_order
from downset.pipelines.plan import plan_pipeline as plan_pipeline
from downset.pipelines.replan import plan_by_every_method as plan_by_every_method
from downset.reports.inspection import inspect as inspect
from downset.reports.memory_map import memory_map as memory_map
from downset.reports.text import Report as Report
from downset.reports.text import report as report
from downset.results.comparisons import Comparison as Comparison
from downset.results.fit import Fit as Fit
from downset.results.fit import Recomputation as Recomputation
from downset.results.inspections import Inspection as Inspection
from downset.results.memories import MemoriesPlan as MemoriesPlan
from downset.results.memories import Move as Move
from downset.results.memories import Residence as Residence
from downset.results.memories_fit import MemoriesFit as MemoriesFit
from downset.results.merged import MergedNetwork as MergedNetwork
from downset.results.pipelines import Pipeline as Pipeline
from downset.results.plans import Arena as Arena
from downset.results.plans import Evidence as Evidence
from downset.results.plans import Order as Order
from downset.results.plans import SharedObjects as SharedObjects
from downset.results.plans import Stage as Stage
from downset.results.plans import StagePlan as StagePlan
from downset.results.plans import Together as Together
from downset.results.serving import DeviceUse as DeviceUse
from downset.results.serving import Served as Served
from downset.results.serving import ServeEvent as ServeEvent
from downset.results.serving import Simulation as Simulation
from downset.results.sessions import SessionSettings as SessionSettings
from downset.results.sessions import SessionTaken as SessionTaken
from downset.results.stages import StageResult as StageResult
from downset.results.stages import StageRun as StageRun
from downset.rewrites.recompute import plan_recompute as plan_recompute
from downset.runtimes.compare import compare as compare
from downset.runtimes.ort_settings import ort_session as ort_session
from downset.stages.plan import plan_stages as plan_stages
from downset.stages.problem import StageProblem as StageProblem
from downset.tuning.merged_file import export_merged as export_merged
from downset.tuning.profiles import Profiles as Profiles
from downset.tuning.search import StageLimits as StageLimits
from downset.tuning.tune import tune_stages as tune_stages

__all__ = [
    "MEMORY_MODELS",
    "Arena",
    "AsyncServiceClient",
    "Cluster",
    "Comparison",
    "DeviceUse",
    "Disturbance",
    "DownsetError",
    "Evidence",
    "Firmware",
    "Fit",
    "Graph",
    "InfeasibleError",
    "Inspection",
    "InvalidPlan",
    "LimitReached",
    "LoadError",
    "MemoriesFit",
    "MemoriesPlan",
    "MemoryModel",
    "MergedNetwork",
    "Method",
    "Move",
    "Op",
    "Order",
    "OrderProblem",
    "Pipeline",
    "Plan",
    "Prices",
    "Profiles",
    "Recomputation",
    "Record",
    "Report",
    "Residence",
    "RunningPipeline",
    "ServeEvent",
    "Served",
    "ServiceClient",
    "SessionSettings",
    "SessionTaken",
    "Shard",
    "SharedObjects",
    "Simulation",
    "Stage",
    "StageLimits",
    "StagePlan",
    "StageProblem",
    "StageResult",
    "StageRun",
    "Storage",
    "Tensor",
    "Together",
    "TorchDevice",
    "UnsupportedError",
    "UsageError",
    "compare",
    "export",
    "export_merged",
    "export_shards",
    "firmware",
    "fit",
    "fit_memories",
    "inductor",
    "inspect",
    "lifetimes",
    "load",
    "load_cluster",
    "memory_map",
    "open_device",
    "order_problem",
    "ort_session",
    "peak_bytes",
    "plan_arena",
    "plan_by_every_method",
    "plan_memories",
    "plan_order",
    "plan_pipeline",
    "plan_recompute",
    "plan_shared",
    "plan_stages",
    "plan_step",
    "plan_together",
    "read_plan",
    "read_records",
    "report",
    "run_stages",
    "serve",
    "simulate",
    "stage_backend",
    "stage_module",
    "tune_stages",
    "verify",
    "write_plan",
]
__version__: str
