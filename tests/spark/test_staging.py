"""Staged files are published once to a real nsqd, despite crashes and repeated batches."""

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_nsq.options import OptionError, WriteOptions, write_options
from pyspark_nsq.publisher import CannotPublish
from pyspark_nsq.staging import BEGUN, COMPLETE, NOTED, SENT, StagedBatch, StagedFile, StagingError, folder_of, prepare
from tests.spark.conftest import small_disk
from tests.spark.dying import die_at

STAGED = {"nsqdTcpAddresses": "h:1", "topic": "t", "publishMode": "staged"}
Published = Callable[[], Counter[bytes]]


@pytest.fixture
def options(nsqd, topic, tmp_path) -> WriteOptions:
    """Options with four messages in an MPUB."""
    nsqd.create_channel(topic, "c")
    given = {"nsqdTcpAddresses": nsqd.tcp_address, "topic": topic, "publishMode": "staged", "mpubMessages": "4"}
    return write_options(given | {"stagingDir": str(tmp_path)})


@pytest.fixture
def published(nsqd, topic) -> Published:
    """The bodies at nsqd, counted."""

    def look() -> Counter[bytes]:
        messages = nsqd.asks("GET", f"/channel/peek?topic={topic}&channel=c&limit=100").json()["messages"]
        return Counter(base64.b64decode(each["body"]) for each in messages)

    return look


@pytest.fixture
def batch(tmp_path) -> StagedBatch:
    return StagedBatch(tmp_path, "query", 3)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in numbers]})


def stage(batch: StagedBatch, options: WriteOptions, *parts: Sequence[int]) -> list[StagedFile]:
    """Stage each part in a task of its own."""
    return [staged for part in parts if (staged := batch.stage([rows(*part)], options))]


def once(*numbers: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in numbers)


def test_commit_publishes_everything_once(batch, options, published):
    files = stage(batch, options, range(6), range(6, 10))
    assert published() == once()
    batch.publish(files, options)
    assert published() == once(*range(10))
    assert not batch.folder.exists()


def test_a_task_without_rows_stages_nothing(batch, options, published):
    assert batch.stage([rows()], options) is None
    batch.publish([], options)
    assert not batch.is_published


def test_a_published_batch_is_skipped_when_it_is_run_again(batch, options, published):
    batch.publish(stage(batch, options, range(3)), options)
    assert batch.is_decided
    batch.publish(stage(batch, options, range(3)), options)
    assert published() == once(*range(3))
    assert not batch.folder.exists()


@pytest.mark.parametrize(
    ("point", "times", "twice"),
    [(BEGUN, 1, []), (SENT, 1, range(4)), (NOTED, 1, []), (SENT, 3, range(8, 12)), (NOTED, 3, []), (COMPLETE, 1, [])],
)
def test_a_crash_repeats_at_most_one_command(batch, options, published, point: str, times: int, twice: Sequence[int]):
    files = stage(batch, options, range(8), range(8, 14))
    die_at(point, times, batch.publish, files, options)
    # The tasks of the repeated batch stage other rows, which are ignored.
    again = stage(batch, options, range(50, 60))
    batch.publish(again, options)
    assert published() == once(*range(14), *twice)


def test_a_truncated_last_line_of_the_ledger_is_ignored(batch, options, published):
    files = stage(batch, options, range(8))
    die_at(NOTED, 1, batch.publish, files, options)
    with open(batch.folder / "ledger", "ab") as ledger:
        ledger.write(b"0")
    batch.publish([], options)
    assert published() == once(*range(8))


def test_an_aborted_batch_leaves_no_files_unless_publishing_has_begun(batch, options, published):
    files = stage(batch, options, range(8))
    batch.discard(files)
    assert not list(batch.folder.glob("*.spool"))
    files = stage(batch, options, range(8))
    die_at(NOTED, 1, batch.publish, files, options)
    batch.discard(files)
    batch.publish([], options)
    assert published() == once(*range(8))


def test_a_task_that_fails_leaves_no_file(batch, options):
    with pytest.raises(CannotPublish, match="empty body"):
        batch.stage([rows(1), pa.RecordBatch.from_pydict({"body": [b""]})], options)
    assert not list(batch.folder.iterdir())


def test_another_nsqd_is_used_if_one_is_down(batch, options, published, nsqd, topic, tmp_path):
    given = {"nsqdTcpAddresses": f"127.0.0.1:1,{nsqd.tcp_address}", "topic": topic, "publishMode": "staged"}
    two = write_options(given | {"stagingDir": str(tmp_path)})
    batch.publish(stage(batch, two, range(3), range(3, 5)), two)
    assert published() == once(*range(5))


def test_a_refused_command_is_reported_and_the_batch_can_continue(batch, options, published):
    too_long = pa.RecordBatch.from_pydict({"body": [bytes(2_000_000)]})
    staged = batch.stage([rows(1), too_long], options)
    with pytest.raises(CannotPublish, match="E_BAD_MESSAGE.* in the ledger in "):
        batch.publish([staged], options)
    assert published() == once(1)
    with pytest.raises(CannotPublish):
        batch.publish([], options)
    assert published() == once(1)


def test_a_truncated_staged_file_is_reported_as_damaged(batch, options):
    (staged,) = stage(batch, options, range(3))
    path = batch.folder / staged.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StagingError, match="is damaged: 0 commands of 1 are left"):
        batch.publish([staged], options)


def test_without_staging_dir_files_are_in_the_spool_folder(options, tmp_path):
    made = write_options(STAGED | {"spoolDir": str(tmp_path)})
    prepare(made)
    assert folder_of(made) == tmp_path / "staging"
    assert folder_of(made).is_dir()


@pytest.mark.parametrize("name", ["stagingDir", "spoolDir"])
def test_a_missing_folder_is_an_error_that_says_what_to_do(name: str, tmp_path: Path):
    with pytest.raises(StagingError, match="there is no folder .*/no. Create or mount it"):
        prepare(write_options(STAGED | {name: str(tmp_path / "no")}))


@pytest.mark.privileged
@pytest.mark.parametrize(("read_only", "sentence"), [(True, "Read-only file system"), (False, "No space left")])
def test_a_folder_that_is_not_writable_is_an_error(tmp_path: Path, read_only: bool, sentence: str):
    refused = pytest.raises(StagingError, match=f"stagingDir: {sentence}")
    with small_disk(tmp_path, full=True, read_only=read_only) as disk, refused:
        prepare(write_options(STAGED | {"stagingDir": str(disk)}))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"publishMode": "staged"}, "publishMode=staged needs stagingDir, or spoolDir"),
        ({"stagingDir": "/s"}, "stagingDir and spoolDir are for publishMode=staged"),
        ({"publishMode": "twice"}, "publishMode must be direct or staged"),
    ],
)
def test_invalid_combinations_of_options_are_refused(more: dict[str, str], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        write_options({"nsqdTcpAddresses": "h:1", "topic": "t"} | more)
