"""nsqd's side of the V1 protocol, against replies of nsqlookupd and against our own nsqlookupd session."""

import json
import logging
import struct
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nsq_compat.protocol.go_json import encode
from nsq_compat.protocol.lookup_commands import LookupdInfo, PeerInfo, reply
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import QueueLimits
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.conversation import HANDSHAKE_SECONDS, TlsFacts
from nsq_compat.session.lookup_peer import GRACE_SECONDS, MAX_UNANSWERED, PING_SECONDS, REPLY_TIMEOUT, LookupPeer
from nsq_compat.session.lookupd_session import LookupdSession

INFO = PeerInfo("127.0.0.1", "host", 4151, 4150, "region", "zone", "1.3.0")
LOOKUPD = LookupdInfo("10.0.0.1", "", 4161, 4160, "1.3.0")
BODY = (
    b'{"broadcast_address":"127.0.0.1","hostname":"host","http_port":4151,"tcp_port":4150,'
    b'"topology_region":"region","topology_zone":"zone","version":"1.3.0"}'
)
OPENING = b"  V1IDENTIFY\n" + struct.pack(">i", len(BODY)) + BODY
GREETING = reply(encode(LOOKUPD))
OK = reply(b"OK")


class Nsqd:
    """A broker and one conversation; `says` what has to be sent by now, `hears` what nsqlookupd sent."""

    def __init__(self, **options: Any) -> None:
        self.broker = Broker(QueueLimits())
        self.options = options
        self.now = 100.0
        self.wakes = 0
        self.identified: list[LookupdInfo] = []
        self.connects()

    def connects(self) -> None:
        self.broker.observers.clear()
        self.session = LookupPeer(
            self.broker, INFO, address="lookupd:4160", wake=self._wake, on_identified=self.identified.append,
            now=self.now, **self.options,
        )  # fmt: skip
        self.broker.observers.append(self.session)

    def _wake(self) -> None:
        self.wakes += 1

    def says(self) -> bytes:
        return self.session.data_to_send(self.now)

    def hears(self, data: bytes) -> bytes:
        """Returns what it says to that."""
        self.session.receive_data(data, self.now, 0)
        return self.says()

    def is_registered(self) -> "Nsqd":
        said = self.says() and self.hears(GREETING)
        while said:
            said = self.hears(OK * said.count(b"\n"))
        return self

    def waits(self, seconds: float) -> bytes:
        self.now += seconds
        return self.says()


@pytest.fixture
def nsqd() -> Nsqd:
    return Nsqd()


# --- The beginning ----------------------------------------------------------------------------------------------------


def test_nothing_but_identify_is_sent_before_its_reply(nsqd):
    nsqd.broker.topic("orders")
    assert nsqd.says() == OPENING
    nsqd.broker.topic("returns")
    assert nsqd.says() == b""
    assert nsqd.identified == []


def test_after_the_reply_everything_is_registered_a_topic_by_its_channels(nsqd, caplog):
    nsqd.broker.topic("orders").channel("archive")
    nsqd.broker.topic("orders").channel("tail#ephemeral")
    nsqd.broker.topic("returns")
    nsqd.broker.topic("short#ephemeral")
    nsqd.says()
    with caplog.at_level(logging.INFO):
        said = nsqd.hears(GREETING)
    assert said.splitlines() == [
        b"REGISTER orders archive", b"REGISTER orders tail#ephemeral", b"REGISTER returns", b"REGISTER short#ephemeral",
    ]  # fmt: skip
    assert nsqd.identified == [LOOKUPD]
    assert not nsqd.session.all_registered
    nsqd.hears(OK * 4)
    assert nsqd.session.all_registered
    assert [record.message for record in caplog.records][:2] == [
        "LOOKUPD(lookupd:4160): peer info {TCPPort:4160 HTTPPort:4161 Version:1.3.0 BroadcastAddress:10.0.0.1}",
        "LOOKUPD(lookupd:4160): REGISTER orders archive",
    ]


def test_an_nsqlookupd_without_an_address_is_used_and_an_error_is_logged(nsqd, caplog):
    nsqd.says()
    nsqd.hears(reply(b"{}"))
    assert "LOOKUPD(lookupd:4160): no broadcast address" in caplog.text
    assert not nsqd.session.closing


@pytest.mark.parametrize(
    "answer", [b"E_INVALID", b"OK", b"", b"[]", b"E_BAD_BODY IDENTIFY missing fields", b'{"tcp_port":"x"}', b"\xff\0"]
)
def test_an_invalid_reply_to_identify_ends_the_session(nsqd, answer):
    nsqd.says()
    assert nsqd.hears(reply(answer)) == b""
    assert nsqd.session.closing
    assert nsqd.session.failure.startswith("IDENTIFY - not an answer to IDENTIFY: ")


def test_a_reply_to_identify_that_takes_long_to_read_is_refused_by_its_size(nsqd):
    nsqd.says()
    document = json.dumps({"broadcast_address": "x", "more": [{}] * 20_000}).encode()
    assert nsqd.hears(reply(document)[:4]) == b""
    assert nsqd.session.failure == f"IDENTIFY - a reply of {len(document)} bytes, not 0 to 32768"


# --- What comes and goes ----------------------------------------------------------------------------------------------


def test_created_and_deleted_names_are_sent(nsqd, caplog):
    nsqd.is_registered()
    with caplog.at_level(logging.INFO):
        topic = nsqd.broker.topic("orders")
        assert nsqd.wakes == 1
        assert nsqd.says() == b"REGISTER orders\n"
        topic.channel("archive")
        assert nsqd.says() == b"REGISTER orders archive\n"
        topic.delete_channel("archive")
        assert nsqd.says() == b"UNREGISTER orders archive\n"
        topic.channel("metrics")
        nsqd.says()
        nsqd.broker.delete_topic("orders")
        assert nsqd.says() == b"UNREGISTER orders metrics\nUNREGISTER orders\n"
    said = [record.message for record in caplog.records if record.message.startswith("LOOKUPD")]
    assert said[:2] == [
        "LOOKUPD(lookupd:4160): topic REGISTER orders",
        "LOOKUPD(lookupd:4160): channel REGISTER orders archive",
    ]


def test_a_command_tells_the_state_at_the_time_of_sending(nsqd):
    nsqd.is_registered()
    for _ in range(1000):
        nsqd.broker.topic("orders").channel("archive")
        nsqd.broker.delete_topic("orders")
    assert nsqd.says() == b"UNREGISTER orders archive\nUNREGISTER orders\n"


def test_a_recreated_topic_is_registered_after_the_old_one_is_unregistered(nsqd):
    """nsqlookupd may have been told to forget it meanwhile, or keep consumers from it."""
    nsqd.broker.topic("orders").channel("archive")
    nsqd.is_registered()
    nsqd.broker.delete_topic("orders")
    nsqd.broker.topic("orders").channel("metrics")
    assert nsqd.says().splitlines() == [
        b"UNREGISTER orders archive", b"UNREGISTER orders", b"REGISTER orders", b"REGISTER orders metrics",
    ]  # fmt: skip


def test_the_number_of_unanswered_commands_is_limited(nsqd):
    for number in range(3 * MAX_UNANSWERED):
        nsqd.broker.topic(f"topic{number}")
    nsqd.says()
    assert nsqd.hears(GREETING).count(b"\n") == MAX_UNANSWERED
    assert nsqd.says() == b""
    assert nsqd.hears(OK * 30).count(b"\n") == 30


def test_a_topic_deleted_before_its_turn_is_not_registered(nsqd):
    for number in range(MAX_UNANSWERED + 1):
        nsqd.broker.topic(f"topic{number}")
    nsqd.says()
    nsqd.hears(GREETING)
    nsqd.broker.delete_topic(f"topic{MAX_UNANSWERED}")
    assert nsqd.hears(OK * MAX_UNANSWERED) == b"UNREGISTER topic%d\n" % MAX_UNANSWERED
    assert nsqd.hears(OK) == b""
    assert nsqd.session.all_registered


# --- Pings and silence ------------------------------------------------------------------------------------------------


def test_it_pings_every_fifteen_seconds_also_between_other_commands(nsqd):
    nsqd.is_registered()
    assert nsqd.session.next_wakeup == 100.0 + PING_SECONDS
    assert nsqd.waits(PING_SECONDS - 1) == b""
    nsqd.broker.topic("orders")
    assert nsqd.says() == b"REGISTER orders\n"
    assert nsqd.hears(OK) == b""
    assert nsqd.waits(1) == b"PING\n"
    assert nsqd.hears(OK) == b""
    assert nsqd.session.next_wakeup == 100.0 + 2 * PING_SECONDS


def test_it_pings_on_request(nsqd):
    nsqd.is_registered()
    nsqd.session.ping_now(nsqd.now)
    assert nsqd.wakes == 1
    assert nsqd.says() == b"PING\n"


@pytest.mark.parametrize("owed", ["IDENTIFY", "REGISTER orders", "PING"])
def test_a_late_reply_ends_the_session(nsqd, owed):
    if owed == "IDENTIFY":
        nsqd.says()
    else:
        nsqd.is_registered()
        if owed == "PING":
            nsqd.waits(PING_SECONDS)
        else:
            nsqd.broker.topic("orders")
            nsqd.says()
    assert nsqd.waits(REPLY_TIMEOUT) == b""
    assert not nsqd.session.closing, "this process may have been held up"
    assert nsqd.waits(GRACE_SECONDS) == b""
    assert nsqd.session.closing
    assert nsqd.session.failure == f"{owed} - no answer within 5s"


def test_a_reply_in_the_grace_time_counts(nsqd):
    nsqd.says()
    nsqd.waits(REPLY_TIMEOUT)
    nsqd.hears(GREETING)
    nsqd.waits(GRACE_SECONDS)
    assert not nsqd.session.closing
    nsqd.waits(PING_SECONDS)
    nsqd.waits(REPLY_TIMEOUT)
    assert not nsqd.session.closing, "the next grace is a new one"


def test_replies_may_arrive_in_pieces(nsqd):
    for number in range(50):
        nsqd.broker.topic(f"topic{number}")
    nsqd.says()
    nsqd.hears(GREETING)
    for _ in range(49):
        nsqd.waits(REPLY_TIMEOUT - 1)
        nsqd.hears(OK)
        assert not nsqd.session.closing


# --- What is no answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (reply(b"E_BAD_TOPIC no"), "REGISTER orders - E_BAD_TOPIC no"),
        (reply(b"\xff"), "REGISTER orders - \\xff"),
        (b"\xff\xff\xff\xff", "REGISTER orders - a reply of -1 bytes, not 0 to 1000"),
        (b"HTTP/1.1 400 Bad Request\r\n", "REGISTER orders - a reply of 1213486160 bytes, not 0 to 1000"),
        (OK + OK, "a reply without a command"),
    ],
)
def test_an_invalid_reply_ends_the_session(data, failure):
    nsqd = Nsqd(max_reply_size=1000).is_registered()
    nsqd.broker.topic("orders")
    nsqd.says()
    assert nsqd.hears(data) == b""
    assert (nsqd.session.closing, nsqd.session.failure) == (True, failure)
    nsqd.hears(OK)
    assert nsqd.session.failure == failure


def test_eof_inside_a_reply_ends_the_session(nsqd):
    nsqd.says()
    nsqd.session.end_of_input()
    assert (nsqd.session.closing, nsqd.session.failure) == (True, "IDENTIFY - EOF")


# --- With nsqlookupd --------------------------------------------------------------------------------------------------

topics = st.sampled_from(["orders", "returns", "short#ephemeral"])
channels = st.sampled_from(["archive", "metrics", "tail#ephemeral"])
amounts = st.sampled_from([1, 3, 7, 40, 1_000_000])


class NsqdAndNsqlookupd(RuleBasedStateMachine):
    """However their bytes are cut, delayed and lost with a connection: in the end nsqlookupd knows what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.nsqd = Nsqd()
        self.db = RegistrationDb(300.0, 45.0)
        self.connect()

    def connect(self) -> None:
        self.lookupd = LookupdSession(self.db, LOOKUPD, RegistrationPolicy(), peer="nsqd:1", now=self.nsqd.now)
        self.to_nsqd = self.to_lookupd = b""

    @rule(topic=topics)
    def create_topic(self, topic: str) -> None:
        self.nsqd.broker.topic(topic)

    @rule(topic=topics, channel=channels)
    def create_channel(self, topic: str, channel: str) -> None:
        self.nsqd.broker.topic(topic).channel(channel)

    @precondition(lambda self: self.nsqd.broker.topics)
    @rule(which=st.integers(0, 10))
    def delete_topic(self, which: int) -> None:
        names = list(self.nsqd.broker.topics)
        self.nsqd.broker.delete_topic(names[which % len(names)])

    @precondition(lambda self: any(topic.channels for topic in self.nsqd.broker.topics.values()))
    @rule(which=st.integers(0, 10))
    def delete_channel(self, which: int) -> None:
        there = [(topic, name) for topic in self.nsqd.broker.topics.values() for name in topic.channels]
        topic, name = there[which % len(there)]
        topic.delete_channel(name)

    @rule(topic=topics, again=st.booleans())
    def nsqadmin_deletes_a_topic_everywhere(self, topic: str, again: bool) -> None:
        self.db.delete_topic(topic)
        if topic in self.nsqd.broker.topics:
            self.nsqd.broker.delete_topic(topic)
        if again:
            self.create_topic(topic)

    @rule(amount=amounts)
    def bytes_go_to_nsqlookupd(self, amount: int) -> None:
        self.to_lookupd += self.nsqd.says()
        self.lookupd.receive_data(self.to_lookupd[:amount], self.nsqd.now, 0)
        self.to_lookupd = self.to_lookupd[amount:]

    @rule(amount=amounts)
    def bytes_go_to_nsqd(self, amount: int) -> None:
        self.to_nsqd += self.lookupd.data_to_send(self.nsqd.now)
        self.to_lookupd += self.nsqd.hears(self.to_nsqd[:amount])
        self.to_nsqd = self.to_nsqd[amount:]

    @rule()
    def time_passes(self) -> None:
        self.nsqd.now += 1.0

    @rule()
    def the_connection_is_lost(self) -> None:
        self.lookupd.closed()
        self.nsqd.connects()
        self.connect()

    def teardown(self) -> None:
        for _ in range(20):
            self.bytes_go_to_nsqlookupd(1_000_000)
            self.bytes_go_to_nsqd(1_000_000)
        if self.nsqd.session.closing:
            assert "no answer" in self.nsqd.session.failure
            self.the_connection_is_lost()
            self.teardown()
            return
        assert self.nsqd.session.all_registered
        (producer,) = self.db.producers
        there = self.nsqd.broker.topics
        assert producer.topics.keys() == there.keys()
        assert {(each.topic, each.channel) for of_topic in producer.channels.values() for each in of_topic} == {
            (topic.name, channel) for topic in there.values() for channel in topic.channels
        }


NsqdAndNsqlookupd.TestCase.settings = settings(stateful_step_count=40)
TestNsqdAndNsqlookupd = NsqdAndNsqlookupd.TestCase


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_with_tls_nothing_is_sent_before_the_handshake():
    nsqd = Nsqd(tls=True)
    assert nsqd.says() == b""
    nsqd.broker.topic("orders")
    assert nsqd.says() == b""
    upgrade = nsqd.session.upgrade
    assert upgrade is not None
    assert nsqd.hears(b"\x16\x03") == b""
    assert upgrade.received == b"\x16\x03"
    upgrade.done(TlsFacts("TLS1.3", "a suite"), nsqd.now)
    assert nsqd.says() == OPENING
    assert nsqd.hears(GREETING) == b"REGISTER orders\n"


@pytest.mark.parametrize("how", ["failed", "timeout", "EOF"])
def test_a_failed_handshake_ends_the_session_and_sends_nothing(how):
    nsqd = Nsqd(tls=True)
    assert nsqd.session.next_wakeup == nsqd.now + HANDSHAKE_SECONDS
    if how == "failed":
        assert nsqd.session.upgrade is not None
        nsqd.session.upgrade.failed("failed")
    elif how == "timeout":
        nsqd.now += HANDSHAKE_SECONDS
    else:
        nsqd.session.end_of_input()
    assert nsqd.says() == b""
    assert nsqd.session.closing
    assert nsqd.session.failure == f"TLS handshake - {how}"


def test_an_alert_after_the_handshake_is_the_reason_of_the_end():
    nsqd = Nsqd()
    nsqd.says()
    assert nsqd.session.input_failed("remote error: tls: certificate required")
    assert nsqd.session.failure == "IDENTIFY - remote error: tls: certificate required"
