"""What a terminal shows while a utility works, and that nothing else does."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_compat.client import Producer
from nsq_compat.tools.progress import Progress, channel_backlog
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.client.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def lines(self):
        return [line.removesuffix("\033[K") for line in self.getvalue().split("\r") if line]


class Figures:
    def __init__(self):
        self.now = 100.0
        self.messages = 0
        self.backlog = None


@pytest.fixture
def figures():
    return Figures()


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def progress(figures, terminal):
    return Progress(lambda: figures.messages, lambda: figures.backlog, terminal=terminal, clock=lambda: figures.now)


def test_the_rate_is_that_since_the_last_line(progress, figures, terminal):
    figures.now, figures.messages = 102.0, 3000
    progress.show()
    figures.now, figures.messages, figures.backlog = 104.0, 3100, 1234
    progress.show()
    assert terminal.lines == ["3,000 messages, 1,500/s", "3,100 messages, 50/s, backlog 1,234"]


def test_a_clock_that_stands_still_is_no_rate(progress, figures, terminal):
    figures.messages = 5
    progress.show()
    assert terminal.lines == ["5 messages, 0/s"]


def test_each_line_begins_and_ends_at_the_margin_and_leaves_nothing_behind_it(progress, terminal):
    progress.show()
    assert terminal.getvalue() == "\r0 messages, 0/s\033[K\r"


def test_at_the_end_the_line_is_cleared(progress, terminal):
    with progress:
        progress.show()
    assert terminal.getvalue().endswith("\r\033[K\r")


def test_what_is_no_terminal_stays_empty():
    pipe = io.StringIO()
    with Progress(lambda: 1, terminal=pipe):
        pass
    assert pipe.getvalue() == ""


@pytest.fixture
def lookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


@pytest.fixture
def nsqd(lookupd: NsqlookupdProcess, tmp_path: Path) -> Iterator[NsqdProcess]:
    options = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as process:
        yield process


def test_the_backlog_is_what_waits_in_the_channel_of_all_topics(nsqd, lookupd):
    topics = ["one", "two"]
    with Producer(nsqd.tcp_address) as producer:
        for topic, count in (("one", 3), ("two", 4)):
            nsqd.create_channel(topic, "c")
            nsqd.create_channel(topic, "other")
            producer.publish_many(topic, [b"x"] * count)
    backlog = channel_backlog(topics, "c", [f"http://{lookupd.http_address}"])
    wait_until(lambda: backlog() == 7)
    topics.remove("one")
    assert backlog() == 4


def test_without_an_nsqlookupd_that_answers_the_backlog_is_not_known():
    assert channel_backlog(["t"], "c", [])() is None
    assert channel_backlog(["t"], "c", ["127.0.0.1:1"])() is None
