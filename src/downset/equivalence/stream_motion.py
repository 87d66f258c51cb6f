"""The lemma of shifts, over the network of a window alone: how the rows of its tensors move from one window to a later
one.

Window w holds the rows [w * hop, w * hop + N) of a sequence. A tensor *moves* by `rate` rows a hop: for all windows w,
and all multiples k of `hops`, its row r + k * rate in window w is its row r in window w + k, bit for bit, if both rows
lie in its interior `rows`. The interior holds the rows that see no edge of the window: each is one function of the
rows of the sequence around its place. `hops` > 1 where the hop is not a multiple of a stride, so that rows lie at the
same places of the sequence only every few windows.

By induction over the operators, each with one rule, written from the specifications of the formats. An operator
without a rule *stops*: nothing is known of its results, nor of what is made of them. It shares nothing with the
analysis that writes streams.
"""

from __future__ import annotations

from fractions import Fraction

from downset.equivalence.claims import Unproven
from downset.equivalence.file_network import ABSENT, FileNetwork
from downset.equivalence.motion_rules import results
from downset.equivalence.moving_rows import Motion, Motions, shape_of

__all__ = ["Motion", "Motions", "motions"]


def motions(network: FileNetwork, data: int, axis: int, hop: int) -> Motions:
    """How every value of the main graph moves, where the input `data` moves by `hop` rows along `axis`, and nothing is
    known of other inputs."""
    tensors = Motions()
    tensors.fixed |= {index for index, value in enumerate(network.values) if value.content is not None}
    for value in network.bodies[0].inputs:
        tensors.stops[value] = f"the input {network.values[value].label!r} does not move"
    del tensors.stops[data]
    tensors.of[data] = Motion(axis, Fraction(hop), (0, shape_of(network, data)[axis]))
    for index in network.bodies[0].nodes:
        node = network.nodes[index]
        inputs = {value for value in (*node.inputs, *node.captured) if value != ABSENT}
        outputs = [value for value in node.outputs if value != ABSENT]
        stopped = next((tensors.stops[value] for value in node.inputs if value in tensors.stops), "")
        if node.effects or node.bodies:
            stopped = f"{node.called} has effects, or holds graphs"
        elif inputs <= tensors.fixed:
            tensors.fixed |= set(outputs)
            continue
        if not stopped:
            try:
                moved = results(network, node, tensors)
                tensors.of |= moved
                stopped = f"{node.called} stops its further results"
            except Unproven as reason:
                stopped = f"{node.called} {reason}"
            except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
                stopped = f"{node.called} is malformed ({type(error).__name__})"
        tensors.stops |= {value: stopped for value in outputs if value not in tensors.of}
    return tensors
