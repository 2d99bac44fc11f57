"""An nsqd that is broken on purpose, in one way: ``python broken_nsqd.py rdy_counts_down --data-path=...``. Without any
argument it says which ways there are.

Each way replaces one function; what it did is the first argument of what it does now. The checks of ``conformance/``
must tell each of these from an nsqd, or they could not fail: ``test_broken_nsqd`` sees to it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nsq_compat.nsqd.main import main
from nsq_compat.protocol.commands import INIT
from nsq_compat.queue import channel as channel_module
from nsq_compat.queue.channel import Channel, NotInFlight
from nsq_compat.queue.in_flight import NEVER, InFlight
from nsq_compat.queue.stats import ClientStats
from nsq_compat.queue.topic import Topic
from nsq_compat.session import nsqd_session
from nsq_compat.session.client_roles import Subscription
from nsq_compat.session.nsqd_session import NsqdSession
from tests.mutants.breaking import Function, instead_of, run_broken

# --- Messages ---------------------------------------------------------------------------------------------------------


@instead_of(channel_module, "next_attempts")
def attempts_do_not_grow(original: Function, frames: Sequence[bytes]) -> object:
    return frames


@instead_of(channel_module, "next_attempts")
def attempts_grow_by_two_at_a_timeout(original: Function, frames: Sequence[bytes]) -> object:
    return original(original(frames))


@instead_of(Channel, "requeue")
def a_requeued_message_is_lost(
    original: Function, channel: Channel, consumer: Subscription, message_id: bytes, now: float, delay: float
) -> None:
    if consumer.in_flight.take(message_id) is None:
        raise NotInFlight(channel.why_not(message_id))


@instead_of(Channel, "requeue")
def a_requeue_forgets_its_delay(
    original: Function, channel: Channel, consumer: Subscription, message_id: bytes, now: float, delay: float
) -> None:
    original(channel, consumer, message_id, now, 0.0)


@instead_of(Channel, "finish")
def a_finished_message_stays(
    original: Function, channel: Channel, consumer: Subscription, ids: Sequence[bytes]
) -> list[bytes]:
    return [each for each in ids if each not in consumer.in_flight.frames]


@instead_of(Channel, "finish")
def finishing_what_is_not_there_is_no_error(
    original: Function, channel: Channel, consumer: Subscription, ids: Sequence[bytes]
) -> list[bytes]:
    original(channel, consumer, ids)
    return []


@instead_of(Channel, "touch")
def touching_does_nothing(original: Function, channel: Channel, *arguments: object) -> None:
    pass


@instead_of(InFlight, "touch")
def touching_helps_for_ever(
    original: Function, in_flight: InFlight, message_id: bytes, deadline: float, max_lifetime: float
) -> object:
    return original(in_flight, message_id, deadline, max_lifetime + 3600)


@instead_of(Channel, "take")
def nothing_times_out(
    original: Function, channel: Channel, consumer: Subscription, room: int, now: float, timeout: float
) -> object:
    return original(channel, consumer, room, now, timeout + 3600)


@instead_of(Channel, "why_not")
def another_consumers_message_is_not_told_from_none(original: Function, channel: Channel, message_id: bytes) -> str:
    return channel_module.NOT_IN_FLIGHT


# --- Deliveries -------------------------------------------------------------------------------------------------------


@instead_of(Subscription, "next_batch")
def one_more_than_rdy(original: Function, subscription: Subscription, now: float) -> object:
    extra = int(subscription.ready_count > 0)
    subscription.ready_count += extra
    try:
        return original(subscription, now)
    finally:
        subscription.ready_count -= extra


@instead_of(Subscription, "next_batch")
def rdy_counts_down(original: Function, subscription: Subscription, now: float) -> Sequence[bytes]:
    frames: Sequence[bytes] = original(subscription, now)
    subscription.ready_count -= len(frames)
    return frames


@instead_of(Channel, "pause")
def a_pause_is_none(original: Function, channel: Channel) -> None:
    pass


@instead_of(Channel, "empty")
def emptying_leaves_what_is_in_flight(original: Function, channel: Channel) -> None:
    held = [(consumer.in_flight, dict(consumer.in_flight.frames)) for consumer in channel.consumers]
    original(channel)
    for in_flight, frames in held:
        in_flight.frames.update(frames)


@instead_of(Topic, "_deliver")
def only_the_first_channel_gets_a_message(original: Function, topic: Topic, frames: Sequence[bytes]) -> None:
    others = list(topic.channels.items())[1:]
    for name, _ in others:
        del topic.channels[name]
    original(topic, frames)
    topic.channels.update(others)


@instead_of(Topic, "publish")
def an_mpub_comes_backwards(
    original: Function, topic: Topic, bodies: Sequence[bytes], *rest: Any, **named: Any
) -> None:
    original(topic, bodies[::-1], *rest, **named)


@instead_of(Topic, "publish")
def a_deferred_message_comes_at_once(
    original: Function, topic: Topic, bodies: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0
) -> None:
    original(topic, bodies, now, now_ns)


@instead_of(Topic, "publish")
def the_last_byte_of_a_long_body_is_lost(
    original: Function, topic: Topic, bodies: Sequence[bytes], *rest: Any, **named: Any
) -> None:
    original(topic, [body[:1999] for body in bodies], *rest, **named)


@instead_of(Channel, "add_consumer")
def a_channel_takes_one_consumer_too_many(original: Function, channel: Channel, consumer: Subscription) -> None:
    channel.consumers[consumer] = None


@instead_of(Channel, "remove_consumer")
def what_a_lost_connection_held_is_lost(original: Function, channel: Channel, consumer: Subscription) -> None:
    consumer.in_flight.clear()
    original(channel, consumer)


# --- The conversation -------------------------------------------------------------------------------------------------


@instead_of(NsqdSession, "_restart_heartbeat")
def the_first_heartbeat_is_late(original: Function, session: NsqdSession) -> None:
    original(session)
    session._heartbeat_due += session._heartbeat_due - session._now


@instead_of(NsqdSession, "_restart_heartbeat")
def there_are_no_heartbeats(original: Function, session: NsqdSession) -> None:
    session._heartbeat_due = NEVER


@instead_of(NsqdSession, "_renew_deadline")
def silence_is_forgiven(original: Function, session: NsqdSession) -> None:
    session._deadline = NEVER


@instead_of(NsqdSession, "_receive")
def half_a_command_is_an_answer(original: Function, session: NsqdSession, data: bytes) -> None:
    original(session, data)
    session._renew_deadline()


@instead_of(nsqd_session, "check")
def two_subs_are_fine(original: Function, tokens: Sequence[bytes], state: int, *, heartbeats: bool) -> object:
    return original(tokens, INIT if tokens[0] == b"SUB" else state, heartbeats=heartbeats)


@instead_of(nsqd_session, "check")
def heartbeats_are_not_needed(original: Function, tokens: Sequence[bytes], state: int, *, heartbeats: bool) -> object:
    return original(tokens, state, heartbeats=True)


@instead_of(nsqd_session, "parse_number")
def a_number_may_be_signed(original: Function, raw: bytes) -> object:
    return original(raw.lstrip(b"-+"))


@instead_of(NsqdSession, "stats")
def stats_forget_rdy(original: Function, session: NsqdSession) -> ClientStats:
    stats: ClientStats = original(session)
    return replace(stats, ready_count=0)


if __name__ == "__main__":
    run_broken(main)
