"""Messages as Arrow record batches."""

import datetime

from nsq_compat.protocol.frames import Message
from pyspark_nsq.rows import HEADERS_TYPE, Origin, columns, origin_of
from tests.spark.frames import batch_of

ORIGIN = Origin("orders", "spark", "127.0.0.1:4150")
MESSAGE = Message(1_700_000_000_123_456_789, 3, b"0123456789abcdef", b"\x00\xff")


def test_a_message_becomes_the_columns_of_the_schema():
    batch = columns(batch_of(ORIGIN, MESSAGE), ["id", "body", "timestamp", "attempts", "topic", "channel", "nsqd"])
    assert batch.to_pylist() == [
        {
            "id": "0123456789abcdef",
            "body": b"\x00\xff",
            "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC),
            "attempts": 3,
            "topic": "orders",
            "channel": "spark",
            "nsqd": "127.0.0.1:4150",
        }
    ]


def test_only_wanted_columns_are_made_in_the_wanted_order():
    batch = columns(batch_of(ORIGIN, MESSAGE), ["timestamp_ns", "body"])
    assert batch.to_pylist() == [{"timestamp_ns": MESSAGE.timestamp_ns, "body": MESSAGE.body}]


def test_a_batch_has_its_origin():
    assert origin_of(batch_of(ORIGIN, MESSAGE)) == ORIGIN


def test_messages_without_headers_have_none():
    named = MESSAGE._replace(headers={"a": "b"})
    assert columns(batch_of(ORIGIN, MESSAGE, named), ["headers"]).to_pylist() == [
        {"headers": None},
        {"headers": [("a", "b")]},
    ]
    batch = columns(batch_of(ORIGIN, MESSAGE), ["headers", "body"])
    assert batch.to_pylist() == [{"headers": None, "body": MESSAGE.body}]
    assert batch.schema.field("headers").type == HEADERS_TYPE
