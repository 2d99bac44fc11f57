"""Each mutant of nsqd's HTTP API is detected by a test of ``conformance/``."""

import pytest

from tests.mutants.catching import assert_caught, mutants_of

# These tests run pytest in a process.
pytestmark = pytest.mark.timeout(300)

CAUGHT_BY = {
    "an_empty_pub_is_accepted": "test_http.py::test_refused",
    "an_mpub_forgets_its_last_line": "test_http.py::test_mpub_makes_a_message_of_every_line",
    "a_binary_mpub_is_read_as_lines": "test_http.py::test_mpub_is_binary_with",
    "any_topic_name_is_valid": "test_http.py::test_refused",
    "a_delay_over_http_is_forgotten": "test_deferral.py::test_messages_deferred_over_http_are_counted_separately",
    "an_unknown_topic_is_a_bad_request": "test_http.py::test_an_action_that_is_refused",
    "a_paused_topic_still_delivers": "test_subscribe.py::test_a_paused_topic_keeps_its_messages_until_it_is_unpaused",
    "a_paused_channel_stays_paused": "test_subscribe.py::test_a_paused_channel_delivers_nothing_until_it_is_unpaused",
    "emptying_a_topic_does_nothing": "test_http.py::test_emptying_a_topic_drops_messages_that_no_channel_has",
    "a_deleted_channel_stays": "test_http.py::test_a_deleted_channel_is_empty_when_created_again",
    "a_channel_is_not_created": "test_stats.py::test_one_channel_can_be_selected",
    "the_log_level_is_forgotten": "test_http.py::test_the_log_level_can_be_set",
    "stats_miss_a_channel": "test_stats.py::test_topics_and_channels_are_sorted_by_name",
    "stats_forget_bytes": "test_stats.py::test_messages_and_bytes_are_counted",
    "depth_is_off_by_one": "test_stats.py::test_a_channels_counts_follow_its_messages",
    "stats_lose_a_member": "test_stats.py::test_a_channel_has_these_members_in_this_order",
    "stats_show_no_clients": "test_stats.py::test_a_client_has_these_members_in_this_order",
    "selecting_one_channel_shows_all": "test_stats.py::test_one_channel_can_be_selected",
    "nothing_can_be_left_out": "test_stats.py::test_memory_can_be_left_out",
}


@pytest.mark.parametrize(("mutant", "check"), CAUGHT_BY.items(), ids=CAUGHT_BY)
def test_a_broken_api_is_caught(mutant: str, check: str):
    assert_caught("broken_http", mutant, check)


def test_every_mutant_has_its_test():
    assert mutants_of("broken_http") == set(CAUGHT_BY)
