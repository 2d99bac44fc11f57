import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.quoting import quote


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"plain name", '"plain name"'),
        (b'a\x00\xffb"\\\xc3\xa9', r'"a\x00\xffb\"\\é"'),  # as a real nsqd was seen to print it
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x1b\x7f", r'"\x1b\x7f"'),
        (b"'", '"\'"'),
        ("\u0080\u00a0\u00ad".encode(), r'"\u0080\u00a0\u00ad"'),
        ("\u2028\ufeff\ue000".encode(), r'"\u2028\ufeff\ue000"'),
        ("\ufffd".encode(), '"\ufffd"'),
        ("\U0001f600".encode(), '"\U0001f600"'),
        ("\U000e0001\U0010ffff".encode(), r'"\U000e0001\U0010ffff"'),
        (b"\xe2\x82", r'"\xe2\x82"'),  # cut short
        (b"\xc0\x80", r'"\xc0\x80"'),  # overlong
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),  # half a surrogate pair
        (b"\xf4\x90\x80\x80", r'"\xf4\x90\x80\x80"'),  # beyond Unicode
    ],
)
def test_bytes_are_quoted_as_go_does(raw, quoted):
    assert quote(raw) == quoted


@given(st.binary() | st.text().map(str.encode))
def test_a_quoted_name_is_one_printable_line_from_which_the_bytes_can_be_read_back(raw):
    quoted = quote(raw)
    assert quoted.isprintable()
    # Python reads the same escapes, except that it takes \xNN for a character; so does this, for both sides.
    expected = "".join(
        chr(ord(character) - 0xDC00) if 0xDC80 <= ord(character) <= 0xDCFF else character
        for character in raw.decode("utf-8", "surrogateescape")
    )
    assert ast.literal_eval(quoted) == expected
