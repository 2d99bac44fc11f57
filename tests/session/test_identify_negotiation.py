"""IDENTIFY as a conversation: what is answered, what is in force afterwards, and what a second one changes."""

import json

import pytest

KEYS = [
    "max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "tls_v1", "deflate", "deflate_level",
    "max_deflate_level", "snappy", "sample_rate", "auth_required", "output_buffer_size", "output_buffer_timeout",
    "topology_region", "topology_zone",
]  # fmt: skip


def answer_to(client, **wishes):
    client.identifies(feature_negotiation=True, **wishes)
    (frame,) = client.hears_anything()
    client.and_stays()
    return json.loads(frame.text)


def test_without_feature_negotiation_the_answer_is_ok(client):
    client.identifies(client_id="me").hears(b"OK")
    client.identifies(feature_negotiation=False, tls_v1=True, snappy=True, deflate=True).hears(b"OK").and_stays()


def test_the_reply_to_a_negotiation_has_nsqds_fields_in_order(client):
    answer = answer_to(client)
    assert list(answer) == KEYS
    assert answer == {
        "max_rdy_count": 2500, "version": "1.3.0", "max_msg_timeout": 900_000, "msg_timeout": 60_000, "tls_v1": False,
        "deflate": False, "deflate_level": 6, "max_deflate_level": 6, "snappy": False, "sample_rate": 0,
        "auth_required": False, "output_buffer_size": 16384, "output_buffer_timeout": 250, "topology_region": "",
        "topology_zone": "",
    }  # fmt: skip


def test_an_answer_is_compact_json(client):
    client.identifies(feature_negotiation=True)
    (frame,) = client.hears_anything()
    assert frame.text.startswith(b'{"max_rdy_count":2500,"version":"1.3.0",')


def test_wishes_within_the_limits_are_granted(client):
    answer = answer_to(
        client,
        msg_timeout=5000,
        sample_rate=42,
        output_buffer_size=64,
        output_buffer_timeout=25,
        heartbeat_interval=1000,
    )
    assert (answer["msg_timeout"], answer["sample_rate"]) == (5000, 42)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (64, 25)
    assert "heartbeat_interval" not in answer


def test_an_answer_names_the_places_of_the_daemon_and_stats_those_of_the_client(make_nsqd):
    client = make_nsqd(topology_region="north", topology_zone="n1", max_rdy_count=7).connect()
    answer = answer_to(client, topology_region="south", topology_zone="s1")
    assert (answer["topology_region"], answer["topology_zone"], answer["max_rdy_count"]) == ("north", "n1", 7)
    assert (client.stats.topology_region, client.stats.topology_zone) == ("south", "s1")


def test_without_output_buffering_the_answer_says_one_byte_and_no_timeout(client):
    answer = answer_to(client, output_buffer_size=-1, output_buffer_timeout=1000)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


@pytest.mark.parametrize(("allowed", "default"), [(3, 3), (6, 6), (9, 6)])
def test_the_deflate_level_is_the_default_when_deflate_is_not_granted(make_nsqd, allowed, default):
    answer = answer_to(make_nsqd(max_deflate_level=allowed).connect(), deflate_level=9)
    assert (answer["deflate_level"], answer["max_deflate_level"]) == (default, allowed)


def test_the_first_wrong_field_in_the_order_of_nsqd_is_named(nsqd):
    wrong = {
        "heartbeat_interval": 1, "output_buffer_timeout": 1, "output_buffer_size": 1, "sample_rate": 100,
        "msg_timeout": 1,
    }  # fmt: skip
    for name in (
        b"heartbeat interval",
        b"output buffer timeout",
        b"output buffer size",
        b"sample rate",
        b"msg timeout",
    ):
        value = next(iter(wrong.values()))
        client = nsqd.connect().identifies(**dict(reversed(wrong.items())))
        client.hears(b"E_BAD_BODY IDENTIFY %b (%d) is invalid" % (name, value)).and_is_closed()
        del wrong[next(iter(wrong))]


@pytest.mark.parametrize("document", [b"[]", b"1", b'"x"', b"{", b"{}x", b"", b'{"msg_timeout": "1000"}', b"\xff"])
def test_a_body_that_is_not_an_object_of_the_right_types_is_refused(client, document):
    said = b"E_BAD_BODY IDENTIFY failed to decode JSON body" if document else b"E_BAD_BODY IDENTIFY invalid body size 0"
    client.says_with_body(b"IDENTIFY", document).hears(said).and_is_closed()


@pytest.mark.parametrize("document", [b"null", b"{}", b' {"unknown": [1, {"a": 2}]} ', b'{"msg_timeout": null}'])
def test_an_identify_without_fields_is_accepted(client, document):
    client.says_with_body(b"IDENTIFY", document).hears(b"OK").and_stays()


# --- What the client is called ----------------------------------------------------------------------------------------


def test_by_default_a_client_is_named_by_its_host(nsqd):
    client = nsqd.connect(host="10.0.0.7")
    assert (client.stats.client_id, client.stats.hostname, client.stats.user_agent) == ("10.0.0.7", "10.0.0.7", "")
    client.identifies(client_id="me", hostname="mine", user_agent="mine/1.0")
    assert (client.stats.client_id, client.stats.hostname, client.stats.user_agent) == ("me", "mine", "mine/1.0")


def test_fields_missing_in_an_identify_are_blank_afterwards(client):
    client.identifies(client_id="me", hostname="mine", user_agent="mine/1.0", topology_zone="z", topology_region="r")
    client.identifies()
    stats = client.stats
    assert (stats.client_id, stats.hostname, stats.user_agent) == ("", "", "")
    assert (stats.topology_zone, stats.topology_region) == ("", "")


# --- A second IDENTIFY ------------------------------------------------------------------------------------------------


def test_a_second_identify_is_answered_with_what_it_says(client):
    answer_to(client, msg_timeout=5000, output_buffer_timeout=1000, output_buffer_size=100, sample_rate=1)
    answer = answer_to(client, msg_timeout=7000)
    assert (answer["msg_timeout"], answer["sample_rate"]) == (7000, 0)
    assert (answer["output_buffer_timeout"], answer["output_buffer_size"]) == (1000, 100)


def test_the_first_identify_decides_about_heartbeats_and_the_latest_about_silence(nsqd, client):
    client.identifies(heartbeat_interval=1000).hears(b"OK")
    client.identifies(heartbeat_interval=5000).hears(b"OK")
    nsqd.waits(9.9)
    client.hears(*[b"_heartbeat_"] * 9).and_stays()
    nsqd.waits(0.1)
    client.and_is_closed()


def test_the_first_identify_decides_when_a_message_times_out_and_the_latest_what_a_touch_gives(nsqd, producer, client):
    client.identifies(msg_timeout=2000).hears(b"OK")
    client.identifies(msg_timeout=10_000).hears(b"OK")
    client.subscribes(ready=1)
    producer.publishes(b"one")
    client.hears(b"one")
    nsqd.waits(1.9)
    client.hears()
    nsqd.waits(0.1)
    client.hears(b"one").says(b"TOUCH %b\n" % client.id_of(b"one"))
    nsqd.waits(9.9)
    client.hears()
    nsqd.waits(0.1)
    client.hears(b"one")


def test_the_first_identify_decides_about_sampling(producer, client):
    client.identifies(sample_rate=0).hears(b"OK")
    client.identifies(sample_rate=1).hears(b"OK")
    client.subscribes(ready=2500)
    producer.publishes(*[b"%d" % number for number in range(200)])
    assert len(client.bodies()) == 200
    assert client.stats.sample_rate == 1


def test_heartbeats_once_given_up_do_not_come_back_but_allow_a_sub(nsqd, client):
    client.identifies(heartbeat_interval=-1).hears(b"OK")
    client.identifies(heartbeat_interval=1000).hears(b"OK")
    client.subscribes()
    nsqd.waits(1.9)
    client.hears().and_stays()
    nsqd.waits(0.2)
    client.hears().and_is_closed()
