"""The spools of batch reads are deleted by `ack` or expire; orphans in them are kept."""

import pytest

from pyspark_nsq.batch_spool import (
    NoSpool,
    acknowledge,
    check_schema,
    expire,
    metadata_of,
    require_no_other,
    save_plan,
    saved_plan,
    spool_of,
)
from pyspark_nsq.drain import drain
from pyspark_nsq.options import OptionError, read_options
from pyspark_nsq.plan import Share
from pyspark_nsq.rows import Origin
from pyspark_nsq.source import NsqDataSource


@pytest.fixture
def read(written, publish, topic):
    """A batch of three messages, read into a spool; its name is `one`."""

    def make(**more):
        publish(3)
        options = read_options(written | more, "batch")
        spool = spool_of(options, "one")
        spool.create()
        share = Share(topic, options.nsqd_tcp_addresses[0], 3)
        save_plan(spool, [share], options)
        drain(spool, spool.partition(0, 0), Origin(topic, "c", share.nsqd), 3, options)
        return spool

    return make


def test_ack_deletes_the_spool_and_counts_its_messages(read, written, tmp_path):
    spool = read()
    assert acknowledge([{}, metadata_of(written, "one"), metadata_of(written, "one")]) == 3
    assert not spool.folder.exists()
    assert tmp_path.is_dir()
    with pytest.raises(NoSpool, match="acknowledged before"):
        acknowledge([metadata_of(written, "one")])


def test_ack_needs_a_column_of_a_batch_read():
    with pytest.raises(NoSpool, match="no column of this DataFrame"):
        acknowledge([{}, {"comment": "a column of another source"}])


def test_ack_keeps_messages_that_belong_to_no_batch(read, written):
    spool = read(keepSpool="0")
    (spool.partition(0, 0).folder / "SEALED").unlink()
    assert acknowledge([metadata_of(written, "one")]) == 0
    assert spool.count_orphans() == 3
    expire(written["spoolDir"])
    assert spool.count_orphans() == 3


@pytest.mark.parametrize(("keep", "stays"), [("true", True), ("3600000", True), ("0", False)])
def test_a_spool_expires_after_keep_spool(read, written, keep, stays):
    spool = read(keepSpool=keep)
    expire(written["spoolDir"])
    assert spool.folder.exists() is stays


def test_the_schema_of_another_read_is_refused(written):
    check_schema([{}, metadata_of(written, "one")], written, "one")
    with pytest.raises(OptionError, match="schema of another read"):
        check_schema([{}, metadata_of(written, "one")], written, "two")
    with pytest.raises(OptionError, match="schema of another read"):
        NsqDataSource(written).reader(NsqDataSource(written).schema())


def test_planning_a_read_again_gives_the_same_plan(read, topic, nsqd):
    assert saved_plan(read()) == [Share(topic, nsqd.tcp_address, 3)]


def test_a_read_that_was_not_acknowledged_is_not_forgotten(read, written, topic):
    read()
    again = read_options(written, "batch")
    with pytest.raises(OptionError, match="its messages are in .*/batch-one. Set spoolName=one to read them again"):
        require_no_other(again)
    require_no_other(read_options(written | {"keepSpool": "1000"}, "batch"))
    require_no_other(read_options(written | {"channel": "d"}, "batch"))
    named = read_options(written | {"spoolName": "one"}, "batch")
    assert saved_plan(spool_of(named, "two")) is not None
    assert metadata_of(written | {"spoolName": "one"}, "two") == metadata_of(written, "one")
    acknowledge([metadata_of(written, "one")])
    require_no_other(again)


def test_an_unplanned_read_has_no_plan(spool):
    assert saved_plan(spool) is None
