"""Every field of every message of ONNX's schema, as the installed version defines it, counts in the proof.

Changing a field breaks the proof, or the field stands in the one list of fields without meaning. For those, ONNX
Runtime computes the same from files that differ in them alone. The schema is walked: a new field of it fails this.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from downset.equivalence.onnx_form import WITHOUT_MEANING
from downset.equivalence.prove import prove
from downset.errors import LoadError
from tests.effort import LONG
from tests.equivalence.onnx_carriers import at, carriers, changes, fill, info, messages, model, places

MESSAGES = messages()
ROOT = "onnx.ModelProto"


def saved(made, path):
    path.write_bytes(made.SerializeToString())
    return path


def proven(one, other):
    """No proof is also what a file has that cannot be read."""
    try:
        return prove(one, other).proven
    except LoadError:
        return False


def paths_to(name):
    """A path of fields from the root to the message, as short as possible."""
    waiting, seen = [(ROOT, ())], {ROOT}
    for kind, path in waiting:
        if kind == name:
            return path
        for field in MESSAGES[kind].fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                waiting.append((inner.full_name, (*path, field)))
    raise AssertionError(name)


def with_message(base, name):
    """A file to which this message is added, where no carrier has it."""
    made = type(base)()
    made.CopyFrom(base)
    held = made
    for field in paths_to(name):
        value = getattr(held, field.name)
        held = value if not field.is_repeated else value[0] if len(value) and field.name == "node" else value.add()
    fill(held, 1)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(folder, files that are proven the same as themselves, in which every message of the schema stands)."""
    folder = tmp_path_factory.mktemp("schema")
    made = carriers(folder)
    plain = model([helper.make_node("Relu", ["x"], ["y"])])
    there = {message.DESCRIPTOR.full_name for one in made for _, message in places(one)}
    made += [with_message(plain, name) for name in MESSAGES if name not in there]
    for number, one in enumerate(made):
        path = saved(one, folder / "self.onnx")
        assert proven(path, path), f"carrier {number} is not proven the same as itself"
    return folder, made


def chosen(made, name):
    """(file, path) of messages of this name; without LONG, of those that stand in the same field and have the same
    fields set, only the first."""
    seen = set()
    for one in made:
        for place, message in places(one):
            alike = (tuple(field for field, _ in place), tuple(field.name for field, _ in message.ListFields()))
            if message.DESCRIPTOR.full_name == name and (LONG or alike not in seen):
                seen.add(alike)
                yield one, place


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_counts_or_is_listed(files, name):
    folder, made = files
    seen = dict.fromkeys((field.name for field in MESSAGES[name].fields), False)
    survivors = set()
    for one, place in chosen(made, name):
        path = saved(one, folder / "one.onnx")
        for field in MESSAGES[name].fields:
            for change in changes(one, place, field):
                seen[field.name] = True
                try:
                    other = saved(change.model, folder / "other.onnx")
                except ValueError:  # not a file
                    continue
                listed = (MESSAGES[name].name, field.name) in WITHOUT_MEANING or without_meaning_around(place)
                if not listed and (proven(path, other) or (LONG and proven(other, path))):
                    survivors.add(change.what)
    assert not survivors
    assert all(seen.values()), f"no file here has {seen}"


def without_meaning_around(place):
    """Whether a message lies in a field without meaning."""
    return any(name == "metadata_props" for name, _ in place)


def runs(path, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options)
    return session.run(None, {"x": np.float32([-2, -1, 1, 2])})[0].tobytes()


def listed_places(made):
    """The messages of a file that every runtime reads, by the field of the list that they have."""
    for message, field in WITHOUT_MEANING:
        for place, held in places(made):
            if held.DESCRIPTOR.name == message:
                yield message, field, place


def test_fields_without_meaning_change_no_result(tmp_path):
    """Two files that differ in such a field alone are proven the same, and ONNX Runtime computes the same from both."""
    body = [helper.make_node("Mul", ["p", "p"], ["s"]), helper.make_node("LeakyRelu", ["s"], ["r"], alpha=0.5)]
    function = helper.make_function("my", "F", ["p"], ["r"], body, [helper.make_opsetid("", 17)])
    weight = helper.make_tensor("w", 1, [4], [1, 2, 3, 4])
    nodes = [helper.make_node("F", ["x"], ["m"], domain="my"), helper.make_node("Add", ["m", "w"], ["y"])]
    made = model(nodes, [weight], functions=[function], value_info=[info("m")])
    one, shown = saved(made, tmp_path / "one.onnx"), set()
    levels = (onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    expected = [runs(one, level) for level in levels]
    for message, field, place in listed_places(made):
        described = at(made, place).DESCRIPTOR.fields_by_name[field]
        for change in changes(made, place, described):
            other = saved(change.model, tmp_path / "other.onnx")
            assert prove(one, other).proven and prove(other, one).proven, change.what
            assert [runs(other, level) for level in levels] == expected, change.what
            shown.add((message, field))
    assert shown == set(WITHOUT_MEANING)
    assert all(reason for reason in WITHOUT_MEANING.values())


UNKNOWN = bytes([0xF8, 0xFF, 0x3F, 0x01])
"""Field 131071, an integer: no version of the schema has it."""


def test_unknown_fields_count_in_every_message(files):
    """A later version of ONNX may mean something by a field that the installed one does not know."""
    folder, made = files
    unseen = set(MESSAGES)
    for one in made:
        path = saved(one, folder / "one.onnx")
        for place, message in places(one):
            name = message.DESCRIPTOR.full_name
            if name in unseen and not without_meaning_around(place):
                changed = type(one)()
                changed.CopyFrom(one)
                at(changed, place).MergeFromString(UNKNOWN)
                other = saved(changed, folder / "other.onnx")
                assert not proven(path, other) and not proven(other, path), name
                unseen.discard(name)
    assert unseen == set()


def test_the_list_names_fields_of_the_schema():
    fields = {(kind.name, field.name) for kind in MESSAGES.values() for field in kind.fields}
    assert set(WITHOUT_MEANING) <= fields and onnx.__version__
