"""An nsqlookupd with a mutant: ``python -m tests.mutants.broken_nsqlookupd MUTANT --options``."""

from nsq_compat.nsqlookupd.main import main
from nsq_compat.registry import registration_db
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.application import EMPTY, ApiError
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi
from tests.mutants.mutants import Mutants

MUTANTS = Mutants(main)
CHECKS = "test_lookup_protocol.py::test_"

MUTANTS.returning(
    None,
    ("a_registration_is_lost", RegistrationDb, "register", f"{CHECKS}an_nsqd_that_registers_a_topic_is_found"),
    ("unregistering_does_nothing", RegistrationDb, "unregister", f"{CHECKS}unregistering_a_topic_removes_the_producer"),
    ("a_lost_connection_stays", RegistrationDb, "forget", f"{CHECKS}registrations_of_a_lost_connection_are_removed"),
    ("a_ping_does_not_count", RegistrationDb, "heard_of", f"{CHECKS}a_silent_nsqd_is_found_again_when_it_pings"),
    ("commands_before_identify_are_accepted", LookupdSession, "_admit", f"{CHECKS}refused_and_closed"),
    ("a_deleted_topic_stays", RegistrationDb, "delete_topic", f"{CHECKS}a_topic_can_be_created_and_deleted"),
)
MUTANTS.returning(
    False,
    (
        "an_ephemeral_channel_stays", registration_db, "is_ephemeral",
        f"{CHECKS}an_ephemeral_channel_is_removed_when_its_last_nsqd_unregisters",
    ),
    (
        "silence_is_ignored", RegistrationDb, "_is_inactive",
        f"{CHECKS}an_nsqd_that_is_silent_for_too_long_is_not_found",
    ),
    ("a_tombstone_is_ignored", RegistrationDb, "is_tombstoned", f"{CHECKS}a_tombstoned_producer_is_not_found"),
)  # fmt: skip
MUTANTS.returning(
    [],
    ("channels_are_not_returned", RegistrationDb, "channels", f"{CHECKS}registering_a_channel_registers_its_topic"),
)
MUTANTS.returning(
    EMPTY,
    ("a_deleted_channel_stays", NsqlookupdApi, "delete_channel", f"{CHECKS}a_channel_can_be_deleted"),
)


@MUTANTS.replacing(RegistrationDb, "register", f"{CHECKS}registering_a_channel_registers_its_topic")
def a_channel_is_registered_without_its_topic(original, db, producer, topic, channel=""):
    if channel:
        db._channel(topic, channel)
    else:
        original(db, producer, topic)


@MUTANTS.replacing(RegistrationDb, "unregister", f"{CHECKS}unregistering_a_channel_leaves_the_topic")
def unregistering_a_channel_removes_its_topic(original, db, producer, topic, channel=""):
    original(db, producer, topic)


@MUTANTS.replacing(RegistrationDb, "is_tombstoned", f"{CHECKS}a_tombstone_expires")
def a_tombstone_never_expires(original, db, producer, topic, now):
    return topic in producer.tombstones


@MUTANTS.replacing(RegistrationDb, "tombstone", f"{CHECKS}a_tombstoned_producer_is_not_found")
def a_tombstone_applies_to_every_topic(original, db, topic, node, now, now_ns):
    for each in db.topics:
        original(db, each, node, now, now_ns)


@MUTANTS.replacing(registration_db, "_separate", f"{CHECKS}registering_again_removes_the_tombstone")
def a_tombstone_outlives_its_registration(original, producer, registration):
    kept = dict(producer.tombstones)
    original(producer, registration)
    producer.tombstones.update(kept)


@MUTANTS.replacing(RegistrationDb, "lookup", f"{CHECKS}two_connections_are_two_producers")
def one_producer_is_left_out(original, db, topic, now):
    found = original(db, topic, now)
    return found._replace(producers=found.producers[1:])


@MUTANTS.replacing(RegistrationDb, "lookup", f"{CHECKS}unregistering_a_topic_removes_the_producer")
def every_node_is_a_producer(original, db, topic, now):
    return original(db, topic, now)._replace(producers=tuple(db.producers))


@MUTANTS.replacing(NsqlookupdApi, "lookup", f"{CHECKS}refused")
def an_unknown_topic_is_a_bad_request(original, api, request):
    try:
        return original(api, request)
    except ApiError as error:
        raise ApiError(400, error.code) from error


if __name__ == "__main__":
    MUTANTS.run()
