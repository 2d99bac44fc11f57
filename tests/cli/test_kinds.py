import math

import pytest

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
        (kinds.INTEGER, "abc", "parse error"),
        (kinds.FLOAT, " 1", "parse error"),
        (kinds.BOOLEAN, "maybe", "parse error"),
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
