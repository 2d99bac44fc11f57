import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cli import kinds
from nsq_compat.cli.kinds import OptionError, parse_bool, parse_decimal, parse_float, parse_int
from nsq_compat.protocol.durations import MILLISECOND, MINUTE, SECOND


@pytest.mark.parametrize(
    ("kind", "text", "so_far", "value"),
    [
        (kinds.STRING, "", "before", ""),
        (kinds.STRING, "--x", "", "--x"),
        (kinds.INTEGER, "0x10", 7, 16),
        (kinds.FLOAT, ".5", 1.0, 0.5),
        (kinds.BOOLEAN, "F", True, False),
        (kinds.DURATION, "1m30s", 0, 90 * SECOND),
        (kinds.STRINGS, "a,b", ("first",), ("first", "a,b")),
        (kinds.FLOATS, "0.5,0.99", (0.75,), (0.99, 0.75, 0.5)),
        (kinds.LOG_LEVEL, "Warn", 2, 3),
        (kinds.TLS_REQUIREMENT, "TRUE", 0, 1),
        (kinds.TLS_REQUIREMENT, "f", 1, 0),
        (kinds.TLS_REQUIREMENT, "TCP-HTTPS", 0, 2),
        (kinds.TLS_MIN_VERSION, "TLS1.2", 769, 771),
        (kinds.TLS_MIN_VERSION, "", 771, 771),
    ],
)
def test_a_flag_s_text_becomes_a_value(kind, text, so_far, value):
    assert kind.parse(text, so_far) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (kinds.DURATION, "1d", "parse error"),
        (kinds.LOG_LEVEL, "warning", "invalid log level 'warning' (debug, info, warn, error, fatal)"),
        (kinds.TLS_REQUIREMENT, "Perhaps", 'strconv.ParseBool: parsing "perhaps": invalid syntax'),
        (kinds.TLS_MIN_VERSION, "SSL3.0", 'unknown tlsVersionOption "ssl3.0"'),
        (kinds.TLS_MIN_VERSION, "\udcff", r'unknown tlsVersionOption "\xff"'),
    ],
)
def test_a_flag_s_wrong_text_is_refused_in_go_s_words(kind, text, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        kind.parse(text, None)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("text", "element"), [("abc", "abc"), ("0.5,x", "x"), ("0.5,", ""), ("0.5, 0.9", " 0.9"), ("-nan", "-nan")]
)
def test_a_wrong_percentile_flag_is_fatal_at_once(text, element):
    with pytest.raises(OptionError) as caught:
        kinds.FLOATS.parse(text, ())
    assert str(caught.value) == f"Could not parse: {element}"


@pytest.mark.parametrize(
    ("kind", "toml", "value"),
    [
        (kinds.STRING, "x", "x"),
        (kinds.INTEGER, 5, 5),
        (kinds.INTEGER, "5", 5),
        (kinds.FLOAT, 1, 1.0),
        (kinds.BOOLEAN, False, False),
        (kinds.BOOLEAN, "T", True),
        (kinds.DURATION, "1m", MINUTE),
        (kinds.DURATION, 250, 250 * MILLISECOND),
        (kinds.DURATION, -5, -5 * MILLISECOND),
        (kinds.STRINGS, ["a", "b,c"], ("a", "b,c")),
        (kinds.STRINGS, "a,b", ("a", "b")),
        (kinds.STRINGS, "a, b", ("a", " b")),
        (kinds.STRINGS, "", ("",)),
        (kinds.STRINGS, [], ()),
        (kinds.FLOATS, [0.5, 1, 0.99], (0.5, 1.0, 0.99)),
        (kinds.FLOATS, "0.5, 0.99", (0.5, 0.99)),
        (kinds.LOG_LEVEL, "DEBUG", 1),
        (kinds.TLS_REQUIREMENT, True, 1),
        (kinds.TLS_REQUIREMENT, False, 0),
        (kinds.TLS_REQUIREMENT, 1, 1),
        (kinds.TLS_REQUIREMENT, "tcp-https", 2),
        (kinds.TLS_MIN_VERSION, "tls1.3", 772),
        (kinds.TLS_MIN_VERSION, "", 769),
    ],
)
def test_a_value_of_the_config_file_is_converted(kind, toml, value):
    converted = kind.convert(toml)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("kind", "toml", "reason"),
    [
        (kinds.STRING, 5, "expected a string, got 5"),
        (kinds.STRING, ["a"], 'expected a string, got ["a"]'),
        (kinds.INTEGER, True, "expected an integer, got true"),
        (kinds.INTEGER, 1.0, "expected an integer, got 1.0"),
        (kinds.INTEGER, "12k", 'expected an integer, got "12k": parse error'),
        (kinds.INTEGER, 2**63, "expected an integer, got 9223372036854775808: value out of range"),
        (kinds.FLOAT, "1", 'expected a number, got "1"'),
        (kinds.BOOLEAN, 0, "expected true or false, got 0"),
        (kinds.BOOLEAN, 1, "expected true or false, got 1"),
        (kinds.BOOLEAN, "maybe", 'expected true or false, got "maybe": parse error'),
        (kinds.DURATION, 5.0, 'expected a duration such as "1m30s" or an integer of milliseconds, got 5.0'),
        (kinds.DURATION, True, 'expected a duration such as "1m30s" or an integer of milliseconds, got true'),
        (
            kinds.DURATION,
            "5",
            'expected a duration such as "1m30s" or an integer of milliseconds, got "5": '
            'time: missing unit in duration "5"',
        ),
        (
            kinds.DURATION,
            2**60,
            'expected a duration such as "1m30s" or an integer of milliseconds, got 1152921504606846976: '
            "value out of range",
        ),
        (kinds.STRINGS, 5, "expected an array of strings or one comma-separated string, got 5"),
        (
            kinds.STRINGS,
            ["a", 5],
            'expected an array of strings or one comma-separated string, got ["a", 5]: 5 is not a string',
        ),
        (kinds.FLOATS, 0.5, "expected an array of numbers or one comma-separated string, got 0.5"),
        (
            kinds.FLOATS,
            [True],
            "expected an array of numbers or one comma-separated string, got [true]: true is not a number",
        ),
        (
            kinds.FLOATS,
            ["0.5"],
            'expected an array of numbers or one comma-separated string, got ["0.5"]: "0.5" is not a number',
        ),
        (
            kinds.FLOATS,
            [2**70],
            f"expected an array of numbers or one comma-separated string, got [{2**70}]: value out of range",
        ),
        (kinds.LOG_LEVEL, 1, "expected a log level, got 1"),
        (kinds.TLS_REQUIREMENT, 1.0, "expected true, false or tcp-https, got 1.0"),
        (kinds.TLS_MIN_VERSION, 771, "expected a TLS version, got 771"),
    ],
)
def test_a_wrong_value_of_the_config_file_is_refused_with_the_reason(kind, toml, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        kind.convert(toml)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (kinds.STRING, 'a"b', r'"a\"b"'),
        (kinds.INTEGER, 10000, "10000"),
        (kinds.BOOLEAN, True, "true"),
        (kinds.DURATION, 15 * MINUTE, "15m0s"),
        (kinds.STRINGS, ("a", "b"), "a,b"),
        (kinds.FLOATS, (0.99, 0.5), "0.990000,0.500000"),
        (kinds.LOG_LEVEL, 3, "WARNING"),
        (kinds.TLS_REQUIREMENT, 2, "2"),
        (kinds.TLS_MIN_VERSION, 771, "tls1.2"),
    ],
)
def test_a_default_is_shown_as_go_shows_it(kind, value, shown):
    assert kind.show(value) == shown


@pytest.mark.parametrize(
    ("kind", "empty"),
    [
        (kinds.STRING, ""),
        (kinds.INTEGER, 0),
        (kinds.BOOLEAN, False),
        (kinds.DURATION, 0),
        (kinds.STRINGS, ()),
        (kinds.FLOATS, ()),
        (kinds.TLS_REQUIREMENT, 0),
        (kinds.TLS_MIN_VERSION, 0),
    ],
)
def test_an_empty_default_is_recognized_by_its_text(kind, empty):
    assert kind.show(empty) == kind.unset


def test_nan_is_accepted_as_a_percentile_and_left_to_validation():
    (percentile,) = kinds.FLOATS.parse("nan", ())
    assert math.isnan(percentile)


# --- Literals ---------------------------------------------------------------------------------------------------------

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
