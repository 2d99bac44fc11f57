"""Publishing what was staged, against a real nsqd: once, whatever is interrupted and whatever is run again."""

import base64
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_nsq.options import OptionError, WriteOptions, write_options
from pyspark_nsq.publisher import CannotPublish
from pyspark_nsq.staging import BEGUN, COMPLETE, NOTED, SENT, Staged, StagedBatch, StagingError, folder_of, prepare
from tests.spark.conftest import small_disk

# Not forked from the tests' own process, which has threads.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pyspark_nsq.staging"])

Published = Callable[[], Counter[bytes]]


@pytest.fixture
def options(nsqd, topic, tmp_path) -> WriteOptions:
    """Four messages in an MPUB."""
    nsqd.create_channel(topic, "c")
    given = {"nsqdTcpAddresses": nsqd.tcp_address, "topic": topic, "publishMode": "staged", "mpubMessages": "4"}
    return write_options(given | {"stagingDir": str(tmp_path)})


@pytest.fixture
def published(nsqd, topic) -> Published:
    """What nsqd has, and how often."""

    def look() -> Counter[bytes]:
        messages = nsqd.asks("GET", f"/channel/peek?topic={topic}&channel=c&limit=100").json()["messages"]
        return Counter(base64.b64decode(each["body"]) for each in messages)

    return look


@pytest.fixture
def batch(tmp_path) -> StagedBatch:
    return StagedBatch(tmp_path, "query", 3)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in numbers]})


def stage(batch: StagedBatch, options: WriteOptions, *parts: Sequence[int]) -> list[Staged]:
    """A task for each part."""
    return [staged for part in parts if (staged := batch.stage([rows(*part)], options))]


def once(*numbers: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in numbers)


def die_at(point: str, times: int, batch: StagedBatch, files: list[Staged], options: WriteOptions) -> None:
    """Publish in a process that kills itself when it comes to a point for the n-th time."""
    process = _processes.Process(target=_run, args=(point, times, batch, files, options))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"it lived on: exit code {process.exitcode}"
    process.close()


def _run(point: str, times: int, batch: StagedBatch, files: list[Staged], options: WriteOptions) -> None:
    def at(reached: str) -> None:
        nonlocal times
        times -= reached == point
        if times == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    batch.publish(files, options, at)


def test_nothing_is_published_before_commit_and_everything_once_by_it(batch, options, published):
    files = stage(batch, options, range(6), range(6, 10))
    assert published() == once()
    batch.publish(files, options)
    assert published() == once(*range(10))
    assert not batch.folder.exists()


def test_a_task_without_rows_stages_nothing(batch, options, published):
    assert batch.stage([rows()], options) is None
    batch.publish([], options)
    assert not batch.is_published


def test_a_batch_that_is_done_is_passed_over_when_it_is_run_again(batch, options, published):
    batch.publish(stage(batch, options, range(3)), options)
    assert batch.is_decided
    batch.publish(stage(batch, options, range(3)), options)
    assert published() == once(*range(3))
    assert not batch.folder.exists()


@pytest.mark.parametrize(
    ("point", "times", "twice"),
    [(BEGUN, 1, []), (SENT, 1, range(4)), (NOTED, 1, []), (SENT, 3, range(8, 12)), (NOTED, 3, []), (COMPLETE, 1, [])],
)
def test_a_crash_leaves_one_command_in_doubt_at_most_and_the_rest_is_published_once(
    batch, options, published, point: str, times: int, twice: Sequence[int]
):
    files = stage(batch, options, range(8), range(8, 14))
    die_at(point, times, batch, files, options)
    # The tasks of the batch that is run again come up with something else; its own files count.
    again = stage(batch, options, range(50, 60))
    batch.publish(again, options)
    assert published() == once(*range(14), *twice)


def test_a_ledger_whose_last_line_was_cut_is_read_up_to_it(batch, options, published):
    files = stage(batch, options, range(8))
    die_at(NOTED, 1, batch, files, options)
    with open(batch.folder / "ledger", "ab") as ledger:
        ledger.write(b"0")
    batch.publish([], options)
    assert published() == once(*range(8))


def test_an_aborted_batch_leaves_no_files_unless_it_is_half_published(batch, options, published):
    files = stage(batch, options, range(8))
    batch.discard(files)
    assert not list(batch.folder.glob("*.spool"))
    files = stage(batch, options, range(8))
    die_at(NOTED, 1, batch, files, options)
    batch.discard(files)
    batch.publish([], options)
    assert published() == once(*range(8))


def test_a_task_that_fails_leaves_no_file(batch, options):
    with pytest.raises(CannotPublish, match="empty body"):
        batch.stage([rows(1), pa.RecordBatch.from_pydict({"body": [b""]})], options)
    assert not list(batch.folder.iterdir())


def test_another_nsqd_takes_what_one_does_not(batch, options, published, nsqd, topic, tmp_path):
    given = {"nsqdTcpAddresses": f"127.0.0.1:1,{nsqd.tcp_address}", "topic": topic, "publishMode": "staged"}
    two = write_options(given | {"stagingDir": str(tmp_path)})
    batch.publish(stage(batch, two, range(3), range(3, 5)), two)
    assert published() == once(*range(5))


def test_what_nsqd_refuses_is_said_and_the_rest_of_the_batch_waits(batch, options, published):
    too_long = pa.RecordBatch.from_pydict({"body": [bytes(2_000_000)]})
    staged = batch.stage([rows(1), too_long], options)
    with pytest.raises(CannotPublish, match="E_BAD_MESSAGE.* in the ledger in "):
        batch.publish([staged], options)
    assert published() == once(1)
    with pytest.raises(CannotPublish):
        batch.publish([], options)
    assert published() == once(1)


def test_a_staged_file_that_lost_bytes_is_said_to_be_damaged(batch, options):
    (staged,) = stage(batch, options, range(3))
    path = batch.folder / staged.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StagingError, match="is damaged: 0 commands of 1 are left"):
        batch.publish([staged], options)


def test_without_a_folder_of_its_own_it_is_in_that_of_the_spool(options, tmp_path):
    given = {"nsqdTcpAddresses": "h:1", "topic": "t", "publishMode": "staged", "spoolDir": str(tmp_path)}
    made = write_options(given)
    prepare(made)
    assert folder_of(made) == tmp_path / "staging"
    assert folder_of(made).is_dir()


@pytest.mark.parametrize("name", ["stagingDir", "spoolDir"])
def test_a_folder_that_is_not_there_is_asked_for(name: str, tmp_path: Path):
    given = {"nsqdTcpAddresses": "h:1", "topic": "t", "publishMode": "staged", name: str(tmp_path / "no")}
    with pytest.raises(StagingError, match="there is no folder .*/no. Make it, or mount it"):
        prepare(write_options(given))


@pytest.mark.parametrize(("read_only", "sentence"), [(True, "Read-only file system"), (False, "No space left")])
def test_a_folder_nobody_can_write_to_is_a_sentence(tmp_path: Path, read_only: bool, sentence: str):
    with small_disk(tmp_path, full=True, read_only=read_only) as disk:
        given = {"nsqdTcpAddresses": "h:1", "topic": "t", "publishMode": "staged", "stagingDir": str(disk)}
        with pytest.raises(StagingError, match=f"stagingDir: {sentence}"):
            prepare(write_options(given))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"publishMode": "staged"}, "publishMode=staged needs stagingDir, or spoolDir"),
        ({"stagingDir": "/s"}, "stagingDir and spoolDir are for publishMode=staged"),
        ({"publishMode": "twice"}, "publishMode must be direct or staged"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, str], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        write_options({"nsqdTcpAddresses": "h:1", "topic": "t"} | more)
