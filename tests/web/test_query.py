"""Query strings, parsed as Go parses them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.web.query import parse_boolean, parse_query, required, required_name
from nsq_compat.web.responses import ApiError


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        (b"", {}),
        (b"topic=a", {"topic": "a"}),
        (b"topic=a&topic=b", {"topic": "a"}),
        (b"&&topic=a&", {"topic": "a"}),
        (b"topic", {"topic": ""}),
        (b"topic=", {"topic": ""}),
        (b"=x", {"": "x"}),
        (b"a=b=c", {"a": "b=c"}),
        (b"t%6fpic=a%23b", {"topic": "a#b"}),
        (b"a=b+c%2B", {"a": "b c+"}),
        (b"a=%C3%A9", {"a": "é"}),
        (b"a=%ff", {"a": "\udcff"}),
    ],
)
def test_the_first_value_of_a_parameter_is_used(query, parameters):
    assert parse_query(query) == parameters


@pytest.mark.parametrize("query", [b"a=%", b"a=%zz", b"a=%4", b"%g0=a", b"topic=a&x=%", b"a;b", b"topic=a;b=c"])
def test_a_malformed_query_is_an_invalid_request(query):
    with pytest.raises(ApiError, match="INVALID_REQUEST") as refusal:
        parse_query(query)
    assert refusal.value.status == 400


@given(st.binary(max_size=600))
def test_any_bytes_are_parameters_or_an_invalid_request(query):
    with contextlib.suppress(ApiError):
        assert all(isinstance(value, str) for value in parse_query(query).values())


def test_booleans_have_four_spellings():
    spellings = ("true", "1", "false", "0", "", "TRUE", "yes")
    assert [parse_boolean(each) for each in spellings] == [True, True, False, False, None, None, None]


def test_a_missing_or_invalid_parameter_is_named_in_the_error():
    parameters = {"topic": "t", "channel": "", "node": "anything at all"}
    assert required(parameters, "node") == "anything at all"
    assert required(parameters, "channel") == ""
    assert required_name(parameters, "topic") == "t"
    for ask, key, code in (
        (required, "secret", "MISSING_ARG_SECRET"),
        (required_name, "secret", "MISSING_ARG_SECRET"),
        (required_name, "channel", "INVALID_ARG_CHANNEL"),
        (required_name, "node", "INVALID_ARG_NODE"),
    ):
        with pytest.raises(ApiError, match=code):
            ask(parameters, key)
