"""What becomes of a message that a handler gets, against a real nsqd, without Spark."""

import base64
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.options import OptionError
from pyspark_nsq.publisher import CannotPublish
from pyspark_nsq.reader import CannotHandle, Message, Retries, Work, closed, opened, run_reader
from tests.client.fake_lookupd import FakeLookupd

Handle = Callable[..., dict[str, int]]


@pytest.fixture
def retry(topic: str, nsqd) -> Retries:
    """To topics that keep what they get in channel `c`."""
    names = [f"{topic}.retry", f"{topic}.dead"]
    for name in names:
        nsqd.create_channel(name, "c")
    return Retries(topic=names[0], dead_letter_topic=names[1], max_tries=3, requeue_delay=90, max_requeue_delay=15 * 60)


@pytest.fixture
def handled(retry: Retries, options_with, topic: str, nsqd) -> Handle:
    """Call a handler with messages of these rows; what was counted, without zeros."""

    def handle(handler: Callable[[Message], Any], *rows: dict[str, Any], **options: str) -> dict[str, int]:
        usual = {
            "id": "0" * 16,
            "body": b"x",
            "timestamp_ns": 7,
            "attempts": 1,
            "topic": topic,
            "nsqd": nsqd.tcp_address,
        }
        batch = pa.RecordBatch.from_pylist([usual | row for row in rows])
        results = Work(handler, options_with(**options), retry)(batch).to_pylist()
        counts = Counter(result["outcome"] for result in results)
        counts["raised"] = sum(result["raised"] for result in results)
        return +counts

    return handle


@pytest.fixture
def lying_in(nsqd, options_with) -> Callable[[str], list[bytes]]:
    """The bodies that wait in a topic."""

    def look(name: str) -> list[bytes]:
        peeked = nsqd.asks("GET", f"/channel/peek?topic={name}&channel=c&limit=100").json()
        return [base64.b64decode(each["body"]) for each in peeked["messages"]]

    return look


def asynchronous(answer: object) -> Callable[[Message], Any]:
    async def handler(_: Message) -> object:
        return answer

    return handler


def answering(name: str, **arguments: Any) -> Callable[[Message], Any]:
    """A handler that calls a method of its message, and returns nothing."""
    return lambda message: getattr(message, name)(**arguments)


def failing(_: Message) -> bool:
    raise RuntimeError("it does not work")


@pytest.mark.parametrize("handler", [lambda _: True, answering("finish"), asynchronous(True)])
def test_what_is_handled_is_finished(handled: Handle, handler, lying_in, retry):
    assert handled(handler, {}, {}) == {"finished": 2}
    assert lying_in(retry.topic) == []


@pytest.mark.parametrize(
    ("handler", "counts", "delay"),
    [
        (lambda _: False, {"requeued": 1}, 90),
        (asynchronous(False), {"requeued": 1}, 90),
        (answering("requeue", delay=5), {"requeued": 1}, 5),
        (answering("requeue", time_ms=7000, backoff=False), {"requeued": 1}, 7),
        (failing, {"requeued": 1, "raised": 1}, 90),
        (lambda _: None, {"requeued": 1, "raised": 1}, 90),
    ],
)
def test_what_is_not_handled_is_put_off_in_the_retry_topic(handled: Handle, handler, counts, delay, nsqd, retry):
    before = time.time()
    assert handled(handler, {}) == counts
    after = time.time()
    (deferred,) = nsqd.asks("GET", f"/channel/peek?topic={retry.topic}&channel=c").json()["deferred"]
    assert before + delay - 0.1 < deferred["due"] / 1e9 < after + delay + 0.1


def test_attempts_go_on_counting_and_a_message_stays_who_it_was(handled: Handle, lying_in, retry):
    seen = []

    def handler(message: Message) -> bool:
        seen.append((message.id, message.body, message.timestamp, message.attempts))
        message.requeue(delay=0)
        return False

    assert handled(handler, {"body": b"two\nlines"}) == {"requeued": 1}
    (again,) = lying_in(retry.topic)
    assert handled(handler, {"topic": retry.topic, "body": again, "id": "f" * 16, "timestamp_ns": 99}) == {
        "requeued": 1
    }
    assert seen == [(b"0" * 16, b"two\nlines", 7, 1), (b"0" * 16, b"two\nlines", 7, 2)]


def test_after_its_last_try_a_message_is_a_dead_letter_as_it_was_published(handled: Handle, lying_in, retry):
    assert handled(lambda _: False, {"attempts": 3, "body": b"poison"}) == {"dead": 1}
    assert handled(failing, {"attempts": 3, "body": b"worse"}) == {"dead": 1, "raised": 1}
    assert handled(lambda _: pytest.fail("it was given to the handler"), {"attempts": 4, "body": b"late"}) == {
        "dead": 1
    }
    assert sorted(lying_in(retry.dead_letter_topic)) == [b"late", b"poison", b"worse"]
    assert lying_in(retry.topic) == []


def test_another_nsqd_takes_what_that_of_the_message_does_not(handled: Handle, lying_in, retry):
    assert handled(answering("requeue", delay=0), {"nsqd": "127.0.0.1:1"}) == {"requeued": 1}
    assert len(lying_in(retry.topic)) == 1


def test_it_is_found_through_nsqlookupd(handled: Handle, lying_in, retry, nsqd):
    with contextlib.closing(FakeLookupd()) as lookupd:
        lookupd.addresses = [nsqd.tcp_address]
        addresses = {"nsqdTcpAddresses": "", "nsqdHttpAddresses": "", "lookupdHttpAddresses": lookupd.address}
        assert handled(answering("requeue", delay=0), {"nsqd": "127.0.0.1:1"}, **addresses) == {"requeued": 1}
    assert len(lying_in(retry.topic)) == 1


def test_nobody_who_takes_it_fails_the_task(handled: Handle):
    with pytest.raises(CannotPublish, match="no nsqd takes what was not finished: nsqd 127.0.0.1:1 cannot be reached"):
        handled(lambda _: False, {"nsqd": "127.0.0.1:1"}, nsqdTcpAddresses="127.0.0.1:1")


def test_a_handler_that_wants_to_answer_later_fails_the_task(handled: Handle):
    with pytest.raises(CannotHandle, match="enable_async"):
        handled(answering("enable_async"), {})


@given(st.binary())
def test_what_is_not_ours_in_the_retry_topic_is_taken_as_it_is(body: bytes):
    message = opened({"id": "1", "body": body, "timestamp_ns": 3, "attempts": 2})
    assert (message.id, message.body, message.timestamp, message.attempts) == (b"1", body, 3, 2)


@given(st.binary(), st.integers(1, 65535))
def test_what_is_closed_is_opened_as_it_was(body: bytes, attempts: int):
    message = opened({"id": "1", "body": closed(Message(b"0", body, 3, attempts)), "timestamp_ns": 9, "attempts": 1})
    assert (message.id, message.body, message.timestamp, message.attempts) == (b"0", body, 3, attempts + 1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"topic": "a,b"}, "topic must be one topic"),
        ({"retry_topic": "x" * 65}, "retry_topic must be topics"),
        ({"dead_letter_topic": "not one"}, "dead_letter_topic must be topics"),
        ({"channel": "c#ephemeral"}, "channel must be a channel that is kept"),
        ({"maxMessage": 3}, "there is no option maxMessage"),
        ({"nsqd_tcp_addresses": []}, "give either lookupdHttpAddresses or nsqdTcpAddresses"),
    ],
)
def test_what_cannot_be_is_said_before_spark_is_asked(wrong: dict[str, Any], sentence: str):
    good = {"topic": "t", "channel": "c", "spool_dir": "/s", "checkpoint": "/c", "nsqd_tcp_addresses": ["h:1"]}
    with pytest.raises(OptionError, match=sentence):
        run_reader(None, lambda _: True, **(good | wrong))
