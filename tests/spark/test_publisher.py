"""A task that writes, against a real nsqd."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.connection import NsqdLost
from pyspark_nsq.drain import drain
from pyspark_nsq.options import WriteOptions, write_options
from pyspark_nsq.publisher import CannotPublish, commands, packets, publish
from pyspark_nsq.rows import Origin


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
    bodies = [body for batch in spool.partition(1, 0).read(pieces) for body in batch.column("body").to_pylist()]
    assert bodies == [b"%d" % number for number in range(100)]


def test_without_rows_nobody_is_called():
    options = write_options({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "t"})
    assert publish([batch_of(body=[])], options, 0) == 0


def test_a_row_may_have_a_topic_and_a_delay_of_its_own(to_topic, topic, nsqd):
    batch = batch_of(value=["a", "b", "c"], topic=[f"{topic}.x", None, None], defer_ms=[None, 0, 60_000])
    assert publish([batch], to_topic, 0) == 3
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["message_count"], stats["deferred_count"]) == (2, 1)


def test_the_next_nsqd_is_taken_when_one_cannot_be_reached(to_topic, nsqd, topic):
    options = write_options({"nsqdTcpAddresses": f"127.0.0.1:1,{nsqd.tcp_address}", "topic": topic})
    assert publish([batch_of(body=[b"one"])], options, 0) == 1
    assert nsqd.channel_stats(topic, "c")["message_count"] == 1


def test_nobody_who_takes_it_is_a_sentence():
    options = write_options({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "t"})
    with pytest.raises(CannotPublish, match="nsqdTcpAddresses: no nsqd can be published to"):
        publish([batch_of(body=[b"one"])], options, 0)


def test_what_nsqd_refuses_is_an_error_in_its_words(to_topic):
    with pytest.raises(NsqdLost, match="E_BAD_MESSAGE"):
        publish([batch_of(body=[bytes(2_000_000)])], to_topic, 0)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"body": [b"one", None]}, "a message has no body"),
        ({"body": [b"one", b""]}, "a message has an empty body"),
        ({"body": [b"one"], "topic": ["no topic"]}, "no topic can be called 'no topic'"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_said(to_topic, columns, complaint):
    with pytest.raises(CannotPublish, match=complaint):
        list(commands(batch_of(**columns), to_topic))


@given(st.lists(st.binary(max_size=20)), st.integers(1, 5), st.integers(1, 60))
def test_packets_hold_all_in_order_and_keep_their_limits(bodies, most, most_bytes):
    made = list(packets(bodies, most, most_bytes))
    assert [body for packet in made for body in packet] == bodies
    for packet in made:
        assert 0 < len(packet) <= most
        assert len(packet) == 1 or sum(len(body) + 4 for body in packet) <= most_bytes
