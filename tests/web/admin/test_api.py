"""The JSON API, key by key."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.web.admin.api import read_texts
from nsq_compat.web.application import ApiError
from tests.web.admin.conftest import channel_json, topic_json


def keys(text):
    return text.split()


def test_a_topic_has_nsqs_keys_in_nsqs_order(browser, nsqd):
    answer = browser.get("/api/topics/orders")
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    topic = json.loads(answer.text)
    assert list(topic) == keys(
        "node hostname topic_name depth memory_depth backend_depth message_count delivery_msg_count nodes channels "
        "paused e2e_processing_latency message"
    )
    assert (topic["node"], topic["depth"], topic["memory_depth"], topic["message"]) == ("*", 7, 5, "")
    (part,) = topic["nodes"]
    assert part["node"] == nsqd.address
    assert part["nodes"] is None
    assert list(topic["e2e_processing_latency"]) == keys("count percentiles topic channel host")
    assert topic["e2e_processing_latency"]["topic"] == "orders"
    assert part["e2e_processing_latency"]["topic"] == ""


def test_the_nodes_of_a_topic_are_the_answers_of_each_node(browser, make_nsqd, service, nsqd):
    other = make_nsqd()
    other.has(topic_json("orders", channel_json("archive", depth=1)))
    service.cluster.nsqds = [nsqd.address, other.address]
    topic = browser.get("/api/topics/orders").get_json(force=True)
    assert [channel["depth"] for channel in topic["channels"]] == [12305, 0]
    depths = {part["node"]: part["channels"][0]["depth"] for part in topic["nodes"]}
    assert depths == {nsqd.address: 12304, other.address: 1}


def test_a_channel_has_its_clients(browser):
    channel = browser.get("/api/topics/orders/mail").get_json(force=True)
    assert list(channel) == keys(
        "node hostname topic_name channel_name depth memory_depth backend_depth in_flight_count deferred_count "
        "requeue_count timeout_count message_count client_count nodes clients paused e2e_processing_latency message"
    )
    (client,) = channel["clients"]
    assert list(client) == keys(
        "node remote_address version client_id hostname user_agent connect_ts connected in_flight_count ready_count "
        "finish_count requeue_count message_count sample_rate deflate snappy authed auth_identity auth_identity_url "
        "tls tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
    )
    assert client["connected"] == 65_000_000_000


def test_delivery_counts_are_shown_unless_zero(browser, nsqd):
    nsqd.has(topic_json("t", channel_json("c", zone_local_msg_count=2, global_msg_count=3)))
    channel = browser.get("/api/topics/t/c").get_json(force=True)
    assert (channel["delivery_msg_count"], channel["zone_local_msg_count"], channel["global_msg_count"]) == (5, 2, 3)
    assert "region_local_msg_count" not in channel


def test_empty_lists_are_null_in_sums_and_empty_on_nodes(browser, nsqd):
    nsqd.has(topic_json("t"))
    topic = browser.get("/api/topics/t").get_json(force=True)
    assert topic["channels"] is None
    assert topic["nodes"][0]["channels"] == []
    nsqd.has()
    assert browser.get("/api/topics").get_json(force=True) == {"topics": None, "message": ""}


def test_latency_has_a_value_on_a_node_and_none_in_a_sum(browser, nsqd):
    latency = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 5.0}]}
    nsqd.has(topic_json("t", e2e_processing_latency=latency))
    topic = browser.get("/api/topics/t").get_json(force=True)
    total = topic["e2e_processing_latency"]["percentiles"]
    part = topic["nodes"][0]["e2e_processing_latency"]["percentiles"]
    assert total == [{"average": 5, "count": 3, "max": 5, "min": 5, "quantile": 0.99}]
    assert part == [{**total[0], "value": 5}]


def test_unknown_objects_have_nsqs_error_codes(browser):
    for path, status, code in [
        ("/api/topics/nope", 502, "UPSTREAM_ERROR: failed to query any nsqd: "),
        ("/api/topics/orders/nope", 404, "CHANNEL_NOT_FOUND"),
        ("/api/nodes/nope", 404, "NODE_NOT_FOUND"),
        ("/api/nope", 404, "NOT_FOUND"),
        ("/api/graphite", 400, "INVALID_ARG_METRIC"),
        ("/api/graphite?metric=rate", 400, "INVALID_ARG_TARGET"),
        ("/api/topics?x=%zz", 400, 'invalid URL escape "%zz"'),
        ("/api/topics?x=1;y=2", 400, "invalid semicolon separator in query"),
    ]:
        answer = browser.get(path)
        assert (answer.status_code, answer.get_json(force=True)) == (status, {"message": code}), path


def test_a_partial_answer_has_a_warning_and_no_answer_is_an_error(browser, service, nsqd, make_nsqd):
    broken = make_nsqd()
    broken.says("stats", b"oops", 500)
    service.cluster.nsqds = [nsqd.address, broken.address]
    answer = browser.get("/api/topics").get_json(force=True)
    assert answer == {"topics": ["orders"], "message": 'WARNING: got response 500 Internal Server Error "oops"'}
    service.cluster.nsqds = [broken.address]
    failed = browser.get("/api/topics")
    assert failed.status_code == 502
    assert failed.get_json(force=True)["message"].startswith(
        "UPSTREAM_ERROR: failed to query any nsqd: got response 500"
    )


def test_nodes_and_one_node(browser, nsqd):
    (node,) = browser.get("/api/nodes").get_json(force=True)["nodes"]
    assert list(node) == keys(
        "remote_addresses remote_address hostname broadcast_address tcp_port http_port version topics out_of_date"
    )
    assert node["topics"] == [{"topic": "orders", "tombstoned": False}]
    one = browser.get(f"/api/nodes/{nsqd.address}").get_json(force=True)
    assert list(one) == keys("node topics total_messages total_clients message")
    assert (one["total_messages"], one["total_clients"]) == (20000, 1)


def test_the_counter_has_each_channel_of_each_node(browser, nsqd):
    stats = browser.get("/api/counter").get_json(force=True)["stats"]
    assert stats[f"orders:archive:{nsqd.address}"] == {
        "node": nsqd.address,
        "topic_name": "orders",
        "channel_name": "archive",
        "message_count": 20000,
    }


def test_invalid_requests_change_nothing(browser, nsqd):
    for method, path, body, status, code in [
        ("POST", "/api/topics/orders", "", 400, "EOF"),
        ("POST", "/api/topics/orders", '{"action":"explode"}', 400, "INVALID_ACTION"),
        ("POST", "/api/topics", '{"topic":"a b"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", '{"topic":"a","channel":"a b"}', 400, "INVALID_CHANNEL"),
        ("DELETE", "/api/nodes/n:1", "{", 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/n:1", "{}", 400, "INVALID_TOPIC"),
        ("DELETE", "/api/nodes/n:1%23x", '{"topic":"t"}', 400, "INVALID_NODE"),
    ]:
        answer = browser.open(path, method=method, data=body)
        assert (answer.status_code, answer.get_json(force=True)) == (status, {"message": code})
    assert nsqd.orders == []


def test_a_node_that_failed_is_a_warning(browser, nsqd):
    nsqd.says("channel/pause", b'{"message":"CHANNEL_NOT_FOUND"}', 404)
    answer = browser.post("/api/topics/orders/gone", data='{"action":"pause"}')
    assert answer.status_code == 200
    assert answer.get_json(force=True)["message"].startswith("WARNING: got response 404 Not Found")


def test_bytes_after_the_first_value_are_ignored():
    assert read_texts(b' {"TOPIC":"t","more":1} trailing', "topic", "channel") == ["t", ""]
    assert read_texts(b"null", "topic") == [""]
    assert read_texts(b'{"topic":null}', "topic") == [""]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "EOF"),
        (b"  ", "EOF"),
        (b"{", "unexpected EOF"),
        (b'{"topic":"x"', "unexpected EOF"),
        (b"nul", "unexpected EOF"),
        (b"{bad}", "invalid character 'b' looking for beginning of object key string"),
        (b"bad", "invalid character 'b' looking for beginning of value"),
        (b'{"topic":3}', "json: cannot unmarshal number into Go struct field .topic of type string"),
        (b"[]", 'json: cannot unmarshal array into Go value of type struct { Topic string "json:\\"topic\\"" }'),
        (b"[" * 100_000, "exceeded max depth"),
        (b'{"topic":' + b"1" * 5000 + b"}", "json: cannot unmarshal number"),
    ],
)
def test_invalid_json_has_gos_error_text(body, words):
    with pytest.raises(ApiError) as refused:
        read_texts(body, "topic")
    assert (refused.value.status, refused.value.code) == (400, words)


@given(st.binary())
def test_any_bytes_are_strings_or_an_error(body):
    try:
        (text,) = read_texts(body, "topic")
    except ApiError:
        return
    text.encode()
