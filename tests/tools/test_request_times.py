"""The lines of --status-every."""

import pytest

from nsq_compat.tools.request_times import RequestTimes


@pytest.fixture
def lines():
    return []


def test_the_line_comes_with_the_request_behind_so_many(lines):
    times = RequestTimes(["a"], 100, lines.append)
    for number in range(100):
        times.add("a", number / 1000)
    assert lines == []
    times.add("a", 0.1)
    assert lines == ["[aggregate]: finished 100 - 99th: 100.00ms - 95th: 97.00ms - avg: 50.50ms"]


def test_the_next_line_comes_after_as_many_again(lines):
    times = RequestTimes(["a"], 100, lines.append)
    for _ in range(301):
        times.add("a", 0.001)
    assert len(lines) == 3
    assert times.count == 301


def test_several_addresses_have_lines_of_their_own(lines):
    times = RequestTimes(["http://me:secret@a/", "b"], 100, lines.append)
    for _ in range(101):
        times.add("http://me:secret@a/", 0.001)
    assert [line.split(" ")[0] for line in lines] == ["[http://a/]:", "[aggregate]:"]


def test_few_values_are_warned_of(lines):
    RequestTimes(["a"], 99, lines.append)
    assert lines == ["Warning: use more than 100 status values for accurate percentiles (configured with 99)"]


def test_zero_is_silence(lines):
    times = RequestTimes(["a", "b"], 0, lines.append)
    for _ in range(1000):
        times.add("a", 0.001)
    assert lines == []
    assert times.count == 1000
