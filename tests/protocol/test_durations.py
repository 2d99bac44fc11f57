import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.durations import HOUR, MILLISECOND, MINUTE, SECOND, format_duration, parse_duration, seconds

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("1us", 1_000),
        ("1\u00b5s", 1_000),
        ("1\u03bcs", 1_000),
        ("250ms", 250 * MILLISECOND),
        ("5.s", 5 * SECOND),
        (".5s", SECOND // 2),
        ("-5s", -5 * SECOND),
        ("+5s", 5 * SECOND),
        ("1.5h", 90 * MINUTE),
        ("1h2m3s", HOUR + 2 * MINUTE + 3 * SECOND),
        ("3s1h", HOUR + 3 * SECOND),
        ("0.3333333333333333333h", 1_200_000_000_000),
        ("1.0000000000000000000000001s", SECOND),
        ("0.33333333333333333333333333333h", 20 * MINUTE),
        ("0.5ns", 0),
        ("9223372036854775807ns", LARGEST),
        ("-9223372036854775808ns", -LARGEST - 1),
    ],
)
def test_a_duration_is_a_sum_of_numbers_with_units(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("abc", 'time: invalid duration "abc"'),
        ("1m-1s", 'time: unknown unit "m-" in duration "1m-1s"'),
        ("5", 'time: missing unit in duration "5"'),
        ("00", 'time: missing unit in duration "00"'),
        ("1s1", 'time: missing unit in duration "1s1"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("5 s", 'time: unknown unit " s" in duration "5 s"'),
        ("1H", 'time: unknown unit "H" in duration "1H"'),
        ("1\u00e9", r'time: unknown unit "\xc3\xa9" in duration "1\xc3\xa9"'),
        ('1"', r'time: unknown unit "\"" in duration "1\""'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("-9223372036854775809ns", 'time: invalid duration "-9223372036854775809ns"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
    ],
)
def test_a_wrong_duration_is_refused_in_go_s_words(text, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        parse_duration(text)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u00b5s"),
        (25 * MILLISECOND, "25ms"),
        (2_200_001, "2.200001ms"),
        (SECOND, "1s"),
        (SECOND + 500 * MILLISECOND, "1.5s"),
        (MINUTE, "1m0s"),
        (15 * MINUTE, "15m0s"),
        (HOUR, "1h0m0s"),
        (127_687_255_628, "2m7.687255628s"),
        (-5 * SECOND, "-5s"),
        (LARGEST, "2562047h47m16.854775807s"),
        (-LARGEST - 1, "-2562047h47m16.854775808s"),
    ],
)
def test_a_duration_is_printed_normalised(ns, text):
    assert format_duration(ns) == text


def test_nanoseconds_are_converted_to_seconds():
    assert seconds(250 * MILLISECOND) == 0.25


@given(st.integers(-LARGEST - 1, LARGEST))
def test_a_printed_duration_can_be_parsed(ns):
    printed = format_duration(ns)
    # Fractions of a second are exact; only a fraction of a larger unit would be scaled in floating point.
    assert parse_duration(printed) == ns


@given(st.one_of(st.text(), st.text(alphabet="+-.0123456789nuµmsh")))
def test_any_text_is_a_duration_in_range_or_a_value_error(text):
    try:
        ns = parse_duration(text)
    except ValueError as error:
        assert str(error).isascii()  # noqa: PT017 - a property, not an expectation of failure
    else:
        assert -LARGEST - 1 <= ns <= LARGEST
