"""nsqlookupd's side of the V1 protocol: the reply to each command, fatal errors, and arbitrary bytes."""

import json
import logging
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.command_reader import MAX_LINE
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.conversation import Conversation, TlsFacts
from nsq_compat.session.lookupd_session import MAX_COMMANDS_PER_CALL, LookupdSession
from tests.cuts import cut

ABOUT_US = LookupdInfo("lookup1", "host1", 4161, 4160, "1.3.0")
INFO = (
    b'{"broadcast_address":"lookup1","hostname":"host1","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'  # sorted
)
ABOUT_NSQD = {"broadcast_address": "n1", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0", "hostname": "h"}


class Nsqlookupd:
    """The real database and real sessions, served as net/connection does; `now` moves in `waits`."""

    def __init__(self) -> None:
        self.db = RegistrationDb(inactive_after=300.0, tombstone_lifetime=45.0)
        self.policy = RegistrationPolicy()
        self.now = 1000.0
        self.clients: list[Client] = []

    def connect(self, opening: bytes = b"  V1") -> "Client":
        """A new client, which has said its magic unless told otherwise."""
        client = Client(self, f"127.0.0.1:{5000 + len(self.clients)}")
        self.clients.append(client)
        return client.says(opening)

    def joins(self, **about: Any) -> "Client":
        """A client that has identified itself."""
        return self.connect().identifies(**about).hears(INFO)

    def waits(self, seconds: float) -> None:
        self.now += seconds
        for client in self.clients:
            if client.session.next_wakeup <= self.now:
                client.flush()

    def found(self, topic: str) -> list[str]:
        return [producer.id for producer in self.db.lookup(topic, self.now)[1]]


class Client:
    """One connection, seen from the other end."""

    def __init__(self, nsqlookupd: Nsqlookupd, peer: str, *, tls: bool = False) -> None:
        self.peer = peer
        self.is_open = True
        self.heard: list[bytes] = []
        self._nsqlookupd = nsqlookupd
        self.session = LookupdSession(
            nsqlookupd.db, ABOUT_US, nsqlookupd.policy, peer=peer, now=nsqlookupd.now, tls=tls
        )

    def says(self, *pieces: bytes) -> "Client":
        for piece in pieces:
            if self.is_open:
                now = self._nsqlookupd.now
                self.session.receive_data(piece, now, int(now * 1e9))
                self.flush()
                while self.session.has_unread:
                    self.session.read_on(now, int(now * 1e9))
                    self.flush()
        return self

    def identifies(self, **about: Any) -> "Client":
        return self.says(identify(json.dumps(ABOUT_NSQD | about).encode()))

    def stops_sending(self) -> "Client":
        if self.is_open:
            self.session.end_of_input()
            self.flush()
        return self

    def disconnects(self) -> "Client":
        self.is_open = False
        self.session.closed()
        self.session.closed()
        return self

    def hears(self, *replies: bytes) -> "Client":
        """Exactly these replies came since the last time."""
        heard, self.heard = self.heard, []
        assert heard == list(replies)
        return self

    def and_is_closed(self) -> "Client":
        assert not self.is_open
        return self

    def and_stays(self) -> "Client":
        assert self.is_open
        return self

    def flush(self) -> None:
        if not self.is_open:
            return
        data = self.session.data_to_send(self._nsqlookupd.now)
        while data:
            (size,) = struct.unpack_from(">i", data)
            assert len(data) >= 4 + size, "a reply is always sent whole"
            self.heard.append(data[4 : 4 + size])
            data = data[4 + size :]
        if self.session.closing:
            self.disconnects()


def identify(document: bytes, size: int | None = None) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">i", len(document) if size is None else size) + document


@pytest.fixture
def nsqlookupd() -> Nsqlookupd:
    return Nsqlookupd()


@pytest.fixture
def client(nsqlookupd: Nsqlookupd) -> Client:
    """Connected, and past the magic."""
    return nsqlookupd.connect()


@pytest.fixture
def nsqd(nsqlookupd: Nsqlookupd) -> Client:
    """Connected and identified."""
    return nsqlookupd.joins()


# --- Opening ----------------------------------------------------------------------------------------------------------


def test_it_has_the_interface_of_a_session(client):
    session: Conversation = client.session
    assert (session.has_more, session.owed_replies, session.closing) == (False, 0, False)
    session.stalled()


def test_nothing_is_sent_before_the_first_command(client):
    client.hears().and_stays()


@pytest.mark.parametrize("opening", [b"  V2", b" V1 ", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"\xff\xfe\xfd\xfc"])
def test_an_unknown_magic_is_refused(nsqlookupd, opening):
    nsqlookupd.connect(opening).hears(b"E_BAD_PROTOCOL").and_is_closed()


def test_the_magic_may_arrive_in_pieces(nsqlookupd):
    nsqlookupd.connect(b" ").says(b" V", b"1PI", b"NG\n").hears(b"OK").and_stays()


# --- Commands ---------------------------------------------------------------------------------------------------------


def test_identify_is_answered_with_the_address_of_nsqlookupd(nsqlookupd, client):
    client.identifies().hears(INFO).and_stays()
    (producer,) = nsqlookupd.db.producers
    assert (producer.id, producer.info.broadcast_address, producer.info.http_port) == (client.peer, "n1", 4151)


def test_it_registers_and_unregisters(nsqlookupd, nsqd):
    nsqd.says(b"REGISTER t\n", b"REGISTER t c\n", b"REGISTER t c more that is ignored\n").hears(b"OK", b"OK", b"OK")
    assert nsqlookupd.found("t") == [nsqd.peer]
    assert list(nsqlookupd.db.channels("t")) == ["c"]
    nsqd.says(b"UNREGISTER t c\n", b"UNREGISTER t\n", b"UNREGISTER t\n").hears(b"OK", b"OK", b"OK")
    assert nsqlookupd.found("t") == []


def test_an_empty_channel_is_no_channel(nsqlookupd, nsqd):
    nsqd.says(b"REGISTER t  c\n").hears(b"OK")
    assert list(nsqlookupd.db.channels("t")) == []


def test_commands_may_arrive_together_and_with_carriage_returns(nsqlookupd, client):
    client.says(identify(json.dumps(ABOUT_NSQD).encode()) + b"REGISTER t\r\nPING\n  PING  \n")
    client.hears(INFO, b"OK", b"OK", b"OK")
    assert nsqlookupd.found("t") == [client.peer]


def test_a_ping_keeps_a_producer_active(nsqlookupd, nsqd):
    nsqd.says(b"REGISTER t\n")
    nsqlookupd.waits(290)
    nsqd.says(b"PING\n").hears(b"OK", b"OK")
    nsqlookupd.waits(290)
    assert nsqlookupd.found("t") == [nsqd.peer]
    nsqlookupd.waits(11)
    assert nsqlookupd.found("t") == []
    nsqd.says(b"PING ignored\n").hears(b"OK")
    assert nsqlookupd.found("t") == [nsqd.peer]


def test_a_ping_before_identify_is_answered_and_has_no_effect(nsqlookupd, client):
    client.says(b"PING\n").hears(b"OK").and_stays()
    assert not nsqlookupd.db.producers


def test_log_lines_have_nsqs_wording(nsqlookupd, caplog):
    with caplog.at_level(logging.INFO):
        nsqd = nsqlookupd.joins()
        nsqlookupd.waits(1.5)
        nsqd.says(b"PING\n", b"REGISTER t c\n", b"bad\xff\n").and_is_closed()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "CLIENT(127.0.0.1:5000): desired protocol magic '  V1'"),
        ("INFO", "CLIENT(127.0.0.1:5000): IDENTIFY Address:n1 TCP:4150 HTTP:4151 Version:1.3.0"),
        ("INFO", "DB: client(127.0.0.1:5000) REGISTER category:client key: subkey:"),
        ("INFO", "CLIENT(127.0.0.1:5000): pinged (last ping 1.5s)"),
        ("INFO", "DB: client(127.0.0.1:5000) REGISTER category:channel key:t subkey:c"),
        ("INFO", "DB: client(127.0.0.1:5000) REGISTER category:topic key:t subkey:"),
        ("ERROR", r"[127.0.0.1:5000] - E_INVALID invalid command bad\xff"),
        ("INFO", "PROTOCOL(V1): [127.0.0.1:5000] exiting ioloop"),
        ("INFO", "DB: client(127.0.0.1:5000) UNREGISTER category:channel key:t subkey:c"),
        ("INFO", "DB: client(127.0.0.1:5000) UNREGISTER category:topic key:t subkey:"),
        ("INFO", "DB: client(127.0.0.1:5000) UNREGISTER category:client key: subkey:"),
    ]


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"broadcast_address": "user:pw@host"}, 'invalid broadcast address "user:pw@host"'),
        ({"broadcast_address": "a\n\x1b" + "x" * 10_000}, r'invalid broadcast address "a\n\x1b' + "x" * 57 + '"...'),
        ({"tcp_port": 99999}, 'invalid TCP port "99999"'),
        ({"http_port": -1}, 'invalid HTTP port "-1"'),
    ],
)
def test_an_nsqd_whose_address_is_invalid_is_accepted_and_named(nsqlookupd, caplog, about, problem):
    nsqlookupd.joins(**about).says(b"REGISTER t\n").hears(b"OK")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"CLIENT(127.0.0.1:5000): {problem}; clients that look up a topic, and nsqadmin, skip this nsqd"


# --- Errors, all of them fatal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"BOGUS x\n", b"E_INVALID invalid command BOGUS"),
        (b"ping\n", b"E_INVALID invalid command ping"),
        (b"\n", b"E_INVALID invalid command "),
        (b"\x1cPING\n", b"E_INVALID invalid command \x1cPING"),
        (b"\xff\xfe x\n", b"E_INVALID invalid command \xff\xfe"),
        (b"FIN 0123456789abcdef\n", b"E_INVALID invalid command FIN"),
        (b"PUB t\n", b"E_INVALID invalid command PUB"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"REGISTER\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER bad! name\n", b"E_INVALID client must IDENTIFY"),
        (identify(b"", -1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (identify(b"", 0x7FFFFFFF), b"E_BAD_BODY IDENTIFY body too big 2147483647 > 16384"),
        (identify(b""), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"[]"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b'"text"'), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b'{"tcp_port":"4150"}'), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"null"), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify(b"{}"), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify(b'{"broadcast_address":"a","tcp_port":1,"version":"1"}'), b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_registering_before_identify_is_refused(nsqlookupd, client, command, error):
    client.says(command).hears(error).and_is_closed()
    assert not nsqlookupd.db.producers


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER bad!\n", b"E_BAD_TOPIC REGISTER topic name 'bad!' is not valid"),
        (b"REGISTER  c\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"UNREGISTER *\n", b"E_BAD_TOPIC UNREGISTER topic name '*' is not valid"),
        (b"REGISTER t bad\xff\n", b"E_BAD_CHANNEL REGISTER channel name 'bad\xff' is not valid"),
        (b"UNREGISTER t bad!\n", b"E_BAD_CHANNEL UNREGISTER channel name 'bad!' is not valid"),
    ],
)
def test_an_error_ends_the_registrations(nsqlookupd, nsqd, command, error):
    nsqd.says(b"REGISTER t c\n" + command + b"REGISTER u\n").hears(b"OK", error).and_is_closed()
    assert nsqlookupd.found("t") == []
    assert list(nsqlookupd.db.topics) == ["t"]


def test_eof_inside_a_body_is_an_error(nsqlookupd):
    for sent, error in (
        (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\5ab", b"E_BAD_BODY IDENTIFY failed to read body"),
    ):
        nsqlookupd.connect().says(sent).stops_sending().hears(error).and_is_closed()


@pytest.mark.parametrize("sent", [b"", b"PING", b"REGISTER t"])
def test_eof_elsewhere_has_no_reply(client, sent):
    client.says(sent).stops_sending().hears().and_is_closed()


def test_log_lines_of_what_clients_send_are_limited(nsqlookupd, caplog):
    caplog.set_level(logging.INFO)
    nsqlookupd.connect().says(b"\0" * 16_000 + b"\n").hears(b"E_INVALID invalid command " + b"\0" * 16_000)
    nsqlookupd.connect().identifies(broadcast_address="a" * 7000, version="v" * 7000)
    assert max(map(len, caplog.messages)) < 3000


def test_an_endless_line_closes_the_connection(client):
    client.says(b"PING" + b" " * (MAX_LINE - 5) + b"\n").hears(b"OK").and_stays()
    client.says(b"x" * 10_000, b"x" * 10_000).hears().and_is_closed()


# --- Silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"  V", b"  V1", b"  V1PI", b"  V1IDENTIFY\n"])
def test_a_connection_without_identify_is_closed_after_a_timeout(nsqlookupd, sent):
    client = nsqlookupd.connect(b"").says(sent)
    nsqlookupd.waits(59.9)
    client.and_stays()
    nsqlookupd.waits(0.2)
    client.and_is_closed()


def test_each_command_before_identify_restarts_the_timeout(nsqlookupd, client):
    for _ in range(3):
        nsqlookupd.waits(50)
        client.says(b"PING\n").hears(b"OK")


def test_pings_do_not_restart_it_where_not_everyone_may_register(nsqlookupd):
    nsqlookupd.policy = RegistrationPolicy(refuse_token=lambda token, address: "" if token else "a token is needed")
    stranger, nsqd = nsqlookupd.connect(), nsqlookupd.joins(token="secret")
    for client in (stranger, nsqd):
        client.says(b"PING\n").hears(b"OK")
    nsqlookupd.waits(50)
    stranger.says(b"PING\n").hears(b"OK")
    nsqlookupd.waits(11)
    stranger.and_is_closed()
    nsqd.and_stays()


def test_a_ping_asks_only_for_the_token_again(nsqlookupd, monkeypatch):
    """What the certificate permits cannot change, and finding out may take long."""
    refused: list[str] = []
    nsqlookupd.policy = RegistrationPolicy(refuse_token=lambda token, address: "".join(refused))
    nsqd = nsqlookupd.joins()
    monkeypatch.setattr(nsqlookupd.policy, "refusal", None)
    nsqd.says(b"PING\n").hears(b"OK")
    refused.append("it has expired")
    nsqd.says(b"PING\n").hears(
        b"E_UNAUTHORIZED PING refused: the registration is not permitted any more"
    ).and_is_closed()


def test_a_silent_producer_stays_connected(nsqlookupd, nsqd):
    nsqlookupd.waits(100_000)
    nsqd.says(b"PING\n").hears(b"OK").and_stays()


# --- Any bytes --------------------------------------------------------------------------------------------------------

names = st.sampled_from([b"t", b"c", b"", b"bad!", b"x#ephemeral", b"n" * 64, b"n" * 65, b"\xff"])
documents = st.one_of(
    st.just(json.dumps(ABOUT_NSQD).encode()),
    st.dictionaries(
        st.sampled_from([*ABOUT_NSQD, "remote_address", "topology_zone"]),
        st.sampled_from([0, 1, -1, 1 << 70, "x", "", None, [], 1.5, True]),
    ).map(lambda values: json.dumps(values).encode()),
    st.sampled_from([b"", b"null", b"[]", b"1", b"{", b"\xff", b"[" * 5000]),
    st.binary(max_size=10),
)
sizes = st.sampled_from([-(1 << 31), -1, 0, 1, (1 << 20), (1 << 20) + 1, (1 << 31) - 1])
commands = st.one_of(
    st.sampled_from([b"PING\n", b"PING\r\n", b"\n", b"PING", b"IDENTIFY\n"]),
    st.builds(lambda verb, *rest: b" ".join([verb, *rest]) + b"\n", st.sampled_from([b"REGISTER", b"UNREGISTER"])),
    st.builds(lambda topic, channel: b"REGISTER %b %b\n" % (topic, channel), names, names),
    st.builds(lambda topic, channel: b"UNREGISTER %b %b\n" % (topic, channel), names, names),
    st.builds(identify, documents),
    st.builds(identify, st.binary(max_size=4), sizes),
    st.binary(max_size=8),
)
openings = st.sampled_from([identify(json.dumps(ABOUT_NSQD).encode()), b""])
conversations = st.builds(lambda opening, said: b"".join([opening, *said]), openings, st.lists(commands, max_size=10))
cuts = st.lists(st.integers(1, 400), max_size=8)


@given(conversations, cuts)
def test_any_bytes_in_any_cut_lead_to_replies_or_to_an_error_and_a_close(data, positions):
    whole, pieces = Nsqlookupd(), Nsqlookupd()
    one, other = whole.connect().says(data), pieces.connect().says(*cut(data, positions))
    assert (one.heard, one.is_open) == (other.heard, other.is_open)
    assert all(answer in (b"OK", INFO) for answer in one.heard[:-1])
    if one.heard and one.heard[-1].startswith(b"E_"):
        one.and_is_closed()
    assert set(whole.db.topics) == set(pieces.db.topics)
    one.stops_sending().and_is_closed()
    assert not whole.db.producers
    assert not any(each.producers for each in whole.db.registrations())


@given(st.binary(max_size=60), cuts)
def test_noise_from_the_start_is_harmless(data, positions):
    Nsqlookupd().connect(b"").says(*cut(data, positions)).stops_sending().and_is_closed()


def test_a_read_full_of_commands_is_executed_in_parts(nsqlookupd):
    session = nsqlookupd.joins().session
    session.receive_data(b"REGISTER t c\n" * 1000, nsqlookupd.now, 0)
    assert session.owed_replies == MAX_COMMANDS_PER_CALL * len(b"\0\0\0\2OK")
    calls = 1
    while session.has_unread:
        session.read_on(nsqlookupd.now, 0)
        calls += 1
    assert calls >= 1000 / MAX_COMMANDS_PER_CALL
    assert session.owed_replies == 1000 * len(b"\0\0\0\2OK")


# --- TLS, and which nsqds may register --------------------------------------------------------------------------------


def test_with_tls_nothing_is_read_before_the_handshake(nsqlookupd):
    client = Client(nsqlookupd, "nsqd", tls=True).says(b"  V1PING\n").hears().and_stays()
    upgrade = client.session.upgrade
    assert upgrade is not None
    assert upgrade.received == b"  V1PING\n"
    upgrade.done(TlsFacts("TLS1.3", "a suite"), nsqlookupd.now)
    client.says(b"  V1PING\n").hears(b"OK")


def test_a_handshake_has_five_seconds(nsqlookupd, caplog):
    client = Client(nsqlookupd, "nsqd", tls=True)
    nsqlookupd.clients.append(client)
    nsqlookupd.waits(4.9)
    client.and_stays()
    nsqlookupd.waits(0.1)
    client.hears().and_is_closed()
    assert caplog.messages == ["CLIENT(nsqd): TLS handshake failed - timeout"]


def test_a_client_that_disconnects_before_the_handshake_is_not_logged(nsqlookupd, caplog):
    Client(nsqlookupd, "nsqd", tls=True).stops_sending().hears().and_is_closed()
    assert caplog.messages == []


def test_a_refused_registration_is_answered_logged_and_counted(nsqlookupd, caplog):
    nsqlookupd.policy = RegistrationPolicy(["n1=10.0.0.7"])
    client = Client(nsqlookupd, "nsqd", tls=True)
    assert client.session.upgrade is not None
    client.session.upgrade.done(TlsFacts("TLS1.3", "a suite", "n1", ("n1",)), nsqlookupd.now)
    reason = 'a certificate for "n1" may not claim the broadcast address "10.0.0.8"'
    client.says(b"  V1").identifies(broadcast_address="10.0.0.8").says(b"REGISTER t\n")
    client.hears(f"E_UNAUTHORIZED IDENTIFY refused: {reason}".encode()).and_is_closed()
    assert not nsqlookupd.db.producers
    assert f"CLIENT(nsqd): registration refused - {reason}" in caplog.messages
    assert nsqlookupd.policy.refused == 1


def test_without_tls_nothing_can_be_registered_where_it_is_required(nsqlookupd):
    nsqlookupd.policy = RegistrationPolicy(tls_required=True)
    nsqlookupd.connect().says(b"PING\n").hears(b"OK").and_stays()
    nsqlookupd.connect().identifies().hears(b"E_UNAUTHORIZED IDENTIFY refused: TLS is required").and_is_closed()
    for command in (b"REGISTER t\n", b"UNREGISTER t\n"):
        nsqlookupd.connect().says(command).hears(b"E_INVALID client must IDENTIFY").and_is_closed()
    assert not nsqlookupd.db.producers
