"""Long strings in JSON bodies: the same values as the parser gives, whatever they contain and wherever they are."""

import json

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quire.server.http import long_strings

LONG = 64


@pytest.fixture(autouse=True, scope="module")
def short_runs():
    """Strings of 64 bytes are long here, and are checked 16 bytes at a time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_strings, "LONG", LONG)
        patched.setattr(long_strings, "BLOCK_BYTES", 16)
        yield


texts = st.one_of(
    st.text(max_size=8),
    st.builds(
        lambda text, count: text * count,
        st.sampled_from(["ab", "a/+=", 'a"', "\\", "é", "a\n", ", "]),
        st.integers(30, 200),
    ),
)
values = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), texts),
    lambda children: st.one_of(st.lists(children, max_size=4), st.dictionaries(texts, children, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=300)
@given(values, st.booleans(), st.sampled_from([None, 2]))
def test_a_value_is_what_the_parser_gives(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert long_strings.decode(text) == value


def test_a_plain_string_is_copied_past_the_parser(monkeypatch):
    parsed = []
    plain = msgspec.json.decode
    monkeypatch.setattr(msgspec.json, "decode", lambda data: parsed.append(len(data)) or plain(data))
    url = "data:image/png;base64," + "iVBO" * 100
    value = {"a": [{"url": url, "n": [1] * 200}, url[:-4]], url[4:]: 1, "z": "é" * 100}
    without_key = {key: one for key, one in value.items() if key != url[4:]}
    found = long_strings.decode(json.dumps(without_key).encode())
    assert found == without_key
    assert len(parsed) == 1
    assert parsed[0] < len(json.dumps(without_key)) - 2 * 400 + 100
    assert found["a"][0]["url"].isascii()
    assert hash(found["a"][0]["url"]) == hash(url)
    assert long_strings.decode(json.dumps(value).encode()) == value, "a long key is left to the parser"


@pytest.mark.parametrize(
    "text", ['{"a": "' + "x" * 200, '{"a": "' + "x" * 200 + "\x01" + '"}', '"a"' + "x" * 200 + '"b"']
)
def test_wrong_json_is_refused_as_the_parser_does(text):
    with pytest.raises(msgspec.DecodeError):
        long_strings.decode(text.encode())
