"""The offsets of a query, called in Spark's order against a real nsqd, without Spark."""

import json
import time
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from pyspark_nsq.drain import drain
from pyspark_nsq.nodes import NoNodes
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.plan import Share, from_json
from pyspark_nsq.progress import Offset, Progress, open_spool
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool import Orphan, Spool
from pyspark_nsq.spool_file import SpoolError
from tests.spark.conftest import OptionsWith
from tests.spark.frames import bodies_of


def run_batch(options: ReadOptions, end: Offset) -> list[bytes]:
    """The bodies that the tasks of a batch read; `end` passes through JSON, as in a checkpoint."""
    end = json.loads(json.dumps(end))
    spool = Spool(options.spool_dir, end["stream"])
    bodies: list[bytes] = []
    for part, work in enumerate(from_json(end["plan"])):
        partition = spool.partition(end["seq"], part)
        if isinstance(work, Share):
            pieces = drain(
                spool, partition, Origin(work.topic, options.channel, work.nsqd), work.count, options, http=work.http
            )
        else:
            assert isinstance(work, Orphan)
            pieces = spool.seal_orphan(partition, work)
        bodies += bodies_of(partition, pieces)
    return bodies


@pytest.fixture
def options(options_with: OptionsWith) -> ReadOptions:
    return options_with(pollIntervalMs="0", spoolRetainMs="0")


def test_consecutive_batches_read_everything_once(options, publish):
    bodies = publish(25)
    progress = Progress(options)
    offset, read = progress.initial(), list[list[bytes]]()
    while (end := progress.next(offset, 10)) != offset:
        read.append(run_batch(options, end))
        progress.committed(offset)
        offset = end
    assert [len(each) for each in read] == [10, 10, 5]
    assert sorted(body for each in read for body in each) == sorted(bodies)
    assert (offset["seq"], offset["planned"]) == (3, 25)


def test_a_batch_is_held_back_until_enough_messages_wait(options_with, publish):
    options = options_with(pollIntervalMs="0", minMessagesPerTrigger="3")
    publish(1)
    progress = Progress(options)
    first = progress.next(progress.initial(), None)
    run_batch(options, first)
    publish(2)
    assert progress.next(first, None) == first
    publish(1)
    assert progress.next(first, None)["planned"] == 4


def test_the_initial_offset_is_the_same_for_every_call(options):
    progress = Progress(options)
    assert progress.initial() == progress.initial()


def test_a_batch_is_repeated_after_a_restart_and_the_next_one_continues(options, publish):
    bodies = publish(20)
    first = Progress(options)
    end = first.next(first.initial(), 10)
    before = run_batch(options, end)
    # The checkpoint has the offset but no commit.
    assert run_batch(options, end) == before
    again = Progress(options)
    after = run_batch(options, again.next(end, None))
    assert sorted(before + after) == sorted(bodies)


def test_a_committed_batch_is_deleted_one_batch_later(options, publish):
    publish(3)
    progress = Progress(options)
    offset = progress.initial()
    for _ in range(3):
        offset = progress.next(offset, 1)
        run_batch(options, offset)
    progress.committed(offset)
    spool = Spool(options.spool_dir, offset["stream"])
    assert spool.batches() == [3]
    assert spool.cleaned == 2


def test_messages_of_a_late_attempt_are_in_the_next_batch(options, publish, topic):
    publish(2)
    progress = Progress(options)
    offset = progress.next(progress.initial(), 1)
    first = run_batch(options, offset)
    spool = Spool(options.spool_dir, offset["stream"])
    straggler = spool.partition(1, 1)  # spooled and finished, but not part of the batch
    pieces = drain(spool, straggler, Origin(topic, options.channel, options.nsqd_tcp_addresses[0]), 1, options)
    (straggler.folder / "SEALED").unlink()
    left_behind = bodies_of(straggler, pieces)
    seen = [first]
    for _ in range(4):
        publish(1)
        offset = progress.next(offset, 1)
        seen.append(run_batch(options, offset))
    assert [body for batch in seen for body in batch].count(left_behind[0]) == 1
    assert sum(map(len, seen)) == 6


@pytest.mark.parametrize("suppressed", [True, False])
def test_messages_redelivered_by_a_killed_nsqd_are_read_once_with_suppress_redelivered(
    options_with: OptionsWith, topic: str, tmp_path: Path, suppressed: bool
):
    host = own_host()
    settings = [f"--tcp-address={host}:0", f"--http-address={host}:0"]
    (tmp_path / "data").mkdir()
    bodies = [b"body %d" % number for number in range(30)]
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=settings) as nsqd:
        nsqd.create_channel(topic, "c")
        assert nsqd.asks("POST", f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200
        addresses = {"nsqdTcpAddresses": nsqd.tcp_address, "nsqdHttpAddresses": nsqd.http_address}
        wishes = {"pollIntervalMs": "0", "idleTimeoutMs": "1200", "suppressRedelivered": str(suppressed).lower()}
        wishes["spoolRetainMs"] = "600000"  # longer than the kill takes on a busy machine
        progress = Progress(options := options_with(**addresses, **wishes))
        offset, read = progress.initial(), list[bytes]()
        for _ in range(2):
            offset = progress.next(offset, 10)
            read += run_batch(options, offset)
        started = nsqd.asks("GET", "/info").json()["start_time"]
        nsqd.kill()
        # Without its checkpoint, nsqd delivers all finished messages again.
        (tmp_path / "data" / "nsq_compat" / f"{topic}.topic" / "checkpoint").unlink(missing_ok=True)
        while time.time() < started + 1:  # nsqd's start time has a resolution of one second
            time.sleep(0.02)
        nsqd.start()
        while (end := progress.next(offset, 20)) != offset:
            read += run_batch(options, offset := end)
    assert sorted(read) == sorted(bodies if suppressed else [*bodies[:20], *bodies])


def test_available_now_ends_while_messages_are_published_or_consumed_elsewhere(options, publish):
    publish(10)
    progress = Progress(options)
    progress.stop_at_current_end()
    offset, sizes = progress.initial(), []
    while (end := progress.next(offset, 4)) != offset:
        publish(5)
        sizes.append(len(run_batch(options, end)))
        offset = end
    assert sum(sizes) == 10


def test_available_now_reads_what_its_tasks_had_no_time_for(options, topic, publish):
    publish(200)
    progress = Progress(options)
    progress.stop_at_current_end()
    end = progress.next(progress.initial(), None)
    spool = Spool(options.spool_dir, end["stream"])
    # As after maxReadMs, a task ends with fewer messages than planned.
    origin = Origin(topic, options.channel, options.nsqd_tcp_addresses[0])
    drain(spool, spool.partition(end["seq"], 0), origin, 60, options)
    publish(7)
    following = progress.next(end, None)
    assert len(run_batch(options, following)) == 140
    assert progress.next(following, None) == following


def test_a_channel_that_delivers_nothing_ends_available_now(options_with, nsqd, topic, publish, caplog):
    publish(5)
    assert nsqd.asks("POST", f"/channel/pause?topic={topic}&channel=c").status == 200
    options = options_with(idleTimeoutMs="50", pollIntervalMs="0")
    progress = Progress(options)
    progress.stop_at_current_end()
    end = progress.next(progress.initial(), None)
    assert run_batch(options, end) == []
    assert progress.next(end, None) == end
    assert "5 messages wait, but nsqd does not deliver them" in caplog.text


def test_nsqd_is_not_queried_more_often_than_the_poll_interval(options_with, publish):
    now = 0.0
    progress = Progress(options_with(pollIntervalMs="200"), lambda: now)
    start = progress.initial()
    assert progress.next(start, None) == start
    publish(1)
    now = 0.1
    assert progress.next(start, None) == start
    now = 0.3
    assert progress.next(start, None)["planned"] == 1


def test_the_report_has_what_waits_at_each_nsqd(options, nsqd, publish):
    publish(7)
    progress = Progress(options)
    progress.next(progress.initial(), 3)
    report = progress.report()
    assert report["backlog"] == 7
    assert report["nsqds"][nsqd.http_address]["messages"] == 7


def test_a_query_without_nsqd_or_folder_fails_at_the_start(options_with, tmp_path):
    with pytest.raises(NoNodes, match="nsqdTcpAddresses"):
        Progress(options_with(nsqdTcpAddresses="127.0.0.1:1", nsqdHttpAddresses="127.0.0.1:2")).initial()
    with pytest.raises(SpoolError, match="spoolDir: there is no folder"):
        Progress(options_with(spoolDir=str(tmp_path / "nowhere"))).initial()


def test_a_lost_spool_is_an_error_unless_loss_is_allowed(options_with, tmp_path):
    with pytest.raises(SpoolError, match="spoolDir: there is no .*gone"):
        open_spool(options_with(), "gone")
    assert open_spool(options_with(failOnDataLoss="false"), "gone").folder.is_dir()
