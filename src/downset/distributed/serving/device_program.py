"""The part of a plan that one device needs, and the rows that it holds meanwhile.

The program names the device's shards, what it sends and receives, and how tensors are cut. A device never gets the
plan, the cluster or the model. Shards are named by the hash of their content.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import InvalidPlan
from downset.results.pipelines import Rows

__all__ = ["Computation", "DeviceProgram", "DeviceStep", "RowStore", "TensorForm"]

Array = npt.NDArray[Any]


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
class DeviceStep:
    """One of a device's tasks, as the device knows it. `after`: its own tasks that give it what this one reads.
    `order`: (rounds behind, position) in the plan's cyclic order: tasks come by (frame + rounds behind, position).
    `written`: the device's buffers that it fills; `used`: those that it fills or reads. `peer`: the device to which it
    sends, or from which it receives. `credit`: of a task that sends, the slots of the buffer at the peer; None: as many
    as there are frames inside."""

    after: tuple[int, ...] = ()
    order: tuple[int, int] = (0, 0)
    written: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    peer: str = ""
    credit: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """The tasks of one device by their numbers in the plan. `enters`: rows of the network's inputs that frames bring;
    `results`: the network's outputs that stay here; both are empty on most devices. `forms`: by tensor. `steps`: by
    task. `slots`: by buffer of this device. `starts`: whether the driver tells the device of each frame, because it is
    the entry or has tasks that wait for nothing."""

    device: str
    forms: Mapping[int, TensorForm]
    computations: Mapping[int, Computation]
    sends: Mapping[int, tuple[Rows, ...]] = field(default_factory=dict)
    receives: Mapping[int, tuple[Rows, ...]] = field(default_factory=dict)
    enters: tuple[Rows, ...] = ()
    results: tuple[Rows, ...] = ()
    steps: Mapping[int, DeviceStep] = field(default_factory=dict)
    slots: Mapping[int, int] = field(default_factory=dict)
    starts: bool = False

    def shards(self) -> tuple[str, ...]:
        """The shards that the device needs, each once."""
        return tuple(dict.fromkeys(c.shard for c in self.computations.values() if c.shard))

    def tasks(self) -> int:
        """The number of the device's tasks for a frame, with its entry and its result."""
        ends = self.starts + bool(self.results)
        return len(self.computations) + len(self.sends) + len(self.receives) + ends

    def nbytes(self, rows: Rows) -> int:
        """The bytes of rows of a tensor."""
        form = self.forms[rows.tensor]
        return math.prod(_shape(form, rows)) * np.dtype(form.dtype).itemsize

    def room(self, rows: Rows) -> Array:
        """A new array for rows of a tensor, of their shape and type."""
        form = self.forms[rows.tensor]
        return np.empty(_shape(form, rows), form.dtype)

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


_Span = tuple[int, int]


class RowStore:
    """The rows of one frame. `readers`: by tensor, how many tasks will read it (`DeviceProgram.readers`); a tensor
    without readers is not kept."""

    def __init__(self, forms: Mapping[int, TensorForm], readers: Mapping[int, int]) -> None:
        self._forms = forms
        self._left = dict(readers)
        self._arrays: dict[int, list[tuple[Rows, Array]]] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays held; rows in several arrays count in each."""
        return sum(array.nbytes for arrays_of in self._arrays.values() for _, array in arrays_of)

    def put(self, rows: Rows, array: Array) -> None:
        """Hold rows of a tensor, given as an array of their shape and type, which is not copied. Raises InvalidPlan for
        another shape or type."""
        form = self._forms[rows.tensor]
        expected = _shape(form, rows)
        if array.shape != expected or str(array.dtype) != form.dtype:
            raise InvalidPlan(
                f"{form.name!r}, rows {rows.start} to {rows.stop}: expected {form.dtype} {list(expected)}, got "
                f"{array.dtype} {list(array.shape)}"
            )
        if self._left.get(rows.tensor, 0) > 0:
            self._arrays.setdefault(rows.tensor, []).append((rows, array))

    def rows(self, wanted: Rows) -> Array:
        """These rows as a contiguous array. Raises InvalidPlan if some are not held."""
        form = self._forms[wanted.tensor]
        arrays_of = self._arrays.get(wanted.tensor, ())
        for rows, array in arrays_of:
            if _within(wanted, rows, form):
                return np.ascontiguousarray(array[_cut(form, rows, wanted)])
        joined = np.empty(_shape(form, wanted), form.dtype)
        covered = np.zeros(_extents(form, wanted), bool)
        for rows, array in arrays_of:
            common = _common(wanted, rows, form)
            if common is not None:
                joined[_cut(form, wanted, common)] = array[_cut(form, rows, common)]
                covered[_place(form, wanted, common)] = True
        if not covered.all():
            raise InvalidPlan(f"{form.name!r}: the plan brings only a part of rows {wanted.start} to {wanted.stop}")
        return joined

    def read(self, tensors: Iterable[int]) -> None:
        """Note that one task is done with these tensors; a tensor that was read for the last time is dropped."""
        for tensor in tensors:
            self._left[tensor] -= 1
            if not self._left[tensor]:
                self._arrays.pop(tensor, None)


def _columns(form: TensorForm, rows: Rows) -> _Span:
    if form.columns_axis is None:
        return 0, 1
    return rows.columns if rows.columns is not None else (0, form.shape[form.columns_axis])


def _extents(form: TensorForm, rows: Rows) -> tuple[int, int]:
    low, high = _columns(form, rows)
    return rows.stop - rows.start, high - low


def _shape(form: TensorForm, rows: Rows) -> tuple[int, ...]:
    shape = list(form.shape)
    if form.rows_axis is not None:
        shape[form.rows_axis] = rows.stop - rows.start
    if form.columns_axis is not None:
        low, high = _columns(form, rows)
        shape[form.columns_axis] = high - low
    return tuple(shape)


def _within(inner: Rows, outer: Rows, form: TensorForm) -> bool:
    one, two = _columns(form, inner), _columns(form, outer)
    return outer.start <= inner.start and inner.stop <= outer.stop and two[0] <= one[0] and one[1] <= two[1]


def _common(one: Rows, two: Rows, form: TensorForm) -> Rows | None:
    start, stop = max(one.start, two.start), min(one.stop, two.stop)
    sides = _columns(form, one), _columns(form, two)
    low, high = max(sides[0][0], sides[1][0]), min(sides[0][1], sides[1][1])
    return Rows(one.tensor, start, stop, (low, high)) if start < stop and low < high else None


def _cut(form: TensorForm, outer: Rows, inner: Rows) -> tuple[slice, ...]:
    """The slices of `inner` in an array that holds `outer`."""
    place = [slice(None)] * len(form.shape)
    if form.rows_axis is not None:
        place[form.rows_axis] = slice(inner.start - outer.start, inner.stop - outer.start)
    if form.columns_axis is not None:
        low, (first, last) = _columns(form, outer)[0], _columns(form, inner)
        place[form.columns_axis] = slice(first - low, last - low)
    return tuple(place)


def _place(form: TensorForm, outer: Rows, inner: Rows) -> tuple[slice, slice]:
    low, (first, last) = _columns(form, outer)[0], _columns(form, inner)
    return slice(inner.start - outer.start, inner.stop - outer.start), slice(first - low, last - low)
