"""Timeouts of messages that are not answered."""

import time
from collections.abc import Iterator

import pytest

from nsq_conformance.behaviours.limits import OPTIONS
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient


@pytest.fixture(scope="module")
def nsqd(nsqd_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    """An nsqd with a short message timeout, and a maximum of three times as much."""
    options = [*OPTIONS, "--msg-timeout=800ms", "--max-msg-timeout=2400ms"]
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=options) as process:
        yield process


def test_an_unanswered_message_is_redelivered_after_its_timeout(
    client: RawClient, nsqd: NsqdProcess, awake: str
) -> None:
    began = time.monotonic()
    message = client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    assert client.message() == message._replace(attempts=2)
    assert time.monotonic() - began > 0.79
    channel = nsqd.channel_stats(awake, "ch")
    assert (channel["timeout_count"], channel["requeue_count"]) == (1, 0)


def test_a_client_may_request_a_longer_timeout(client: RawClient, awake: str) -> None:
    client.identifies(msg_timeout=1600)
    began = time.monotonic()
    client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    assert client.message().attempts == 2
    assert time.monotonic() - began > 1.59


def test_touching_restarts_the_timeout(client: RawClient, nsqd: NsqdProcess, awake: str) -> None:
    began = time.monotonic()
    message = client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    while time.monotonic() - began < 1.4:
        client.touches(message)
        time.sleep(0.1)
    assert nsqd.channel_stats(awake, "ch")["timeout_count"] == 0
    assert client.message().attempts == 2


def test_touching_does_not_help_beyond_the_maximum_timeout(client: RawClient, awake: str) -> None:
    began = time.monotonic()
    message = client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    while client.touches(message).hears_nothing(0.1):
        assert time.monotonic() - began < 10
    assert time.monotonic() - began > 2.39


def test_an_answer_after_the_timeout_is_refused(client: RawClient, nsqd: NsqdProcess, awake: str) -> None:
    message = client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    client.is_ready(0)
    eventually(lambda: nsqd.channel_stats(awake, "ch")["timeout_count"] == 1)
    assert client.finishes(message).error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id


def test_a_timed_out_message_belongs_to_its_next_consumer(client: RawClient, consumer: RawClient, awake: str) -> None:
    message = client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    consumer.identifies(msg_timeout=2400)
    consumer.subscribes(awake, ready=1)
    client.is_ready(0)
    assert consumer.message() == message._replace(attempts=2)
    assert client.finishes(message).error() == b"E_FIN_FAILED FIN %b failed client does not own message" % message.id
    consumer.finishes(message).has_been_heard()


def test_messages_of_a_lost_connection_are_redelivered_after_their_timeout(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, awake: str
) -> None:
    message = client.publishes(awake, b"x").subscribes(awake, ready=1).message()
    client.close()
    assert consumer.subscribes(awake, ready=1).message() == message._replace(attempts=2)
    assert nsqd.channel_stats(awake, "ch")["timeout_count"] == 1
