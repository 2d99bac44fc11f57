import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cli.literals import parse_bool, parse_decimal, parse_float, parse_int

Reader = Callable[[str], object]

VALUES: dict[Reader, dict[str, object]] = {
    parse_int: {
        "0": 0, "-0": 0, "+5": 5, "1_000": 1000, "0x10": 16, "0X_1f": 31, "-0x10": -16, "0b101": 5, "0o17": 15,
        "017": 15, "0_7": 7, "00": 0, "9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63),
        "0x7fffffffffffffff": 2**63 - 1,
    },
    # A quoted integer in a config file.
    parse_decimal: {"12": 12, "+7": 7, "-1": -1, "010": 10},
    parse_float: {
        "1": 1.0, ".5": 0.5, "5.": 5.0, "1e-3": 0.001, "1_0.5": 10.5, "0x1p-2": 0.25, "0x.8p0": 0.5, "0x_1p1": 2.0,
        "inf": math.inf, "-Infinity": -math.inf, "1e-400": 0.0,
    },
    parse_bool: {
        **dict.fromkeys(["1", "t", "T", "true", "TRUE", "True"], True),
        **dict.fromkeys(["0", "f", "F", "false", "FALSE", "False"], False),
    },
}  # fmt: skip
NO_VALUES: dict[Reader, list[str]] = {
    parse_int: [
        "", " 5", "5 ", "1e3", "1.5", "08", "0x", "0b2", "0_", "_1", "1_", "1__0", "0_x1", "+-5", "0b", "\u0663",
    ],
    parse_decimal: ["0x10", "1_0", "12k", "", " 1", "1.0"],
    parse_float: [
        "", "abc", " 0.5", "1e", "0x1", "0b1", "1_.5", "1._5", "_1.0", "1_e1", "\u0661", "-nan",
    ],
    parse_bool: ["", "yes", "no", "tRUE", "2", " true"],
}  # fmt: skip
BEYOND_64_BITS: dict[Reader, list[str]] = {
    parse_int: ["9223372036854775808", "-9223372036854775809", "0x8000000000000000", "9" * 5000],
    parse_float: ["1e400", "0x1p99999"],
}


@pytest.mark.parametrize("read", VALUES)
def test_a_literal_has_the_value_that_it_has_in_go(read):
    assert {text: read(text) for text in VALUES[read]} == VALUES[read]


def test_nan_is_a_float():
    assert math.isnan(parse_float("NaN"))


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (read, text, error)
        for error, table in (("parse error", NO_VALUES), ("value out of range", BEYOND_64_BITS))
        for read, texts in table.items()
        for text in texts
    ],
)
def test_other_text_is_refused_and_so_is_a_number_beyond_64_bits(read, text, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        read(text)


@given(st.text() | st.text(alphabet="+-_.xXoObBpPeE0123456789abcdefinfty"))
def test_any_text_is_a_value_or_a_value_error_of_two_kinds(text):
    for read in VALUES:
        try:
            read(text)
        except ValueError as error:
            assert str(error) in ("parse error", "value out of range")  # noqa: PT017


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_integer_reads_back_in_every_base(value):
    assert {parse_int(form) for form in (str(value), hex(value), oct(value), bin(value))} == {value}


@given(st.floats(allow_nan=False))
def test_every_float_reads_back(value):
    assert parse_float(repr(value)) == parse_float(value.hex()) == value
