"""nsqd's HTTP API: publishing, topics and channels, information, and errors."""

import json
import struct
from urllib.parse import quote

import pytest

from nsq_conformance.behaviours.limits import MAX_MSG_TIMEOUT_MS
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient, batch

JSON = "application/json; charset=utf-8"


def bodies(client: RawClient, topic: str, count: int) -> list[bytes]:
    return client.subscribes(topic, ready=count).bodies(count)


# --- All requests -----------------------------------------------------------------------------------------------------

ROUTES = {
    "an unknown path": ("GET", "/unknown", 404, {"message": "NOT_FOUND"}),
    "POST where GET belongs": ("POST", "/ping", 405, {"message": "METHOD_NOT_ALLOWED"}),
    "GET where POST belongs": ("GET", "/pub", 405, {"message": "METHOD_NOT_ALLOWED"}),
    "DELETE": ("DELETE", "/stats", 405, {"message": "METHOD_NOT_ALLOWED"}),
    "config without a name": ("GET", "/config", 404, {"message": "NOT_FOUND"}),
}


@pytest.mark.parametrize(("method", "target", "status", "document"), ROUTES.values(), ids=ROUTES)
def test_an_unsupported_request(nsqd: NsqdProcess, method: str, target: str, status: int, document: object) -> None:
    answer = nsqd.asks(method, target)
    assert (answer.status, answer.json(), answer.headers["Content-Type"]) == (status, document, JSON)


def test_head_is_not_allowed(nsqd: NsqdProcess) -> None:
    assert nsqd.asks("HEAD", "/ping").status == 405


@pytest.mark.parametrize(("path", "methods"), [("/ping", "GET, OPTIONS"), ("/pub", "OPTIONS, POST")])
def test_a_method_that_is_not_allowed_lists_the_allowed_ones(nsqd: NsqdProcess, path: str, methods: str) -> None:
    assert nsqd.asks("DELETE", path).headers["Allow"] == methods
    answer = nsqd.asks("OPTIONS", path)
    assert (answer.status, answer.body, answer.headers["Allow"]) == (200, b"", methods)


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "/PING", 301, "/ping"),
        ("POST", "/pub/?topic=t", 307, "/pub?topic=t"),
    ],
)
def test_a_path_with_a_small_mistake_is_redirected(
    nsqd: NsqdProcess, method: str, target: str, status: int, location: str
) -> None:
    answer = nsqd.asks(method, target, b"x" if method == "POST" else b"")
    assert (answer.status, answer.headers["Location"]) == (status, location)


@pytest.mark.parametrize("target", ["/info", "/stats?format=json", "/unknown", "/topic/create"])
def test_answers_have_the_version_of_their_format(nsqd: NsqdProcess, target: str) -> None:
    assert nsqd.asks("GET", target).headers["X-NSQ-Content-Type"] == "nsq; version=1.0"


def test_ping_says_ok_as_plain_text(nsqd: NsqdProcess) -> None:
    answer = nsqd.asks("GET", "/ping")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, b"OK", "text/plain; charset=utf-8")
    assert answer.headers["X-NSQ-Content-Type"] is None


def test_info_begins_with_these_members_in_this_order(nsqd: NsqdProcess) -> None:
    info = nsqd.asks("GET", "/info").json()
    members = [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
        "topology_zone",
        "topology_region",
    ]
    assert list(info)[: len(members)] == members  # a daemon may say more, which clients ignore
    assert (info["version"], info["tcp_port"]) == ("1.3.0", int(nsqd.tcp_address.rpartition(":")[2]))


def test_info_has_the_maximum_heartbeat_interval(nsqd: NsqdProcess) -> None:
    assert nsqd.asks("GET", "/info").json()["max_heartbeat_interval"] == 120 * 10**9


# --- Publishing -------------------------------------------------------------------------------------------------------


def test_pub_publishes_its_body(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    answer = nsqd.asks("POST", f"/pub?topic={topic}", b"a\nb\0c")
    assert (answer.status, answer.body) == (200, b"OK")
    assert bodies(client, topic, 1) == [b"a\nb\0c"]


def test_pub_accepts_a_body_of_the_maximum_size(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    assert nsqd.asks("POST", f"/pub?topic={topic}", b"x" * 2000).status == 200


def test_mpub_makes_a_message_of_every_line(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    answer = nsqd.asks("POST", f"/mpub?topic={topic}", b"one\n\ntwo\r\n\n\nthree")
    assert (answer.status, answer.body) == (200, b"OK")
    assert bodies(client, topic, 3) == [b"one", b"two\r", b"three"]


@pytest.mark.parametrize("body", [b"", b"\n\n\n"])
def test_mpub_of_no_lines_is_no_error(nsqd: NsqdProcess, topic: str, body: bytes) -> None:
    answer = nsqd.asks("POST", f"/mpub?topic={topic}", body)
    assert (answer.status, answer.body) == (200, b"OK")
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert stats["message_count"] == 0


@pytest.mark.parametrize("binary", ["true", "1", "TRUE", "yes", ""])
def test_mpub_is_binary_with(client: RawClient, nsqd: NsqdProcess, topic: str, binary: str) -> None:
    answer = nsqd.asks("POST", f"/mpub?topic={topic}&binary={binary}", batch(b"a\nb", b"c"))
    assert (answer.status, answer.body) == (200, b"OK")
    assert bodies(client, topic, 2) == [b"a\nb", b"c"]


@pytest.mark.parametrize("binary", ["false", "0"])
def test_mpub_is_text_with(client: RawClient, nsqd: NsqdProcess, topic: str, binary: str) -> None:
    assert nsqd.asks("POST", f"/mpub?topic={topic}&binary={binary}", b"a\nb").status == 200
    assert bodies(client, topic, 2) == [b"a", b"b"]


def test_bytes_after_the_last_message_of_a_binary_mpub_are_ignored(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    assert nsqd.asks("POST", f"/mpub?topic={topic}&binary=true", batch(b"a") + b"and more").status == 200
    assert bodies(client, topic, 1) == [b"a"]


REFUSED = {
    "a pub of an empty body": ("/pub?topic=t", b"", 400, "MSG_EMPTY"),
    "a pub of too many bytes": ("/pub?topic=t", b"x" * 2001, 413, "MSG_TOO_BIG"),
    "a pub to no topic": ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
    "a pub to an empty topic": ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
    "a pub to a bad topic": ("/pub?topic=a%24b", b"x", 400, "INVALID_TOPIC"),
    "a pub with a bad query": ("/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
    "a pub with a semicolon": ("/pub?topic=t;x=y", b"x", 400, "INVALID_REQUEST"),
    "a pub deferred by a word": ("/pub?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
    "a pub with an empty delay": ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
    "a pub deferred by a fraction": ("/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
    "a pub deferred by a negative time": ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
    "a pub deferred for too long": ("/pub?topic=t&defer=30001", b"x", 400, "INVALID_DEFER"),
    "an mpub to no topic": ("/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
    "an mpub to a bad topic": ("/mpub?topic=a%24b", b"x", 400, "INVALID_TOPIC"),
    "an mpub of too many bytes": ("/mpub?topic=t", b"x\n" * 3001, 413, "BODY_TOO_BIG"),
    "an mpub with a line too long": ("/mpub?topic=t", b"x\n" + b"x" * 2001, 413, "MSG_TOO_BIG"),
    "a binary mpub without a count": ("/mpub?topic=t&binary=true", b"\0\0", 413, "BAD_BODY"),
    "a binary mpub of no messages": ("/mpub?topic=t&binary=true", batch(), 413, "BAD_BODY"),
    "a binary mpub of too many messages": (
        "/mpub?topic=t&binary=true",
        struct.pack(">i", 1200),
        413,
        "BAD_BODY",
    ),
    "a binary mpub with an empty message": ("/mpub?topic=t&binary=true", batch(b"x", b""), 413, "BAD_MESSAGE"),
    "a binary mpub with a message too big": ("/mpub?topic=t&binary=true", batch(b"x" * 2001), 413, "BAD_MESSAGE"),
    "a binary mpub cut off": ("/mpub?topic=t&binary=true", batch(b"x", b"yz")[:-1], 413, "BAD_MESSAGE"),
}


@pytest.mark.parametrize(("target", "body", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_refused(nsqd: NsqdProcess, target: str, body: bytes, status: int, code: str) -> None:
    answer = nsqd.asks("POST", target, body)
    assert (answer.status, answer.body) == (status, b'{"message":"%b"}' % code.encode())


def test_an_mpub_that_is_refused_publishes_nothing(nsqd: NsqdProcess, topic: str) -> None:
    assert nsqd.asks("POST", f"/mpub?topic={topic}", b"x\n" + b"x" * 2001).status == 413
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert stats["message_count"] == 0


def test_form_fields_in_the_body_are_not_parameters(nsqd: NsqdProcess) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert nsqd.asks("POST", "/topic/create", b"topic=t", **form).json() == {"message": "MISSING_ARG_TOPIC"}


def test_the_first_value_of_a_repeated_parameter_counts(nsqd: NsqdProcess, topic: str) -> None:
    assert nsqd.asks("POST", f"/topic/create?topic={topic}&topic={topic}.second").status == 200
    assert nsqd.topic_stats(topic) is not None
    assert nsqd.topic_stats(topic + ".second") is None


def test_an_ephemeral_topic_is_named_with_its_hash_escaped(nsqd: NsqdProcess, topic: str) -> None:
    assert nsqd.asks("POST", f"/pub?topic={quote(topic + '#ephemeral')}", b"x").status == 200
    assert nsqd.topic_stats(topic + "#ephemeral") is not None


# --- Topics and channels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["create", "empty", "pause", "unpause", "delete"])
@pytest.mark.parametrize("what", ["topic", "channel"])
def test_an_action_is_answered_with_an_empty_body(nsqd: NsqdProcess, topic: str, what: str, act: str) -> None:
    nsqd.create_channel(topic, "ch")
    channel = "&channel=ch" if what == "channel" else ""
    answer = nsqd.asks("POST", f"/{what}/{act}?topic={topic}{channel}")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, b"", None)


NO_SUCH = {
    "emptying no topic": ("/topic/empty?topic=unknown", 404, "TOPIC_NOT_FOUND"),
    "deleting no topic": ("/topic/delete?topic=unknown", 404, "TOPIC_NOT_FOUND"),
    "pausing no topic": ("/topic/pause?topic=unknown", 404, "TOPIC_NOT_FOUND"),
    "unpausing no topic": ("/topic/unpause?topic=unknown", 404, "TOPIC_NOT_FOUND"),
    "a bad topic to create": ("/topic/create?topic=a%24b", 400, "INVALID_TOPIC"),
    "a bad topic to empty": ("/topic/empty?topic=a%24b", 400, "INVALID_TOPIC"),
    "a bad topic to delete": ("/topic/delete?topic=a%24b", 404, "TOPIC_NOT_FOUND"),
    "a bad topic to pause": ("/topic/pause?topic=a%24b", 404, "TOPIC_NOT_FOUND"),
    "no topic to create": ("/topic/create", 400, "MISSING_ARG_TOPIC"),
    "a channel of no topic to create": ("/channel/create?channel=ch", 400, "MISSING_ARG_TOPIC"),
    "no channel to create": ("/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
    "a channel of a bad topic": ("/channel/create?topic=a%24b&channel=ch", 400, "INVALID_ARG_TOPIC"),
    "a bad channel": ("/channel/create?topic=t&channel=a%24b", 400, "INVALID_ARG_CHANNEL"),
    "a channel of an unknown topic": ("/channel/create?topic=unknown&channel=ch", 404, "TOPIC_NOT_FOUND"),
    "deleting a channel of an unknown topic": ("/channel/delete?topic=unknown&channel=ch", 404, "TOPIC_NOT_FOUND"),
}


@pytest.mark.parametrize(("target", "status", "code"), NO_SUCH.values(), ids=NO_SUCH)
def test_an_action_that_is_refused(nsqd: NsqdProcess, target: str, status: int, code: str) -> None:
    answer = nsqd.asks("POST", target)
    assert (answer.status, answer.json()) == (status, {"message": code})


@pytest.mark.parametrize("act", ["delete", "empty", "pause", "unpause"])
def test_an_action_on_an_unknown_channel(nsqd: NsqdProcess, topic: str, act: str) -> None:
    nsqd.create_channel(topic, "ch")
    answer = nsqd.asks("POST", f"/channel/{act}?topic={topic}&channel=unknown")
    assert (answer.status, answer.json()) == (404, {"message": "CHANNEL_NOT_FOUND"})


def test_creating_again_changes_nothing(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x")
    nsqd.create_channel(topic, "ch")
    nsqd.create_channel(topic, "ch")
    assert bodies(client, topic, 1) == [b"x"]


def test_emptying_a_topic_leaves_its_channels_alone(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic).publishes(topic, b"x").is_ready(1)
    message = client.message()
    assert nsqd.asks("POST", f"/topic/empty?topic={topic}").status == 200
    client.finishes(message).has_been_heard()


def test_emptying_a_topic_drops_messages_that_no_channel_has(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x")
    assert nsqd.asks("POST", f"/topic/empty?topic={topic}").status == 200
    client.publishes(topic, b"y")
    assert bodies(client, topic, 1) == [b"y"]


def test_a_deleted_channel_is_empty_when_created_again(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch")
    client.publishes(topic, b"x")
    assert nsqd.asks("POST", f"/channel/delete?topic={topic}&channel=ch").status == 200
    assert client.subscribes(topic, ready=1).hears_nothing()


# --- Configuration ----------------------------------------------------------------------------------------------------

CONFIGURED = {
    "a size": ("max_msg_size", b"2000"),
    "a time, in nanoseconds": ("max_msg_timeout", b"%d" % (MAX_MSG_TIMEOUT_MS * 1_000_000)),
    "a boolean": ("snappy", b"true"),
    "a list": ("nsqlookupd_tcp_addresses", b"[]"),
    "a level": ("log_level", b"2"),
    "a policy": ("tls_required", b"0"),
    "an empty text": ("topology_zone", b""),
}


@pytest.mark.parametrize(("name", "value"), CONFIGURED.values(), ids=CONFIGURED)
def test_an_option_is_shown(nsqd: NsqdProcess, name: str, value: bytes) -> None:
    answer = nsqd.asks("GET", f"/config/{name}")
    assert (answer.status, answer.body) == (200, value)


def test_an_unknown_option(nsqd: NsqdProcess) -> None:
    answer = nsqd.asks("GET", "/config/unknown")
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_OPTION"})


@pytest.mark.parametrize(("level", "number"), [("debug", 1), ("WARN", 3), ("error", 4), ("fatal", 5), ("info", 2)])
def test_the_log_level_can_be_set(nsqd: NsqdProcess, level: str, number: int) -> None:
    answer = nsqd.asks("PUT", "/config/log_level", level.encode())
    shown = nsqd.asks("GET", "/config/log_level").body
    nsqd.asks("PUT", "/config/log_level", b"info")
    assert (answer.status, answer.body, shown) == (200, b"%d" % number, b"%d" % number)


REFUSED_TO_SET = {
    "an unknown level": ("log_level", b"warning", 400, "INVALID_VALUE"),
    "a level by its number": ("log_level", b"2", 400, "INVALID_VALUE"),
    "no level": ("log_level", b"", 413, "INVALID_VALUE"),
    "addresses that are not a list": ("nsqlookupd_tcp_addresses", b"{}", 400, "INVALID_VALUE"),
    "an option that cannot be changed": ("max_msg_size", b"1", 400, "INVALID_OPTION"),
}


@pytest.mark.parametrize(("name", "body", "status", "code"), REFUSED_TO_SET.values(), ids=REFUSED_TO_SET)
def test_an_option_that_cannot_be_set(nsqd: NsqdProcess, name: str, body: bytes, status: int, code: str) -> None:
    answer = nsqd.asks("PUT", f"/config/{name}", body)
    assert (answer.status, json.loads(answer.body)) == (status, {"message": code})
