"""The spools of batch reads go when the user says so, or when their time is over, and nothing else goes with them."""

import pytest

from pyspark_nsq.batch_spool import NothingToAck, acknowledge, begin, begun, check_schema, expire, metadata_of, spool_of
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
        begin(spool, [share], options)
        drain(spool, spool.partition(0, 0), Origin(topic, "c", share.nsqd), 3, options)
        return spool

    return make


def test_what_is_acknowledged_is_deleted_and_counted(read, written, tmp_path):
    spool = read()
    assert acknowledge([{}, metadata_of(written, "one"), metadata_of(written, "one")]) == 3
    assert not spool.folder.exists()
    assert tmp_path.is_dir()
    with pytest.raises(NothingToAck, match="acknowledged before"):
        acknowledge([metadata_of(written, "one")])


def test_without_a_column_of_a_read_there_is_nothing_to_acknowledge():
    with pytest.raises(NothingToAck, match="no column of this DataFrame"):
        acknowledge([{}, {"comment": "a column of somebody else's"}])


def test_what_belongs_to_no_batch_stays_when_the_rest_goes(read, written):
    spool = read(keepSpool="0")
    (spool.partition(0, 0).folder / "SEALED").unlink()
    assert acknowledge([metadata_of(written, "one")]) == 0
    assert sum(piece.rows for piece in spool.orphans()) == 3
    expire(written["spoolDir"])
    assert sum(piece.rows for piece in spool.orphans()) == 3


@pytest.mark.parametrize(("keep", "stays"), [("true", True), ("3600000", True), ("0", False)])
def test_a_spool_stays_as_long_as_its_read_wanted(read, written, keep, stays):
    spool = read(keepSpool=keep)
    expire(written["spoolDir"])
    assert spool.folder.exists() is stays


def test_the_schema_of_another_read_is_refused(written):
    check_schema([{}, metadata_of(written, "one")], written, "one")
    with pytest.raises(OptionError, match="schema of another read"):
        check_schema([{}, metadata_of(written, "one")], written, "two")
    with pytest.raises(OptionError, match="schema of another read"):
        NsqDataSource(written).reader(NsqDataSource(written).schema())


def test_a_read_that_is_planned_again_is_the_same(read, topic, nsqd):
    assert begun(read()) == [Share(topic, nsqd.tcp_address, 3)]


def test_a_read_that_was_never_planned_has_no_plan(spool):
    assert begun(spool) is None
