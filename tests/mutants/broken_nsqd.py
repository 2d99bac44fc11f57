"""An nsqd with a mutant: ``python -m tests.mutants.broken_nsqd MUTANT --options``."""

from dataclasses import replace

from nsq_compat.nsqd.main import main
from nsq_compat.protocol import commands
from nsq_compat.protocol.commands import INIT
from nsq_compat.queue import channel as channel_module
from nsq_compat.queue.channel import Channel, NotInFlight
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.topic import Topic
from nsq_compat.session import nsqd_session
from nsq_compat.session.client_roles import Subscription
from nsq_compat.session.nsqd_session import NsqdSession
from tests.mutants.mutants import Mutants

MUTANTS = Mutants(main)

# --- Messages ---------------------------------------------------------------------------------------------------------

MUTANTS.returning(
    None,
    ("touching_does_nothing", Channel, "touch", "test_timeouts.py::test_touching_restarts_the_timeout"),
    (
        "pausing_does_nothing", Channel, "pause",
        "test_subscribe.py::test_a_paused_channel_delivers_nothing_until_it_is_unpaused",
    ),
)  # fmt: skip
MUTANTS.returning(
    channel_module.NOT_IN_FLIGHT,
    (
        "a_message_of_another_consumer_counts_as_unknown", Channel, "reason_not_in_flight",
        "test_errors.py::test_a_message_of_another_consumer_cannot_be_answered",
    ),
)  # fmt: skip


@MUTANTS.replacing(
    channel_module, "next_attempts", "test_answers.py::test_a_requeued_message_comes_back_as_the_next_attempt"
)
def attempts_do_not_grow(original, frames):
    return frames


@MUTANTS.replacing(
    channel_module,
    "next_attempts",
    "test_timeouts.py::test_an_unanswered_message_is_redelivered_after_its_timeout",
)
def attempts_grow_by_two_at_a_timeout(original, frames):
    return original(original(frames))


@MUTANTS.replacing(Channel, "requeue", "test_answers.py::test_requeues_are_counted")
def a_requeued_message_is_lost(original, channel, consumer, message_id, now, delay):
    if consumer.in_flight.take(message_id) is None:
        raise NotInFlight(channel.reason_not_in_flight(message_id))


@MUTANTS.replacing(Channel, "requeue", "test_deferral.py::test_a_requeued_message_with_a_delay_is_delivered_after_it")
def a_requeue_forgets_its_delay(original, channel, consumer, message_id, now, delay):
    original(channel, consumer, message_id, now, 0.0)


@MUTANTS.replacing(Channel, "finish", "test_answers.py::test_a_finished_message_is_gone")
def a_finished_message_stays(original, channel, consumer, ids):
    return [each for each in ids if each not in consumer.in_flight.frames]


@MUTANTS.replacing(Channel, "finish", "test_answers.py::test_finishing_twice_is_refused")
def finishing_an_unknown_message_is_no_error(original, channel, consumer, ids):
    original(channel, consumer, ids)
    return []


@MUTANTS.replacing(InFlight, "touch", "test_timeouts.py::test_touching_does_not_help_beyond_the_maximum_timeout")
def touching_extends_without_limit(original, in_flight, message_id, deadline, max_lifetime):
    return original(in_flight, message_id, deadline, max_lifetime + 3600)


@MUTANTS.replacing(Channel, "take", "test_timeouts.py::test_a_client_may_request_a_longer_timeout")
def nothing_times_out(original, channel, consumer, room, now, timeout):
    return original(channel, consumer, room, now, timeout + 3600)


# --- Deliveries -------------------------------------------------------------------------------------------------------


@MUTANTS.replacing(Subscription, "next_batch", "test_subscribe.py::test_rdy_is_how_many_messages_may_be_in_flight")
def one_more_than_rdy(original, subscription, now):
    extra = int(subscription.ready_count > 0)
    subscription.ready_count += extra
    try:
        return original(subscription, now)
    finally:
        subscription.ready_count -= extra


@MUTANTS.replacing(Subscription, "next_batch", "test_subscribe.py::test_rdy_does_not_count_down")
def rdy_counts_down(original, subscription, now):
    frames = original(subscription, now)
    subscription.ready_count -= len(frames)
    return frames


@MUTANTS.replacing(Channel, "empty", "test_subscribe.py::test_emptying_a_channel_drops_messages_in_flight")
def emptying_keeps_messages_in_flight(original, channel):
    held = [(consumer.in_flight, dict(consumer.in_flight.frames)) for consumer in channel.consumers]
    original(channel)
    for in_flight, frames in held:
        in_flight.frames.update(frames)


@MUTANTS.replacing(Topic, "_deliver", "test_publish.py::test_every_channel_gets_every_message")
def only_the_first_channel_gets_a_message(original, topic, frames):
    others = list(topic.channels.items())[1:]
    for name, _ in others:
        del topic.channels[name]
    original(topic, frames)
    topic.channels.update(others)


@MUTANTS.replacing(Topic, "publish", "test_publish.py::test_an_mpub_is_answered_once_and_arrives_in_order")
def an_mpub_is_delivered_in_reverse(original, topic, bodies, *rest, **named):
    original(topic, bodies[::-1], *rest, **named)


@MUTANTS.replacing(Topic, "publish", "test_deferral.py::test_a_deferred_message_is_delivered_after_its_delay")
def a_deferred_message_is_delivered_at_once(original, topic, bodies, now, now_ns, defer=0.0):
    original(topic, bodies, now, now_ns)


@MUTANTS.replacing(Topic, "publish", "test_publish.py::test_a_body_arrives_unchanged")
def the_last_byte_of_a_long_body_is_lost(original, topic, bodies, *rest, **named):
    original(topic, [body[:1999] for body in bodies], *rest, **named)


@MUTANTS.replacing(Channel, "add_consumer", "test_subscribe.py::test_a_third_consumer_of_two_is_refused")
def a_channel_accepts_one_consumer_too_many(original, channel, consumer):
    channel.consumers[consumer] = None


@MUTANTS.replacing(Channel, "remove_consumer", "test_answers.py::test_messages_of_a_lost_connection_stay_in_flight")
def messages_of_a_lost_connection_are_lost(original, channel, consumer):
    consumer.in_flight.clear()
    original(channel, consumer)


# --- The session ------------------------------------------------------------------------------------------------------


@MUTANTS.replacing(
    NsqdSession,
    "_restart_heartbeat",
    "test_heartbeats.py::test_the_first_heartbeat_is_sent_one_interval_after_identify",
)
def the_first_heartbeat_is_late(original, session):
    original(session)
    session._heartbeat_due += session._heartbeat_due - session._now


@MUTANTS.replacing(NsqdSession, "_restart_heartbeat", "test_heartbeats.py::test_heartbeats_are_sent_once_per_interval")
def no_heartbeats_are_sent(original, session):
    session._heartbeat_due = NEVER


@MUTANTS.replacing(
    NsqdSession, "_renew_deadline", "test_heartbeats.py::test_a_client_that_is_silent_for_two_intervals_is_closed"
)
def silence_is_ignored(original, session):
    session._deadline = NEVER


@MUTANTS.replacing(NsqdSession, "_receive", "test_heartbeats.py::test_an_incomplete_command_is_not_an_answer")
def an_incomplete_command_is_an_answer(original, session, data):
    original(session, data)
    session._renew_deadline()


@MUTANTS.replacing(commands, "check", "test_errors.py::test_a_consumer_is_refused_and_closed")
def a_second_sub_is_accepted(original, tokens, state, *, heartbeats):
    return original(tokens, INIT if tokens[0] == b"SUB" else state, heartbeats=heartbeats)


@MUTANTS.replacing(commands, "check", "test_subscribe.py::test_a_client_without_heartbeats_may_not_subscribe")
def sub_without_heartbeats_is_accepted(original, tokens, state, *, heartbeats):
    return original(tokens, state, heartbeats=True)


@MUTANTS.replacing(nsqd_session, "parse_number", "test_errors.py::test_a_consumer_is_refused_and_closed")
def a_number_may_be_signed(original, raw):
    return original(raw.lstrip(b"-+"))


@MUTANTS.replacing(NsqdSession, "stats", "test_subscribe.py::test_stats_show_rdy_and_in_flight")
def stats_forget_rdy(original, session):
    return replace(original(session), ready_count=0)


if __name__ == "__main__":
    MUTANTS.run()
