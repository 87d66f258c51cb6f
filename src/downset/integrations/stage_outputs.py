"""Outputs of a staged program as the program itself makes them: their strides, and whose memory they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from downset.extras import torch_library

__all__ = ["StagedOutputs"]


@dataclass(frozen=True, slots=True)
class _Output:
    """`source`: the input whose memory the program returns, -1 for none. `group`: outputs of one group share memory.
    `offset`: of the first element, from that of the source or from the lowest of the group."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    source: int
    group: int
    offset: int

    @property
    def end(self) -> int:
        """The offset behind the last element."""
        pairs = zip(self.shape, self.strides, strict=True)
        return self.offset + sum((extent - 1) * stride for extent, stride in pairs) + 1


class StagedOutputs:
    """Hands over the outputs of calls. `copies`: they lie in memory that the next call overwrites, and `views`: they
    may stay there. `fixed`: positions of outputs that are the same constant in each call. `of_weights`: positions of
    outputs that the program returns in the memory of a weight; here they are copies."""

    def __init__(self, program: Any, *, copies: bool, views: bool, fixed: Sequence[int]) -> None:
        placeholders = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
        inputs = [placeholders[name] for name in program.graph_signature.user_inputs]
        results = [node.meta["val"] for node in program.graph.output_node().args[0]]
        self._copies, self.views, self._fixed = copies, views, frozenset(fixed)
        self._given = [_layout(value) for value in inputs]
        self._outputs = _described(inputs, results)
        weights = {_memory(value) for value in placeholders.values()} - set(map(_memory, inputs))
        self.of_weights = [place for place, value in enumerate(results) if _memory(value) in weights]
        groups = [output.group for output in self._outputs if output.source < 0]
        self._sizes: dict[int, int] = {}
        """The elements of each group of several outputs."""
        for output in self._outputs:
            if groups.count(output.group) > 1:
                self._sizes[output.group] = max(self._sizes.get(output.group, 0), output.end)

    def taker(self, inputs: Sequence[Any]) -> Callable[[int, Any], Any]:
        """A function from the position and the value of an output to what one call with these inputs returns."""
        torch = torch_library()
        taken = {value.untyped_storage().data_ptr() for value in inputs}
        buffers: dict[int, Any] = {}

        def take(position: int, value: Any) -> Any:
            output = self._outputs[position]
            if output.source >= 0 and _layout(inputs[output.source]) == self._given[output.source]:
                given = inputs[output.source].detach()
                return given.as_strided(output.shape, output.strides, given.storage_offset() + output.offset)
            if output.group in self._sizes and not self.views:
                if output.group not in buffers:
                    buffers[output.group] = value.new_empty(self._sizes[output.group], dtype=output.dtype)
                return _filled(buffers[output.group].as_strided(output.shape, output.strides, output.offset), value)
            storage = value.untyped_storage().data_ptr()
            ours = position in self._fixed or (self._copies and not self.views)
            if not ours and storage not in taken and value.dtype == output.dtype and _lies(value, output.strides):
                if not self.views:
                    taken.add(storage)
                return value
            result = torch.empty_strided(output.shape, output.strides, dtype=output.dtype, device=value.device)
            return _filled(result, value)

        return take


def _described(inputs: Sequence[Any], results: Sequence[Any]) -> list[_Output]:
    sources = {_memory(value): place for place, value in enumerate(inputs) if value.numel()}
    groups: dict[Any, list[int]] = {}
    for place, value in enumerate(results):
        groups.setdefault(_memory(value) if value.numel() else place, []).append(place)
    outputs = []
    for value in results:
        source = sources.get(_memory(value), -1) if value.numel() else -1
        group = next(places for places in groups.values() if any(results[place] is value for place in places))
        first = (
            inputs[source].storage_offset() if source >= 0 else min(results[place].storage_offset() for place in group)
        )
        place = int(value.storage_offset() - first)
        outputs.append(_Output(tuple(value.shape), tuple(value.stride()), value.dtype, source, group[0], place))
    return outputs


def _memory(value: Any) -> tuple[Any, Any]:
    """The memory and the element type of a traced tensor; tensors that share memory have them in common."""
    return value.untyped_storage()._cdata, value.dtype


def _layout(value: Any) -> tuple[Any, ...]:
    return tuple(value.stride()), value.dtype, value.device.type


def _lies(value: Any, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides along all axes of several elements."""
    return not value.numel() or all(
        own == wanted for extent, own, wanted in zip(value.shape, value.stride(), strides, strict=True) if extent > 1
    )


def _filled(result: Any, value: Any) -> Any:
    """`result` with the values of a tensor. Elements along an axis of stride 0 are one, and get one value."""
    target = result
    for axis, stride in enumerate(result.stride()):
        if stride == 0 and result.shape[axis] > 1:
            target, value = target.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
    target.copy_(value)
    return result
