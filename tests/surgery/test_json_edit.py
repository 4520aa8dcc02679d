"""set_value changes one value and keeps every other byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.checkpoint.write.json_edit import set_value
from tiebeam.errors import UnreadableInput

SORTED = '{\n  "eps": 1e-5,\n  "text_config": {\n    "a": [1, {"x": "}"}]\n  },\n  "z": "\\u00e9"\n}\n'


def test_a_value_is_replaced_in_place():
    assert set_value('{"tie": true, "eps": 1e-5}', ("tie",), False) == '{"tie": false, "eps": 1e-5}'


def test_a_missing_key_is_inserted_in_alphabetical_order_on_its_own_line():
    changed = set_value(SORTED, ("tie_word_embeddings",), True)
    assert changed == SORTED.replace('  "z"', '  "tie_word_embeddings": true,\n  "z"')


def test_a_missing_key_can_become_first_or_last():
    assert list(json.loads(set_value(SORTED, ("aaa",), 1))) == ["aaa", "eps", "text_config", "z"]
    assert list(json.loads(set_value(SORTED, ("zz",), 1))) == ["eps", "text_config", "z", "zz"]


def test_an_unsorted_object_gets_the_key_at_its_end():
    assert set_value('{"b": 1, "a": 2}', ("aa",), None) == '{"b": 1, "a": 2, "aa": null}'


def test_a_nested_value_is_set():
    changed = set_value(SORTED, ("text_config", "tie"), True)
    assert json.loads(changed)["text_config"] == {"a": [1, {"x": "}"}], "tie": True}
    assert "1e-5" in changed
    assert "\\u00e9" in changed


def test_an_empty_object_gets_its_first_key():
    assert json.loads(set_value("{ }", ("a",), 1)) == {"a": 1}


@pytest.mark.parametrize("text", ['{"a": 1}', '{"text_config": 3}'])
def test_a_missing_level_is_refused(text):
    with pytest.raises(UnreadableInput):
        set_value(text, ("text_config", "tie"), True)


scalars = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
documents = st.dictionaries(st.text(), st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(st.text(), x)))


@given(documents, st.text(), scalars, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_the_result_parses_to_the_document_with_one_key_changed(document, key, value, indent, ascii_only):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    assert json.loads(set_value(text, (key,), value)) == {**document, key: value}
