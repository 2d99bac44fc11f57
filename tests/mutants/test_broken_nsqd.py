"""Each mutant of nsqd is detected by a test of ``conformance/``, which shows that these tests can fail."""

import pytest

from tests.mutants.catching import assert_caught, mutants_of

# These tests run pytest in a process.
pytestmark = pytest.mark.timeout(300)

CAUGHT_BY = {
    "attempts_do_not_grow": "test_answers.py::test_a_requeued_message_comes_back_as_the_next_attempt",
    "attempts_grow_by_two_at_a_timeout": (
        "test_timeouts.py::test_an_unanswered_message_is_redelivered_after_its_timeout"
    ),
    "a_requeued_message_is_lost": "test_answers.py::test_requeues_are_counted",
    "a_requeue_forgets_its_delay": "test_deferral.py::test_a_requeued_message_with_a_delay_is_delivered_after_it",
    "a_finished_message_stays": "test_answers.py::test_a_finished_message_is_gone",
    "finishing_an_unknown_message_is_no_error": "test_answers.py::test_finishing_twice_is_refused",
    "touching_does_nothing": "test_timeouts.py::test_touching_restarts_the_timeout",
    "touching_extends_without_limit": "test_timeouts.py::test_touching_does_not_help_beyond_the_maximum_timeout",
    "nothing_times_out": "test_timeouts.py::test_a_client_may_request_a_longer_timeout",
    "a_message_of_another_consumer_counts_as_unknown": (
        "test_errors.py::test_a_message_of_another_consumer_cannot_be_answered"
    ),
    "one_more_than_rdy": "test_subscribe.py::test_rdy_is_how_many_messages_may_be_in_flight",
    "rdy_counts_down": "test_subscribe.py::test_rdy_does_not_count_down",
    "pausing_does_nothing": "test_subscribe.py::test_a_paused_channel_delivers_nothing_until_it_is_unpaused",
    "emptying_keeps_messages_in_flight": ("test_subscribe.py::test_emptying_a_channel_drops_messages_in_flight"),
    "only_the_first_channel_gets_a_message": "test_publish.py::test_every_channel_gets_every_message",
    "an_mpub_is_delivered_in_reverse": "test_publish.py::test_an_mpub_is_answered_once_and_arrives_in_order",
    "a_deferred_message_is_delivered_at_once": "test_deferral.py::test_a_deferred_message_is_delivered_after_its_delay",
    "the_last_byte_of_a_long_body_is_lost": "test_publish.py::test_a_body_arrives_unchanged",
    "a_channel_accepts_one_consumer_too_many": "test_subscribe.py::test_a_third_consumer_of_two_is_refused",
    "messages_of_a_lost_connection_are_lost": ("test_answers.py::test_messages_of_a_lost_connection_stay_in_flight"),
    "the_first_heartbeat_is_late": "test_heartbeats.py::test_the_first_heartbeat_is_sent_one_interval_after_identify",
    "no_heartbeats_are_sent": "test_heartbeats.py::test_heartbeats_are_sent_once_per_interval",
    "silence_is_ignored": "test_heartbeats.py::test_a_client_that_is_silent_for_two_intervals_is_closed",
    "an_incomplete_command_is_an_answer": "test_heartbeats.py::test_an_incomplete_command_is_not_an_answer",
    "a_second_sub_is_accepted": "test_errors.py::test_a_consumer_is_refused_and_closed",
    "sub_without_heartbeats_is_accepted": "test_subscribe.py::test_a_client_without_heartbeats_may_not_subscribe",
    "a_number_may_be_signed": "test_errors.py::test_a_consumer_is_refused_and_closed",
    "stats_forget_rdy": "test_subscribe.py::test_stats_show_rdy_and_in_flight",
}


@pytest.mark.parametrize(("mutant", "check"), CAUGHT_BY.items(), ids=CAUGHT_BY)
def test_a_broken_nsqd_is_caught(mutant: str, check: str):
    assert_caught("broken_nsqd", mutant, check)


def test_every_mutant_has_its_test():
    assert mutants_of("broken_nsqd") == set(CAUGHT_BY)
