"""A writing task against a real nsqd."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from pyspark_nsq.connection import NsqdLost
from pyspark_nsq.drain import drain
from pyspark_nsq.options import WriteOptions, write_options
from pyspark_nsq.publisher import CannotPublish, commands, publish, split_into_mpubs
from pyspark_nsq.rows import HEADERS_TYPE, Origin, columns
from tests.client.waiting import wait_until
from tests.spark.frames import bodies_of


@pytest.fixture
def to_topic(nsqd, topic) -> WriteOptions:
    nsqd.create_channel(topic, "c")
    return write_options({"nsqdTcpAddresses": nsqd.tcp_address, "topic": topic, "mpubMessages": "7", "mpubWindow": "2"})


def batch_of(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_every_row_is_a_message(to_topic, topic, spool, options_with):
    batches = [batch_of(body=[b"%d" % number for number in range(start, start + 50)]) for start in (0, 50)]
    assert publish(batches, to_topic, 0) == 100
    origin = Origin(topic, "c", to_topic.nsqd_tcp_addresses[0])
    pieces = drain(spool, spool.partition(1, 0), origin, 100, options_with())
    bodies = bodies_of(spool.partition(1, 0), pieces)
    assert bodies == [b"%d" % number for number in range(100)]


def test_without_rows_there_is_no_connection():
    options = write_options({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "t"})
    assert publish([batch_of(body=[])], options, 0) == 0


def test_a_row_may_have_its_own_topic_and_delay(to_topic, topic, nsqd):
    batch = batch_of(value=["a", "b", "c"], topic=[f"{topic}.x", None, None], defer_ms=[None, 0, 60_000])
    assert publish([batch], to_topic, 0) == 3
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["message_count"], stats["deferred_count"]) == (2, 1)


def test_rows_have_headers(to_topic, topic, nsqd, spool, options_with):
    headers = pa.array([{"Key": "v"}, None, {}, {"trace": "é", "n": "2"}, {"key": "later"}], HEADERS_TYPE)
    bodies = pa.array([b"%d" % number for number in range(5)])
    delays = pa.array([None, None, None, 0, 60_000])
    batch = pa.RecordBatch.from_arrays([bodies, headers, delays], ["body", "headers", "defer_ms"])
    assert publish([batch], to_topic, 0) == 5
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["message_count"], stats["deferred_count"]) == (5, 1)
    origin = Origin(topic, "c", to_topic.nsqd_tcp_addresses[0])
    pieces = drain(spool, spool.partition(1, 0), origin, 4, options_with())
    read = {
        row["body"]: dict(row["headers"] or ())
        for each in spool.partition(1, 0).read(pieces)
        for row in columns(each, ["body", "headers"]).to_pylist()
    }
    assert read == {b"0": {"key": "v"}, b"1": {}, b"2": {}, b"3": {"trace": "é", "n": "2"}}
    ignoring = write_options({"nsqdTcpAddresses": "n:1", "topic": "t", "ignoreColumns": "headers"})
    assert not any(command.startswith(b"H") for command in commands(batch, ignoring))


def test_an_nsqd_without_headers_is_not_sent_any(make_nsqd):
    fake = make_nsqd()
    options = write_options({"nsqdTcpAddresses": fake.address, "topic": "t"})
    headers = pa.array([{"key": "v"}], HEADERS_TYPE)
    batch = pa.RecordBatch.from_arrays([pa.array([b"one"]), headers], ["body", "headers"])
    with pytest.raises(NsqdLost, match="takes no messages with headers: leave them out with ignoreColumns=headers"):
        publish([batch], options, 0)


def test_the_next_nsqd_is_used_if_one_cannot_be_reached(to_topic, nsqd, topic):
    options = write_options({"nsqdTcpAddresses": f"127.0.0.1:1,{nsqd.tcp_address}", "topic": topic})
    assert publish([batch_of(body=[b"one"])], options, 0) == 1
    assert nsqd.channel_stats(topic, "c")["message_count"] == 1


def test_without_a_reachable_nsqd_publishing_fails():
    options = write_options({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "t"})
    with pytest.raises(CannotPublish, match="nsqdTcpAddresses: no nsqd can be reached to publish to"):
        publish([batch_of(body=[b"one"])], options, 0)


def test_a_refused_publish_is_reported_with_nsqds_error(to_topic):
    with pytest.raises(NsqdLost, match="E_BAD_MESSAGE"):
        publish([batch_of(body=[bytes(2_000_000)])], to_topic, 0)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"body": [b"one", None]}, "a row has a null body"),
        ({"body": [b"one", b""]}, "a row has an empty body"),
        ({"body": [b"one"], "topic": ["no topic"]}, "'no topic' is not a valid topic name"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_an_error(to_topic, columns, complaint):
    with pytest.raises(CannotPublish, match=complaint):
        list(commands(batch_of(**columns), to_topic))


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ([("key", None)], "a row has a header without a value"),
        ([("two words", "v")], "headers that no message can have"),
    ],
)
def test_a_row_with_headers_that_nsqd_would_refuse_is_an_error(to_topic, headers, complaint):
    batch = pa.RecordBatch.from_arrays([pa.array([b"one"]), pa.array([headers], HEADERS_TYPE)], ["body", "headers"])
    with pytest.raises(CannotPublish, match=complaint):
        list(commands(batch, to_topic))


@given(st.lists(st.binary(max_size=20)), st.integers(1, 5), st.integers(1, 60))
def test_mpubs_have_all_bodies_in_order_and_respect_their_limits(bodies, most, most_bytes):
    made = list(split_into_mpubs(bodies, most, most_bytes))
    assert [body for packet in made for body in packet] == bodies
    for packet in made:
        assert 0 < len(packet) <= most
        assert len(packet) == 1 or sum(len(body) + 4 for body in packet) <= most_bytes


def test_nsqd_to_publish_to_are_found_by_nsqlookupd(tmp_path):
    with NsqlookupdProcess(installed_nsqlookupd()) as nsqlookupd:
        options = write_options({"lookupdHttpAddresses": nsqlookupd.http_address, "topic": "t"})
        with pytest.raises(CannotPublish, match="lookupdHttpAddresses: no nsqd can be reached .*none is registered"):
            publish([batch_of(body=[b"one"])], options, 0)
        flags = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
        with NsqdProcess(installed_nsqd(), tmp_path, options=flags) as nsqd:
            wait_until(lambda: nsqlookupd.asks("GET", "/nodes").json()["producers"])
            assert publish([batch_of(body=[b"one", b"two"])], options, 0) == 2
            assert nsqd.asks("GET", "/stats?format=json&topic=t").json()["topics"][0]["message_count"] == 2
