"""IDENTIFY's fields against the daemon's limits, as values."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.compression import Deflate, Snappy
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.identify import IdentifyRequest
from nsq_compat.session.conversation import HANDSHAKE_SECONDS, TlsFacts
from nsq_compat.session.negotiation import NsqdLimits, grant, negotiate, settings_before_identify

LIMITS = NsqdLimits()
BEFORE = settings_before_identify("10.0.0.7", LIMITS)

# field, lowest, highest, what -1 means (None: an error)
RANGES = [
    ("heartbeat_interval", 1000, LIMITS.max_heartbeat_interval_ms, 0),
    ("output_buffer_timeout", 25, LIMITS.max_output_buffer_timeout_ms, 0),
    ("output_buffer_size", 64, LIMITS.max_output_buffer_size, 1),
    ("sample_rate", 0, 99, None),
    ("msg_timeout", 1000, LIMITS.max_msg_timeout_ms, None),
]


def test_before_identify_a_client_is_its_host_and_has_the_defaults_of_the_daemon():
    assert (BEFORE.client_id, BEFORE.hostname, BEFORE.user_agent) == ("10.0.0.7", "10.0.0.7", "")
    assert (BEFORE.heartbeat_interval, BEFORE.msg_timeout) == (30_000, 60_000)
    assert (BEFORE.output_buffer_size, BEFORE.output_buffer_timeout, BEFORE.sample_rate) == (16384, 250, 0)
    limits = NsqdLimits(client_timeout_ms=10_000, msg_timeout_ms=7000, output_buffer_timeout_ms=40)
    settings = settings_before_identify("", limits)
    assert (settings.heartbeat_interval, settings.msg_timeout, settings.output_buffer_timeout) == (5000, 7000, 40)


@pytest.mark.parametrize(("field", "low", "high", "off"), RANGES)
def test_a_value_is_granted_from_one_end_of_its_range_to_the_other(field, low, high, off):
    def granted(value):
        return getattr(negotiate(IdentifyRequest(**{field: value}), BEFORE, LIMITS), field)

    assert (granted(low), granted(high)) == (low, high)
    if off is not None:
        assert granted(-1) == off
    for value in {low - 1, high + 1, -2, -1, 1 << 62} - {0} - ({-1} if off is not None else set()):
        with pytest.raises(FatalClientError) as caught:
            granted(value)
        assert caught.value.data == b"E_BAD_BODY IDENTIFY %b (%d) is invalid" % (
            field.replace("_", " ").encode(),
            value,
        )


@pytest.mark.parametrize(("field", "low", "high", "off"), RANGES)
def test_zero_keeps_what_there_is_except_a_sample_rate(field, low, high, off):
    current = negotiate(IdentifyRequest(**{field: high}), BEFORE, LIMITS)
    again = negotiate(IdentifyRequest(), current, LIMITS)
    assert getattr(again, field) == (0 if field == "sample_rate" else high)


def test_a_wrong_buffer_timeout_is_wrong_even_without_a_buffer():
    with pytest.raises(FatalClientError, match="output buffer timeout"):
        negotiate(IdentifyRequest(output_buffer_size=-1, output_buffer_timeout=1), BEFORE, LIMITS)


ALL = NsqdLimits(tls=True)
NOTHING = {"tls_v1": False, "deflate": False, "deflate_level": 6, "snappy": False}


@pytest.mark.parametrize(
    ("asked", "limits", "granted"),
    [
        ({}, ALL, {}),
        ({"tls_v1": True}, ALL, {"tls_v1": True}),
        ({"tls_v1": True}, LIMITS, {}),
        ({"snappy": True}, ALL, {"snappy": True}),
        ({"snappy": True}, replace(ALL, snappy=False), {}),
        ({"deflate": True}, ALL, {"deflate": True}),
        ({"deflate": True}, replace(ALL, deflate=False), {}),
        ({"deflate": True, "snappy": True}, replace(ALL, deflate=False), {"snappy": True}),
        ({"deflate": True, "snappy": True}, replace(ALL, snappy=False), {"deflate": True}),
    ],
)
def test_a_feature_is_granted_if_it_is_requested_and_available(asked, limits, granted):
    features = grant(IdentifyRequest(**asked), limits)
    assert {name: getattr(features, name) for name in NOTHING} == NOTHING | granted


@pytest.mark.parametrize(
    ("asked", "most", "level"),
    [(0, 6, 6), (0, 3, 3), (-5, 6, 6), (1, 6, 1), (6, 6, 6), (7, 6, 6), (9, 9, 9), (10, 9, 9), (2, 1, 1)],
)
def test_a_deflate_level_is_the_one_asked_for_within_the_limit(asked, most, level):
    request = IdentifyRequest(deflate=True, deflate_level=asked)
    assert grant(request, replace(ALL, max_deflate_level=most)).deflate_level == level


def test_both_compressions_are_refused():
    with pytest.raises(FatalClientError) as refusal:
        grant(IdentifyRequest(deflate=True, snappy=True), ALL)
    assert refusal.value.data == b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"


TLS = TlsFacts("TLS1.3", "Unknown 4865", "somebody")


@pytest.fixture
def nsqd(make_nsqd):
    return make_nsqd(tls=True)


def identifies(client, **wishes):
    """IDENTIFY, and the answer as it was read."""
    client.identifies(feature_negotiation=True, **wishes)
    return answer(client)


def answer(client):
    (frame,) = client.hears_anything()
    return json.loads(frame.data)


def puts_on(client, tls=None):
    """The shell has done what the session asks for."""
    client.session.upgrade.done(tls, client._nsqd.now)
    client.flush()
    return client


# --- In order ---------------------------------------------------------------------------------------------------------


def test_without_requested_features_there_is_no_upgrade_and_no_ok(client):
    identifies(client)
    assert client.session.upgrade is None
    client.publishes(b"one")


@pytest.mark.parametrize(("feature", "codec"), [("deflate", Deflate), ("snappy", Snappy)])
def test_a_compression_follows_the_response_and_an_ok_follows_it(client, feature, codec):
    assert identifies(client, **{feature: True})[feature] is True
    assert isinstance(client.session.upgrade.codec, codec)
    assert client.stats.deflate is client.stats.snappy is False
    puts_on(client).hears(b"OK")
    assert client.session.upgrade is None
    assert (client.stats.deflate, client.stats.snappy) == (feature == "deflate", feature == "snappy")
    client.publishes(b"one")


def test_the_connection_makes_tls_and_stats_show_it(client):
    assert identifies(client, tls_v1=True)["tls_v1"] is True
    assert client.session.upgrade.codec is None
    assert client.stats.tls is False
    puts_on(client, TLS).hears(b"OK")
    stats = client.stats
    assert (stats.tls, stats.tls_version, stats.tls_cipher_suite) == (True, "TLS1.3", "Unknown 4865")
    assert (stats.tls_negotiated_protocol, stats.tls_negotiated_protocol_is_mutual) == ("", True)


@pytest.mark.parametrize(("feature", "codec"), [("deflate", Deflate), ("snappy", Snappy)])
def test_tls_comes_first_and_an_ok_follows_each_step(client, feature, codec):
    identifies(client, tls_v1=True, **{feature: True})
    assert client.session.upgrade.codec is None
    puts_on(client, TLS).hears(b"OK")
    assert isinstance(client.session.upgrade.codec, codec)
    puts_on(client).hears(b"OK")
    client.publishes(b"one")


def test_a_compression_may_come_with_a_later_identify_than_tls(client):
    identifies(client, tls_v1=True)
    puts_on(client, TLS).hears(b"OK")
    identifies(client, snappy=True)
    puts_on(client).hears(b"OK")
    assert client.stats.tls
    assert client.stats.snappy


@given(st.binary(max_size=60), st.booleans())
def test_bytes_after_identify_belong_to_the_next_codec(make_nsqd, rest, in_one_piece):
    client = make_nsqd(tls=True).connect()
    document = b'{"feature_negotiation":true,"snappy":true}'
    said = b"IDENTIFY\n" + len(document).to_bytes(4, "big") + document
    if in_one_piece:
        client.says(said + rest)
    else:
        client.says(said, *(bytes([byte]) for byte in rest))
    assert client.session.upgrade.received == rest
    answer(client)
    client.and_stays()


def test_nothing_is_sent_between_the_response_and_the_upgrade(nsqd, client):
    identifies(client, tls_v1=True, heartbeat_interval=1000)
    nsqd.waits(HANDSHAKE_SECONDS - 0.1)
    client.hears()
    puts_on(client, TLS).hears(b"OK", b"_heartbeat_")
    nsqd.waits(1)
    client.hears(b"_heartbeat_").and_stays()


# --- What goes wrong --------------------------------------------------------------------------------------------------


def test_both_compressions_at_once_are_refused_without_an_answer(client):
    client.identifies(feature_negotiation=True, deflate=True, snappy=True)
    client.hears(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression").and_is_closed()


def test_a_handshake_has_its_time(nsqd, client):
    identifies(client, tls_v1=True)
    nsqd.waits(HANDSHAKE_SECONDS)
    client.hears(b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout").and_is_closed()


def test_a_handshake_has_its_time_though_the_client_gave_up_heartbeats(nsqd, client):
    identifies(client, tls_v1=True, heartbeat_interval=-1)
    nsqd.waits(HANDSHAKE_SECONDS)
    client.hears(b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout").and_is_closed()


def test_after_the_handshake_silence_is_measured_anew(nsqd, client):
    identifies(client, tls_v1=True, heartbeat_interval=10_000)
    nsqd.waits(4)
    puts_on(client, TLS)
    nsqd.waits(19)
    client.and_stays()
    nsqd.waits(1)
    client.and_is_closed()


def test_a_client_that_leaves_in_the_handshake_is_told_so(client):
    identifies(client, tls_v1=True)
    client.stops_sending().hears(b"E_IDENTIFY_FAILED IDENTIFY failed EOF").and_is_closed()


def test_a_failed_handshake_is_told_with_its_reason(client):
    identifies(client, tls_v1=True)
    client.session.upgrade.failed("tls: client didn't provide a certificate")
    client.flush()
    client.hears(b"E_IDENTIFY_FAILED IDENTIFY failed tls: client didn't provide a certificate").and_is_closed()


@pytest.mark.parametrize("first", [{"tls_v1": True}, {"snappy": True}, {"deflate": True}])
def test_tls_does_not_begin_inside_another_stream(client, first):
    identifies(client, **first)
    puts_on(client, TLS if "tls_v1" in first else None).hears(b"OK")
    client.identifies(feature_negotiation=True, tls_v1=True)
    client.hears(
        b"E_IDENTIFY_FAILED IDENTIFY failed TLS cannot begin inside a TLS or compressed stream"
    ).and_is_closed()


@pytest.mark.parametrize("first", ["snappy", "deflate"])
@pytest.mark.parametrize("second", ["snappy", "deflate"])
def test_a_stream_is_compressed_once(client, first, second):
    identifies(client, **{first: True})
    puts_on(client).hears(b"OK")
    client.identifies(feature_negotiation=True, **{second: True})
    client.hears(b"E_IDENTIFY_FAILED IDENTIFY failed the stream is compressed already").and_is_closed()


# --- TLS required -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [b"NOP", b"SUB t c", b"PUB t", b"AUTH", b"CLS", b"RDY", b"bogus", b"", b"FIN 0123456789abcdef", b"FIN x"],
)
def test_without_tls_nothing_but_identify_is_taken_where_tls_is_required(make_nsqd, command):
    client = make_nsqd(tls=True, tls_required=True).connect().says(command + b"\n")
    client.hears(b"E_INVALID cannot %b in current state (TLS required)" % command.split(b" ")[0]).and_is_closed()


def test_where_tls_is_required_everything_is_taken_once_it_is_there(make_nsqd):
    client = make_nsqd(tls=True, tls_required=True).connect()
    identifies(client, tls_v1=True, snappy=True)
    puts_on(client, TLS).hears(b"OK")
    puts_on(client).hears(b"OK")
    client.publishes(b"one").subscribes(ready=1).hears(b"one")


def test_a_compression_does_not_pass_for_tls(make_nsqd):
    client = make_nsqd(tls=True, tls_required=True).connect()
    identifies(client, snappy=True)
    puts_on(client).hears(b"OK")
    client.says(b"NOP\n").hears(b"E_INVALID cannot NOP in current state (TLS required)").and_is_closed()


# --- IDENTIFY as a conversation ---------------------------------------------------------------------------------------

KEYS = [
    "max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "tls_v1", "deflate", "deflate_level",
    "max_deflate_level", "snappy", "sample_rate", "auth_required", "output_buffer_size", "output_buffer_timeout",
    "topology_region", "topology_zone",
]  # fmt: skip


def test_without_feature_negotiation_the_answer_is_ok(client):
    client.identifies(client_id="me").hears(b"OK")
    client.identifies(feature_negotiation=False, tls_v1=True, snappy=True, deflate=True).hears(b"OK").and_stays()


def test_the_reply_to_a_negotiation_has_nsqds_fields_in_order(client):
    answer = identifies(client)
    assert list(answer) == KEYS
    assert answer == {
        "max_rdy_count": 2500, "version": "1.3.0", "max_msg_timeout": 900_000, "msg_timeout": 60_000, "tls_v1": False,
        "deflate": False, "deflate_level": 6, "max_deflate_level": 6, "snappy": False, "sample_rate": 0,
        "auth_required": False, "output_buffer_size": 16384, "output_buffer_timeout": 250, "topology_region": "",
        "topology_zone": "",
    }  # fmt: skip


def test_wishes_within_the_limits_are_granted(client):
    answer = identifies(
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
    answer = identifies(client, topology_region="south", topology_zone="s1")
    assert (answer["topology_region"], answer["topology_zone"], answer["max_rdy_count"]) == ("north", "n1", 7)
    assert (client.stats.topology_region, client.stats.topology_zone) == ("south", "s1")


def test_without_output_buffering_the_answer_says_one_byte_and_no_timeout(client):
    answer = identifies(client, output_buffer_size=-1, output_buffer_timeout=1000)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


@pytest.mark.parametrize(("allowed", "default"), [(3, 3), (6, 6), (9, 6)])
def test_the_deflate_level_is_the_default_when_deflate_is_not_granted(make_nsqd, allowed, default):
    answer = identifies(make_nsqd(max_deflate_level=allowed).connect(), deflate_level=9)
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
    identifies(client, msg_timeout=5000, output_buffer_timeout=1000, output_buffer_size=100, sample_rate=1)
    answer = identifies(client, msg_timeout=7000)
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
