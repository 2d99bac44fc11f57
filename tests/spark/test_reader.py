"""The outcomes of handlers' messages, against a real nsqd, without Spark."""

import base64
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
from pyspark_nsq.reader import CannotHandle, Message, Retries, Work, decode_retry, encode_retry, run_reader

Handle = Callable[..., dict[str, int]]


@pytest.fixture
def retry(topic: str, nsqd) -> Retries:
    """Retries with topics that have a channel `c`."""
    names = [f"{topic}.retry", f"{topic}.dead"]
    for name in names:
        nsqd.create_channel(name, "c")
    return Retries(topic=names[0], dead_letter_topic=names[1], max_tries=3, requeue_delay=90, max_requeue_delay=15 * 60)


@pytest.fixture
def handled(retry: Retries, options_with, topic: str, nsqd) -> Handle:
    """Call a handler with messages of these rows; returns the counts that are not zero."""

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
def bodies_in(nsqd, options_with) -> Callable[[str], list[bytes]]:
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
    """A handler that calls a method of its message and returns None."""
    return lambda message: getattr(message, name)(**arguments)


def failing(_: Message) -> bool:
    raise RuntimeError("handler failed")


@pytest.mark.parametrize("handler", [lambda _: True, answering("finish"), asynchronous(True)])
def test_a_handled_message_is_finished(handled: Handle, handler, bodies_in, retry):
    assert handled(handler, {}, {}) == {"finished": 2}
    assert bodies_in(retry.topic) == []


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
def test_an_unhandled_message_is_deferred_in_the_retry_topic(handled: Handle, handler, counts, delay, nsqd, retry):
    before = time.time()
    assert handled(handler, {}) == counts
    after = time.time()
    (deferred,) = nsqd.asks("GET", f"/channel/peek?topic={retry.topic}&channel=c").json()["deferred"]
    assert before + delay - 0.1 < deferred["due"] / 1e9 < after + delay + 0.1


def test_a_retried_message_keeps_its_id_and_counts_attempts(handled: Handle, bodies_in, retry):
    seen = []

    def handler(message: Message) -> bool:
        seen.append((message.id, message.body, message.timestamp, message.attempts))
        message.requeue(delay=0)
        return False

    assert handled(handler, {"body": b"two\nlines"}) == {"requeued": 1}
    (again,) = bodies_in(retry.topic)
    assert handled(handler, {"topic": retry.topic, "body": again, "id": "f" * 16, "timestamp_ns": 99}) == {
        "requeued": 1
    }
    assert seen == [(b"0" * 16, b"two\nlines", 7, 1), (b"0" * 16, b"two\nlines", 7, 2)]


def test_after_max_tries_the_original_body_goes_to_the_dead_letter_topic(handled: Handle, bodies_in, retry):
    assert handled(lambda _: False, {"attempts": 3, "body": b"poison"}) == {"dead": 1}
    assert handled(failing, {"attempts": 3, "body": b"worse"}) == {"dead": 1, "raised": 1}
    assert handled(lambda _: pytest.fail("the handler was called"), {"attempts": 4, "body": b"late"}) == {"dead": 1}
    assert sorted(bodies_in(retry.dead_letter_topic)) == [b"late", b"poison", b"worse"]
    assert bodies_in(retry.topic) == []


def test_another_nsqd_gets_the_retry_if_the_messages_own_is_down(handled: Handle, bodies_in, retry):
    assert handled(answering("requeue", delay=0), {"nsqd": "127.0.0.1:1"}) == {"requeued": 1}
    assert len(bodies_in(retry.topic)) == 1


def test_the_other_nsqd_is_found_through_nsqlookupd(handled: Handle, bodies_in, retry, nsqd, lookupd):
    lookupd.addresses = [nsqd.tcp_address]
    addresses = {"nsqdTcpAddresses": "", "nsqdHttpAddresses": "", "lookupdHttpAddresses": lookupd.address}
    assert handled(answering("requeue", delay=0), {"nsqd": "127.0.0.1:1"}, **addresses) == {"requeued": 1}
    assert len(bodies_in(retry.topic)) == 1


def test_a_task_fails_if_no_nsqd_accepts_the_retry(handled: Handle):
    with pytest.raises(CannotPublish, match="publish unfinished messages: nsqd 127.0.0.1:1 cannot be reached"):
        handled(lambda _: False, {"nsqd": "127.0.0.1:1"}, nsqdTcpAddresses="127.0.0.1:1")


def test_a_handler_that_answers_later_fails_the_task(handled: Handle):
    with pytest.raises(CannotHandle, match="enable_async"):
        handled(answering("enable_async"), {})


@given(st.binary())
def test_a_foreign_message_in_the_retry_topic_is_unchanged(body: bytes):
    message = decode_retry({"id": "1", "body": body, "timestamp_ns": 3, "attempts": 2})
    assert (message.id, message.body, message.timestamp, message.attempts) == (b"1", body, 3, 2)


@given(st.binary(), st.integers(1, 65535))
def test_decoding_a_retry_returns_the_encoded_message(body: bytes, attempts: int):
    message = decode_retry(
        {"id": "1", "body": encode_retry(Message(b"0", body, 3, attempts)), "timestamp_ns": 9, "attempts": 1}
    )
    assert (message.id, message.body, message.timestamp, message.attempts) == (b"0", body, 3, attempts + 1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"topic": "a,b"}, "topic must be one topic"),
        ({"retry_topic": "x" * 65}, "retry_topic must be topics"),
        ({"dead_letter_topic": "not one"}, "dead_letter_topic must be topics"),
        ({"channel": "c#ephemeral"}, "channel must be a channel without #ephemeral"),
        ({"maxMessage": 3}, "there is no option maxMessage"),
        ({"nsqd_tcp_addresses": []}, "set either lookupdHttpAddresses or nsqdTcpAddresses"),
    ],
)
def test_wrong_arguments_are_reported_before_spark_is_called(wrong: dict[str, Any], sentence: str):
    good = {"topic": "t", "channel": "c", "spool_dir": "/s", "checkpoint": "/c", "nsqd_tcp_addresses": ["h:1"]}
    with pytest.raises(OptionError, match=sentence):
        run_reader(None, lambda _: True, **(good | wrong))
