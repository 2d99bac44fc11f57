import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.go_json import (
    BOOL,
    INT32,
    INT64,
    STRING,
    Encoded,
    JsonError,
    dumps,
    list_of,
    loads_object,
    loads_untyped,
    object_of,
)

FIELDS = {"name": STRING, "interval": INT64, "rate": INT32, "on": BOOL}
ZERO = {"name": "", "interval": 0, "rate": 0, "on": False}

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (-12, "-12"),
        ([], "[]"),
        ((), "[]"),
        ({}, "{}"),
        ([1, "a", None], '[1,"a",null]'),
        ({"a": Encoded("[1 ]")}, '{"a":[1 ]}'),
        ({"b": 1, "a": {"c": [{}]}}, '{"b":1,"a":{"c":[{}]}}'),
        ("<a & b>", r'"\u003ca \u0026 b\u003e"'),
        ("\u2028\u2029", r'"\u2028\u2029"'),
        ('"\\/', r'"\"\\/"'),
        ("\b\f\n\r\t\x00\x1f\x7f", '"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f"'),
        ("\u00e9t\u00e9 \U0001f600", '"\u00e9t\u00e9 \U0001f600"'),
        ("\ud800x\udcff", r'"\ufffdx\ufffd"'),
        ({"<": 1}, r'{"\u003c":1}'),
    ],
)
def test_values_are_written_as_go_writes_them(value, text):
    assert dumps(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (0.99, "0.99"),
        (-0.0, "-0"),
        (100.5, "100.5"),
        (123456789.0, "123456789"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (-1.25e-9, "-1.25e-9"),
        (5e-324, "5e-324"),
    ],
)
def test_floats_are_written_as_go_writes_them(number, text):
    assert dumps(number) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_have_no_json(number):
    with pytest.raises(ValueError, match="no JSON"):
        dumps({"value": number})


def test_other_types_have_no_json():
    with pytest.raises(TypeError):
        dumps({"value": b"bytes"})


@given(VALUES)
def test_written_values_are_read_back(value):
    assert json.loads(dumps(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_written_floats_are_read_back(number):
    assert float(dumps(number)) == number


@given(st.text() | st.text(st.characters(categories=["Cs"])))
def test_written_json_can_be_encoded_as_utf_8(text):
    assert dumps(text).encode("utf-8")


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"{}", {}),
        (b"null", {}),
        (b' \t\r\n{"name" : "a"}\n', {"name": "a"}),
        (b'{"NAME":"a","Interval":-5}', {"name": "a", "interval": -5}),
        (b'{"na\\u006de":"a"}', {"name": "a"}),
        (b'{"\xe2\x84\xaa":1,"\xc5\xbf":2}', {}),
        (b'{"name":"a","NAME":"b"}', {"name": "b"}),
        (b'{"name":"a","name":null}', {"name": "a"}),
        (b'{"name":null,"interval":null,"rate":null,"on":null}', {}),
        (b'{"other":[1,{"x":1.5}],"on":true}', {"on": True}),
        (b'{"other":' + b"9" * 10_000 + b',"another":1e999}', {}),
        (b'{"interval":9223372036854775807,"rate":-2147483648}', {"interval": 2**63 - 1, "rate": -(2**31)}),
        (b'{"interval":-0}', {}),
        (b'{"name":"\xff\xe2\x82"}', {"name": "\ufffd\ufffd\ufffd"}),
        (b'{"name":"\\ud800\\udc00"}', {"name": "\U00010000"}),
        (b'{"name":"\\ud800a\\udc00"}', {"name": "\ufffda\ufffd"}),
        (b'{"name":"\xed\xa0\x80"}', {"name": "\ufffd\ufffd\ufffd"}),
    ],
)
def test_objects_are_read_as_go_reads_them(data, fields):
    assert loads_object(data, FIELDS) == ZERO | fields


def test_a_long_s_and_a_kelvin_sign_match_s_and_k():
    fields = {"msg_timeout": INT64, "k": INT64}
    assert loads_object('{"m\u017fg_timeout":5,"\u212a":6}'.encode(), fields) == {"msg_timeout": 5, "k": 6}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b'"a"',
        b"1",
        b"true",
        b"{}x",
        b"{}{}",
        b"{}\0",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b"{'name':\"a\"}",
        b'{"name":"a",}',
        b'{name:"a"}',
        b'{"name":"a\nb"}',
        b'{"name":"\\x41"}',
        b'{"name":"\\u12"}',
        b'{"name":1}',
        b'{"name":["a"]}',
        b'{"name":1,"name":"a"}',
        b'{"interval":1.0}',
        b'{"interval":1e3}',
        b'{"interval":"1000"}',
        b'{"interval":true}',
        b'{"interval":9223372036854775808}',
        b'{"interval":' + b"9" * 10_000 + b"}",
        b'{"interval":01}',
        b'{"interval":+1}',
        b'{"interval":{}}',
        b'{"rate":2147483648}',
        b'{"on":1}',
        b'{"on":"true"}',
        b'{"other":NaN}',
        b'{"other":-Infinity}',
        b'{"other":\xff}',
        b'{"other":' + b"[" * 100_000,
        b'{"other":' * 100_000,
    ],
)
def test_invalid_objects_are_refused(data):
    with pytest.raises(JsonError):
        loads_object(data, FIELDS)


def test_arrays_and_objects_nest():
    fields = {"topics": list_of(object_of({"name": STRING, "channels": list_of(STRING)}))}
    data = b'{"Topics":[{"NAME":"t","channels":["a",null]},null,{"channels":null}]}'
    assert loads_object(data, fields) == {
        "topics": (
            {"name": "t", "channels": ("a", "")},
            {"name": "", "channels": ()},
            {"name": "", "channels": ()},
        )
    }


def test_null_empties_an_array_that_came_before():
    fields = {"names": list_of(STRING), "name": STRING}
    assert loads_object(b'{"names":["a"],"name":"b","name":null,"names":null}', fields) == {"names": (), "name": "b"}


@pytest.mark.parametrize("data", [b'{"topics":{}}', b'{"topics":[[]]}', b'{"topics":[1]}', b'{"topics":""}'])
def test_nested_values_of_the_wrong_kind_are_refused(data):
    with pytest.raises(JsonError):
        loads_object(data, {"topics": list_of(object_of({"name": STRING}))})


@given(st.dictionaries(st.text(), st.none() | st.text() | st.integers() | st.booleans()), st.booleans())
def test_any_object_is_read_or_refused(members, ascii_only):
    data = json.dumps(members, ensure_ascii=ascii_only).encode()
    assert loads_object(data, {}) == {}


@given(st.binary() | st.text().map(str.encode) | st.text('{}[]":,\\u0123e.-truefalsn').map(str.encode))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(JsonError):
        assert set(loads_object(data, FIELDS)) == set(FIELDS)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"A":1,"b":[null,{"C":true}]}', {"a": 1, "b": [None, {"c": True}]}),
        (b'{"a":1,"A":2,"a":null,"b":null}', {"a": 2, "b": None}),
        (b'["\xff"]', ["\udcff"]),
        (b" null ", None),
    ],
)
def test_untyped_reading_returns_the_values(data, value):
    assert loads_untyped(data) == value


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_untyped_reading_of_any_bytes_returns_a_value_or_fails(data):
    with contextlib.suppress(JsonError):
        loads_untyped(data)


@pytest.mark.parametrize("data", [b"", b"{", b"{} x", b"[NaN]", b"\xef\xbb\xbf{}", b"[" * 100_000])
def test_untyped_reading_of_invalid_json_fails(data):
    with pytest.raises(JsonError):
        loads_untyped(data)
