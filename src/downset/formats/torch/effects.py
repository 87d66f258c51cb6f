"""Calls that write into a tensor that exists (`relu_`, `add_`, `copy_`), and the calls that must stay before and after
them although no value connects them.

No library is asked: a name says whether a call writes. Results of operators that are not named in `_FRESH` may lie in
the bytes of their inputs. This costs freedom only in programs that write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from downset.formats.torch.program import TorchCall, TorchProgram, TorchValue, values_in

__all__ = ["OPERATORS", "earlier_calls", "overwritten", "owners", "owners_outside", "writes_outside", "written_names"]

_FRESH = frozenset(
    {
        "abs",
        "adaptive_avg_pool2d",
        "add",
        "addmm",
        "avg_pool1d",
        "avg_pool2d",
        "batch_norm",
        "bmm",
        "cat",
        "clamp",
        "clone",
        "constant_pad_nd",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "cos",
        "div",
        "elu",
        "embedding",
        "erf",
        "exp",
        "gelu",
        "group_norm",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "instance_norm",
        "layer_norm",
        "leaky_relu",
        "linear",
        "log",
        "log_softmax",
        "matmul",
        "max_pool1d",
        "max_pool2d",
        "maximum",
        "mean",
        "minimum",
        "mish",
        "mm",
        "mul",
        "neg",
        "new_ones",
        "pow",
        "relu",
        "relu6",
        "rsqrt",
        "rsub",
        "scaled_dot_product_attention",
        "sigmoid",
        "silu",
        "sin",
        "slice_copy",
        "softmax",
        "softplus",
        "sqrt",
        "sub",
        "sum",
        "tanh",
        "tril",
        "upsample_bilinear2d",
        "upsample_nearest2d",
        "where",
    }
)
"""Operators whose results have bytes of their own."""
_WRITING = frozenset(
    {
        "fbgemm_linear_fp16_weight",
        "fbgemm_linear_fp16_weight_fp32_activation",
        "fused_moving_avg_obs_fake_quant",
        "record_stream",
        "retain_grad",
        "rrelu_with_noise",
        "rrelu_with_noise_",
        "set_data",
    }
)
"""Operators that write into an input that is not the first one, or whose name does not say that they write."""
_NORMS = {"batch_norm": (5, (3, 4)), "instance_norm": (5, (3, 4)), "native_batch_norm": (5, (3, 4))}
"""Operators with (the place of the argument that says that they train, the places of the statistics that they then
write)."""
_TRAINS = ("training", "use_input_stats")
"""The names of that first argument."""
OPERATORS = frozenset({"__and__", "__lshift__", "__or__", "__rshift__", "__xor__"})
"""Python's operators between tensors, by the names that exports give them."""
_PRIVATE_READERS = OPERATORS | frozenset(
    {"_adaptive_avg_pool2d", "_assert_scalar", "_assert_tensor_metadata", "_log_softmax", "_softmax", "_to_copy"}
)
"""Operators with private names that write nothing."""


def written_names(call: TorchCall) -> set[str]:
    """The values of which a call may change the bytes."""
    space, _, rest = call.target.partition(".")
    name = rest.partition(".")[0]
    everything = {value.name for value in values_in((call.args, call.kwargs))}
    if space != "aten" or name in _WRITING or (name.startswith("_") and name not in _PRIVATE_READERS):
        return everything
    written = set() if _is_fresh(call) else {value.name for value in values_in(call.kwargs)}  # out= and the like
    if name.endswith("_") and name not in OPERATORS:
        written |= {value.name for value in values_in(call.args[:1])}
    if name in _NORMS:
        training, places = _NORMS[name]
        if any(call.args[training : training + 1] or [call.kwargs.get(key) for key in _TRAINS]):
            kept = [call.args[place] for place in places if place < len(call.args)]
            written |= {value.name for value in values_in((kept, call.kwargs))}
    return written


def overwritten(call: TorchCall) -> TorchValue | None:
    """The value whose bytes the result of the call replaces, such as the input of `relu_`."""
    name = call.target.removeprefix("aten.").partition(".")[0]
    inside = call.target.startswith("aten.") and name.endswith("_") and not name.endswith("__") and not call.several
    return call.args[0] if inside and call.args and isinstance(call.args[0], TorchValue) else None


def _shared(call: TorchCall) -> list[TorchValue]:
    """The inputs in whose bytes the results of a call may lie."""
    target, name = overwritten(call), call.target.removeprefix("aten.").partition(".")[0]
    return [target] if target is not None and name[:-1] in _FRESH else values_in((call.args, call.kwargs))


def _is_fresh(call: TorchCall) -> bool:
    space, _, rest = call.target.partition(".")
    name, _, overload = rest.partition(".")
    if call.target == "aten.to.dtype" and call.results and values_in(call.args[:1]):  # a cast to another type copies
        return call.results[0].dtype != values_in(call.args)[0].dtype
    return space == "aten" and name in _FRESH and "out" not in overload


def earlier_calls(calls: Sequence[TorchCall]) -> list[tuple[int, ...]]:
    """By call: the calls that must run before it since one of the two writes bytes that the other reads or writes,
    ascending. O(calls · inputs), and quadratic in the readers of one tensor that is written."""
    owner = owners(calls)
    written = [{owner(name) for name in written_names(call)} for call in calls]
    shared = set().union(*written) if written else set()
    wrote: dict[str, int] = {}
    touched: dict[str, list[int]] = {name: [] for name in shared}
    earlier = []
    for number, call in enumerate(calls):
        values = (*values_in((call.args, call.kwargs)), *call.results)
        before: set[int] = set()
        for name in {owner(value.name) for value in values} & shared:
            before |= set(touched[name]) if name in written[number] else {wrote[name]} if name in wrote else set()
            if name in written[number]:
                wrote[name], touched[name] = number, []
            touched[name].append(number)
        earlier.append(tuple(sorted(before - {number})))
    return earlier


def writes_outside(program: TorchProgram) -> frozenset[int]:
    """The calls that may write into bytes of an input or a weight of the program, by their position."""
    owner = owners(program.calls)
    outside = owners_outside(program, owner)
    written = ({owner(name) for name in written_names(call)} for call in program.calls)
    return frozenset(number for number, names in enumerate(written) if not outside.isdisjoint(names))


def owners_outside(program: TorchProgram, owner: Callable[[str], str]) -> set[str]:
    """The names by `owner` of all that is there before the program runs: its inputs and weights."""
    return {owner(value.name) for value in (*program.inputs, *(value for value, _ in program.constants))}


def owners(calls: Sequence[TorchCall]) -> Callable[[str], str]:
    """A function that gives one name to all values that may share bytes."""
    parent: dict[str, str] = {}

    def owner(name: str) -> str:
        while parent.get(name, name) != name:
            parent[name] = parent.get(parent[name], parent[name])
            name = parent[name]
        return name

    for call in calls:
        if not _is_fresh(call):
            names = [value.name for value in (*call.results, *_shared(call))]
            for name in names[1:]:
                parent[owner(name)] = owner(names[0])
    return owner
