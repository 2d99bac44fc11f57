"""How findings are told."""

import errno
import json
import os
from pathlib import Path

from nsq_compat.godata.reader import QueueReport
from nsq_compat.log.checkpoint import ChannelState, TopicState
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import make_frames
from nsq_compat.tools.data_check import Findings, TopicFindings, _ReadOnly, as_json, as_text, check


def text(findings):
    return list(as_text(findings))[1:]


def test_an_empty_folder_is_clean(tmp_path):
    findings = check(OsFiles(), str(tmp_path))
    assert text(findings) == ["nsqd.dat: 0 topics, 0 channels", "clean"]
    assert not findings.damaged


def test_gos_count_is_reported_when_it_differs():
    report = QueueReport("t", claimed_depth=5, messages=7, bytes=70, unsynced=2)
    assert text(Findings("/", queues=[report]))[1:] == [
        "Go's queue t: 7 messages of 70 bytes, Go counted 5, 2 of them not yet in its positions",
        "clean",
    ]


def test_missing_positions_are_reported():
    report = QueueReport("t", messages=1, bytes=1)
    assert text(Findings("/", queues=[report]))[1] == "Go's queue t: 1 message of 1 byte, no positions"


def test_more_damage_than_is_listed_is_counted():
    report = QueueReport("t", claimed_depth=0)
    for offset in range(103):
        report.add_damage("file", offset, 0, "gone")
    lines = text(Findings("/", queues=[report]))
    assert lines[2] == "  damaged: file at 0: gone"
    assert lines[-2:] == ["  damaged: 3 more", "damaged"]


def test_files_that_go_set_aside_are_not_damage():
    assert text(Findings("/", bad_files=1))[1:] == [
        "1 file set aside by Go as bad; nsq_data salvage lists what is in them",
        "clean",
    ]


def test_our_topics_are_reported_with_their_channels():
    topic = TopicFindings("t", bytes=9, depths={"": 1, "c": 2}, damaged_records=1, problems=["something"])
    assert text(Findings("/", topics=[topic]))[1:] == [
        "topic t: 9 bytes",
        "  (no channel): depth 1",
        "  c: depth 2",
        "  damaged: 1 message",
        "  something",
        "damaged",
    ]


def stored_topic(data_path, count):
    """A topic of that many messages with a channel that has finished none of them."""
    make_our_folder(OsFiles(), str(data_path))
    log = TopicLog.open(OsFiles(), topic_folder(str(data_path), "t"))
    for number in range(count):
        log.append(make_frames([b"%016x" % number], 0, [b"x" * 20]), number)
    end = log.end
    log.close()
    folder = data_path / "nsq_compat" / "t.topic"
    (folder / "checkpoint").write_bytes(TopicState(end, 0.0, b"f" * 16, {"c": ChannelState(0)}).encode())
    return folder / "log.00000000000000000001", end


def test_a_log_that_is_shorter_than_its_checkpoint_is_damaged(tmp_path):
    path, end = stored_topic(tmp_path, 100)
    assert not check(OsFiles(), str(tmp_path)).damaged
    path.write_bytes(path.read_bytes()[: end.offset // 2])
    findings = check(OsFiles(), str(tmp_path))
    lost = findings.topics[0].damaged_records
    assert findings.damaged
    assert findings.topics[0].depths == {"c": 100 - lost}
    assert text(findings)[1:] == [
        f"topic t: {end.offset // 2} bytes",
        f"  c: depth {100 - lost}",
        f"  damaged: {lost} messages",
        f"  {path.name}: has {end.offset // 2} bytes; the checkpoint says that it has {end.offset}",
        f"  {path.name}: damaged at its end, {lost} messages lost",
        "damaged",
    ]


def test_a_topic_that_cannot_be_read_is_reported_and_others_are_checked(tmp_path, monkeypatch):
    path, _ = stored_topic(tmp_path, 100)

    def fails(fd, size, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_ReadOnly, "pread", staticmethod(fails))
    monkeypatch.setattr("nsq_compat.log.checkpoint.read_file", lambda files, path: Path(path).read_bytes())
    findings = check(OsFiles(), str(tmp_path))
    assert findings.damaged
    assert findings.topics[0].problems == [f"cannot be read: [Errno 5] Input/output error: '{path}'"]


def test_json_contains_the_same():
    findings = Findings("/", (TopicMetadata("t", True, (ChannelMetadata("c"),)),), topics=[TopicFindings("t")])
    assert json.loads(json.dumps(as_json(findings))) == {
        "data_path": "/",
        "damaged": False,
        "metadata_error": None,
        "metadata": [{"name": "t", "paused": True, "channels": [{"name": "c", "paused": False}]}],
        "bad_files": 0,
        "go_queues": [],
        "topics": [{"name": "t", "bytes": 0, "depths": {}, "damaged_records": 0, "damages": [], "problems": []}],
    }
