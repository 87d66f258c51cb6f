"""The proof that a rewritten network computes what the original computes. Every tensor of it, in the order of the file,
is proven to hold what the certificate states: a part of a tensor of the original, or an unfinished sum of one.

The certificate is only a list of statements to prove. Each operator is proven by one local identity (`identities`,
`sums`) from the statements proven about its inputs. The outputs must be whole. Operators with effects must be those of
the original, in its order. Values that are known outside by name must exist. Complexity: linear in operators, and in
the bytes of constants that are cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from downset.equivalence import identities, layers, rows, sums
from downset.equivalence.claims import Box, Claim, Unproven, Views, whole
from downset.equivalence.effects import order_difference
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode
from downset.equivalence.held_graphs import same_graphs
from downset.equivalence.identities import Place
from downset.equivalence.meaning import ATTENTION, ELEMENTWISE, LAYER_NORMS, PRODUCTS, PYTORCH, base_kind, windowed
from downset.equivalence.merged import bias_added, merged, pooled
from downset.equivalence.slices import resliced
from downset.equivalence.stacks import Channels, Stack, Stacks
from downset.equivalence.statistics import with_statistics
from downset.equivalence.sums import FLOATS
from downset.equivalence.surroundings import same_called_graphs, same_surroundings
from downset.equivalence.transposed import transposed_window
from downset.equivalence.windows import window
from downset.formats.certificates import Certificate
from downset.graph.parts import Part

__all__ = ["FURTHER", "PartsOutcome", "PartsProof", "check_parts"]


@dataclass(frozen=True, slots=True)
class PartsOutcome:
    """`unproven`: a message about the first statement that cannot be proven; "" if all are. `exact`: whether every
    element is computed as before, without sums in another sequence. `finite`: whether that is proven for finite values
    only."""

    unproven: str
    exact: bool = False
    finite: bool = False


def check_parts(first: FileNetwork, second: FileNetwork, certificate: Certificate) -> PartsOutcome:
    """Prove the certificate's statements about tensors of `second`."""
    try:
        extended = with_statistics(first, {part.of for part in certificate.parts.values()})
        proof = PartsProof(extended, second, certificate)
        proof.summed = proof.first is not first
        proof.whole()
    except Unproven as reason:
        return PartsOutcome(str(reason) or "a statement of its certificate is not proven")
    return PartsOutcome("", not proof.summed and not proof.stacks.finite, proof.stacks.finite)


class PartsProof:
    """The proof of a certificate, operator by operator."""

    def __init__(self, first: FileNetwork, second: FileNetwork, certificate: Certificate) -> None:
        self.first, self.second = first, second
        self.parts, self.joined = certificate.parts, certificate.joined
        self.views = Views(first)
        self.claims: dict[int, Claim] = {}
        self.kept: dict[int, int] = {}
        self.states: dict[int, int] = {}
        self.summed = False
        self.label_of: dict[str, int] = {}
        for index, value in enumerate(first.values):  # those of the main graph come first; bodies may reuse its names
            self.label_of.setdefault(value.label, index)
        self.maker = {value: node for node in first.nodes for value in node.outputs if value != ABSENT}
        self.stacks = Stacks(first, self.maker)
        self.node_of = {id(node): index for index, node in enumerate(first.nodes)}

    def whole(self) -> None:
        first, second = self.first, self.second
        same_surroundings(first, second)
        same_called_graphs(first, second)
        self._inputs()
        self._operators()
        self._outputs(second.bodies[0].outputs)
        named = [(name, value, second.named[name]) for name, value in first.named.items()]
        named += [(name, value, second.bodies[0].named[name]) for name, value in first.bodies[0].named.items()]
        for name, value, other in named:
            if first.values[value].content is not None or self.claims.get(other) != self._all_of(value):
                raise Unproven(f"{name if isinstance(name, str) else name[-1]!r} is another tensor, or a constant")
        values = {claim.of: value for value, claim in self.claims.items()} | self.states
        difference = order_difference(first, second, self.kept, values)
        if difference:
            raise Unproven(difference)

    def _operators(self) -> None:
        for index in self.second.bodies[0].nodes:
            node = self.second.nodes[index]
            try:
                self._operator(index, node)
            except Unproven as reason:
                raise Unproven(f"{node.kind} {node.label!r}: {reason}") from None
            except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # contradicting ranks and settings
                raise Unproven(f"{node.kind} {node.label!r} is malformed ({type(error).__name__})") from None

    def _outputs(self, outputs: Sequence[int]) -> None:
        for one, other in zip(self.first.bodies[0].outputs, outputs, strict=True):
            ours, theirs = self.first.values[one], self.second.values[other]
            if self.claims.get(other) != self._all_of(one):
                raise Unproven(f"the output {ours.label!r} is not made as a whole")
            if ours.form != theirs.form:
                raise Unproven(f"the output {ours.label!r} has another type, shape or quantization")

    def _inputs(self) -> None:
        for one, other in zip(self.first.bodies[0].inputs, self.second.bodies[0].inputs, strict=True):
            ours, theirs = self.first.values[one], self.second.values[other]
            if ours.form != theirs.form or not ours.same_default(theirs):
                raise Unproven(f"the input {ours.label!r} has another type, shape or quantization")
            self.claims[other] = self._all_of(one)
        nodes = (self.second.nodes[index] for index in self.second.bodies[0].nodes)
        for tensor in sorted({value for node in nodes for value in node.inputs} - {ABSENT}):
            value = self.second.values[tensor]
            original = self.label_of.get(value.label)
            if value.keeps and original is not None and self.first.values[original].form == value.form:
                self.claims[tensor] = self._all_of(original)
                self.states[original] = tensor

    def _all_of(self, value: int) -> Claim:
        return Claim(value, whole(self.first.values[value]))

    def _operator(self, index: int, node: FileNode) -> None:
        place = Place(node, self.second, self.first, self.views, self.claims)
        reads_several = any(value in self.stacks.of for value in node.inputs)
        if reads_several or any(value != ABSENT and self._label(value) in self.joined for value in node.outputs):
            self._merged(place)
            return
        if not node.outputs and not node.effects:
            self._without_results(place)
            return
        stated = [None if value == ABSENT else self._stated(value) for value in node.outputs]
        original = self._original(node, stated)
        if original is not None:
            identities.kept(place, original)
            same_graphs(place, original)
            self.kept[self.node_of[id(original)]] = index
            for value, target in zip(node.outputs, original.outputs, strict=True):
                if value != ABSENT:
                    self._claim(value, self._all_of(target))
            return
        if node.kind == "Split" and not any(self._is_split(out) for out in stated):
            self._merged(place)
            return
        if any(isinstance(key, tuple) or (key in FURTHER and node.settings[key]) for key in node.settings):
            raise Unproven("it states more than an operator of its kind has")
        if node.effects:
            raise Unproven("it is new, and has effects")
        if len(stated) == 1 and stated[0] is not None:
            self._claim(node.outputs[0], self._proven(place, stated[0]))
        else:
            self._results(place, stated)

    def _without_results(self, place: Place) -> None:
        """Prove that an operator that only asserts something is one of the original's."""
        for original in self.first.nodes:
            if not original.outputs and original.kind == place.node.kind:
                with contextlib.suppress(Unproven):
                    identities.kept(place, original)
                    same_graphs(place, original)
                    return
        raise Unproven("the original has no such operator without results")

    def _is_split(self, out: Claim | None) -> bool:
        """Whether a claim is about a result of one of the original's Splits."""
        original = None if out is None else self.maker.get(out.of)
        return original is not None and original.kind == "Split"

    def _results(self, place: Place, stated: Sequence[Claim | None]) -> None:
        """Prove the claims about an operator with several results, each alone."""
        node = place.node
        for result, (value, out) in enumerate(zip(node.outputs, stated, strict=True)):
            original = None if out is None else self.maker.get(out.of)
            if out is None:
                continue
            if original is None or len(original.outputs) != len(stated) or original.outputs[result] != out.of:
                raise Unproven(f"its result {result} is not one of the original's")
            if node.kind in ("Split", "SPLIT", "SPLIT_V") and node.kind == original.kind:
                layers.divided(place, original, out.box, result)
            elif node.kind == "Unbind":
                layers.unbound(place, original, out.box)
            elif node.kind in LAYER_NORMS and node.kind == original.kind and result in (0, 3):
                layers.layer_norm(place, original, out.box)
            else:
                raise Unproven(f"no identity is known for parts of {node.kind} with several results")
            self._claim(value, Claim(out.of, out.box))

    def _label(self, value: int) -> str:
        return self.second.values[value].label

    def _merged(self, place: Place) -> None:
        """Prove an operator that reads or makes several tensors of the original in one."""
        node = place.node
        if node.effects or any(isinstance(key, tuple) for key in node.settings) or ABSENT in node.outputs:
            raise Unproven("it is new, and has effects, further fields or absent results")
        if node.kind == "AveragePool" and len(node.outputs) == 1:
            self.summed = True
            self._claim(node.outputs[0], pooled(self.stacks, place, self._stated(node.outputs[0])))
            return
        wanted = [self._stack(value) for value in node.outputs]
        for value, stack in zip(node.outputs, merged(self.stacks, place, wanted), strict=True):
            if self._label(value) in self.joined:
                self.stacks.keep(value, self.second.values[value], stack)
            else:
                self._claim(value, self._stated(value))

    def _stack(self, value: int) -> Stack:
        """The pieces that a result is said to hold. Without a statement it is the original tensor of its name."""
        if self._label(value) not in self.joined:
            claim = self._stated(value)
            if claim.terms is not None:
                raise Unproven("it makes an unfinished sum")
            return self.stacks.channels(claim)
        pieces: Stack = ()
        for piece in self.joined[self._label(value)]:
            of = self.label_of.get(piece.of)
            if of is None:
                raise Unproven(f"the original has no {piece.of!r}")
            _, (_, channels), *_ = whole(self.first.values[of])
            if piece.before_pool:
                pieces += (Channels(of, 0, channels, before_pool=True),)
            else:
                pieces += self.stacks.expanded(of, 0, channels)
        return pieces

    def _stated(self, value: int) -> Claim:
        """The claim to prove about a result: the certificate's statement, or without one that it is the original tensor
        of its name."""
        label = self.second.values[value].label
        part = self.parts.get(label, Part(label))
        of = self.label_of.get(part.of)
        if of is None:
            raise Unproven(f"the certificate does not say what {label!r} holds")
        box = list(whole(self.first.values[of]))
        for axis, start, stop in part.box:
            # A box may reach into the padding around the tensor; `_claim` requires a proof of that padding.
            if not (0 <= axis < len(box) and start < stop and start < box[axis][1] and stop > 0):
                raise Unproven(f"the certificate says that {label!r} holds elements that {part.of!r} does not have")
            box[axis] = (start, stop)
        return Claim(of, tuple(box), part.terms)

    def _original(self, node: FileNode, stated: list[Claim | None]) -> FileNode | None:
        """The original's operator that this one seems to be: it has the same kind, settings and number of inputs, and
        its results are claimed to be whole. None where there is no such operator."""
        first = next((claim for claim in stated if claim is not None), None)
        producer = None if first is None else self.maker.get(first.of)
        if producer is None or producer.kind != node.kind or producer.settings != node.settings:
            return None
        if len(producer.outputs) != len(node.outputs) or len(producer.inputs) != len(node.inputs):
            return None
        for claim, target in zip(stated, producer.outputs, strict=True):
            if (claim is None) != (target == ABSENT) or (claim is not None and claim != self._all_of(target)):
                return None
        place = Place(node, self.second, self.first, self.views, self.claims)
        try:
            identities.kept(place, producer)
        except Unproven:
            return producer if len(node.outputs) > 1 or node.effects or node.bodies else None
        return producer

    def _claim(self, value: int, claim: Claim) -> None:
        mine, original = self.second.values[value], self.first.values[claim.of]
        identities.shape_is(mine, claim.box)
        identities.same_type(mine, original, claim.box)
        if mine.shape is None and mine.form and mine.form != original.form:
            raise Unproven(f"the sizes that the file states of {mine.label!r} are not all known")
        stated = bool(mine.form and original.form)
        if stated and claim == self._all_of(claim.of) and mine.form != original.form:
            raise Unproven(f"{mine.label!r} has another type, shape or quantization")
        if self._reaches_out(claim) and not claim.padding and claim.valid is None:
            raise Unproven(
                f"the certificate says that {mine.label!r} holds elements that {original.label!r} does not have"
            )
        self.claims[value] = claim

    def _reaches_out(self, claim: Claim) -> bool:
        full = whole(self.first.values[claim.of])
        return any(low < 0 or high > end for (low, high), (_, end) in zip(claim.box, full, strict=True))

    def _proven(self, place: Place, out: Claim) -> Claim:
        """The claim that an identity proves. Raises Unproven with its reason where it does not hold."""
        node, original = place.node, self.maker.get(out.of)
        if node.kind in ("Concat", "CONCATENATION"):
            identities.joined(place, out)
            return Claim(out.of, out.box)
        if base_kind(node) == "Conv" and original is not None and original.kind == "Concat":
            merged(self.stacks, place, [self.stacks.channels(out)])
            return Claim(out.of, out.box)
        if node.kind == "Slice" and (original is None or original.kind != "Slice" or place.boxes(0, out.of)):
            identities.sliced(place, out)
            return Claim(out.of, out.box)
        if node.kind == "SLICE" and (original is None or original.kind != "SLICE" or self._is_part_of(node, out)):
            return rows.cut_out(place, out)
        if node.kind in ("PAD", "PADV2") and (self._reaches_out(out) or place.boxes(0, out.of)):
            return rows.surrounded(place, out)
        if original is None:
            raise Unproven(f"{self.first.values[out.of].label!r} is made by no operator")
        sums_up = any(self.claims[value].terms for value in node.inputs if value in self.claims)
        if out.terms is not None or sums_up:
            self.summed = True
            return self._sum(place, original, out)
        claim = self._identity(place, original, out.box)
        if self._sums_by_rows(node) and out.box != whole(self.first.values[out.of]):
            # Kernels may sum up the products of fewer rows in another sequence.
            self.summed = self.summed or self.first.values[out.of].dtype in FLOATS
        return Claim(out.of, out.box, valid=None if claim == out.box else claim)

    def _sums_by_rows(self, node: FileNode) -> bool:
        """Whether kernels may add up what an operator sums in another sequence where it makes fewer rows."""
        layers = PRODUCTS if PYTORCH not in self.first.settings else (*PRODUCTS, ATTENTION, "Conv", "ConvTranspose")
        return node.kind in layers

    def _is_part_of(self, node: FileNode, out: Claim) -> bool:
        """Whether the first input holds a part of the tensor of which the result is one."""
        claim = self.claims.get(node.inputs[0])
        return claim is not None and claim.of == out.of

    def _sum(self, place: Place, original: FileNode, out: Claim) -> Claim:
        if place.node.kind == "Add" and any(self._is_constant(value) for value in place.node.inputs):
            return bias_added(self.stacks, place, original, out)
        if base_kind(place.node) == base_kind(original) and windowed(original):
            return sums.partial_window(place, original, out)
        if place.node.kind in ("Gemm", "MatMul", "FULLY_CONNECTED"):
            return sums.partial_product(place, original, out)
        return sums.added(place, original, out)

    def _is_constant(self, value: int) -> bool:
        return value != ABSENT and self.second.values[value].content is not None

    def _identity(self, place: Place, original: FileNode, box: Box) -> Box:
        """The part of the box that is proven."""
        kind = base_kind(place.node)
        if windowed(original) and kind == base_kind(original):
            return window(place, original, box)
        if kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR") and kind == original.kind:
            return rows.resized(place, original, box)
        if kind == "ConvTranspose" == original.kind:
            return transposed_window(place, original, box)
        if kind in ELEMENTWISE:
            identities.elementwise(place, original, box)
        elif kind in _IDENTITIES:
            _IDENTITIES[kind](place, original, box)
        else:
            raise Unproven(f"no identity is known for parts of {kind}")
        return box


_IDENTITIES = {
    "BatchNormalization": identities.normalised,
    "GlobalAveragePool": identities.global_pool,
    "GlobalMaxPool": identities.global_pool,
    "GlobalLpPool": identities.global_pool,
    "Pad": identities.padded,
    "PAD": identities.padded,
    "PADV2": identities.padded,
    "SPLIT": identities.undivided,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), layers.reshaped),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), layers.reshaped),
    **dict.fromkeys(("Transpose", "TRANSPOSE"), layers.transposed),
    **dict.fromkeys(("Softmax", "LogSoftmax", "SOFTMAX"), layers.softmax),
    **dict.fromkeys(LAYER_NORMS, layers.layer_norm),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), layers.reduced),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), layers.quantised),
    **dict.fromkeys(PRODUCTS, layers.product),
    "FULLY_CONNECTED": layers.connected,
    "Gather": layers.gathered,
    "Unbind": layers.unbound,
    ATTENTION: layers.attention,
    "Resize": layers.repeated,
    **dict.fromkeys(("Slice", "SLICE", "STRIDED_SLICE"), resliced),
}


FURTHER = {
    "BuiltinOptions2",
    "Operator.builtinOptions2Type",
    "Operator.customOptions",
    "Operator.customOptionsFormat",
    "Operator.intermediates",
    "Operator.mutatingVariableInputs",
    "OperatorCode.customCode",
    "options behind the file besides those in it",
}
"""Settings of .tflite files that an operator of a known kind leaves empty."""
