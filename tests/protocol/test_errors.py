import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import errors
from nsq_compat.protocol.errors import (
    E_INVALID,
    ClientError,
    FatalClientError,
    NsqError,
    quote,
    target_without_secrets,
    without_secrets,
)


@pytest.mark.parametrize(
    ("description", "data"),
    [
        ("cannot SUB in current state", b"E_INVALID cannot SUB in current state"),
        ("", b"E_INVALID"),
        (b"invalid command ", b"E_INVALID invalid command "),
        (b"invalid command " + bytes(range(256)), b"E_INVALID invalid command " + bytes(range(256))),
    ],
)
def test_the_data_of_an_error_is_its_code_a_space_and_its_description_with_the_bytes_of_the_client(description, data):
    assert NsqError(E_INVALID, description).data == data


def test_an_error_can_be_logged_whatever_the_client_sent():
    assert str(FatalClientError(E_INVALID, b"invalid command \xff")) == r"E_INVALID invalid command \xff"


@pytest.mark.parametrize("kind", [ClientError, FatalClientError])
def test_every_error_with_a_code_can_be_caught_as_one(kind):
    with pytest.raises(NsqError):
        raise kind(E_INVALID)


def test_every_code_is_spelled_as_its_constant():
    codes = {name: value for name, value in vars(errors).items() if name.startswith("E_")}
    assert len(codes) == 15
    assert all(name == value for name, value in codes.items())


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"plain name", '"plain name"'),
        (b'a\x00\xffb"\\\xc3\xa9', r'"a\x00\xffb\"\\é"'),  # printed by a real nsqd
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x1b\x7f", r'"\x1b\x7f"'),
        (b"'", '"\'"'),
        ("\u0080\u00a0\u00ad".encode(), r'"\u0080\u00a0\u00ad"'),
        ("\u2028\ufeff\ue000".encode(), r'"\u2028\ufeff\ue000"'),
        ("\ufffd".encode(), '"\ufffd"'),
        ("\U0001f600".encode(), '"\U0001f600"'),
        ("\U000e0001\U0010ffff".encode(), r'"\U000e0001\U0010ffff"'),
        (b"\xe2\x82", r'"\xe2\x82"'),  # truncated
        (b"\xc0\x80", r'"\xc0\x80"'),  # overlong
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),  # a lone surrogate
        (b"\xf4\x90\x80\x80", r'"\xf4\x90\x80\x80"'),  # beyond Unicode
    ],
)
def test_bytes_are_quoted_as_go_does(raw, quoted):
    assert quote(raw) == quoted


@given(st.binary() | st.text().map(str.encode))
def test_a_quoted_name_is_one_printable_line_from_which_the_bytes_can_be_read_back(raw):
    quoted = quote(raw)
    assert quoted.isprintable()
    # Python reads the same escapes, but \xNN as a character, so both sides are compared that way.
    expected = "".join(
        chr(ord(character) - 0xDC00) if 0xDC80 <= ord(character) <= 0xDCFF else character
        for character in raw.decode("utf-8", "surrogateescape")
    )
    assert ast.literal_eval(quoted) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("what? me", "what"),
        ("me:pw@host:80/auth?key=1", "host:80/auth"),
        ("https://me:p/w@host/auth", "https://host/auth"),
        ("https://host/auth", "https://host/auth"),
        ("https://me:p@ss@host:1/a?key=pw@x", "https://host:1/a"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_secrets_are_removed_from_urls(text, shown):
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/stats?topic=orders&format=json", "/stats?topic=orders&format=json"),
        (b"/stats?topic=a@b", "/stats?topic=a@b"),
        (b"http://me:pw@host/stats?topic=t", "http://host/stats?topic=t"),
        (b"me:pw@host:443", "host:443"),
        (b"/oidc/callback?code=abc&state=def&x=1", "/oidc/callback?code=***&state=***&x=1"),
        (b"/pub?topic=t&Access_Token=abc", "/pub?topic=t&Access_Token=***"),
        (b"/pub?oauth2_token=abc#def&tokens=1&token[]=2;key=3", "/pub?oauth2_token=***&tokens=***&token[]=***;key=***"),
        (b"/pub?%74oken=abc&t%6Fken[]=1&%5Btoken%5D=2", "/pub?%74oken=***&t%6Fken[]=***&%5Btoken%5D=***"),
        (b"/pub?passwd=a&sig=b&auth=c&jwt=d&credentials=e", "/pub?passwd=***&sig=***&auth=***&jwt=***&credentials=***"),
        (b"/pub?topic=t" + b"&a=b" * 201, "/pub?***"),
        (b"/pub?topic=t&" + b"a" * 101 + b"=b", "/pub?topic=t&" + "a" * 101 + "=***"),
        (b"/pub?token=a=b&token=&monkeys2=1&keyed=2", "/pub?token=***&token=&monkeys2=1&keyed=2"),
        (b"/\xff", "/\\xff"),
    ],
)
def test_a_log_line_shows_a_request_without_secrets(target, shown):
    assert target_without_secrets(target) == shown
