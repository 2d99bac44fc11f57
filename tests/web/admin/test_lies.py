"""Daemons with invalid answers: pages and the API still answer."""

from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.admin.conftest import channel_json, topic_json

_LATENCY = {"count": 1, "percentiles": [{"quantile": 0.99, "value": 12.0}]}
_CLIENT = {
    "client_id": "c",
    "hostname": "h",
    "remote_address": "10.0.0.1:5000",
    "user_agent": "u",
    "connect_ts": 1,
    "ready_count": 1,
    "sample_rate": 0,
    "topology_zone": "z",
    "topology_region": "r",
}
_CHANNEL = channel_json(
    "archive",
    depth=5,
    backend_depth=1,
    in_flight_count=1,
    message_count=9,
    client_count=1,
    paused=False,
    zone_local_msg_count=1,
    global_msg_count=1,
    clients=[_CLIENT],
    e2e_processing_latency=_LATENCY,
)
_TOPIC = topic_json("orders", _CHANNEL, depth=1, message_count=3, paused=False, e2e_processing_latency=_LATENCY)
_MESSAGE = {"id": "i", "timestamp": 1, "attempts": 1, "size": 1, "body": "eA==", "due": 5, "deadline": 5}
_ORIGIN = {"nsq-origin-topic": "orders", "nsq-origin-channel": "archive", "nsq-first-published": "5"}
_STATE = {"channel_name": "archive", "state": "in_flight", "attempts": 1, "since": 5, "deadline": 5, "client": _CLIENT}
_MIRRORING = {
    "standby": {"address": "s:1", "state": "in sync", "since": 1, "seconds": 1.5, "behind": 1, "when_lost": "refuse"},
    "accepts": True,
    "primaries": [
        {
            "identity": "1" * 32,
            "address": "p:1",
            "broadcast_address": "p",
            "http_port": 2,
            "connected": False,
            "complete": True,
            "last_seen": 1,
            "taken_over": taken_over,
        }
        for taken_over in (None, ["orders"])
    ],
}
_NAMES = {"topics": ["orders", "idle"], "channels": ["archive"]}
_LIES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**63 - 1, -(2**63), 2**70, 1.5, 1e200, "", "x", "\x00", "\ud800", "a/b", "x" * 300),
    *([], {}, [None], [[]], {"a": 1}),
)
_PAGES = (
    *("/", "/topics?sort=rate", "/topics/orders", "/topics/orders?confirm=delete", "/nodes", "/counter", "/lookup"),
    *("/topics/orders/archive", "/topics/orders/archive?confirm=empty", "/topics/orders/archive/messages"),
    *(
        "/messages/orders",
        "/message/orders/0123456789abcdef",
        "/api/topics",
        "/api/topics?inactive=true",
        "/api/topics/orders",
        "/api/nodes",
    ),
    *("/api/topics/orders/archive", "/api/counter"),
)


def twisted(truth: Any, dice: Random, share: float) -> Any:
    """The same value with some parts replaced, removed or renamed."""
    if dice.random() < share:
        return dice.choice(_LIES)
    if isinstance(truth, dict):
        kept = {key: twisted(value, dice, share) for key, value in truth.items() if dice.random() > share / 2}
        return kept | ({dice.choice(list(truth)): dice.choice(_LIES)} if truth and dice.random() < share else {})
    return [twisted(each, dice, share) for each in truth] if isinstance(truth, list) else truth


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dice=st.randoms(use_true_random=False), through_nsqlookupd=st.booleans(), share=st.sampled_from([0.02, 0.1]))
def test_any_answers_give_a_page(browser, nsqd, service, dice, through_nsqlookupd, share):
    service.cluster.lookupds = [nsqd.address] if through_nsqlookupd else []
    node = nsqd.info(topics=["orders"], tombstones=[False], remote_address="x")
    truths = {
        "stats": {"health": "OK", "start_time": 1, "topics": [_TOPIC], "nsq_compat": {"mirroring": _MIRRORING}},
        "info": nsqd.info(),
        "topics": _NAMES,
        "channels": _NAMES,
        "nodes": {"producers": [node]},
        "lookup": {"producers": [node]},
        "channel/peek": {"messages": [_MESSAGE], "deferred": [_MESSAGE], "in_flight": [_MESSAGE]},
        "topic/recent": {"messages": [_MESSAGE]},
        "topic/message": {
            "message": {**_MESSAGE, "headers": _ORIGIN, "segment": 1},
            "channels": [_STATE],
            "held": True,
        },
    }
    for path, truth in truths.items():
        nsqd.says(path, twisted(truth, dice, share))
    here = f"/nodes/{nsqd.address}"
    for page in (*_PAGES, here, f"{here}?confirm=adopt&identity={'1' * 32}"):
        assert browser.get(page).status_code in (200, 404, 502), page
