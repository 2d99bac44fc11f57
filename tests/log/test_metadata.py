"""nsqd.dat, decoded and encoded in Go's format."""

import errno
import os
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import (
    ChannelMetadata,
    Metadata,
    MetadataError,
    TopicMetadata,
    decode_metadata,
    encode_metadata,
    load_metadata,
    recover_metadata,
    save_metadata,
)
from tests.faults.disk import SimulatedDisk

names = st.from_regex(r"[.a-zA-Z0-9_-]{1,64}", fullmatch=True)
channels = st.lists(st.builds(ChannelMetadata, names, st.booleans()), max_size=3, unique_by=lambda each: each.name)
topics = st.builds(TopicMetadata, names, st.booleans(), channels.map(tuple))


def reads(*topics):
    """All of it, and nothing is wrong."""
    return Metadata(topics)


def test_the_format_is_that_of_go_to_the_byte():
    assert encode_metadata([TopicMetadata("t", False, (ChannelMetadata("c", True),)), TopicMetadata("u", True)]) == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]},'
        b'{"name":"u","paused":true,"channels":null}],"version":"1.3.0"}'
    )


def test_no_topics_are_null():
    assert encode_metadata([]) == b'{"topics":null,"version":"1.3.0"}'


def test_ephemeral_topics_and_channels_are_left_out():
    written = encode_metadata(
        [TopicMetadata("t", False, (ChannelMetadata("c#ephemeral"),)), TopicMetadata("u#ephemeral")]
    )
    assert decode_metadata(written) == reads(TopicMetadata("t"))


@given(st.lists(topics, max_size=4, unique_by=lambda each: each.name))
def test_what_is_written_is_read_again(given_topics):
    assert decode_metadata(encode_metadata(given_topics)) == reads(*given_topics)


@pytest.mark.parametrize("data", [b"null", b"{}", b'{"topics":null}', b'{"topics":[],"extra":[1,{}]}'])
def test_an_empty_file_has_no_topics(data):
    assert decode_metadata(data) == reads()


def test_keys_match_in_any_case():
    assert decode_metadata(b'{"TOPICS":[{"Name":"t","PAUSED":true}]}') == reads(TopicMetadata("t", True))


@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (b"", "unexpected end of JSON input"),
        (b" \n", "unexpected end of JSON input"),
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"{} x", "Extra data: line 1 column 4 (char 3)"),
        (b"\xff", "Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "the file is not an object"),
        (b"3", "the file is not an object"),
        (b'"s"', "the file is not an object"),
        (b'{"topics":{}}', "the file: topics is not an array"),
        (b'{"version":1}', "the file: version is not a string"),
        (b'{"toqics":[{"name":"t"}],"version":"1.3.0"}', "the file has 'toqics' instead of topics"),
        (b'{"topics":["t"]}', "topic 1 is not an object; topic 1 has the invalid name ''"),
        (b'{"topics":[{"name":1}]}', "topic 1: name is not a string; topic 1 has the invalid name ''"),
    ],
)
def test_a_completely_damaged_file_has_no_topics_and_a_reason(data, damage):
    metadata = decode_metadata(data)
    assert (metadata.topics, metadata.damage) == ((), damage)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"topics":' * 100_000, b'{"a":' * 500 + b"1" + b"}" * 500])
def test_nesting_of_any_depth_is_read_or_is_damage(data):
    assert decode_metadata(data).topics == ()


@given(st.binary())
def test_any_bytes_are_read_or_are_damage(data):
    metadata = decode_metadata(data)
    assert metadata.faults or metadata.topics == ()


U = b'{"name":"u","paused":true,"channels":[{"name":"c","paused":true}]}'
READS_U = TopicMetadata("u", True, (ChannelMetadata("c", True),))


@pytest.mark.parametrize(
    ("row", "topics", "damage"),
    [
        (b"null", [], "topic 1 has the invalid name ''"),
        (b"7", [], "topic 1 is not an object; topic 1 has the invalid name ''"),
        (b'{"name":"a b"}', [], "topic 1 has the invalid name 'a b'"),
        (b'{"name":"\xff\\u00e9\\u0000"}', [], "topic 1 has the invalid name '\\udcff\\xe9\\x00'"),
        (b'{"name":"t","paused":"yes"}', [TopicMetadata("t")], "topic 1: paused is not a boolean"),
        (b'{"name":"t","channels":3}', [TopicMetadata("t")], "topic 1: channels is not an array"),
        (b'{"name":"t","qaused":true}', [TopicMetadata("t")], "topic 1 has 'qaused' instead of channels"),
        (
            b'{"name":"t","channels":[{"name":"!"},{"name":"c","paused":true}]}',
            [TopicMetadata("t", False, (ChannelMetadata("c", True),))],
            "channel 1 of topic t has the invalid name '!'",
        ),
        (
            b'{"name":"t","channels":[{"name":"c","paused":true},{"name":"c","paused":false}]}',
            [TopicMetadata("t", False, (ChannelMetadata("c", True),))],
            "channel c of topic t is named twice",
        ),
    ],
)
def test_invalid_parts_are_left_out_and_the_rest_is_used(row, topics, damage):
    metadata = decode_metadata(b'{"topics":[%s,%s],"version":"1.3.0"}' % (row, U))
    assert metadata.topics == (*topics, READS_U)
    assert metadata.damage == damage


def test_of_a_topic_that_is_named_twice_only_the_name_is_used():
    other = b'{"name":"u","paused":false,"channels":[{"name":"d"}]}'
    assert decode_metadata(b'{"topics":[%s,%s]}' % (U, other)) == Metadata(
        (TopicMetadata("u"),), ("topic u is named twice",)
    )
    assert decode_metadata(b'{"topics":[%s,%s]}' % (U, U)).topics == (READS_U,)


def test_of_many_faults_the_first_are_shown():
    damage = decode_metadata(b'{"topics":[%s]}' % b",".join([b'{"name":"%s"}' % (b"!" * 500)] * 9)).damage
    assert damage.count("invalid name") == 5
    assert damage.endswith("; and 4 more")
    assert len(damage) < 1000


def test_an_unknown_key_is_ignored_if_no_known_one_is_missing():
    assert decode_metadata(b'{"topics":[{"name":"t","paused":true,"channels":null,"new":1}]}') == reads(
        TopicMetadata("t", True)
    )


@pytest.mark.parametrize("read", [load_metadata, recover_metadata])
def test_a_missing_file_has_no_topics(tmp_path, read):
    assert read(OsFiles(), str(tmp_path)) == ()
    assert os.listdir(tmp_path) == []


def test_loading_a_damaged_file_fails(tmp_path):
    (tmp_path / "nsqd.dat").write_bytes(b"")
    with pytest.raises(MetadataError) as caught:
        load_metadata(OsFiles(), str(tmp_path))
    assert str(caught.value) == f"failed to parse metadata in {tmp_path}/nsqd.dat - unexpected end of JSON input"
    assert os.listdir(tmp_path) == ["nsqd.dat"]


@pytest.mark.parametrize("read", [load_metadata, recover_metadata])
def test_a_file_that_cannot_be_read_is_not_damaged_and_has_a_reason(tmp_path, read):
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(MetadataError, match="failed to read metadata from .*/nsqd.dat - is a directory"):
        read(OsFiles(), str(tmp_path))
    assert os.listdir(tmp_path) == ["nsqd.dat"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_failed_read_is_not_damage(tmp_path, number):
    class Failing(OsFiles):
        @staticmethod
        def pread(fd: int, size: int, offset: int, /) -> bytes:
            raise OSError(number, os.strerror(number))

    save_metadata(OsFiles(), str(tmp_path), [TopicMetadata("t")])
    with pytest.raises(MetadataError, match="failed to read metadata"):
        recover_metadata(Failing(), str(tmp_path))
    assert os.listdir(tmp_path) == ["nsqd.dat"]


def test_a_damaged_file_is_copied_and_its_readable_part_is_used(tmp_path, caplog):
    damaged = b'{"topics":[{"name":"t t"},%s]}' % U
    (tmp_path / "nsqd.dat").write_bytes(damaged)
    assert recover_metadata(OsFiles(), str(tmp_path)) == (READS_U,)
    assert (tmp_path / "nsqd.dat.bad-1").read_bytes() == damaged
    [line] = caplog.records
    assert line.levelname == "ERROR"
    assert line.getMessage() == (
        f"metadata in {tmp_path}/nsqd.dat is damaged (topic 1 has the invalid name 't t'): kept as "
        f"{tmp_path}/nsqd.dat.bad-1; topics and channels come from their logs, those without a log may be missing, "
        "and paused channels may no longer be paused"
    )


def test_copies_are_not_overwritten(tmp_path):
    (tmp_path / "nsqd.dat.bad-2").mkdir()
    for content in (b"one", b"two", b"two", b"one", b"three"):
        (tmp_path / "nsqd.dat").write_bytes(content)
        recover_metadata(OsFiles(), str(tmp_path))
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert kept == {
        "nsqd.dat": b"three", "nsqd.dat.bad-1": b"one", "nsqd.dat.bad-3": b"two", "nsqd.dat.bad-4": b"three"
    }  # fmt: skip


@pytest.mark.parametrize("call", ["rename", "pwrite", "fsync", "listdir"])
def test_a_damaged_file_that_cannot_be_copied_prevents_the_start(tmp_path, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = OsFiles()
    setattr(files, call, full)
    (tmp_path / "nsqd.dat").write_bytes(b"garbage")
    with pytest.raises(MetadataError, match="is damaged .* and no copy of it can be kept - no space left on device"):
        recover_metadata(files, str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"nsqd.dat": b"garbage"}


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_leaves_the_damaged_file_or_its_copy(seed):
    disk = SimulatedDisk()
    disk.mkdir("/data")
    disk.fsync_folder("/")
    disk.put("/data/nsqd.dat", b"garbage")
    recover_metadata(disk, "/data")
    save_metadata(disk, "/data", [])
    after = disk.power_cut(Random(seed))
    assert after.content("/data/nsqd.dat.bad-1") == b"garbage"
    assert recover_metadata(after, "/data") == ()


def test_a_saved_file_is_readable_by_its_owner_only(tmp_path):
    save_metadata(OsFiles(), str(tmp_path), [TopicMetadata("old")])
    save_metadata(OsFiles(), str(tmp_path), [TopicMetadata("t", True)])
    assert load_metadata(OsFiles(), str(tmp_path)) == (TopicMetadata("t", True),)
    assert os.listdir(tmp_path) == ["nsqd.dat"]
    assert os.stat(tmp_path / "nsqd.dat").st_mode & 0o777 == 0o600
