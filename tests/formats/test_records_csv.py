"""Records as CSV: what minimalloc reads and writes, and every way a file can be wrong, by line and column."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.errors import LoadError, UnsupportedError
from downset.formats.records_csv import read_records, records_from_csv, records_to_csv
from downset.memory.records import Record
from tests.effort import cases
from tests.strategies import record_sets


def test_columns_in_any_order_and_all_of_them():
    text = "\nsize,hint,id,alignment,lower,upper,gaps,offset\n 4 ,7,b1,8,3,9,4-5 6-8,16\n\n2,,b2,,-5,+1000000000,,\r\n"
    assert records_from_csv(text) == (
        Record("b1", 3, 9, 4, 8, 16, ((4, 5), (6, 8)), 7),
        Record("b2", -5, 10**9, 2),
    )


@pytest.mark.parametrize("names", ["id,lower,upper,size", "buffer,start,upper,size", "buffer_id,begin,upper,size"])
def test_other_names_of_the_same_columns(names):
    assert records_from_csv(f"{names}\na,0,3,7\n") == (Record("a", 0, 3, 7),)


def test_an_end_is_inclusive_and_so_are_its_gaps():
    assert records_from_csv("id,start,end,size,gaps\na,0,8,7,2-3\n") == (Record("a", 0, 9, 7, gaps=((2, 4),)),)


def test_a_byte_order_mark_and_quotes_are_no_trouble(tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes('\ufeffid,lower,upper,size\r\n"a, ""b""",0,1,2\r\n'.encode())
    assert read_records(path) == (Record('a, "b"', 0, 1, 2),)


@settings(max_examples=cases(100), deadline=None)
@given(records=record_sets(most=8), hints=st.lists(st.none() | st.integers(-3, 99), min_size=8, max_size=8))
def test_what_is_written_reads_back_the_same(records, hints):
    records = [
        Record(r.id, r.start, r.stop, r.nbytes, r.alignment, r.offset, r.gaps, hint)
        for r, hint in zip(records, hints, strict=False)
    ]
    assert records_from_csv(records_to_csv(records)) == tuple(records)


def test_a_plan_is_written_as_minimalloc_writes_it():
    records = [Record("a", 0, 3, 7), Record("b", 1, 4, 2)]
    assert records_to_csv(records, offsets=[0, 7]) == "id,lower,upper,size,offset\na,0,3,7,0\nb,1,4,2,7\n"
    pinned = records_from_csv(records_to_csv(records, offsets=[0, 7]))
    assert [record.offset for record in pinned] == [0, 7]
    assert records_to_csv(records, object_of=[0, 1]) == "id,lower,upper,size,object\na,0,3,7,0\nb,1,4,2,1\n"
    assert records_from_csv(records_to_csv(records, object_of=[0, 1])) == tuple(records)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "r.csv is empty"),
        ("\n\n", "r.csv is empty"),
        ("id,lower,upper\na,0,1\n", "r.csv:1: no column 'size'"),
        ("\nid,lower,upper,siez\n", "r.csv:2: unknown column 'siez'"),
        ("id,lower,start,upper,size\n", "r.csv:1: two columns give the lower"),
        ("id,lower,upper,size\na,0,1\n", "r.csv:2: 3 cells in a row of 4"),
        ("id,lower,upper,size\na,0,1,4\nb,0,x,4\n", "r.csv:3: column upper: 'x' is not a whole number"),
        ("id,lower,upper,size\na,0,1,\n", "r.csv:2: column size: '' is not a whole number"),
        ("id,lower,upper,size\na,0,1,4.5\n", "r.csv:2: column size: '4.5'"),
        ("id,lower,upper,size\na,0,1,1_000\n", "r.csv:2: column size: '1_000'"),
        ("id,lower,upper,size\na,0,1,٣\n", "r.csv:2: column size: '٣'"),
        ("id,lower,upper,size\na,0,1,9999999999999999999\n", "at most 18 digits"),
        ("id,lower,upper,size\na,0,1,0\n", "r.csv:2: column size: the size 0 of 'a' is not positive"),
        ("id,lower,upper,size\n\na,0,1,-4\n", "r.csv:3: column size: the size -4"),
        ("id,lower,upper,size\na,3,3,1\n", "r.csv:2: column upper: the lifetime [3, 3) of 'a' is empty or reversed"),
        ("id,lower,upper,size\na,4,3,1\n", "r.csv:2: column upper: the lifetime [4, 3)"),
        ("id,lower,upper,size\na,0,1,4\nb,0,1,4\na,5,6,4\n", "r.csv:4: column id: id 'a' is taken by line 2"),
        ("id,lower,upper,size,alignment\na,0,1,4,0\n", "r.csv:2: column alignment: the alignment 0"),
        ("id,lower,upper,size,alignment,offset\na,0,1,4,8,12\n", "r.csv:2: column offset: 'a' is pinned at 12, not at"),
        ("id,lower,upper,size,offset\na,0,1,4,-8\n", "r.csv:2: column offset: 'a' is pinned at -8"),
        ("id,lower,upper,size,offset\na,0,9,4,0\nb,8,9,4,2\n", "r.csv:3: column offset: 'b' is pinned over 'a'"),
        ("id,lower,upper,size,gaps\na,0,9,4,3\n", "r.csv:2: column gaps: '3' is not a pair"),
        ("id,lower,upper,size,gaps\na,0,9,4,5-4\n", "r.csv:2: column gaps: the gap [5, 4) of 'a' is not inside"),
        ("id,lower,upper,size,gaps\na,0,9,4,0-9\n", "r.csv:2: column gaps: the gaps of 'a' leave nothing"),
        ('id,lower,upper,size\na,"0,1,4\n', "r.csv:2: "),
        ("id,lower,upper,size\n" + "a" * 140_000 + ",0,1,4\n", "r.csv:2: field larger"),
        ("id,lower,upper,size\na,0,1,4\x00\n", "r.csv:2: column size"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_column(text, says):
    with pytest.raises(LoadError) as caught:
        records_from_csv(text, name="r.csv")
    assert says in str(caught.value)


def test_a_gap_in_part_of_a_record_is_refused_not_misread():
    with pytest.raises(UnsupportedError, match=r"r\.csv:2: column gaps: '2-4@0:8'"):
        records_from_csv("id,lower,upper,size,gaps\na,0,9,16,2-4@0:8\n", name="r.csv")


def test_files_that_are_no_text_or_not_there(tmp_path):
    path = tmp_path / "r.csv"
    with pytest.raises(LoadError, match=r"cannot read .*No such file"):
        read_records(path)
    with pytest.raises(LoadError, match="cannot read"):
        read_records(tmp_path)
    path.write_bytes(b"\x80\x81\xff")
    with pytest.raises(LoadError, match="is not text"):
        read_records(path)


@settings(max_examples=cases(200), deadline=None)
@given(
    cells=st.lists(
        st.lists(
            st.sampled_from(["", "a", "0", "1", "-1", "7", "3-4", "1e3", '"', " 2 ", "\x00", "10" * 12]), max_size=6
        ),
        max_size=5,
    ),
    header=st.lists(st.sampled_from(["id", "lower", "upper", "end", "size", "gaps", "offset", "x", ""]), max_size=6),
)
def test_any_table_is_read_or_refused_in_one_line(cells, header):
    text = io.StringIO()
    csv.writer(text).writerows([header, *cells])
    try:
        records = records_from_csv(text.getvalue())
    except (LoadError, UnsupportedError) as error:
        assert "\n" not in str(error)
        return
    assert all(record.start < record.stop and record.nbytes > 0 for record in records)


@pytest.mark.parametrize(("mark", "called"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_told_apart_from_unknown_columns(mark, called):
    with pytest.raises(LoadError, match=rf"records:1: the header has {called} .* CSV with commas: id,lower,upper,size"):
        records_from_csv(mark.join(("id", "lower", "upper", "size")) + "\n")
    with pytest.raises(LoadError, match="unknown column 'bytes'"):
        records_from_csv("id,lower,upper,bytes\n")
