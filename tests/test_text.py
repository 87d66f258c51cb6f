"""What people read and write: JSON that a terminal may show."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from downset.text import escaped, operator_name, wrapped

CHARACTERS = st.sampled_from('a"\\ \n\r\t\x1b\x7f\x85\u2028\u202e\u00e9\U0001f600')


@given(names=st.lists(st.text(CHARACTERS)), indent=st.sampled_from([None, 2]))
def test_json_on_a_terminal_is_the_same_data_without_control_characters(names, indent):
    shown = escaped(json.dumps(names, ensure_ascii=False, indent=indent))
    assert json.loads(shown) == names
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_names_of_fused_operators_are_counted_and_long_ones_lose_their_middle():
    assert operator_name("a/b") == "a/b"
    assert operator_name("a;b") == "a;b"
    assert operator_name("a;b;c;d") == "a;b and 2 more"
    assert operator_name("x" * 60) == "x" * 60
    shown = operator_name("begin" + "x" * 400 + "end")
    assert len(shown) == 60 and shown.startswith("begin") and shown.endswith("end") and shown.count("…") == 1


WORDS = st.sampled_from(["it", "takes", "4,942,920", "(0.0699", "12%", "B", "s)", "µs", "→", "層", "a/" * 20])


def columns_of(text):
    return len(text) + text.count("層")


@given(words=st.lists(WORDS), indent=st.integers(0, 4), columns=st.integers(12, 40))
def test_a_wrapped_line_has_the_same_words_and_keeps_numbers_with_their_units(words, indent, columns):
    pieces = wrapped(" " * indent + " ".join(words), columns)
    assert [word for piece in pieces for word in piece.split()] == words
    for piece in pieces:
        assert columns_of(piece) <= columns or len(piece.split()) == 1
        assert not words or piece.startswith(" " * indent)
    for piece, below in pairwise(pieces):
        number, unit = piece.split()[-1], below.split()[0]
        measure = number[-1].isdigit() and unit[0].isalpha()
        assert not measure or columns_of(" " * indent + f"{number} {unit}") > columns
        filled = columns_of(f"{piece} {unit}") > columns
        assert filled or measure or unit[-1].isdigit(), "a number may go on below with its unit"


def test_a_comment_that_is_wrapped_stays_a_comment():
    line = "constexpr size_t kTensorArenaSize = 476560;  // head and scratch 454656 + tail 21904"
    code, *comment = wrapped(line, 60)
    assert comment and "//" in code and all(piece.startswith("// ") for piece in comment)
