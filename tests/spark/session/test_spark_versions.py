"""The calls of Spark 4.0 and 4.1, which do not say where a batch begins, to the reader for all versions.

These tests call the reader as Spark does, without a session. `make spark-lowest` tests the same in a real Spark 4.0.
"""

from collections.abc import Callable

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_nsq.options import OptionError
from pyspark_nsq.progress import Offset
from pyspark_nsq.source import LogPartition, NsqPartition, NsqStreamReader

NewReader = Callable[..., NsqStreamReader]


@pytest.fixture(params=["log", "spool"])
def new_reader(request, written, options, retaining, topic) -> NewReader:
    """Make a reader of the test's topic on `retaining`, as Spark does at each start."""
    retaining.create_channel(topic, "c")
    spool = {**written, "nsqdTcpAddresses": retaining.tcp_address, "nsqdHttpAddresses": retaining.http_address}
    own = {"mode": request.param, "pollIntervalMs": "0"} | (options if request.param == "log" else spool)
    return lambda **more: NsqStreamReader(own | more, StructType([StructField("body", BinaryType())]))


def bodies(reader: NsqStreamReader, start: Offset, end: Offset) -> list[bytes]:
    """Run a batch."""
    partitions: list[LogPartition | NsqPartition] = list(reader.partitions(start, end))
    return sorted(
        body for each in partitions for batch in reader.read(each) for body in batch.column("body").to_pylist()
    )


def test_batches_follow_each_other_and_go_on_after_a_restart(new_reader, send):
    reader = new_reader()
    sent = [send(5)]
    first = reader.latestOffset()
    start = reader.initialOffset()
    assert bodies(reader, start, first) == sent[0]
    sent.append(send(3))
    second = reader.latestOffset()
    assert bodies(reader, first, second) == sent[1]
    assert reader.latestOffset() == second
    # The second batch was not committed, so Spark runs it again.
    reader = new_reader()
    assert reader.partitions(second, second) == []
    assert bodies(reader, first, second) == sent[1]
    assert reader.latestOffset() == second
    sent.append(send(2))
    assert bodies(reader, second, reader.latestOffset()) == sent[2]


def test_a_batch_that_is_read_again_later_does_not_move_the_query_back(new_reader, send):
    reader = new_reader(maxMessagesPerTrigger="2", spoolRetainBatches="9")
    sent = send(4)
    first = reader.latestOffset()
    start = reader.initialOffset()
    assert bodies(reader, start, first) == sent[:2]
    second = reader.latestOffset()
    assert bodies(reader, first, second) == sent[2:]
    assert bodies(reader, start, first) == sent[:2]
    assert reader.latestOffset() == second


def test_the_first_batch_is_the_same_after_a_restart_which_has_another_initial_offset(new_reader, send):
    sent = send(3)
    reader = new_reader()
    first = reader.latestOffset()
    assert bodies(reader, reader.initialOffset(), first) == sent
    reader = new_reader()
    assert reader.partitions(first, first) == []
    assert bodies(reader, reader.initialOffset(), first) == sent
    assert reader.latestOffset() == first


def test_a_checkpoint_with_the_trigger_available_now_is_refused_before_a_batch_is_planned(new_reader, send):
    reader = new_reader()
    sent = send(3)
    first = reader.latestOffset()
    assert bodies(reader, reader.initialOffset(), first) == sent
    # Spark asks for the end before it shows where the checkpoint ends.
    reader = new_reader()
    reader.latestOffset()
    with pytest.raises(OptionError, match="where a checkpoint continues .* with the option availableNow=true"):
        reader.partitions(first, first)


def test_a_new_query_with_the_trigger_available_now_may_find_nothing(new_reader, send):
    reader = new_reader(startingOffsets="latest")
    first = reader.latestOffset()
    assert bodies(reader, reader.initialOffset(), first) == []
    # The first end is in the checkpoint, and nothing before it was read.
    sent = send(3)
    reader = new_reader()
    assert reader.partitions(first, first) == []
    assert bodies(reader, first, reader.latestOffset()) == sent


def test_with_the_option_available_now_nothing_is_offered_that_arrives_later(new_reader, send):
    reader = new_reader(availableNow="true", maxMessagesPerTrigger="3")
    sent = send(5)
    first = reader.latestOffset()
    start = reader.initialOffset()
    send(4)
    assert bodies(reader, start, first) == sent[:3]
    second = reader.latestOffset()
    assert len(bodies(reader, first, second)) == 2
    assert reader.latestOffset() == second
