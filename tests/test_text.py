"""What people read and write: JSON that a terminal may show."""

import json

from hypothesis import given
from hypothesis import strategies as st

from downset.text import escaped, operator_name

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
