import pytest

from nsq_compat.protocol.numbers import BEYOND_64_BITS, number


@pytest.mark.parametrize(("raw", "value"), [(b"", 0), (b"0", 0), (b"007", 7), (b"2500", 2500), (b"0" * 30 + b"9", 9)])
def test_digits_are_a_number_and_nothing_is_zero(raw, value):
    assert number(raw) == value


@pytest.mark.parametrize("raw", [b"-1", b"+1", b"1.0", b" 1", b"1 ", b"1\n", b"0x1", b"\xd9\xa3", b"1_000"])
def test_everything_else_is_none(raw):
    assert number(raw) is None


@pytest.mark.parametrize("raw", [b"1" + b"0" * 19, b"18446744073709551617", b"9" * 4000])
def test_what_does_not_fit_64_bits_is_too_big_for_every_limit(raw):
    assert number(raw) == BEYOND_64_BITS


def test_the_largest_value_a_limit_may_have_is_read_as_it_stands():
    assert number(b"9223372036854775807") == 2**63 - 1
