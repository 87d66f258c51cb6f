"""Whether the offsets that a `.tflite` file carries keep apart what is live at the same time.

TFLite Micro puts tensors where a file says and checks nothing: of two that overlap, one is overwritten.
"""

from __future__ import annotations

from downset.equivalence.network import ABSENT, Network
from downset.equivalence.read_tflite import Offline

__all__ = ["check_placement"]

_ALIGNMENT = 16
_SAME_BYTES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})


def check_placement(network: Network, offline: Offline) -> str | None:
    """What is wrong with the offsets, or None. Inputs live from the start, outputs to the end, everything else from the
    operator that makes it to the last that reads it."""
    if offline.tensors != offline.expected:
        return f"offsets for {offline.tensors} tensors, but the file has {offline.expected}"
    main = network.bodies[0]
    first = dict.fromkeys(main.inputs, -1)
    last = dict.fromkeys(main.inputs, -1)
    same: dict[int, int] = {}
    for step, at in enumerate(main.nodes):
        node = network.nodes[at]
        for value in node.inputs:
            last[value] = step
        for value in node.outputs:
            first[value] = step
            last.setdefault(value, step)
        if node.kind in _SAME_BYTES:
            same[node.outputs[0]] = node.inputs[0]
    for value in main.outputs:
        last[value] = len(main.nodes)
    live: list[tuple[int, int, int]] = []
    for value in sorted((v for v in first if v != ABSENT), key=lambda v: first[v]):
        offset, nbytes = offline.offsets[value], offline.nbytes[value]
        if offset < 0:
            continue
        label = network.values[value].label
        if offset % _ALIGNMENT:
            return f"{label!r} lies at {offset}, which is no multiple of {_ALIGNMENT}"
        if nbytes < 0:
            return f"the bytes of {label!r} are not known"
        live = [item for item in live if last[item[0]] >= first[value]]
        for other, low, high in live:
            shared = same.get(value) == other and offset == low
            if offset < high and low < offset + nbytes and not shared:
                return f"{label!r} at {offset} overlaps {network.values[other].label!r} at {low}, which is still needed"
        live.append((value, offset, offset + nbytes))
    return None
