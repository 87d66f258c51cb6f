"""A law over the schema of `.tflite` files: a change of any field of any table breaks the proof, or the field stands in
one list of fields without meaning, each with its reason and two files that differ in it alone and that the runtimes
execute alike. The schema is walked as it is installed."""

import pytest

from downset.equivalence.prove import prove
from downset.errors import LoadError
from tests.equivalence.tflite_tables import TABLES, bases, changes, save, tables

WITHOUT_MEANING = {
    ("Tensor", "name"): "callers know tensors by place or by signature",
    ("SubGraph", "name"): "operators call a subgraph by its number",
    ("SubGraph", "debugMetadataIndex"): "where the subgraph comes from",
    ("Operator", "debugMetadataIndex"): "where the operator comes from",
    ("QuantizationParameters", "min"): "the range that training saw",
    ("QuantizationParameters", "max"): "the range that training saw",
    ("Model", "description"): "a text about the file",
    ("Model", "metadataBuffer"): "deprecated, read by no runtime",
}


def proven(one, other):
    try:
        return prove(one, other).proven
    except LoadError:
        return False


def test_every_table_of_the_schema_is_reached():
    reached = {type(entry).__name__[:-1] for model in bases() for entry in tables(model)}
    assert reached == set(TABLES)
    assert {table for table, _ in WITHOUT_MEANING} <= reached


def test_every_file_of_the_law_is_the_same_as_itself(tmp_path):
    for at, model in enumerate(bases()):
        path = save(model, tmp_path / f"{at}.tflite")
        assert prove(path, path).proven, at


def test_a_change_of_any_field_breaks_the_proof_or_has_no_meaning(tmp_path):
    tried, missed = set(), []
    for change in changes():
        one, other = save(change.before, tmp_path / "one.tflite"), save(change.after, tmp_path / "other.tflite")
        assert one.read_bytes() != other.read_bytes(), change
        key = (change.table, change.field)
        tried.add(key)
        if proven(one, other) != (key in WITHOUT_MEANING):
            missed.append((*key, change.what))
    print(len(tried), missed)
    assert missed == []
    every = {(name, key) for name, table in TABLES.items() for key in vars(table())}
    assert every == tried
