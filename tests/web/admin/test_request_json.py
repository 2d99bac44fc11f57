import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.web.admin.request_json import read_texts
from nsq_compat.web.responses import ApiError


def test_the_first_value_counts():
    assert read_texts(b' {"TOPIC":"t","more":1} trailing', "topic", "channel") == ["t", ""]
    assert read_texts(b"null", "topic") == [""]
    assert read_texts(b'{"topic":null}', "topic") == [""]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "EOF"),
        (b"  ", "EOF"),
        (b"{", "unexpected EOF"),
        (b'{"topic":"x"', "unexpected EOF"),
        (b"nul", "unexpected EOF"),
        (b"{bad}", "invalid character 'b' looking for beginning of object key string"),
        (b"bad", "invalid character 'b' looking for beginning of value"),
        (b'{"topic":3}', "json: cannot unmarshal number into Go struct field .topic of type string"),
        (b"[]", 'json: cannot unmarshal array into Go value of type struct { Topic string "json:\\"topic\\"" }'),
        (b"[" * 100_000, "exceeded max depth"),
    ],
)
def test_what_cannot_be_read_is_said_in_gos_words(body, words):
    with pytest.raises(ApiError) as refused:
        read_texts(body, "topic")
    assert (refused.value.status, refused.value.code) == (400, words)


@given(st.binary())
def test_any_bytes_are_texts_or_a_refusal(body):
    try:
        (text,) = read_texts(body, "topic")
    except ApiError:
        return
    text.encode()
