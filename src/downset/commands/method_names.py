"""The methods of public functions, for the help of commands; python -m docs_site.tables makes this file."""

__all__ = ["METHODS"]

METHODS = {
    "plan_order": "file, kahn, dfs, greedy, inductor, liu, beam, serenity, optimal, exhaustive",
    "plan_arena": (
        "naive, equality, greedy_by_size, greedy_by_breadth, greedy_in_order, strip_packing, from_objects, "
        "tflm_greedy, litert_greedy, local_search, exact, best"
    ),
    "plan_shared": (
        "naive, equality, greedy_by_size, greedy_by_size_improved, greedy_by_breadth, greedy_in_order, "
        "min_cost_flow, exact, best"
    ),
    "plan_stages": "sequential, greedy, ios, lazy",
    "plan_pipeline": "single, blocks, layerwise, early_fused, optimal_fused, coedge, pico, exact, exhaustive",
}
