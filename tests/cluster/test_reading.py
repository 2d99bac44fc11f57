import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_value_or_a_bad_answer(data):
    with suppress(InvalidAnswer):
        reading.load(data)


def test_nesting_without_end_is_a_bad_answer():
    with pytest.raises(InvalidAnswer):
        reading.load(b"[" * 200_000)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_a_reader_gives_its_kind_or_a_bad_answer(value):
    kinds = {reading.text: str, reading.integer: int, reading.number: float, reading.boolean: bool}
    for read, kind in kinds.items():
        try:
            assert type(read(value)) is kind
        except InvalidAnswer:
            assert value is not None


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", '{"a":-Infinity}', "", "{", "1 2"])
def test_what_json_does_not_have_is_refused(wrong):
    with pytest.raises(InvalidAnswer):
        reading.load(wrong.encode())


def test_a_number_that_fits_no_counter_is_refused():
    with pytest.raises(InvalidAnswer):
        reading.integer(2**63)
    with pytest.raises(InvalidAnswer):
        reading.number(10**400)


def test_half_a_character_does_not_get_through():
    assert reading.text(json.loads(r'"a\ud800b"')) == "a?b"


def test_an_array_is_read_member_by_member():
    assert reading.array(reading.integer, [1, None, 3]) == [1, 0, 3]
    with pytest.raises(InvalidAnswer):
        reading.array(reading.integer, [1, "2"])
