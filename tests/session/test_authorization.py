"""An auth server's answer and the permissions in it: by itself first, then in conversations."""

import contextlib
import json
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.policy.access import Tokens, hash_of
from nsq_compat.protocol import commands as table
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.queue.publish_batch import MAX_AT_ONCE, LargeBatch
from nsq_compat.session.authorization import (
    MAX_COMMANDS_WITHOUT_AUTH,
    Access,
    AuthFailed,
    Credentials,
    Grants,
    grants_of,
    read_answer,
)
from nsq_compat.session.conversation import TlsFacts

NOW = 1000.0
ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


def answer(*authorizations, **others):
    return json.dumps({"ttl": 60, "authorizations": authorizations, **others}).encode()


def grants(*authorizations, **others):
    return read_answer(answer(*authorizations, **others), NOW)


# --- Answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_read_as_go_reads_json():
    read = read_answer(b'{"TTL":5,"Identity":"me","identity_url":null,"other":[1],"authorizations":null}', NOW)
    assert (read.identity, read.identity_url, read.authorizations) == ("me", "", ())
    assert (read.received_at, read.expires_at) == (NOW, NOW + 5)


def test_a_ttl_of_any_length_is_taken():
    assert grants(ttl=2**63 - 1).expires_at > NOW


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "wrong JSON"),
        (b"[]", "wrong JSON: not an object"),
        (b'{"ttl":1.5}', "wrong JSON: not an integer"),
        (b'{"ttl":"5"}', "wrong JSON: not an integer"),
        (b'{"ttl":5,"authorizations":{}}', "wrong JSON: not an array"),
        (b'{"ttl":5,"authorizations":[{"topic":1}]}', "wrong JSON: not a string"),
        (b"{}", "invalid TTL 0 (must be >0)"),
        (b'{"ttl":-1}', "invalid TTL -1 (must be >0)"),
        (answer({**ALL, "permissions": ["publish", "Subscribe"]}), "unknown permission Subscribe"),
        (answer({**ALL, "topic": "("}), 'unable to compile topic "("'),
        (answer({**ALL, "topic": "a(?=b)"}), "unable to compile topic"),
        (answer({**ALL, "channels": ["ok", r"(a)\1"]}), "unable to compile channel"),
    ],
)
def test_an_answer_that_nsq_refuses_is_refused(body, why):
    with pytest.raises(AuthFailed) as caught:
        read_answer(body, NOW)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("authorizations", "why"),
    [
        ([{**ALL, "topic": f"t{number}"} for number in range(1001)], "2002 patterns for topics and channels"),
        ([{**ALL, "channels": [f"c{number}" for number in range(2000)]}], "2001 patterns for topics and channels"),
        ([{**ALL, "topic": "t" * 1025}], "a pattern for a topic of more than 1024 bytes"),
        ([{**ALL, "channels": ["c" * 1025]}], "a pattern for a channel of more than 1024 bytes"),
        ([{**ALL, "topic": ".{1,999}" * 20}], "unable to compile topic"),
        ([{**ALL, "topic": f"{number}.{{1,500}}"} for number in range(100)], "more than 100000 instructions"),
        ([{**ALL, "permissions": ["publish"] * 40_000}], "more than 262144"),
    ],
)
def test_an_answer_with_too_much_to_compile_or_to_match_is_refused(authorizations, why):
    with pytest.raises(AuthFailed) as caught:
        grants(*authorizations)
    assert why in str(caught.value)


def test_as_many_patterns_as_are_allowed_are_taken():
    read = grants(*({**ALL, "topic": f"^t{number}$"} for number in range(1000)))
    assert read.allow("t999", "c")
    assert not read.allow("t1000", "c")


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_an_answer_or_a_refusal(body):
    with contextlib.suppress(AuthFailed):
        read_answer(body, NOW)


@pytest.mark.parametrize(
    ("authorization", "topic", "channel", "allowed"),
    [
        (ALL, "t", "c", True),
        (ALL, "t", "", True),
        ({**ALL, "permissions": ["publish"]}, "t", "c", False),
        ({**ALL, "permissions": ["subscribe"]}, "t", "", False),
        ({**ALL, "permissions": []}, "t", "", False),
        ({**ALL, "topic": "rder"}, "orders", "c", True),  # a match anywhere
        ({**ALL, "topic": "^rder"}, "orders", "c", False),
        ({**ALL, "topic": "^orders$"}, "orders#ephemeral", "c", False),
        ({**ALL, "topic": "[[:digit:]]"}, "t1", "c", True),
        ({**ALL, "topic": "(?i)ORD"}, "orders", "c", True),
        ({**ALL, "channels": ["a", "b"]}, "t", "b", True),
        ({**ALL, "channels": ["^a$"]}, "t", "aa", False),
        ({**ALL, "channels": []}, "t", "c", False),
        ({**ALL, "channels": []}, "t", "", False),  # publishing is on the channel with no name
        ({**ALL, "channels": ["c"]}, "t", "", False),
        ({**ALL, "channels": ["^$"]}, "t", "", True),
    ],
)
def test_an_authorization_allows_what_it_names(authorization, topic, channel, allowed):
    assert grants(authorization).allow(topic, channel) is allowed


def test_one_of_several_is_enough():
    several = grants({**ALL, "topic": "^a$"}, {**ALL, "topic": "^b$"})
    assert [several.allow(topic, "") for topic in "abc"] == [True, True, False]


def test_no_pattern_can_be_made_to_take_for_ever():
    assert not grants({**ALL, "topic": "^(a+)+$"}).allow("a" * 63 + "!", "c")


def test_connections_with_a_token_share_its_permissions():
    def tokens(topic):
        row = f'name = "a"\nhash = "{hash_of(b"s")}"\npermissions = ["publish"]\ntopics = ["{topic}"]'
        (token,) = Tokens(f"[[tokens]]\n{row}")
        return token

    token = tokens("orders")
    first, second = grants_of(token, NOW), grants_of(token, NOW + 1)
    assert first.authorizations is second.authorizations
    assert second.expires_at == first.expires_at + 1
    assert first.allow("orders", "")
    changed = grants_of(tokens("bills"), NOW)  # of the same name, after the file was read again
    assert changed.allow("bills", "")
    assert not changed.allow("orders", "")


def test_credentials_do_not_show_their_secret():
    assert "s3cret" not in repr(Credentials(b"s3cret", "127.0.0.1", tls=False, common_name=""))


# --- Conversations ----------------------------------------------------------------------------------------------------


class AuthServer:
    """Answers the daemon's questions, one after the other, with what a test has put here; an exception is raised."""

    def __init__(self, nsqd):
        self.answers = []
        self.asked = []
        self.takes = 0.0
        self._nsqd = nsqd

    def __call__(self, credentials):
        self.asked.append(credentials)
        self._nsqd.waits(self.takes)
        given = self.answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return read_answer(given, self._nsqd.now)


@pytest.fixture
def nsqd(make_nsqd):
    return make_nsqd(auth_required=True)


@pytest.fixture
def server(nsqd):
    nsqd.authorize = AuthServer(nsqd)
    return nsqd.authorize


@pytest.fixture
def authed(client, server):
    """A client that may do everything, for a minute."""
    server.answers = [answer(ALL)]
    client.says_with_body(b"AUTH", b"s3cret").hears_anything()
    return client


PUB = b"PUB t\n\0\0\0\1x"
DPUB = b"DPUB t 0\n\0\0\0\1x"
MPUB = b"MPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\1x"


def test_the_reply_to_auth_has_the_clients_identity(client, server):
    server.answers = [answer(ALL, ALL, identity="<me>", identity_url="http://me")]
    client.says_with_body(b"AUTH", b"s3\ncret")
    client.hears(rb'{"identity":"\u003cme\u003e","identity_url":"http://me","permission_count":2}').and_stays()
    assert server.asked == [Credentials(b"s3\ncret", "127.0.0.1", tls=False, common_name="")]
    stats = client.stats
    assert (stats.authed, stats.auth_identity, stats.auth_identity_url) == (True, "<me>", "http://me")


def test_the_server_is_told_of_tls_and_of_the_name_in_the_clients_certificate(make_nsqd):
    nsqd = make_nsqd(auth_required=True, tls=True)
    nsqd.authorize = server = AuthServer(nsqd)
    client = nsqd.connect().identifies(feature_negotiation=True, tls_v1=True)
    client.hears_anything()
    client.session.upgrade.done(TlsFacts("TLS1.3", "Unknown 4865", "somebody"), nsqd.now)
    server.answers = [answer(ALL)]
    client.says_with_body(b"AUTH", b"s3cret")
    assert server.asked == [Credentials(b"s3cret", "127.0.0.1", tls=True, common_name="somebody")]


def test_identify_says_whether_auth_is_required(nsqd, make_nsqd):
    for daemon, required in ((nsqd, b"true"), (make_nsqd(), b"false")):
        client = daemon.connect().identifies(feature_negotiation=True)
        assert b'"auth_required":' + required in client.bytes_heard


def test_without_auth_servers_auth_is_an_error(make_nsqd):
    make_nsqd().connect().says_with_body(b"AUTH", b"s").hears(b"E_AUTH_DISABLED AUTH disabled").and_is_closed()


def test_a_second_auth_is_an_error(authed):
    authed.says_with_body(b"AUTH", b"s").hears(b"E_INVALID AUTH already set").and_is_closed()


def test_the_reason_of_a_failed_request_is_only_in_the_log(client, server, caplog):
    server.answers = [AuthFailed("failed to auth against 10.0.0.1:80 - timeout")]
    client.says_with_body(b"AUTH", b"s3cret").hears(b"E_AUTH_FAILED AUTH failed").and_is_closed()
    assert "PROTOCOL(V2): [127.0.0.1:5000] AUTH failed failed to auth against 10.0.0.1:80 - timeout" in caplog.messages
    assert "s3cret" not in caplog.text


def test_an_answer_without_authorizations_is_a_no(client, server):
    server.answers = [answer()]
    client.says_with_body(b"AUTH", b"s").hears(b"E_UNAUTHORIZED AUTH no authorizations found").and_is_closed()


@pytest.mark.parametrize(("command", "name"), [(PUB, b"PUB"), (DPUB, b"DPUB"), (MPUB, b"MPUB"), (b"SUB t c\n", b"SUB")])
def test_nothing_goes_before_auth(nsqd, client, command, name):
    client.says(command).hears(b"E_AUTH_FIRST AUTH required before " + name).and_is_closed()
    assert not nsqd.broker.topics


def test_commands_without_permission_are_allowed_before_auth(client):
    client.says(b"NOP\n").identifies().hears(b"OK").and_stays()


@pytest.mark.parametrize("command", [PUB, DPUB, MPUB, b"SUB t c\n"])
def test_a_permitted_command_is_executed(authed, command):
    authed.says(command).hears(b"OK").and_stays()


@pytest.mark.parametrize(
    ("command", "name", "channel"),
    [(PUB, b"PUB", b""), (DPUB, b"DPUB", b""), (MPUB, b"MPUB", b""), (b"SUB t c\n", b"SUB", b"c")],
)
def test_a_forbidden_command_gets_an_error_and_a_close(nsqd, client, server, command, name, channel):
    server.answers = [answer({**ALL, "topic": "^other$"})]
    client.says_with_body(b"AUTH", b"s").hears_anything()
    client.says(command).hears(b'E_UNAUTHORIZED AUTH failed for %b on "t" "%b"' % (name, channel)).and_is_closed()
    assert not nsqd.broker.topics


def test_only_mpub_is_checked_before_its_body_is_received(authed, server, nsqd):
    server.answers = [answer({**ALL, "topic": "^other$"})]
    limited = nsqd.connect()
    limited.says_with_body(b"AUTH", b"s").hears_anything()
    limited.says(b"MPUB t\n").hears(b'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""').and_is_closed()
    authed.says(b"PUB t\n").hears().and_stays()


@pytest.mark.parametrize("line", [b"PUB t\n", b"DPUB t 0\n", b"MPUB t\n"])
def test_nothing_is_received_of_a_body_before_auth(client, server, line):
    name = line.split()[0]
    client.says(line).hears(b"E_AUTH_FIRST AUTH required before " + name).and_is_closed()


def test_a_client_identifies_once_before_auth(nsqd, client, server):
    client.identifies().hears(b"OK").and_stays()
    client.says(b"IDENTIFY\n").hears(b"E_AUTH_FIRST AUTH required before IDENTIFY").and_is_closed()
    server.answers = [answer(ALL)]
    other = nsqd.connect().identifies()
    other.says_with_body(b"AUTH", b"s").hears_anything()
    other.identifies().hears(b"OK").and_stays()


@pytest.mark.parametrize("heartbeats", [-1, 1000])
def test_a_client_that_does_not_authenticate_is_disconnected(nsqd, client, heartbeats):
    client.identifies(heartbeat_interval=heartbeats).hears(b"OK")
    for _ in range(59):
        nsqd.waits(1)
        client.says(b"NOP\n")
    client.hears_anything()
    client.and_stays()
    nsqd.waits(1)
    client.and_is_closed()


def test_a_client_that_does_not_authenticate_may_send_few_commands(nsqd, client, server):
    client.says(b"NOP\n" * MAX_COMMANDS_WITHOUT_AUTH).and_stays()
    client.says(b"NOP\n").hears(b"E_AUTH_FIRST AUTH required before NOP").and_is_closed()
    server.answers = [answer(ALL)]
    other = nsqd.connect()
    other.says_with_body(b"AUTH", b"s").hears_anything()
    other.says(b"NOP\n" * 2 * MAX_COMMANDS_WITHOUT_AUTH).and_stays()


def test_a_client_that_has_authenticated_stays(nsqd, authed):
    authed.identifies(heartbeat_interval=-1).hears(b"OK")
    nsqd.waits(3600)
    authed.and_stays()


def test_a_run_of_publishes_ends_at_the_first_refusal(client, server):
    server.answers = [answer({**ALL, "topic": "^t$"})]
    client.says_with_body(b"AUTH", b"s").hears_anything()
    client.says(PUB * 3 + b"PUB u\n\0\0\0\1x" + PUB)
    client.hears(b"OK", b"OK", b"OK", b'E_UNAUTHORIZED AUTH failed for PUB on "u" ""').and_is_closed()


def test_an_answer_holds_for_its_time_and_is_then_asked_for_again(nsqd, authed, server):
    authed.identifies(heartbeat_interval=-1).hears(b"OK")
    nsqd.waits(60)
    authed.says(PUB).hears(b"OK")
    assert len(server.asked) == 1
    nsqd.waits(0.1)
    server.answers = [answer(ALL, identity="new")]
    authed.says(PUB).hears(b"OK")
    assert server.asked[1] == replace(server.asked[0], renews=True)
    assert authed.stats.auth_identity == "new"


def test_a_new_answer_may_be_a_no(nsqd, authed, server):
    authed.identifies(heartbeat_interval=-1).hears(b"OK")
    nsqd.waits(61)
    server.answers = [answer()]
    authed.says(PUB).hears(b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""').and_is_closed()


def test_a_new_answer_may_not_come(nsqd, authed, server):
    authed.identifies(heartbeat_interval=-1).hears(b"OK")
    nsqd.waits(61)
    server.answers = [AuthFailed("gone")]
    authed.says(PUB).hears(b"E_AUTH_FAILED AUTH failed").and_is_closed()


def test_a_consumer_is_not_checked_again(nsqd, authed, server):
    authed.subscribes(ready=10)
    for _ in range(5):
        nsqd.waits(20)
        authed.says(b"NOP\n")
    nsqd.broker.topic("t").publish([b"x"], nsqd.now, nsqd.now_ns)
    nsqd.turns()
    assert authed.bodies() == [b"x"]
    assert len(server.asked) == 1


# --- While an auth server takes its time ------------------------------------------------------------------------------


def test_a_slow_auth_server_is_not_held_against_the_client(nsqd, client, server):
    client.identifies(heartbeat_interval=1000).hears(b"OK")
    server.takes, server.answers = 5.0, [answer(ALL)]
    client.says_with_body(b"AUTH", b"s")
    client.hears(*[b"_heartbeat_"] * 5, b'{"identity":"","identity_url":"","permission_count":1}').and_stays()
    nsqd.waits(1.9)
    client.hears(b"_heartbeat_").and_stays()
    nsqd.waits(0.2)
    client.and_is_closed()


def test_earlier_commands_are_answered_before_the_auth_server_answers(nsqd, client, server):
    heard: list[bytes] = []

    def ask(credentials):
        nsqd.turns()
        heard.extend(frame.data for frame in client.hears_anything())
        return read_answer(answer(ALL), nsqd.now)

    nsqd.authorize = ask
    client.says(b"IDENTIFY\n\0\0\0\2{}AUTH\n\0\0\0\1s")
    assert heard == [b"OK"]


def test_time_to_send_a_body_is_not_spent_on_asking(nsqd, authed, server):
    authed.identifies(heartbeat_interval=1000).hears(b"OK")
    for _ in range(61):
        nsqd.waits(1)
        authed.says(b"NOP\n")
    authed.hears_anything()
    server.takes, server.answers = 5.0, [answer(ALL)]
    authed.says(b"MPUB t\n")
    nsqd.waits(1.9)
    authed.says(MPUB.partition(b"\n")[2])
    assert [frame.data for frame in authed.hears_anything() if frame.data != b"_heartbeat_"] == [b"OK"]
    nsqd.waits(1.9)
    authed.says(b"MPUB t\n\0\0")
    nsqd.waits(2.1)
    authed.and_is_closed()


def test_messages_published_after_a_slow_auth_have_a_timestamp_after_it(nsqd, authed, server):
    authed.subscribes(ready=1)
    server.takes, server.answers = 3.0, [answer(ALL)]
    begun = nsqd.now_ns
    nsqd.connect().says(b"AUTH\n\0\0\0\1s" + PUB)
    assert [message.timestamp_ns - begun for message in authed.received] == [3 * 10**9]


def test_a_connection_that_ended_meanwhile_ends_quietly(nsqd, client, server):
    def gone(credentials):
        client.disconnects()
        return read_answer(answer(ALL), nsqd.now)

    nsqd.authorize = gone
    client.says(b"AUTH\n\0\0\0\1s" + b"SUB t c\n").and_is_closed()
    client.session.closed()
    channel = nsqd.broker.topics["t"].channels["c"]
    assert not channel.consumers


@pytest.mark.interpreted
def test_a_permission_that_is_taken_away_while_the_topic_is_created_permits_no_subscription(nsqd, authed, monkeypatch):
    def created_slowly(name, make=nsqd.broker.topic):
        topic = make(name)
        assert authed.session.may_continue(lambda secret: grants({**ALL, "topic": "other"}))
        return topic

    monkeypatch.setattr(nsqd.broker, "topic", created_slowly)
    authed.says(b"SUB t c\n").hears(b'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"').and_is_closed()
    assert not nsqd.broker.topics["t"].channels


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "command", [b"PUB t\n\0\0\0\1x", b"DPUB t 1\n\0\0\0\1x", b"MPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\1x"]
)
def test_nothing_is_published_to_a_new_topic_if_the_permission_ends_while_it_is_created(
    nsqd, authed, monkeypatch, command
):
    def created_slowly(name, make=nsqd.broker.topic):
        topic = make(name)
        assert authed.session.may_continue(lambda secret: grants({**ALL, "topic": "other"}))
        return topic

    monkeypatch.setattr(nsqd.broker, "topic", created_slowly)
    name = command.split(b" ")[0]
    authed.says(command).hears(b"E_UNAUTHORIZED AUTH failed for " + name + b' on "t" ""').and_is_closed()
    assert nsqd.broker.topics["t"].message_count == 0


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_large_publish_that_waits_is_refused_when_its_permission_ends(nsqd, authed, is_gone):
    """Also if the steps of another client would complete it before its own turn."""

    def ask(secret):
        if is_gone:
            raise AuthFailed("unknown token")
        return grants({**ALL, "topic": "other"})

    bodies = b"\0\0\0\1x" * (MAX_AT_ONCE + 1)
    mpub = b"MPUB t\n" + struct.pack(">ii", 4 + len(bodies), MAX_AT_ONCE + 1) + bodies
    authed.session.receive_data(mpub, nsqd.now, nsqd.now_ns)
    topic = nsqd.broker.topic("t")
    another = LargeBatch(topic, [b"y"] * (MAX_AT_ONCE + 1), nsqd.now, nsqd.now_ns, "another")
    another.step()
    assert authed.session.may_continue(ask) is not is_gone
    while not another.step():
        pass
    assert topic.message_count == MAX_AT_ONCE + 1
    nsqd.turns()
    authed.hears(b'E_UNAUTHORIZED AUTH failed for MPUB on "t"' + (b"" if is_gone else b' ""')).and_is_closed()
    assert topic.message_count == MAX_AT_ONCE + 1


def test_a_decision_is_made_once_for_each_topic_until_the_authorizations_are_renewed(monkeypatch):
    asked = []
    answers = iter([grants(ALL), grants({**ALL, "topic": "other"})])
    access = Access(lambda secret: next(answers))
    access.authenticate(b"secret")
    allow = Grants.allow

    def noting(*names):
        asked.append(names[1:])
        return allow(*names)

    monkeypatch.setattr(Grants, "allow", noting)
    for _ in range(3):
        access.require(table.PUB, b"t", b"", NOW)
        access.require(table.SUB, b"t", b"c", NOW)
    assert asked == [("t", ""), ("t", "c")]
    with pytest.raises(FatalClientError):
        access.require(table.PUB, b"t", b"", NOW + 61)
