"""An nsqd with a mutant: ``python broken_nsqd.py rdy_counts_down --data-path=...``. Without arguments, lists mutants.

Each mutant replaces one function and gets the original as its first argument. ``test_broken_nsqd`` checks that the
tests of ``conformance/`` detect each of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nsq_compat.nsqd.main import main
from nsq_compat.protocol import commands
from nsq_compat.protocol.commands import INIT
from nsq_compat.queue import channel as channel_module
from nsq_compat.queue.channel import Channel, NotInFlight
from nsq_compat.queue.in_flight import NEVER, InFlight
from nsq_compat.queue.stats import ClientStats
from nsq_compat.queue.topic import Topic
from nsq_compat.session import nsqd_session
from nsq_compat.session.client_roles import Subscription
from nsq_compat.session.nsqd_session import NsqdSession
from tests.mutants.breaking import Function, mutant_of, run_mutant

# --- Messages ---------------------------------------------------------------------------------------------------------


@mutant_of(channel_module, "next_attempts")
def attempts_do_not_grow(original: Function, frames: Sequence[bytes]) -> object:
    return frames


@mutant_of(channel_module, "next_attempts")
def attempts_grow_by_two_at_a_timeout(original: Function, frames: Sequence[bytes]) -> object:
    return original(original(frames))


@mutant_of(Channel, "requeue")
def a_requeued_message_is_lost(
    original: Function, channel: Channel, consumer: Subscription, message_id: bytes, now: float, delay: float
) -> None:
    if consumer.in_flight.take(message_id) is None:
        raise NotInFlight(channel.why_not(message_id))


@mutant_of(Channel, "requeue")
def a_requeue_forgets_its_delay(
    original: Function, channel: Channel, consumer: Subscription, message_id: bytes, now: float, delay: float
) -> None:
    original(channel, consumer, message_id, now, 0.0)


@mutant_of(Channel, "finish")
def a_finished_message_stays(
    original: Function, channel: Channel, consumer: Subscription, ids: Sequence[bytes]
) -> list[bytes]:
    return [each for each in ids if each not in consumer.in_flight.frames]


@mutant_of(Channel, "finish")
def finishing_an_unknown_message_is_no_error(
    original: Function, channel: Channel, consumer: Subscription, ids: Sequence[bytes]
) -> list[bytes]:
    original(channel, consumer, ids)
    return []


@mutant_of(Channel, "touch")
def touching_does_nothing(original: Function, channel: Channel, *arguments: object) -> None:
    pass


@mutant_of(InFlight, "touch")
def touching_extends_without_limit(
    original: Function, in_flight: InFlight, message_id: bytes, deadline: float, max_lifetime: float
) -> object:
    return original(in_flight, message_id, deadline, max_lifetime + 3600)


@mutant_of(Channel, "take")
def nothing_times_out(
    original: Function, channel: Channel, consumer: Subscription, room: int, now: float, timeout: float
) -> object:
    return original(channel, consumer, room, now, timeout + 3600)


@mutant_of(Channel, "why_not")
def a_message_of_another_consumer_counts_as_unknown(original: Function, channel: Channel, message_id: bytes) -> str:
    return channel_module.NOT_IN_FLIGHT


# --- Deliveries -------------------------------------------------------------------------------------------------------


@mutant_of(Subscription, "next_batch")
def one_more_than_rdy(original: Function, subscription: Subscription, now: float) -> object:
    extra = int(subscription.ready_count > 0)
    subscription.ready_count += extra
    try:
        return original(subscription, now)
    finally:
        subscription.ready_count -= extra


@mutant_of(Subscription, "next_batch")
def rdy_counts_down(original: Function, subscription: Subscription, now: float) -> Sequence[bytes]:
    frames: Sequence[bytes] = original(subscription, now)
    subscription.ready_count -= len(frames)
    return frames


@mutant_of(Channel, "pause")
def pausing_does_nothing(original: Function, channel: Channel) -> None:
    pass


@mutant_of(Channel, "empty")
def emptying_keeps_messages_in_flight(original: Function, channel: Channel) -> None:
    held = [(consumer.in_flight, dict(consumer.in_flight.frames)) for consumer in channel.consumers]
    original(channel)
    for in_flight, frames in held:
        in_flight.frames.update(frames)


@mutant_of(Topic, "_deliver")
def only_the_first_channel_gets_a_message(original: Function, topic: Topic, frames: Sequence[bytes]) -> None:
    others = list(topic.channels.items())[1:]
    for name, _ in others:
        del topic.channels[name]
    original(topic, frames)
    topic.channels.update(others)


@mutant_of(Topic, "publish")
def an_mpub_is_delivered_in_reverse(
    original: Function, topic: Topic, bodies: Sequence[bytes], *rest: Any, **named: Any
) -> None:
    original(topic, bodies[::-1], *rest, **named)


@mutant_of(Topic, "publish")
def a_deferred_message_is_delivered_at_once(
    original: Function, topic: Topic, bodies: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0
) -> None:
    original(topic, bodies, now, now_ns)


@mutant_of(Topic, "publish")
def the_last_byte_of_a_long_body_is_lost(
    original: Function, topic: Topic, bodies: Sequence[bytes], *rest: Any, **named: Any
) -> None:
    original(topic, [body[:1999] for body in bodies], *rest, **named)


@mutant_of(Channel, "add_consumer")
def a_channel_accepts_one_consumer_too_many(original: Function, channel: Channel, consumer: Subscription) -> None:
    channel.consumers[consumer] = None


@mutant_of(Channel, "remove_consumer")
def messages_of_a_lost_connection_are_lost(original: Function, channel: Channel, consumer: Subscription) -> None:
    consumer.in_flight.clear()
    original(channel, consumer)


# --- The session ------------------------------------------------------------------------------------------------------


@mutant_of(NsqdSession, "_restart_heartbeat")
def the_first_heartbeat_is_late(original: Function, session: NsqdSession) -> None:
    original(session)
    session._heartbeat_due += session._heartbeat_due - session._now


@mutant_of(NsqdSession, "_restart_heartbeat")
def no_heartbeats_are_sent(original: Function, session: NsqdSession) -> None:
    session._heartbeat_due = NEVER


@mutant_of(NsqdSession, "_renew_deadline")
def silence_is_ignored(original: Function, session: NsqdSession) -> None:
    session._deadline = NEVER


@mutant_of(NsqdSession, "_receive")
def an_incomplete_command_is_an_answer(original: Function, session: NsqdSession, data: bytes) -> None:
    original(session, data)
    session._renew_deadline()


@mutant_of(commands, "check")
def a_second_sub_is_accepted(original: Function, tokens: Sequence[bytes], state: int, *, heartbeats: bool) -> object:
    return original(tokens, INIT if tokens[0] == b"SUB" else state, heartbeats=heartbeats)


@mutant_of(commands, "check")
def sub_without_heartbeats_is_accepted(
    original: Function, tokens: Sequence[bytes], state: int, *, heartbeats: bool
) -> object:
    return original(tokens, state, heartbeats=True)


@mutant_of(nsqd_session, "parse_number")
def a_number_may_be_signed(original: Function, raw: bytes) -> object:
    return original(raw.lstrip(b"-+"))


@mutant_of(NsqdSession, "stats")
def stats_forget_rdy(original: Function, session: NsqdSession) -> ClientStats:
    stats: ClientStats = original(session)
    return replace(stats, ready_count=0)


if __name__ == "__main__":
    run_mutant(main)
