"""`downset arena`, as a person with a file of records meets it: figures, files, exit codes, one line for a mistake."""

import json
import math
from pathlib import Path

import jsonschema
import pytest

from downset.arenas.check_records import check_objects, check_placement
from downset.arenas.plan import plan_arena
from downset.formats.records_csv import read_records

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "arena.json").read_text())
NETWORK = Path(__file__).resolve().parents[1] / "golden" / "records" / "deeplabv3_257_mv_gpu.csv"
# Every strategy needs 12 bytes at least; 11 live at once, and a search finds a placement in 11.
TIGHT = """\
id,lower,upper,size
a,2,6,4
b,0,2,7
c,2,3,3
d,5,6,2
e,7,11,4
f,6,8,3
g,3,4,5
h,0,5,2
i,8,12,2
j,5,7,1
k,4,8,7
l,6,7,5
m,1,4,4
"""
"""`best` needs 17 bytes, and 16 suffice."""


@pytest.fixture
def arena(run):
    return lambda *arguments: run("arena", *arguments)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "records.csv"
        path.write_text(text)
        return path

    return write


def test_json_keeps_its_schema_and_says_what_the_paper_says(arena):
    status, out, err = arena(NETWORK, "--method", "greedy_by_size", "--ties", "paper", "--json")
    result = json.loads(out)
    jsonschema.validate(result, SCHEMA)
    assert (status, err) == (0, "")
    keys = [
        "method",
        "states",
        "arena_bytes",
        "bound_bytes",
        "proven",
        "seconds",
        "stopped_by",
        "offsets",
        "next_steps",
    ]
    assert list(result)[4:] == keys
    assert result["method"] == "greedy_by_size"
    assert round(result["arena_bytes"] / 2**20, 3) == 4.653
    assert round(result["bound_bytes"] / 2**20, 3) == 4.320
    assert not result["proven"]


def test_json_tells_how_many_placements_were_tried(arena, file):
    path = file(TIGHT)
    searched = plan_arena(read_records(path), method="exact", time_limit_s=math.inf, work_limit=5)
    told = json.loads(arena(path, "--method", "exact", "--work-limit", "5", "--json")[1])
    assert told["states"] == searched.evidence.states > 0


def test_the_default_meets_the_bound_with_proof(arena):
    result = json.loads(arena(NETWORK, "--json")[1])
    assert result["proven"]
    assert result["arena_bytes"] == result["bound_bytes"]
    objects = json.loads(arena(NETWORK, "--form", "objects", "--json")[1])
    assert objects["proven"]
    assert round(objects["arena_bytes"] / 2**20, 4) == 6.4369


def test_written_offsets_are_a_placement_of_the_arena(arena, tmp_path):
    out = tmp_path / "out.csv"
    result = json.loads(arena(NETWORK, "-o", out, "--align", "256", "--method", "strip_packing", "--json")[1])
    records, placed = read_records(NETWORK), read_records(out)
    offsets = [record.offset for record in placed]
    assert [(r.id, r.start, r.stop, r.nbytes) for r in placed] == [(r.id, r.start, r.stop, r.nbytes) for r in records]
    assert all(at % 256 == 0 for at in offsets)
    check_placement(records, offsets)
    assert max(at + r.nbytes for at, r in zip(offsets, records, strict=True)) == result["arena_bytes"]
    again = json.loads(arena(out, "--json")[1])  # its offsets are pins now
    assert again["arena_bytes"] == result["arena_bytes"]


def test_written_objects_are_an_assignment_of_the_total(arena, tmp_path):
    out = tmp_path / "out.csv"
    result = json.loads(arena(NETWORK, "-o", out, "--form", "objects", "--json")[1])
    records = read_records(NETWORK)
    lines = out.read_text().splitlines()
    assert lines[0] == "id,lower,upper,size,object"
    held = [int(line.rsplit(",", 1)[1]) for line in lines[1:]]
    check_objects(records, held)
    largest = {}
    for record, object_number in zip(records, held, strict=True):
        largest[object_number] = max(largest.get(object_number, 0), record.nbytes)
    assert sum(largest.values()) == result["arena_bytes"]


@pytest.mark.parametrize("form", ["offsets", "objects"])
def test_json_has_the_place_of_every_record(arena, tmp_path, form):
    """The same places as in the written file, by the records' ids and in their order."""
    out = tmp_path / "out.csv"
    result = json.loads(arena(NETWORK, "-o", out, "--form", form, "--json")[1])
    jsonschema.validate(result, SCHEMA)
    records, column = read_records(NETWORK), form.removesuffix("s")
    written = [int(line.rsplit(",", 1)[1]) for line in out.read_text().splitlines()[1:]]
    assert [one["id"] for one in result[form]] == [record.id for record in records]
    assert [one[column] for one in result[form]] == written
    if form == "offsets":
        check_placement(records, written)
        assert "objects" not in result
    else:
        assert sum(result["object_bytes"]) == result["arena_bytes"] and "offsets" not in result
        assert all(record.nbytes <= result["object_bytes"][held] for record, held in zip(records, written, strict=True))


def test_alignments_pins_gaps_and_hints_come_back(arena, file, tmp_path):
    out = tmp_path / "out.csv"
    text = "id,lower,upper,size,alignment,gaps,hint,offset\na,0,9,4,4,3-5,1,8\nb,3,5,4,4,,,\nc,0,9,6,2,,,\n"
    result = json.loads(arena(file(text), "-o", out, "--json")[1])
    header, first, second, third = out.read_text().splitlines()
    assert header == "id,lower,upper,size,alignment,gaps,hint,offset"
    assert first == "a,0,9,4,4,3-5,1,8"
    assert third.endswith(",0")  # 6 bytes below the pin
    assert int(second.rsplit(",", 1)[1]) == 8  # in the gap of the pinned one
    assert result["arena_bytes"] == result["bound_bytes"] == 12


def test_the_screen_says_what_is_free(arena):
    status, out, err = arena(NETWORK, "--capacity", "5MB")
    assert (status, err) == (0, "")
    assert out.startswith(f"Fits 5 MB: 4,530,240 B taken, {5 * 2**20 - 4_530_240:,} B free\n")
    assert "\x1b" not in out


def test_steps_of_any_length_are_planned_at_once(arena, file):
    far = 10**9
    text = f"id,lower,upper,size\na,0,{far},5\nb,{far - 1},{2 * far},6\nc,{far},{far + 1},7\n"
    for form, nbytes in (("offsets", 13), ("objects", 13)):
        result = json.loads(arena(file(text), "--form", form, "--json")[1])
        assert (result["arena_bytes"], result["proven"]) == (nbytes, True)


def test_no_records_need_nothing(arena, file):
    for form in ("offsets", "objects"):
        result = json.loads(arena(file("id,lower,upper,size\n"), "--form", form, "--json")[1])
        assert (result["arena_bytes"], result["proven"]) == (0, True)


def test_a_capacity_is_met_by_search_where_heuristics_miss_it(arena, file):
    path = file(TIGHT)
    assert plan_arena(read_records(path), method="best").arena_bytes == 17
    for method in ("best", "naive", "exact"):
        found = json.loads(arena(path, "--capacity", 16, "--method", method, "--json")[1])
        assert found["arena_bytes"] == found["bound_bytes"] == 16
    assert json.loads(arena(path, "--json")[1])["arena_bytes"] == 16


def test_a_capacity_below_the_bound_is_exit_3_and_names_where_it_binds(arena, fails, file, tmp_path):
    path, out = file("id,lower,upper,size\na,0,5,10\nb,3,6,20\nc,5,9,4\n"), tmp_path / "out.csv"
    binds = "30 bytes are live at step 3 (2 records, the largest 'b', 'a')"
    fails(3, "arena", path, "--capacity", "29", says=binds)
    fails(3, "arena", path, "--capacity", "29", "-o", "-", says=binds)
    fails(3, "arena", path, "--capacity", "29", "--form", "objects", says="shared objects take at least 30 bytes")
    status, said, err = arena(path, "--capacity", "29", "-o", out)
    assert (status, said, out.exists()) == (3, "", False)
    first, second = err.splitlines()
    assert binds in first and second == f"not written: {out} (nothing is known to fit)"
    fails(3, "arena", file("id,lower,upper,size,offset\np,0,1,4,60\n"), "--capacity", "63", says="'p' ends at 64")


THREE = "id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n"


def test_the_least_that_an_error_names_counts_the_alignment(arena, fails, file):
    path = file(THREE)
    fails(3, "arena", path, "--capacity", "100", says="no placement fits into 100; it takes 150 at least")
    fails(3, "arena", path, "--capacity", "100", "--align", "64", says="with the alignments it takes 164 at least")
    pinned = file(THREE.replace("size", "size,offset").replace("00\n", "00,\n").replace("50\n", "50,101\n"))
    fails(3, "arena", pinned, "--capacity", "140", says="ends at 151, above the capacity of 140; a placement takes 151")
    found = json.loads(arena(file(THREE), "--capacity", "100", "--align", "64", "--json")[1])
    assert found["error"]["figures"]["least_bytes"] == 164


def test_bytes_above_the_peak_of_the_records_are_told(arena, file, tmp_path):
    """a and b are live together: 100 + 50 bytes, and b begins at a multiple of 64."""
    page = tmp_path / "page.html"
    said = arena(file(THREE), "--align", "64", "--report", page)[1]
    needed = json.loads(arena(file(THREE), "--align", "64", "--json")[1])["arena_bytes"]
    line = f"150 B are live at the peak, where {needed - 150} B stay unused; offsets are multiples of alignments"
    assert needed > 150 and line in said and line in page.read_text()
    assert "stay unused" not in arena(file(THREE))[1]


@pytest.mark.parametrize(
    ("asked", "capacity", "verdict", "shows"),
    [
        ((), 100, "Does not fit 100 B: at least 150 B are needed", "150 B, proven least"),
        (("--align", "64"), 100, "Does not fit 100 B: at least 164 B are needed", "164 B, proven least"),
        (("--align", "64"), 160, "Does not fit 160 B: at least 164 B are needed", "164 B, proven least"),
        (("--form", "objects"), 100, "Does not fit 100 B: at least 150 B are needed", "150 B, proven least"),
    ],
)
def test_the_pictures_of_what_does_not_fit_are_written_with_the_verdict(
    arena, file, tmp_path, asked, capacity, verdict, shows
):
    page, picture, trace = (tmp_path / f"a.{suffix}" for suffix in ("html", "svg", "json"))
    more = () if "objects" in asked else ("--map", picture, "--trace", trace)
    status, out, err = arena(file(THREE), "--capacity", capacity, *asked, "--report", page, *more)
    assert (status, out) == (3, "")
    error, *lines = err.splitlines()
    assert error.startswith("downset: error: ")
    written = {page: "an HTML page", picture: "an SVG picture", trace: "a trace in JSON"}
    assert lines == [f"written: {path} ({what})" for path, what in written.items() if path == page or more]
    assert verdict in page.read_text() and f"the best that was found: {shows}" in page.read_text()
    if more:
        assert "<svg" in picture.read_text() and json.loads(trace.read_text())


def test_a_page_says_that_it_is_not_known_whether_it_fits(arena, file, tmp_path):
    page = tmp_path / "a.html"
    status, _, err = arena(file(TIGHT), "--capacity", "16", "--work-limit", "0", "--report", page)
    assert status == 6
    assert err.splitlines()[1:] == [f"written: {page} (an HTML page)"]
    text = page.read_text()
    assert "Not known whether it fits 16 B" in text and "17 B, bound 16 B" in text
    assert "Search longer" in text and "without --capacity" not in text


def test_written_files_are_named_a_line_each(arena, file, tmp_path):
    out, page = tmp_path / "o.csv", tmp_path / "a.html"
    _, said, err = arena(file(THREE), "-o", out, "--report", page)
    lines = [line for line in said.splitlines() if line.startswith("written")]
    assert lines == [f"written: {out} (the records with offsets)", f"written: {page} (an HTML page)"] and err == ""
    _, said, err = arena(file(THREE), "-o", "-", "--report", page)
    assert said.startswith("id,lower") and "written" not in said
    assert err.count("written: ") == 1 and f"written: {page} (an HTML page)" in err
    assert "written" not in "".join(arena(file(THREE), "-o", out, "--report", page, "--json")[1:])
    said = arena(file(THREE), "-o", out, "--form", "objects")[1]
    assert f"written: {out} (the records with objects)" in said


def test_a_capacity_above_the_largest_breadth_that_nothing_meets_is_exit_3(fails, file):
    """Alignment: 3 bytes at 0, 3 bytes at 4: six bytes live, seven needed."""
    path = file("id,lower,upper,size,alignment\na,0,2,3,4\nb,0,2,3,4\n")
    fails(3, "arena", path, "--capacity", "6", says="proven: nothing fits into 6 bytes; 7 is the least")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,lower,upper,size\na,0,1,4\nb,0,1,-4\n", "records.csv:3: column size"),
        ("id,lower,upper,size\na,0,1,0\n", "records.csv:2: column size"),
        ("id,lower,upper,size\na,3,3,1\n", "records.csv:2: column upper"),
        ("id,lower,upper,size\na,4,3,1\n", "records.csv:2: column upper"),
        ("id,lower,upper,size\na,0,1,4\na,5,6,4\n", "records.csv:3: column id"),
        ("id,lower,upper,size\na,0,1,many\n", "records.csv:2: column size: 'many'"),
        ("id,lower,upper,size,alignment,offset\na,0,1,4,8,12\n", "records.csv:2: column offset"),
        ("id,lower,upper,size,offset\na,0,9,4,0\nb,8,9,4,2\n", "records.csv:3: column offset"),
        ("", "is empty"),
        ("this is a letter\n", "unknown column"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_5(fails, file, text, says):
    fails(5, "arena", file(text), says=says)


def test_a_header_alone_is_told(arena, file):
    status, out, err = arena(file("id,lower,upper,size\n"), "--capacity", "1KB")
    assert status == 0 and out.startswith("Fits 1 KB: 0 B taken, 1,024 B free\n")
    assert err.startswith("no records: ") and err.endswith("records.csv holds a header alone\n")
    assert "no records" not in arena(file("id,lower,upper,size\na,0,1,4\n"))[2]


def test_bad_options_are_one_line_and_exit_2(fails, file, tmp_path):
    path = file("id,lower,upper,size,offset\na,0,1,4,4\nb,0,1,4,\n")
    fails(2, "arena", path, "--align", "8", says="'a' is pinned at 4, not at a multiple of 8")
    fails(2, "arena", path, "--align", "0", says="--align")
    fails(2, "arena", path, "--form", "objects", says="'a' is pinned at 4: shared objects have no offsets")
    fails(2, "arena", path, "--method", "magic", says="choose one of naive")
    fails(2, "arena", path, "--capacity", "-5", says="not a size")
    fails(2, "arena", path, "--form", "heaps", says="heaps")
    fails(2, "arena", path, "-o", path, says="choose another name")
    fails(2, "arena", path, "-o", tmp_path / "no" / "out.csv", says="does not exist")
    fails(5, "arena", tmp_path / "none.csv", says="No such file")


def test_every_method_has_a_name_on_the_command_line(arena, file):
    from downset.arenas.planners import ARENAS, SHARED

    for form, methods in (("offsets", ARENAS), ("objects", SHARED)):
        for method in methods:
            status, out, err = arena(file(TIGHT), "--form", form, "--method", method, "--json", "--time-limit", "1s")
            assert (status, err) == (0, ""), method
            # the default says when the search took over from the portfolio
            assert json.loads(out)["method"] in ({"best", "exact"} if method == "best" else {method})
