"""The part of a plan that one device needs: its shards, what it sends and receives, and how tensors are cut.

A device never gets the plan, the cluster or the model. Shards are named by the hash of their content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from downset.results.pipelines import Rows

__all__ = ["Computation", "DeviceProgram", "TensorForm"]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor of the network. `rows_axis` and `columns_axis`: the dimensions along which rows and columns are cut;
    None if it has none."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    rows_axis: int | None
    columns_axis: int | None


@dataclass(frozen=True, slots=True)
class Computation:
    """A strip: the shard that computes it (empty if it makes nothing), and the rows of its inputs and outputs."""

    shard: str
    reads: tuple[Rows, ...]
    makes: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """The tasks of one device by their numbers in the plan. `enters`: rows of the network's inputs that frames bring;
    `results`: the network's outputs that stay here; both are empty on most devices. `forms`: by tensor."""

    device: str
    forms: Mapping[int, TensorForm]
    computations: Mapping[int, Computation]
    sends: Mapping[int, tuple[Rows, ...]] = field(default_factory=dict)
    receives: Mapping[int, tuple[Rows, ...]] = field(default_factory=dict)
    enters: tuple[Rows, ...] = ()
    results: tuple[Rows, ...] = ()

    def shards(self) -> tuple[str, ...]:
        """The shards that the device needs, each once."""
        return tuple(dict.fromkeys(c.shard for c in self.computations.values() if c.shard))

    def tasks(self) -> int:
        """The number of the device's tasks for a frame, with its entry and its result."""
        ends = bool(self.enters) + bool(self.results)
        return len(self.computations) + len(self.sends) + len(self.receives) + ends

    def readers(self) -> dict[int, int]:
        """By tensor, how many of the device's tasks for a frame read it."""
        read = [{rows.tensor for rows in c.reads} for c in self.computations.values()]
        read += [{rows.tensor for rows in sent} for sent in self.sends.values()]
        read.append({rows.tensor for rows in self.results})
        counts: dict[int, int] = {}
        for tensors in read:
            for tensor in tensors:
                counts[tensor] = counts.get(tensor, 0) + 1
        return counts
