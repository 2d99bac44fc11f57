import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cli import literals


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+5", 5),
        ("1_000", 1000),
        ("0x10", 16),
        ("0X_1f", 31),
        ("-0x10", -16),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("0_7", 7),
        ("00", 0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0x7fffffffffffffff", 2**63 - 1),
    ],
)
def test_an_integer_shows_its_base_by_its_prefix(text, value):
    assert literals.parse_int(text) == value


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "1e3", "1.5", "08", "0x", "0b2", "0_", "_1", "1_", "1__0", "0_x1", "+-5", "0b", "\u0663"]
)
def test_other_text_is_not_an_integer(text):
    with pytest.raises(ValueError, match="^parse error$"):
        literals.parse_int(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "0x8000000000000000", "9" * 5000])
def test_an_integer_beyond_64_bits_is_out_of_range(text):
    with pytest.raises(ValueError, match="^value out of range$"):
        literals.parse_int(text)


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("+7", 7), ("-1", -1), ("010", 10)])
def test_a_quoted_integer_in_a_config_file_is_decimal(text, value):
    assert literals.parse_decimal(text) == value


@pytest.mark.parametrize("text", ["0x10", "1_0", "12k", "", " 1", "1.0"])
def test_a_quoted_integer_has_digits_only(text):
    with pytest.raises(ValueError, match="^parse error$"):
        literals.parse_decimal(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e-3", 0.001),
        ("1_0.5", 10.5),
        ("0x1p-2", 0.25),
        ("0x.8p0", 0.5),
        ("0x_1p1", 2.0),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("1e-400", 0.0),
    ],
)
def test_a_float_is_decimal_or_hexadecimal_with_an_exponent(text, value):
    assert literals.parse_float(text) == value


def test_nan_is_a_float_without_a_sign():
    assert math.isnan(literals.parse_float("NaN"))
    with pytest.raises(ValueError, match="parse error"):
        literals.parse_float("-nan")


@pytest.mark.parametrize("text", ["", "abc", " 0.5", "1e", "0x1", "0b1", "1_.5", "1._5", "_1.0", "1_e1", "\u0661"])
def test_other_text_is_not_a_float(text):
    with pytest.raises(ValueError, match="^parse error$"):
        literals.parse_float(text)


@pytest.mark.parametrize("text", ["1e400", "0x1p99999"])
def test_a_float_beyond_64_bits_is_out_of_range(text):
    with pytest.raises(ValueError, match="^value out of range$"):
        literals.parse_float(text)


def test_a_boolean_has_twelve_spellings():
    assert all(map(literals.parse_bool, ["1", "t", "T", "true", "TRUE", "True"]))
    assert not any(map(literals.parse_bool, ["0", "f", "F", "false", "FALSE", "False"]))


@pytest.mark.parametrize("text", ["", "yes", "no", "tRUE", "2", " true"])
def test_any_other_spelling_is_no_boolean(text):
    with pytest.raises(ValueError, match="^parse error$"):
        literals.parse_bool(text)


@given(st.text() | st.text(alphabet="+-_.xXoObBpPeE0123456789abcdefinfty"))
def test_any_text_is_a_value_or_a_value_error_of_two_kinds(text):
    for read in (literals.parse_int, literals.parse_decimal, literals.parse_float, literals.parse_bool):
        try:
            read(text)
        except ValueError as error:
            assert str(error) in (literals.SYNTAX_ERROR, literals.RANGE_ERROR)  # noqa: PT017


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_integer_reads_back_in_every_base(value):
    assert {literals.parse_int(form) for form in (str(value), hex(value), oct(value), bin(value))} == {value}


@given(st.floats(allow_nan=False))
def test_every_float_reads_back(value):
    assert literals.parse_float(repr(value)) == literals.parse_float(value.hex()) == value
