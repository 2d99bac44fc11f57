"""An nsqlookupd with a mutant: ``python -m tests.mutants.broken_nsqlookupd MUTANT --options``."""

from collections.abc import Sequence

from nsq_compat.nsqlookupd.main import main
from nsq_compat.registry import registration_db
from nsq_compat.registry.registration import Producer, Registration
from nsq_compat.registry.registration_db import Lookup, RegistrationDb
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.application import EMPTY, ApiError
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi
from tests.mutants.breaking import Function, mutant_of, run_mutant

# --- Registrations ----------------------------------------------------------------------------------------------------


@mutant_of(RegistrationDb, "register")
def a_registration_is_lost(original: Function, db: RegistrationDb, *registration: object) -> None:
    pass


@mutant_of(RegistrationDb, "register")
def a_channel_is_registered_without_its_topic(
    original: Function, db: RegistrationDb, producer: Producer, topic: str, channel: str = ""
) -> None:
    if channel:
        db._channel(topic, channel)
    else:
        original(db, producer, topic)


@mutant_of(RegistrationDb, "unregister")
def unregistering_does_nothing(original: Function, db: RegistrationDb, *registration: object) -> None:
    pass


@mutant_of(RegistrationDb, "_unregister_channel")
def unregistering_a_channel_removes_its_topic(
    original: Function, db: RegistrationDb, producer: Producer, topic: str, channel: str
) -> None:
    db._unregister_topic(producer, topic)


@mutant_of(registration_db, "is_ephemeral")
def an_ephemeral_channel_stays(original: Function, name: str) -> bool:
    return False


@mutant_of(RegistrationDb, "forget")
def a_lost_connection_stays(original: Function, db: RegistrationDb, producer: Producer) -> None:
    pass


@mutant_of(RegistrationDb, "heard_of")
def a_ping_does_not_count(original: Function, db: RegistrationDb, *heard: object) -> None:
    pass


@mutant_of(LookupdSession, "_admit")
def commands_before_identify_are_accepted(original: Function, session: LookupdSession, tokens: Sequence[bytes]) -> None:
    pass


# --- Lookups ----------------------------------------------------------------------------------------------------------


@mutant_of(RegistrationDb, "_is_inactive")
def silence_is_ignored(original: Function, db: RegistrationDb, producer: Producer, now: float) -> bool:
    return False


@mutant_of(RegistrationDb, "is_tombstoned")
def a_tombstone_is_ignored(original: Function, db: RegistrationDb, *which: object) -> bool:
    return False


@mutant_of(RegistrationDb, "is_tombstoned")
def a_tombstone_never_expires(
    original: Function, db: RegistrationDb, producer: Producer, topic: str, now: float
) -> bool:
    return topic in producer.tombstones


@mutant_of(RegistrationDb, "tombstone")
def a_tombstone_applies_to_every_topic(
    original: Function, db: RegistrationDb, topic: str, node: str, now: float, now_ns: int
) -> None:
    for each in db.topics:
        original(db, each, node, now, now_ns)


@mutant_of(registration_db, "_separate")
def a_tombstone_outlives_its_registration(original: Function, producer: Producer, registration: Registration) -> None:
    kept = dict(producer.tombstones)
    original(producer, registration)
    producer.tombstones.update(kept)


@mutant_of(RegistrationDb, "lookup")
def one_producer_is_left_out(original: Function, db: RegistrationDb, topic: str, now: float) -> Lookup:
    found: Lookup = original(db, topic, now)
    return found._replace(producers=found.producers[1:])


@mutant_of(RegistrationDb, "lookup")
def every_node_is_a_producer(original: Function, db: RegistrationDb, topic: str, now: float) -> Lookup:
    found: Lookup = original(db, topic, now)
    return found._replace(producers=tuple(db.producers))


@mutant_of(RegistrationDb, "channels")
def channels_are_not_returned(original: Function, db: RegistrationDb, topic: str) -> list[str]:
    return []


# --- Operators --------------------------------------------------------------------------------------------------------


@mutant_of(NsqlookupdApi, "lookup")
def an_unknown_topic_is_a_bad_request(original: Function, api: NsqlookupdApi, request: object) -> object:
    try:
        return original(api, request)
    except ApiError as error:
        raise ApiError(400, error.code) from error


@mutant_of(RegistrationDb, "delete_topic")
def a_deleted_topic_stays(original: Function, db: RegistrationDb, topic: str) -> None:
    pass


@mutant_of(NsqlookupdApi, "delete_channel")
def a_deleted_channel_stays(original: Function, api: NsqlookupdApi, request: object) -> object:
    return EMPTY


if __name__ == "__main__":
    run_mutant(main)
