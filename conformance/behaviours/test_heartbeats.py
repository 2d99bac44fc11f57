"""Heartbeats, and the disconnection of clients that do not answer them.

The shortest interval is one second, so all sessions run at the same time, and each test checks one of them.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import ERROR, HEARTBEAT, RESPONSE, Frame, RawClient, sized

INTERVAL_MS = 1000

Heard = list[tuple[float, Frame | None]]
"""Frames with their times, in seconds; None is EOF."""


def listen(client: RawClient, began: float, seconds: float, data: bytes = b"", every: float = 0.25) -> Heard:
    """Record frames for `seconds` or until EOF, and send `data` at an interval."""
    heard: Heard = []
    while time.monotonic() - began < seconds:
        try:
            frame = client.frame(every)
            heard.append((time.monotonic() - began, frame))
            client.sends(data)
        except TimeoutError:
            client.sends(data)
        except (EOFError, OSError):
            return [*heard, (time.monotonic() - began, None)]
    return heard


def silent(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=INTERVAL_MS)
    return listen(client, began, 10)


def silent_consumer(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=INTERVAL_MS)
    return listen(client.subscribes(topic, ready=1), began, 10)


def answering(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=INTERVAL_MS)
    return listen(client, began, 5.6, b"NOP\n")


def publishing(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=INTERVAL_MS)
    return listen(client, began, 5.6, b"PUB %b\n" % topic.encode() + sized(b"x"))


def without(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=-1)
    return listen(client, began, 3.6)


def never_identified(client: RawClient, began: float, topic: str) -> Heard:
    return listen(client, began, 3.6)


def dribbling(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=INTERVAL_MS)
    return listen(client, began, 10, b"N")


def slow_body(client: RawClient, began: float, topic: str) -> Heard:
    client.identifies(heartbeat_interval=INTERVAL_MS)
    client.sends(b"PUB %b\n\0\0\x07\0" % topic.encode())
    return listen(client, began, 10, b"x")


Conversation = Callable[[RawClient, float, str], Heard]
Conversations = Callable[[Conversation], Heard]
CONVERSATIONS: tuple[Conversation, ...] = (
    silent, silent_consumer, answering, publishing, without, never_identified, dribbling, slow_body,
)  # fmt: skip


@pytest.fixture(scope="module")
def heard(nsqd: NsqdProcess) -> Iterator[Conversations]:
    def hold(conversation: Conversation) -> Heard:
        with RawClient(nsqd.tcp_address) as client:
            return conversation(client, time.monotonic(), f"heartbeats.{conversation.__name__}")

    with ThreadPoolExecutor(len(CONVERSATIONS)) as threads:
        futures: dict[object, Future[Heard]] = {each: threads.submit(hold, each) for each in CONVERSATIONS}
        yield lambda conversation: futures[conversation].result()


def beats(heard: Heard) -> list[float]:
    return [when for when, frame in heard if frame == (RESPONSE, HEARTBEAT)]


def end(heard: Heard) -> float:
    when, frame = heard[-1]
    assert frame is None, heard
    return when


@pytest.mark.parametrize("conversation", [answering, publishing], ids=["to a client", "to a busy client"])
def test_heartbeats_are_sent_once_per_interval(heard: Conversations, conversation: Conversation) -> None:
    assert len(beats(heard(conversation))) in {4, 5}


def test_the_first_heartbeat_is_sent_one_interval_after_identify(heard: Conversations) -> None:
    assert 0.99 < beats(heard(answering))[0] < 1.9


def test_a_client_that_answers_heartbeats_stays(heard: Conversations) -> None:
    assert all(frame is not None for _, frame in heard(answering))


def test_a_client_that_is_silent_for_two_intervals_is_closed(heard: Conversations) -> None:
    assert 1.99 < end(heard(silent)) < 5


def test_a_silent_connection_ends_without_an_error_frame(heard: Conversations) -> None:
    assert all(frame in {None, (RESPONSE, HEARTBEAT)} for _, frame in heard(silent))


def test_a_consumer_that_is_silent_is_closed_too(heard: Conversations) -> None:
    assert 1.99 < end(heard(silent_consumer)) < 5


def test_any_command_is_an_answer(heard: Conversations) -> None:
    assert all(frame is not None for _, frame in heard(publishing))


def test_a_client_that_disables_heartbeats_gets_none_and_stays(heard: Conversations) -> None:
    assert heard(without) == []


def test_a_client_that_never_identified_has_thirty_seconds(heard: Conversations) -> None:
    assert heard(never_identified) == []


def test_an_incomplete_command_is_not_an_answer(heard: Conversations) -> None:
    assert 1.99 < end(heard(dribbling)) < 5


def test_a_body_that_takes_too_long_is_reported_before_the_close(heard: Conversations) -> None:
    conversation = heard(slow_body)
    assert 1.99 < end(conversation) < 5
    errors = [frame.data for _, frame in conversation if frame is not None and frame.kind == ERROR]
    assert errors == [b"E_BAD_MESSAGE PUB failed to read message body"]
