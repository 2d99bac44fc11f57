import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_value_or_an_invalid_answer(data):
    with suppress(InvalidAnswer):
        reading.load(data)


def test_deep_nesting_is_an_invalid_answer():
    with pytest.raises(InvalidAnswer):
        reading.load(b"[" * 200_000)


def test_an_answer_of_tiny_values_is_invalid():
    with pytest.raises(InvalidAnswer, match=r"more than 4,000,000 values"):
        reading.load(b"[" + b"{}," * 2_000_000 + b"{}]")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_a_reader_returns_its_type_or_raises(value):
    kinds = {reading.text: str, reading.integer: int, reading.number: float, reading.boolean: bool}
    for read, kind in kinds.items():
        try:
            assert type(read(value)) is kind
        except InvalidAnswer:
            assert value is not None


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", '{"a":-Infinity}', "", "{", "1 2"])
def test_values_outside_json_are_invalid(wrong):
    with pytest.raises(InvalidAnswer):
        reading.load(wrong.encode())


def test_a_number_beyond_64_bits_is_invalid():
    with pytest.raises(InvalidAnswer):
        reading.integer(2**63)
    with pytest.raises(InvalidAnswer):
        reading.number(10**400)


def test_a_lone_surrogate_is_replaced():
    assert reading.text(json.loads(r'"a\ud800b"')) == "a?b"


def test_a_lone_surrogate_is_replaced_wherever_it_is():
    assert reading.load(rb'[{"a\ud800": ["\uDFFF", "\ud83d\ude00", "\\ud800"]}]') == [
        {"a?": ["?", "\U0001f600", "\\ud800"]}
    ]


def test_every_member_of_an_array_is_read():
    assert reading.array(reading.integer, [1, None, 3]) == [1, 0, 3]
    with pytest.raises(InvalidAnswer):
        reading.array(reading.integer, [1, "2"])
