"""Each mutant of nsqlookupd is detected by a test of ``conformance/``."""

import pytest

from tests.mutants.catching import assert_caught, mutants_of

# These tests run pytest in a process.
pytestmark = pytest.mark.timeout(300)

CAUGHT_BY = {
    "a_registration_is_lost": "test_an_nsqd_that_registers_a_topic_is_found",
    "a_channel_is_registered_without_its_topic": "test_registering_a_channel_registers_its_topic",
    "unregistering_does_nothing": "test_unregistering_a_topic_removes_the_producer",
    "unregistering_a_channel_removes_its_topic": "test_unregistering_a_channel_leaves_the_topic",
    "an_ephemeral_channel_stays": "test_an_ephemeral_channel_is_removed_when_its_last_nsqd_unregisters",
    "a_lost_connection_stays": "test_registrations_of_a_lost_connection_are_removed",
    "a_ping_does_not_count": "test_a_silent_nsqd_is_found_again_when_it_pings",
    "commands_before_identify_are_accepted": "test_refused_and_closed",
    "silence_is_ignored": "test_an_nsqd_that_is_silent_for_too_long_is_not_found",
    "a_tombstone_is_ignored": "test_a_tombstoned_producer_is_not_found",
    "a_tombstone_never_expires": "test_a_tombstone_expires",
    "a_tombstone_applies_to_every_topic": "test_a_tombstoned_producer_is_not_found",
    "a_tombstone_outlives_its_registration": "test_registering_again_removes_the_tombstone",
    "one_producer_is_left_out": "test_two_connections_are_two_producers",
    "every_node_is_a_producer": "test_unregistering_a_topic_removes_the_producer",
    "channels_are_not_returned": "test_registering_a_channel_registers_its_topic",
    "an_unknown_topic_is_a_bad_request": "test_refused",
    "a_deleted_topic_stays": "test_a_topic_can_be_created_and_deleted",
    "a_deleted_channel_stays": "test_a_channel_can_be_deleted",
}


@pytest.mark.parametrize(("mutant", "check"), CAUGHT_BY.items(), ids=CAUGHT_BY)
def test_a_broken_nsqlookupd_is_caught(mutant: str, check: str):
    assert_caught("broken_nsqlookupd", mutant, f"test_lookup_protocol.py::{check}", "nsqlookupd")


def test_every_mutant_has_its_test():
    assert mutants_of("broken_nsqlookupd") == set(CAUGHT_BY)
