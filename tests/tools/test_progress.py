"""What a terminal shows while a utility works, and that nothing else does."""

import io
from types import SimpleNamespace

import pytest

from nsq_compat.tools.client_options import ReadingOptions
from nsq_compat.tools.progress import Progress, RequestTimes, channel_backlog
from tests.client.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def lines(self):
        return [line.removesuffix("\033[K") for line in self.getvalue().split("\r") if line]


@pytest.fixture
def values():
    return SimpleNamespace(now=100.0, messages=0, backlog=None)


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def progress(values, terminal):
    return Progress(lambda: values.messages, lambda: values.backlog, terminal=terminal, clock=lambda: values.now)


def test_the_rate_is_that_since_the_last_line(progress, values, terminal):
    values.now, values.messages = 102.0, 3000
    progress.show()
    values.now, values.messages, values.backlog = 104.0, 3100, 1234
    progress.show()
    assert terminal.lines == ["3,000 messages, 1,500/s", "3,100 messages, 50/s, backlog 1,234"]


def test_a_clock_that_stands_still_gives_a_rate_of_0(progress, values, terminal):
    values.messages = 5
    progress.show()
    assert terminal.lines == ["5 messages, 0/s"]


def test_each_line_replaces_the_last_one(progress, terminal):
    progress.show()
    assert terminal.getvalue() == "\r0 messages, 0/s\033[K\r"


def test_at_the_end_the_line_is_cleared(progress, terminal):
    with progress:
        progress.show()
    assert terminal.getvalue().endswith("\r\033[K\r")


def test_without_a_terminal_nothing_is_shown():
    pipe = io.StringIO()
    with Progress(lambda: 1, terminal=pipe):
        pass
    assert pipe.getvalue() == ""


def test_the_backlog_is_the_depth_of_the_channel_in_all_topics(announced_nsqd, lookupd):
    topics = ["one", "two"]
    for topic, count in (("one", 3), ("two", 4)):
        announced_nsqd.create_channel(topic, "c")
        announced_nsqd.create_channel(topic, "other")
        announced_nsqd.publish(topic, *[b"x"] * count)
    backlog = channel_backlog(topics, "c", ReadingOptions(lookupd_http_addresses=(f"http://{lookupd.http_address}",)))
    wait_until(lambda: backlog() == 7)
    topics.remove("one")
    assert backlog() == 4


def test_without_an_answer_of_nsqlookupd_the_backlog_is_unknown():
    assert channel_backlog(["t"], "c", ReadingOptions())() is None
    assert channel_backlog(["t"], "c", ReadingOptions(lookupd_http_addresses=("127.0.0.1:1",)))() is None


@pytest.fixture
def lines():
    return []


def test_a_line_is_printed_with_the_request_after_the_last(lines):
    times = RequestTimes(["a"], 100, lines.append)
    for number in range(100):
        times.add("a", number / 1000)
    assert lines == []
    times.add("a", 0.1)
    assert lines == ["[aggregate]: finished 100 - 99th: 100.00ms - 95th: 97.00ms - avg: 50.50ms"]


@pytest.mark.parametrize(("every", "count"), [(100, 3), (1, 300), (0, 0)])
def test_the_next_line_is_printed_after_as_many_requests(lines, every, count):
    times = RequestTimes(["a"], every, lines.append)
    lines.clear()  # of the warning
    for _ in range(301):
        times.add("a", 0.001)
    assert (len(lines), times.count) == (count, 301)


def test_several_addresses_have_lines_of_their_own(lines):
    times = RequestTimes(["http://me:secret@a/", "b"], 100, lines.append)
    for _ in range(101):
        times.add("http://me:secret@a/", 0.001)
    assert [line.split(" ")[0] for line in lines] == ["[http://a/]:", "[aggregate]:"]


def test_few_values_cause_a_warning(lines):
    RequestTimes(["a"], 99, lines.append)
    assert lines == ["Warning: use more than 100 status values for accurate percentiles (configured with 99)"]
