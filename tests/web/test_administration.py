"""/topic/... and /channel/...: every check in its order, under its name."""

import pytest

TOPIC_ROUTES = ["create", "delete", "empty", "pause", "unpause"]
CHANNEL_ROUTES = TOPIC_ROUTES


def code(response):
    return response.status, response.body.decode()


def refused(status, name):
    return status, f'{{"message":"{name}"}}'


@pytest.fixture(autouse=True)
def known(call):
    call.post("/topic/create?topic=known")
    call.post("/channel/create?topic=known&channel=known")


@pytest.mark.parametrize("route", TOPIC_ROUTES)
def test_a_topic_route_needs_a_topic_and_a_sound_query(call, route):
    assert code(call.post(f"/topic/{route}")) == refused(400, "MISSING_ARG_TOPIC")
    assert code(call.post(f"/topic/{route}?topic=%")) == refused(400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("route", "invalid", "unknown"),
    [
        ("create", (400, "INVALID_TOPIC"), None),
        ("empty", (400, "INVALID_TOPIC"), (404, "TOPIC_NOT_FOUND")),
        ("delete", (404, "TOPIC_NOT_FOUND"), (404, "TOPIC_NOT_FOUND")),
        ("pause", (404, "TOPIC_NOT_FOUND"), (404, "TOPIC_NOT_FOUND")),
        ("unpause", (404, "TOPIC_NOT_FOUND"), (404, "TOPIC_NOT_FOUND")),
    ],
)
def test_invalid_and_unknown_topics(call, route, invalid, unknown):
    assert code(call.post(f"/topic/{route}?topic=a!")) == refused(*invalid)
    assert code(call.post(f"/topic/{route}?topic=other")) == (refused(*unknown) if unknown else (200, ""))


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("?topic=%zz", (400, "INVALID_REQUEST")),
        ("?topic=a!", (400, "INVALID_ARG_TOPIC")),
        ("?topic=other", (400, "MISSING_ARG_CHANNEL")),
        ("?topic=other&channel=b!", (400, "INVALID_ARG_CHANNEL")),
        ("?topic=other&channel=known", (404, "TOPIC_NOT_FOUND")),
    ],
)
@pytest.mark.parametrize("route", CHANNEL_ROUTES)
def test_channel_routes_check_in_one_order(call, route, query, answer):
    assert code(call.post(f"/channel/{route}{query}")) == refused(*answer)


@pytest.mark.parametrize("route", ["delete", "empty", "pause", "unpause"])
def test_an_unknown_channel_is_not_found(call, route):
    assert code(call.post(f"/channel/{route}?topic=known&channel=other")) == refused(404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("route", TOPIC_ROUTES)
def test_success_is_an_empty_reply_without_a_type(call, route):
    for response in (
        call.post(f"/channel/{route}?topic=known&channel=known"),
        call.post(f"/topic/{route}?topic=known"),
    ):
        assert (response.status, response.body) == (200, b"")
        assert response.headers == (("X-Nsq-Content-Type", "nsq; version=1.0"),)


def test_topics_and_channels_come_and_go(call, daemon):
    call.post("/topic/create?topic=t")
    call.post("/channel/create?topic=t&channel=c")
    assert list(daemon.broker.topics["t"].channels) == ["c"]
    call.post("/channel/delete?topic=t&channel=c")
    assert not daemon.broker.topics["t"].channels
    call.post("/topic/delete?topic=t")
    assert "t" not in daemon.broker.topics


def test_pausing_is_written_down_before_the_answer(call, daemon):
    topic = daemon.broker.topics["known"]
    call.post("/topic/pause?topic=known")
    call.post("/channel/pause?topic=known&channel=known")
    assert (topic.paused, topic.channels["known"].paused, daemon.saves) == (True, True, 2)
    call.post("/topic/unpause?topic=known")
    call.post("/channel/unpause?topic=known&channel=known")
    assert (topic.paused, topic.channels["known"].paused, daemon.saves) == (False, False, 4)


def test_emptying_a_topic_leaves_its_channels_alone(call, daemon):
    topic = daemon.broker.topics["known"]
    call.post("/pub?topic=known", b"in the channel")
    call.post("/topic/pause?topic=known")
    call.post("/pub?topic=known", b"in the topic")
    call.post("/topic/empty?topic=known")
    assert (topic.depth, topic.channels["known"].depth) == (0, 1)
    call.post("/channel/empty?topic=known&channel=known")
    assert topic.channels["known"].depth == 0


def test_a_stopping_daemon_makes_nothing(call, daemon):
    daemon.broker.close()
    assert code(call.post("/topic/create?topic=new")) == refused(503, "EXITING")
    assert code(call.post("/channel/create?topic=known&channel=new")) == refused(503, "EXITING")
