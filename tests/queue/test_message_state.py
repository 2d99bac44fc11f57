"""Where one message is, derived from what a channel has."""

from random import Random

import pytest

from nsq_compat.log.offsets import Logged, logged
from nsq_compat.protocol import message
from nsq_compat.queue import backlog
from nsq_compat.queue.message_state import (
    DEAD_LETTERING,
    DEFERRED,
    GONE,
    IN_FLIGHT,
    UNKNOWN,
    WAITING,
    MessageState,
    state_in_backlog,
    state_in_channel,
)
from nsq_compat.queue.returns import DISCONNECTED, MAX_KEPT, REQUEUED, TIMED_OUT, Return, Returns
from nsq_compat.queue.schedule import NEVER
from tests.broker import Daemon

CLIENT = ("c", "1.2.3.4:5")

NO_SUCH = b"0" * 16


def id_of(daemon: Daemon, body: bytes) -> bytes:
    recent = daemon.topic().recent(100, daemon.now, daemon.now_ns)
    (found,) = (message.message_id(frame) for frame, _ in recent if message.body(frame) == body)
    return found


def place(daemon: Daemon, message_id: bytes) -> Logged | None:
    store = daemon.topic().store
    return None if store is None else logged(store.log, message_id)


def state(daemon: Daemon, body: bytes, channel: str = "archive") -> MessageState:
    message_id = id_of(daemon, body)
    return state_in_channel(daemon.channel(channel), message_id, place(daemon, message_id))._replace(returned=None)


def returned(daemon: Daemon, message_id: bytes) -> Return | None:
    return state_in_channel(daemon.channel(), message_id, place(daemon, message_id)).returned


@pytest.fixture(params=["with a log", "in memory"])
def daemon(request, start, data_path):
    daemon = data_path.start() if request.param == "with a log" else start()
    daemon.channel()
    daemon.topic().recent(100, daemon.now, daemon.now_ns)  # the test finds messages by their bodies
    return daemon


def test_a_message_waits_until_it_is_delivered_and_is_in_flight_until_it_is_answered(daemon):
    daemon.publishes(b"one", b"two")
    assert state(daemon, b"two") == MessageState(WAITING, 1)
    consumer = daemon.consumer()
    consumer.takes(1)
    daemon.waits(2)
    consumer.takes(1)
    assert state(daemon, b"one") == MessageState(IN_FLIGHT, 1, daemon.now - 2, daemon.now + 58, consumer)
    assert state(daemon, b"two") == MessageState(IN_FLIGHT, 1, daemon.now, daemon.now + 60, consumer)
    consumer.touches(b"one")
    assert state(daemon, b"one") == MessageState(IN_FLIGHT, 1, daemon.now - 2, daemon.now + 60, consumer)
    consumer.finishes(b"one")
    assert state(daemon, b"one") == MessageState(GONE)


def test_a_requeued_message_waits_again_or_is_deferred(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"at once", b"later")
    consumer.takes()
    consumer.requeues(b"at once")
    consumer.requeues(b"later", delay=5)
    assert state(daemon, b"at once") == MessageState(WAITING, 2)
    assert state(daemon, b"later") == MessageState(DEFERRED, 2, until=daemon.now + 5)
    daemon.waits(6)
    assert state(daemon, b"later") == MessageState(WAITING, 2)
    consumer.takes()
    daemon.waits(61)
    message_id = consumer.id_of(b"later")
    found = state_in_channel(daemon.channel(), message_id, place(daemon, message_id))
    assert found == MessageState(WAITING, 3, returned=Return(TIMED_OUT, daemon.now, CLIENT))


def test_a_message_that_came_back_tells_why_and_which_client_had_it(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"requeued", b"timed out", b"left", b"new")
    requeued, timed_out, left, new = (id_of(daemon, body) for body in (b"requeued", b"timed out", b"left", b"new"))
    consumer.takes(2)
    consumer.requeues(b"requeued", delay=500)
    daemon.waits(61)
    assert returned(daemon, requeued) == Return(REQUEUED, daemon.now - 61, CLIENT)
    assert returned(daemon, timed_out) == Return(TIMED_OUT, daemon.now, CLIENT)
    assert returned(daemon, new) is None
    assert sorted(consumer.takes()) == [b"left", b"new", b"timed out"]
    consumer.finishes(b"timed out")
    consumer.leaves()
    assert returned(daemon, left) == Return(DISCONNECTED, NEVER, CLIENT)  # not back yet
    daemon.waits(61)
    assert returned(daemon, left) == Return(DISCONNECTED, daemon.now, CLIENT)
    assert returned(daemon, timed_out) == Return(TIMED_OUT, daemon.now - 61, CLIENT)  # also of one that is gone


def test_after_a_rewind_messages_have_not_come_back():
    returns = Returns()
    returns.note([b"1"], REQUEUED, 1.0, CLIENT)
    returns.clear()
    assert returns.of(b"1") is None


def test_the_messages_that_came_back_last_are_known_and_no_more():
    returns = Returns()
    ids = [b"%016x" % number for number in range(10 * MAX_KEPT)]
    returns.note(ids[:1], REQUEUED, 0.0, CLIENT)
    for number, each in enumerate(ids):
        returns.note([each], REQUEUED, float(number), CLIENT)
        returns.note(ids[:1], TIMED_OUT, float(number), CLIENT)  # again and again
    known = [each for each in ids if returns.of(each) is not None]
    assert MAX_KEPT <= len(known) <= 2 * MAX_KEPT
    assert known[1:] == ids[1 - len(known) :]
    returns.note(ids, TIMED_OUT, 1.0, CLIENT)  # at once
    assert [each for each in ids if returns.of(each) is not None] == ids[-MAX_KEPT:]


def test_a_message_published_with_a_delay_is_deferred(daemon):
    daemon.publishes(b"later", defer=5)
    assert state(daemon, b"later") == MessageState(DEFERRED, 1, until=daemon.now + 5)
    daemon.waits(6)
    consumer = daemon.consumer()
    consumer.takes()
    assert state(daemon, b"later").state == IN_FLIGHT
    consumer.finishes(b"later")
    assert state(daemon, b"later") == MessageState(GONE)


def test_a_message_of_a_consumer_that_left_has_none(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"one")
    consumer.takes()
    consumer.leaves()
    assert state(daemon, b"one") == MessageState(IN_FLIGHT, 1, daemon.now, daemon.now + 60)


def test_a_dead_letter_is_on_its_way_until_its_topic_has_it(daemon):
    daemon.follows({"topic": "orders", "max_attempts": 1})
    consumer = daemon.consumer()
    daemon.publishes(b"one")
    consumer.takes()
    consumer.requeues(b"one")
    assert state(daemon, b"one") == MessageState(DEAD_LETTERING, 1)
    daemon.sends_dead_letters()
    assert state(daemon, b"one") == MessageState(GONE)


def test_a_message_from_before_the_channel_is_not_there(daemon):
    daemon.publishes(b"one")
    daemon.channel("second")
    assert state(daemon, b"one", "second") == MessageState(GONE)


def test_a_paused_topic_holds_a_message(daemon):
    topic = daemon.topic()
    topic.pause()
    daemon.publishes(b"one")
    daemon.publishes(b"later", defer=5)
    assert state(daemon, b"one") == MessageState(GONE)
    for body, expected in ((b"one", MessageState(WAITING, 1)), (b"later", MessageState(DEFERRED, 1, until=1005.0))):
        message_id = id_of(daemon, body)
        assert state_in_backlog(topic.backlog, message_id, place(daemon, message_id)) == expected
    topic.unpause()
    assert state(daemon, b"one") == MessageState(WAITING, 1)


def test_an_ephemeral_channel_has_a_state_too(daemon):
    daemon.channel("e#ephemeral")
    daemon.publishes(b"one")
    assert state(daemon, b"one", "e#ephemeral") == MessageState(WAITING, 1)
    daemon.consumer("e#ephemeral").takes()
    assert state(daemon, b"one", "e#ephemeral").state == IN_FLIGHT


def test_an_unknown_message_is_not_there(daemon):
    daemon.publishes(b"one")
    assert state_in_channel(daemon.channel(), NO_SUCH, place(daemon, NO_SUCH)) == MessageState(GONE)


@pytest.mark.interpreted
def test_a_search_that_would_take_long_is_not_made(daemon, monkeypatch):
    daemon.publishes(b"waiting")
    consumer = daemon.consumer()
    daemon.publishes(*(b"%d" % number for number in range(5)), defer=5)
    consumer.takes()
    consumer.finishes(b"waiting")
    daemon.publishes(b"next")
    assert state(daemon, b"waiting") == MessageState(GONE)
    monkeypatch.setattr(backlog, "MAX_SEARCHED", 4)
    assert state(daemon, b"waiting") == MessageState(UNKNOWN)
    assert state(daemon, b"next") == MessageState(WAITING, 1)


# --- With a log -------------------------------------------------------------------------------------------------------


def test_messages_of_a_rewind_wait_again(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    daemon.publishes(*(b"%d" % number for number in range(5)))
    daemon.publishes(b"later", defer=100)
    consumer.finishes(*consumer.takes())
    assert state(daemon, b"3") == MessageState(GONE)
    daemon.topic().move_channel("archive", 3, daemon.now_ns)
    assert state(daemon, b"2") == MessageState(GONE)
    assert state(daemon, b"3") == MessageState(WAITING, 1)
    assert state(daemon, b"later").state == DEFERRED
    assert consumer.takes(1) == [b"3"]
    assert state(daemon, b"3").state == IN_FLIGHT
    assert state(daemon, b"4") == MessageState(WAITING, 1)
    consumer.finishes(b"3")
    assert state(daemon, b"3") == MessageState(GONE)


def test_the_place_in_the_log_is_known(data_path):
    daemon = data_path.start()
    daemon.publishes(b"zero", b"one")
    daemon.publishes(b"later", defer=5)
    daemon.publishes(b"three")
    found = [place(daemon, id_of(daemon, body)) for body in (b"zero", b"one", b"later", b"three")]
    assert [each and (each.offset, each.number, bool(each.due_ns)) for each in found] == [
        (0, 0, False), (1, 1, False), (2, None, True), (3, 2, False),
    ]  # fmt: skip
    assert {each.segment for each in found if each} == {1}
    assert place(daemon, NO_SUCH) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_messages_that_are_not_gone_are_those_that_come_again(data_path, seed):
    """With rewinds and restarts."""
    dice = Random(seed)
    daemon = data_path.start()
    daemon.channel()
    ids: dict[bytes, bytes] = {}
    consumers = [daemon.consumer() for _ in range(2)]
    for _ in range(80):
        consumer = dice.choice(consumers)
        mine = [body for body in consumer.frames if consumer.id_of(body) in consumer.in_flight.frames]
        act = dice.randrange(9)
        if act < 3:
            bodies = [b"%d" % (len(ids) + number) for number in range(dice.randint(1, 4))]
            daemon.publishes(*bodies, defer=dice.choice((0.0, 0.0, 20.0)))
            ids.update((body, id_of(daemon, body)) for body in bodies)
        elif act < 5:
            consumer.takes(dice.randint(1, 5))
        elif act == 5 and mine:
            consumer.finishes(*dice.sample(mine, dice.randint(1, len(mine))))
        elif act == 6 and mine:
            consumer.requeues(dice.choice(mine), delay=dice.choice((0.0, 10.0)))
        elif act == 7:
            daemon.waits(dice.choice((1.0, 15.0, 61.0)))
        elif ids and dice.random() < 0.3:
            daemon.topic().move_channel("archive", dice.randrange(len(ids)), daemon.now_ns)
        elif dice.random() < 0.3:
            daemon = data_path.restart(daemon)
            consumers = [daemon.consumer() for _ in range(2)]
    channel = daemon.channel()
    states = {body: state_in_channel(channel, each, place(daemon, each)).state for body, each in ids.items()}
    peek = channel.peek(1000)
    assert {body for body, each in states.items() if each == IN_FLIGHT} == {
        message.body(each) for _, each in peek.in_flight
    }
    assert {body for body, each in states.items() if each == DEFERRED} <= {
        message.body(each) for _, each in peek.deferred
    }
    expected = {body for body, each in states.items() if each != GONE}
    come: set[bytes] = set()
    consumer = daemon.consumer()
    for _ in range(20):
        while some := consumer.takes():
            consumer.finishes(*some)
            come |= set(some)
        daemon.waits(10)
    assert come == expected
