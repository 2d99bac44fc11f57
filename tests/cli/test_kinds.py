import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cli import kinds
from nsq_compat.cli.kinds import OptionError
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
    assert kinds.parse_int(text) == value


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "1e3", "1.5", "08", "0x", "0b2", "0_", "_1", "1_", "1__0", "0_x1", "+-5", "0b", "\u0663"]
)
def test_other_text_is_not_an_integer(text):
    with pytest.raises(ValueError, match="^parse error$"):
        kinds.parse_int(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "0x8000000000000000", "9" * 5000])
def test_an_integer_beyond_64_bits_is_out_of_range(text):
    with pytest.raises(ValueError, match="^value out of range$"):
        kinds.parse_int(text)


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("+7", 7), ("-1", -1), ("010", 10)])
def test_a_quoted_integer_in_a_config_file_is_decimal(text, value):
    assert kinds.parse_decimal(text) == value


@pytest.mark.parametrize("text", ["0x10", "1_0", "12k", "", " 1", "1.0"])
def test_a_quoted_integer_has_digits_only(text):
    with pytest.raises(ValueError, match="^parse error$"):
        kinds.parse_decimal(text)


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
    assert kinds.parse_float(text) == value


def test_nan_is_a_float_without_a_sign():
    assert math.isnan(kinds.parse_float("NaN"))
    with pytest.raises(ValueError, match="parse error"):
        kinds.parse_float("-nan")


@pytest.mark.parametrize("text", ["", "abc", " 0.5", "1e", "0x1", "0b1", "1_.5", "1._5", "_1.0", "1_e1", "\u0661"])
def test_other_text_is_not_a_float(text):
    with pytest.raises(ValueError, match="^parse error$"):
        kinds.parse_float(text)


@pytest.mark.parametrize("text", ["1e400", "0x1p99999"])
def test_a_float_beyond_64_bits_is_out_of_range(text):
    with pytest.raises(ValueError, match="^value out of range$"):
        kinds.parse_float(text)


def test_a_boolean_has_twelve_spellings():
    assert all(map(kinds.parse_bool, ["1", "t", "T", "true", "TRUE", "True"]))
    assert not any(map(kinds.parse_bool, ["0", "f", "F", "false", "FALSE", "False"]))


@pytest.mark.parametrize("text", ["", "yes", "no", "tRUE", "2", " true"])
def test_any_other_spelling_is_no_boolean(text):
    with pytest.raises(ValueError, match="^parse error$"):
        kinds.parse_bool(text)


@given(st.text() | st.text(alphabet="+-_.xXoObBpPeE0123456789abcdefinfty"))
def test_any_text_is_a_value_or_a_value_error_of_two_kinds(text):
    for read in (kinds.parse_int, kinds.parse_decimal, kinds.parse_float, kinds.parse_bool):
        try:
            read(text)
        except ValueError as error:
            assert str(error) in (kinds.SYNTAX_ERROR, kinds.RANGE_ERROR)  # noqa: PT017


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_integer_reads_back_in_every_base(value):
    assert {kinds.parse_int(form) for form in (str(value), hex(value), oct(value), bin(value))} == {value}


@given(st.floats(allow_nan=False))
def test_every_float_reads_back(value):
    assert kinds.parse_float(repr(value)) == kinds.parse_float(value.hex()) == value
