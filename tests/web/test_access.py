"""Tokens of the HTTP APIs of nsqd and nsqlookupd: every route, with every permission."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from nsq_compat.policy.access import PERMISSIONS, Tokens, hash_of
from nsq_compat.protocol.message import message_id
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.http_message import HttpLimits, Request, Response
from nsq_compat.session.http_request_reader import RequestReader
from nsq_compat.web.access import TokenCheck, bearer
from nsq_compat.web.application import IGNORED_BODY_LIMIT, Application, Route
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqd_api import NsqdApi
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi
from tests.web.conftest import Daemon
from tests.web.test_stats import NO_CLIENT

OPEN_PATHS = {"/ping", "/livez", "/readyz"}
IMPLIED = {"read": {"read", "operate", "admin"}, "publish": {"publish", "admin"}, "consume": {"consume", "admin"}}
IMPLIED |= {"operate": {"operate", "admin"}, "admin": {"admin"}}


ABOUT_A_TOPIC = {
    *(("GET", path) for path in ("/stats", "/topic/offsets", "/topic/read", "/topic/recent", "/channel/peek")),
    ("GET", "/topic/message"),
    *(("GET", path) for path in ("/lookup", "/channels")),
    *(("POST", f"/{path}") for path in ("pub", "put", "mpub", "mput")),
    *(("POST", f"/topic/{path}") for path in ("create", "delete", "empty", "pause", "unpause", "tombstone")),
    *(("POST", f"/channel/{path}") for path in ("create", "delete", "empty", "pause", "unpause", "rewind")),
    *(("POST", f"/channel/{path}") for path in ("finish", "requeue", "dead_letter", "redrive")),
    ("POST", "/client/close"),
    ("GET", "/channel/consume"),
    *(("POST", f"/message/{name}") for name in ("finish", "requeue", "touch")),
}
"""All other requests are about more than a topic, so a token that is limited to topics must not permit them."""


def token(name: str, *permissions: str, topics: tuple[str, ...] = ()) -> str:
    limit = f"topics = {list(topics)}" if topics else ""
    return (
        f'[[tokens]]\nname = "{name}"\nhash = "{hash_of(name.encode())}"\npermissions = {list(permissions)}\n{limit}\n'
    )


class Access:
    """An access file with a token for each permission, which is the name of the permission."""

    tokens = Tokens(
        "".join(token(each, each) for each in PERMISSIONS)
        + token("orders", "admin", topics=("orders", "ord.*"))
        + token("any", "admin", topics=(".*",))
    )


def apis() -> Iterator[Application]:
    check = TokenCheck(Access(), "nsqd", now=lambda: 0.0)  # type: ignore[arg-type]
    yield NsqdApi(Daemon(), refuse=check)
    yield NsqlookupdApi(RegistrationDb(300.0, 45.0), Metrics("nsqlookupd"), RegistrationPolicy(), refuse=check)


ROUTES = [
    (api, method, path.replace(":opt", "log_level"), route.permission)
    for api in apis()
    for path, methods in api.routes.items()
    for method, route in methods.items()
]


def ask(
    api: Application, method: str, path: str, query: bytes = b"", header: bytes | None = None, accept: bytes = b""
) -> Response:
    headers: Mapping[bytes, bytes] = {b"accept": accept}
    if header is not None:
        headers = {**headers, b"authorization": header}
    return api.respond(Request(method, path.encode() + b"?" + query, path, query, headers, b"", "127.0.0.1:5"))


@pytest.fixture
def nsqd() -> Application:
    return next(apis())


def test_only_probes_are_open():
    assert {path for _, _, path, permission in ROUTES if not permission} == OPEN_PATHS
    assert len(ROUTES) > 50
    assert {permission for *_, permission in ROUTES} == {"", *IMPLIED}


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer wrong", b"Basic YWRtaW46", b"admin", b"Bearer  "])
def test_no_route_but_the_open_ones_answers_without_a_valid_token(header):
    for api, method, path, permission in ROUTES:
        if permission:
            response = ask(api, method, path, header=header)
            assert (response.status, response.body) == (401, b'{"message":"UNAUTHORIZED"}'), path
            assert dict(response.headers)["WWW-Authenticate"].startswith('Bearer realm="nsqd"')
        elif path == "/ping":
            assert ask(api, method, path, header=header).status == 200


@pytest.mark.parametrize("given", PERMISSIONS)
def test_a_token_makes_the_requests_that_its_permission_names_and_no_others(given):
    for api, method, path, permission in ROUTES:
        if path in ("/debug/pprof/profile", "/debug/pprof/trace"):
            continue  # takes seconds
        response = ask(api, method, path, b"seconds=x&topic=orders", b"Bearer " + given.encode())
        if not permission or given in IMPLIED[permission]:
            assert response.status not in (401, 403), path
        else:
            assert response.status == 403, path
            expected = {"message": f"FORBIDDEN: the token {given} lacks the permission {permission}"}
            assert json.loads(response.body) == expected
            assert f'scope="{permission}"' in dict(response.headers)["WWW-Authenticate"]


def test_a_token_for_some_topics_makes_requests_for_these_only():
    for api, method, path, permission in ROUTES:
        if not permission:
            continue
        for query, why in (
            (b"", "is limited to topics, "),
            (b"topic=", "is limited to topics, "),
            (b"topic=other", "does not cover the topic other"),
            (b"topic=other&topic=orders", "does not cover the topic other"),
            (b"topic=%6frders2", None),
            (b"topic=my.orders", "does not cover the topic my.orders"),
            (b"Topic=orders", "is limited to topics, "),
            (b"topic=orders%ff", "does not cover the topic"),
        ):
            response = ask(api, method, path, query, b"Bearer orders")
            if why is None and (method, path) in ABOUT_A_TOPIC:
                assert response.status not in (401, 403), (path, query)
            elif (method, path) in ABOUT_A_TOPIC:
                assert f"FORBIDDEN: the token orders {why}" in response.body.decode(), (path, query)
            else:
                assert b"is limited to topics, and this request is not about one" in response.body, (path, query)


@pytest.mark.parametrize(
    ("method", "path", "query", "topic"),
    [
        ("GET", "/topic/offsets", b"topics=orders,other", "other"),
        ("GET", "/topic/offsets", b"topic=orders&topics=other", "other"),
        ("POST", "/channel/redrive", b"topic=orders&channel=c&to=other", "other"),
    ],
)
def test_a_token_for_some_topics_does_not_reach_others_by_other_parameters(nsqd, method, path, query, topic):
    response = ask(nsqd, method, path, query, b"Bearer orders")
    assert json.loads(response.body)["message"].endswith(f"the token orders does not cover the topic {topic}")
    allowed = ask(nsqd, method, path, query.replace(b"other", b"ord2"), b"Bearer orders")
    assert allowed.status not in (401, 403)


def test_a_pattern_for_all_topics_does_not_permit_requests_without_one(nsqd):
    assert ask(nsqd, "GET", "/stats", b"", b"Bearer any").status == 403
    assert ask(nsqd, "GET", "/stats", b"topic=", b"Bearer any").status == 403
    assert ask(nsqd, "GET", "/stats", b"topic=x", b"Bearer any").status == 200


def test_a_malformed_query_is_an_error_before_and_after(nsqd):
    response = ask(nsqd, "POST", "/pub", b"topic=%zz", b"Bearer orders")
    assert (response.status, response.body) == (400, b'{"message":"INVALID_REQUEST"}')


def test_a_body_is_not_received_before_the_token_is_known(nsqd: Application):
    def admitted(header: bytes | None = None, path: str = "/mpub") -> tuple[int, bool]:
        headers = {} if header is None else {b"authorization": header}
        admission = nsqd.admit(Request("POST", path.encode(), path, b"topic=t", headers, b"", ""))
        return admission.body_limit, admission.is_dropped

    assert admitted(b"Bearer publish") == (Daemon().options.max_body_size, False)
    for header in (None, b"Bearer read", b"Bearer wrong", b"Bearer orders"):
        assert admitted(header) == (IGNORED_BODY_LIMIT, True)
    assert admitted(None, "/nope") == (IGNORED_BODY_LIMIT, True)
    assert nsqd.admit(Request("GET", b"/ping", "/ping", b"", {}, b"", "")).is_dropped


@pytest.mark.parametrize("framing", [b"Content-Length: 3\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3\r\n"])
def test_a_token_that_comes_into_force_within_a_request_does_not_permit_it(framing):
    """The body was dropped, so a publisher would have an OK for messages that are lost."""
    access, daemon = Access(), Daemon()
    access.tokens, late = Tokens(""), access.tokens
    api = NsqdApi(daemon, refuse=TokenCheck(access, "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    reader = RequestReader(api.admit, HttpLimits(), "127.0.0.1:5")
    head = b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer publish\r\n"
    end = b"\r\n0\r\n\r\n" if b"chunked" in framing else b""
    assert reader.receive_data(head + framing + b"a\n") == []
    access.tokens = late
    (request,) = reader.receive_data(b"b" + end)
    assert isinstance(request, Request)
    assert api.respond(request).status == 401
    (request,) = reader.receive_data(head + framing + b"a\nb" + end)
    assert isinstance(request, Request)
    assert api.respond(request).status == 200


def test_unknown_paths_and_redirects_are_those_of_nsqd(nsqd):
    assert ask(nsqd, "GET", "/nope").status == 404
    assert ask(nsqd, "GET", "/STATS").status == 301
    assert ask(nsqd, "GET", "/pub").status == 405
    assert ask(nsqd, "OPTIONS", "/pub").status == 200


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (b"Bearer a", b"a"),
        (b"bearer  a ", b"a"),
        (b"BEARER a b", b"a b"),
        (b"Bearera", b""),
        (b"Basic a", b""),
        (b"", b""),
        (b"Bearer a, Bearer b", b"a, Bearer b"),
    ],
)
def test_a_token_is_what_follows_the_scheme(header, secret):
    assert bearer(header) == secret


def test_refused_requests_are_counted_and_logged(caplog):
    check = TokenCheck(Access(), "nsqd", now=lambda: 0.0)  # type: ignore[arg-type]
    api = NsqdApi(Daemon(), refuse=check)
    with caplog.at_level("INFO"):
        ask(api, "POST", "/pub", b"topic=t")  # a route that is not logged otherwise
        ask(api, "POST", "/pub", b"topic=t", b"Bearer read")
        ask(api, "GET", "/ping")
    assert api.refused == 2
    assert [record.getMessage()[:9] for record in caplog.records] == ["401 POST ", "403 POST ", "200 GET /"]


def test_many_names_of_one_topic_are_one(nsqd):
    daemon = Daemon()
    api = NsqdApi(daemon, refuse=TokenCheck(Access(), "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    repeated = b"topics=" + b",".join([b"orders"] * 9000)
    assert ask(api, "GET", "/topic/offsets", repeated, b"Bearer orders").status == 200
    different = b"topics=" + b",".join(b"ord%d" % number for number in range(1001))
    assert b"names too many" in ask(api, "GET", "/topic/offsets", different, b"Bearer orders").body
    assert b"at most 1000 topics" in ask(api, "GET", "/topic/offsets", different, b"Bearer read").body


def test_stats_of_a_topic_do_not_have_producers_of_others(drain, monkeypatch):
    daemon = Daemon()
    api = NsqdApi(daemon, refuse=TokenCheck(Access(), "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    consumer = replace(NO_CLIENT, hostname="consumer", pub_counts=(("orders", 7), ("secret", 1)))
    monkeypatch.setattr(drain, "stats", lambda: consumer)
    daemon.broker.topic("orders").channel("c").add_consumer(drain)
    daemon.connected_producers = (
        replace(NO_CLIENT, hostname="ours", pub_counts=(("orders", 1), ("secret", 1))),
        replace(NO_CLIENT, hostname="theirs", pub_counts=(("secret", 1),)),
    )
    for form in (b"", b"&format=json"):
        body = ask(api, "GET", "/stats", b"topic=orders" + form, b"Bearer orders").body
        assert b"ours" in body
        assert b"consumer" in body
        assert b"theirs" not in body
        assert b"secret" not in body


def test_streams_end_when_their_token_is_revoked_and_others_go_on(caplog):
    access = Access()
    api = NsqdApi(Daemon(), refuse=TokenCheck(access, "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    query, accept = b"topic=orders&channel=c", b"text/event-stream"
    for authorization, status in ((b"", 401), (b"Bearer read", 403)):
        response = ask(api, "GET", "/channel/consume", query, authorization, accept)
        assert (response.status, response.stream) == (status, None)
    revoked, kept = (
        ask(api, "GET", "/channel/consume", query, secret, accept).stream
        for secret in (b"Bearer orders", b"Bearer any")
    )
    assert revoked is not None
    assert kept is not None
    api.end_refused()
    assert (revoked.is_over, kept.is_over) == (False, False)
    access.tokens = Tokens(token("any", "consume"))
    api.end_refused()
    api.end_refused()
    assert (revoked.is_over, kept.is_over) == (True, False)
    assert caplog.text.count("its token does not permit it any more") == 1


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/channel/finish", b"id=%016x"),
        ("/channel/requeue", b"id=%016x"),
        ("/channel/dead_letter", b"id=%016x"),
        ("/channel/redrive", b"to=orders2"),
        ("/channel/rewind", b"to=0"),
        ("/channel/create", b"from=0&channel=another"),
        ("/mpub", b""),
    ],
)
def test_a_request_that_waits_changes_nothing_once_its_token_is_revoked(monkeypatch, path, query):
    access = Access()
    daemon = Daemon()
    daemon.options.max_body_size = 1 << 20
    api = NsqdApi(daemon, refuse=TokenCheck(access, "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    topic = daemon.broker.topic("orders")
    channel = topic.channel("c")
    topic.publish([b"a"], 0.0, 0)
    (frame,) = channel.peek(1).waiting
    if b"%" in query:
        query = b"id=" + message_id(frame)

    def revoke(*_: object, **options: object) -> int:
        access.tokens = Tokens(token("any", "consume"))
        return 0

    daemon.while_waiting = revoke  # type: ignore[assignment]
    monkeypatch.setattr("nsq_compat.web.publishing.yield_to_loop", revoke)
    monkeypatch.setattr("nsq_compat.web.topic_log.TopicLogApi.offset_of", revoke)
    large = b"b\n" * 60_000
    parameters = b"topic=orders&channel=c&" + query if path != "/channel/create" else b"topic=orders&" + query
    headers = {b"authorization": b"Bearer orders"}
    request = Request("POST", path.encode() + b"?" + parameters, path, parameters, headers, large, "127.0.0.1:5")
    if path != "/mpub":
        request = request._replace(body=b"")
    answer = api.respond(request)
    assert (answer.status, api.refused) == (401, 1)
    assert (topic.message_count, channel.depth, list(topic.channels), list(daemon.broker.topics)) == (
        1,
        1,
        ["c"],
        ["orders"],
    )
    assert channel.peek(1).waiting == [frame]
    assert len(topic.large_batches) == 0


@pytest.mark.interpreted
def test_nothing_is_consumed_if_the_token_is_revoked_while_the_channel_is_created(monkeypatch):
    access = Access()
    daemon = Daemon()
    api = NsqdApi(daemon, refuse=TokenCheck(access, "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    topic = daemon.broker.topic("orders")
    topic.publish([b"a"], 0.0, 0)
    create = Broker.channel

    def revoked_meanwhile(broker: Broker, topic: Topic, name: str) -> Channel:
        access.tokens = Tokens("")
        return create(broker, topic, name)

    monkeypatch.setattr(Broker, "channel", revoked_meanwhile)
    assert ask(api, "GET", "/channel/consume", b"topic=orders&channel=c", b"Bearer any").status == 401
    assert topic.channels["c"].depth == 1


@pytest.mark.interpreted
@pytest.mark.parametrize("path", ["/pub", "/mpub", "/channel/redrive"])
def test_nothing_is_published_to_a_new_topic_if_the_token_is_revoked_while_it_is_created(monkeypatch, path):
    access = Access()
    daemon = Daemon()
    api = NsqdApi(daemon, refuse=TokenCheck(access, "nsqd", now=lambda: 0.0))  # type: ignore[arg-type]
    channel = daemon.broker.topic("orders").channel("c")
    daemon.broker.topic("orders").publish([b"a"], 0.0, 0)
    create = type(daemon.broker).topic

    def revoked_meanwhile(broker: Broker, name: str) -> Topic:
        access.tokens = Tokens("")
        return create(broker, name)

    monkeypatch.setattr(Broker, "topic", revoked_meanwhile)
    parameters = b"topic=orders&channel=c&to=ord2" if path == "/channel/redrive" else b"topic=ord2"
    headers = {b"authorization": b"Bearer any"}
    request = Request("POST", path.encode() + b"?" + parameters, path, parameters, headers, b"b", "127.0.0.1:5")
    assert api.respond(request).status == 401
    assert (daemon.broker.topics["ord2"].message_count, channel.depth) == (0, 1)


class Silent:
    """A stream without data."""

    is_over = False
    is_whole = True
    next_wakeup = float("inf")

    def start(self, wake: Callable[[], None]) -> None: ...

    def data_to_send(self, now: float) -> bytes:
        return b""

    def stalled(self) -> None: ...

    def close(self) -> None:
        self.is_over = True


def test_a_stream_whose_token_is_revoked_while_it_begins_is_closed():
    access = Access()
    stream = Silent()

    def begin(request: Request) -> Response:
        access.tokens = Tokens("")
        return Response(200, stream=stream)

    check = TokenCheck(access, "nsqd", now=lambda: 0.0)  # type: ignore[arg-type]
    api = Application({"/stream": {"GET": Route(begin, "read")}}, check)
    assert ask(api, "GET", "/stream", b"", b"Bearer read").status == 401
    assert stream.is_over
