"""Fixtures: an nsqd per module, with limits that tests can reach, and connections that are closed after the test."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from nsq_conformance.attached import RUN
from nsq_conformance.behaviours.limits import OPTIONS, Connect
from nsq_conformance.daemons import a_nsqd
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import PATIENCE_SECONDS, RawClient

GO_SCAN_SECONDS = 5
"""Go's nsqd looks for new channels at this interval."""


@pytest.fixture(scope="module")
def nsqd(request: pytest.FixtureRequest) -> Iterator[NsqdProcess]:
    with a_nsqd(request, OPTIONS) as process:
        yield process


@pytest.fixture
def connect(nsqd: NsqdProcess) -> Iterator[Connect]:
    with ExitStack() as connections:
        yield lambda: connections.enter_context(RawClient(nsqd.tcp_address))


@pytest.fixture
def client(connect: Connect) -> RawClient:
    """A connection; in tests with two, it publishes."""
    return connect()


@pytest.fixture
def consumer(connect: Connect) -> RawClient:
    """A second connection."""
    return connect()


@pytest.fixture(scope="module")
def awake_topics(nsqd: NsqdProcess) -> list[str]:
    """Topics with a channel ``ch``, after nsqd has begun to scan their queues. Go's begins late.

    The wait is the same for all tests of a module.
    """
    topics = [f"awake.{RUN}.{number}" for number in range(30)]
    last = f"awake.{RUN}.last"
    for topic in (*topics, last):
        nsqd.create_channel(topic, "ch")
    with RawClient(nsqd.tcp_address) as client:
        client.subscribes(last).is_ready(1).defers(last, 1, b"is it?")
        assert client.reply(PATIENCE_SECONDS + GO_SCAN_SECONDS).data.endswith(b"is it?")
    return topics


@pytest.fixture
def awake(awake_topics: list[str]) -> str:
    """One of `awake_topics`, for this test only."""
    return awake_topics.pop()
