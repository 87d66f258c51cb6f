"""The ExecuTorch algorithm on specs that have what its docstring lists, and nothing more: no ExecuTorch needed."""

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.errors import UnsupportedError, UsageError
from downset.integrations.executorch import algorithm
from downset.memory.records import Record
from tests.effort import cases
from tests.executorch_specs import load_programs
from tests.oracles_arena import least_height


@dataclass(eq=False)
class Spec:
    nbytes: int
    lifetime: list
    mem_id: int | None = None
    storage_base: "Spec | None" = None
    storage_base_offset: int = 0
    mem_offset: int | None = None
    mem_obj_id: int | None = None
    unit: int = 1

    @property
    def allocated_memory(self):
        return -(-self.nbytes // self.unit) * self.unit

    def realign(self, new_alignment):
        self.unit = new_alignment
        return self.allocated_memory

    @property
    def inplace_base(self):
        """As in ExecuTorch 1.5."""
        assert self.storage_base_offset == 0, "only of a tensor that lies at the start of another"
        return self.storage_base


class OlderSpec(SimpleNamespace):
    """As in ExecuTorch 1.4: whole tensors take over from others, there are no offsets."""

    unit = 1
    allocated_memory = Spec.allocated_memory
    realign = Spec.realign


def live_together(one, other):
    return one.lifetime[0] <= other.lifetime[1] and other.lifetime[0] <= one.lifetime[1]


@st.composite
def specs(draw):
    made = []
    for _ in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, 6))
        spec = Spec(draw(st.sampled_from([0, 1, 4, 6, 8, 16])), [first, first + draw(st.integers(0, 4))])
        spec.mem_id = draw(st.sampled_from([None, None, None, 1, 3]))
        if made and draw(st.integers(0, 3)) == 0:
            base = draw(st.sampled_from(made))
            inside = draw(st.sampled_from([0, 0, 16, 32])) if base.nbytes else 0
            spec = Spec(base.nbytes, [base.lifetime[1], base.lifetime[1] + 2], None, base, inside)
        made.append(spec)
    return draw(st.permutations(made))


def root(spec):
    return spec if spec.storage_base is None else root(spec.storage_base)


def inside(spec):
    return 0 if spec.storage_base is None else spec.storage_base_offset + inside(spec.storage_base)


@settings(max_examples=cases(150), deadline=None)
@given(made=specs(), unit=st.sampled_from([1, 4, 16]), reserved=st.sampled_from([None, [], [0, 24], [0, 0, 5]]))
def test_every_memory_is_a_least_arena_above_what_is_reserved(made, unit, reserved):
    module = SimpleNamespace() if reserved is None else SimpleNamespace(input_mem_buffer_sizes=reserved)
    nbytes = algorithm(time_limit_s=1.0)(unit, made, module, None)
    below = [*(reserved or []), 0, 0, 0, 0]
    for spec in made:
        assert spec.mem_offset % unit == 0
        assert below[spec.mem_id] <= spec.mem_offset
        assert spec.mem_offset + spec.allocated_memory <= nbytes[spec.mem_id]
        assert (spec.mem_id, spec.mem_offset) == (root(spec).mem_id, root(spec).mem_offset + inside(spec))
    for one, other in combinations(made, 2):
        if one.mem_id == other.mem_id and root(one) is not root(other) and live_together(one, other):
            apart = one.mem_offset + one.allocated_memory <= other.mem_offset
            assert (
                apart
                or other.mem_offset + other.allocated_memory <= one.mem_offset
                or not min(one.nbytes, other.nbytes)
            )
    for memory in range(1, len(nbytes)):
        groups = {}
        for spec in made:
            if spec.mem_id == memory and spec.nbytes:
                groups.setdefault(id(root(spec)), []).append(spec)
        records = [
            Record(
                "r",
                min(s.lifetime[0] for s in group),
                max(s.lifetime[1] for s in group) + 1,
                -(-max(inside(s) + s.allocated_memory for s in group) // unit) * unit,
                unit,
            )
            for group in groups.values()
        ]
        here = any(spec.mem_id == memory for spec in made)
        floor = -(-below[memory] // unit) * unit if here else below[memory]
        assert nbytes[memory] == floor + least_height(records)
    assert nbytes[0] == 0
    assert len(nbytes) >= 2


def replayed(call):
    """Bytes of each memory, once the recorded specs are planned by us; the placement is checked."""
    made = [Spec(nbytes, lifetime, memory) for nbytes, lifetime, memory, _ in call["specs"]]
    for spec, (*_, base) in zip(made, call["specs"], strict=True):
        spec.storage_base = None if base is None else made[base]
    found = algorithm()(call["alignment"], made, SimpleNamespace(input_mem_buffer_sizes=call["reserved"]), None)
    for one, other in combinations([spec for spec in made if spec.nbytes], 2):
        if one.mem_id == other.mem_id and root(one) is not root(other) and live_together(one, other):
            first, second = sorted((one, other), key=lambda spec: spec.mem_offset)
            assert first.mem_offset + first.nbytes <= second.mem_offset
    for spec in made:
        assert sum(call["reserved"][spec.mem_id : spec.mem_id + 1]) <= spec.mem_offset
    return found


def test_recorded_programs_take_what_is_claimed_and_never_more_than_executorchs_planner():
    """The last call of a program plans its main graph: those bytes are the program's."""
    claimed = Path(__file__).resolve().parents[2] / "experiments" / "results" / "arenas_executorch.json"
    claims = json.loads(claimed.read_text())
    programs = load_programs()
    assert len({row["network"] for row in claims} & set(programs)) == 4
    for name, calls in programs.items():
        found = [sum(replayed(call)) for call in calls]
        theirs = [sum(call["greedy_bytes"]) for call in calls]
        assert all(one <= other for one, other in zip(found, theirs, strict=True))
        for row in (row for row in claims if row["network"] == name):
            assert (found[-1], theirs[-1]) == (row["offsets_bytes"], row["executorch_bytes"])
            assert row["ours_bytes"] <= found[-1]


def test_padding_is_behind_every_memory_in_use():
    one, other = Spec(8, [0, 1]), Spec(8, [0, 1], mem_id=2)
    assert algorithm()(16, {one: None, other: None}, None, None, 64) == [0, 80, 80]
    assert algorithm()(16, [], None, None, 64) == [0, 0]


def test_tensors_in_place_of_others_are_planned_as_the_older_executorch_states_them():
    first = OlderSpec(nbytes=8, lifetime=[0, 1], mem_id=None, inplace_base=None)
    second = OlderSpec(nbytes=8, lifetime=[1, 2], mem_id=None, inplace_base=first)
    assert algorithm()(16, [first, second], None, None) == [0, 16]
    assert (second.mem_id, second.mem_offset) == (first.mem_id, first.mem_offset)


def test_what_cannot_be_planned_is_named():
    with pytest.raises(UnsupportedError, match="has no lifetime"):
        algorithm()(16, [Spec(8, [None, None])], None, None)
    outside = Spec(8, [0, 1])
    with pytest.raises(UnsupportedError, match="not planned in the same memory"):
        algorithm()(16, [Spec(8, [0, 1], storage_base=outside)], None, None)
    one, other = Spec(8, [0, 1]), Spec(8, [0, 1])
    one.storage_base, other.storage_base = other, one
    with pytest.raises(UnsupportedError, match="in place of itself"):
        algorithm()(16, [one, other], None, None)
    with pytest.raises(UsageError, match="alignment"):
        algorithm()(0, [], None, None)
    with pytest.raises(UnsupportedError, match="against the alignment"):
        algorithm()(16, [one := Spec(32, [0, 1]), Spec(8, [0, 1], storage_base=one, storage_base_offset=8)], None, None)
    with pytest.raises(UsageError, match="choose one of"):
        algorithm(method="magic")(16, [Spec(8, [0, 1])], None, None)
