"""Which JSON messages pass, and what is left of them, byte for byte as Go writes it."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.go_json import JsonError
from nsq_compat.tools.json_filter import JsonFilter


def test_without_conditions_messages_are_not_parsed():
    assert not JsonFilter()
    assert JsonFilter().apply(b"\xff") == b"\xff"


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b'"a"', b"1", b"{} {}", b'{"a":NaN}', b'{"a":1e400}', b"\xef\xbb\xbf{}"]
)
def test_other_values_than_json_objects_are_refused(body):
    with pytest.raises(JsonError):
        JsonFilter("a").apply(body)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"])
def test_deep_nesting_is_refused(body):
    with suppress(JsonError):
        JsonFilter("a", fields=["a"]).apply(body)


@pytest.mark.parametrize(
    ("body", "passes"),
    [(b'{"a":1}', True), (b'{"a":null}', True), (b'{"A":1}', False), (b"{}", False), (b"null", False)],
)
def test_a_required_field_must_be_present(body, passes):
    assert JsonFilter("a").apply(body) == (body if passes else None)


@pytest.mark.parametrize(
    ("wanted", "value", "passes"),
    [
        ("x", '"x"', True),
        ("x", '"y"', False),
        ("5", "5", True),
        ("5.0", "5", True),
        ("5", "5.0", True),
        ("5", '"5"', True),
        ("5.0", '"5"', False),
        ("x", "5", False),
        ("nan", "5", False),
        ("9007199254740993", "9007199254740992", True),
        ("true", "true", True),
        ("true", '"true"', True),
        ("false", "true", False),
        ("1", "true", False),
        ("null", "null", False),
        ("5", "null", False),
        ("5", "[5]", False),
        ("5", '{"a":5}', False),
        ("\ufffd", '"\\ud800"', True),
    ],
)
def test_a_required_value_must_be_equal(wanted, value, passes):
    body = f'{{"a":{value}}}'.encode()
    assert JsonFilter("a", wanted).apply(body) == (body if passes else None)


def test_a_message_without_the_field_does_not_have_the_value():
    assert JsonFilter("a", "x").apply(b"{}") is None


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"b":1, "a":"x", "c":2}', b'{"a":"x","b":1}'),
        (b'{"c":2}', b"{}"),
        (b"null", b"{}"),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":"<&>\\u2028"}', b'{"a":"\\u003c\\u0026\\u003e\\u2028"}'),
        (b'{"a":9007199254740993,"b":1e30}', b'{"a":9007199254740992,"b":1e+30}'),
        (b'{"a":-0.0,"b":1.50}', b'{"a":0,"b":1.5}'),
        (
            b'{"a":4611686018427387904,"b":[4611686018427387904]}',
            b'{"a":4611686018427387904,"b":[4611686018427388000]}',
        ),
        (b'{"a":{"z":-0.0,"b":[true,null,1.0]}}', b'{"a":{"b":[true,null,1],"z":-0}}'),
        (b'{"a":"\xff\\ud800"}', '{"a":"\ufffd\ufffd"}'.encode()),
        ('{"a":"é\\ud83d\\ude00"}'.encode(), '{"a":"é\N{GRINNING FACE}"}'.encode()),
        (b'{"a":1e-7}', b'{"a":1e-7}'),
    ],
)
def test_only_the_listed_fields_pass_as_go_writes_them(body, left):
    assert JsonFilter(fields=["b", "a", "a"]).apply(body) == left


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_filtered_fields_keep_their_values(members):
    left = JsonFilter(fields=list(members)).apply(json.dumps(members).encode())
    assert json.loads(left or b"{}", parse_int=float) == members


@given(st.binary(max_size=40))
def test_any_bytes_pass_or_are_dropped_or_are_not_json(body):
    with suppress(JsonError):
        JsonFilter("a", "1", ["a"]).apply(body)
