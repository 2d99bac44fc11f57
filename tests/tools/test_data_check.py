"""How findings are told."""

from nsq_compat.queue.files import OsFiles
from nsq_compat.queue.go_queue_reader import QueueReport
from nsq_compat.queue.metadata import ChannelMetadata, TopicMetadata
from nsq_compat.tools.data_check import Findings, TopicFindings, as_json, as_text, check


def text(findings):
    return list(as_text(findings))[1:]


def test_an_empty_folder_is_clean(tmp_path):
    findings = check(OsFiles(), str(tmp_path))
    assert text(findings) == ["nsqd.dat: 0 topics, 0 channels", "clean"]
    assert not findings.damaged


def test_what_go_counted_is_told_when_it_differs():
    report = QueueReport("t", claimed_depth=5, messages=7, bytes=70, unsynced=2)
    assert text(Findings("/", queues=[report]))[1:] == [
        "Go's queue t: 7 messages of 70 bytes, Go counted 5, 2 of them not yet in its positions",
        "clean",
    ]


def test_missing_positions_are_told():
    report = QueueReport("t", messages=1, bytes=1)
    assert text(Findings("/", queues=[report]))[1] == "Go's queue t: 1 message of 1 byte, no positions"


def test_more_damage_than_is_listed_is_counted():
    report = QueueReport("t", claimed_depth=0)
    for offset in range(103):
        report.add_damage("file", offset, 0, "gone")
    lines = text(Findings("/", queues=[report]))
    assert lines[2] == "  damaged: file at 0: gone"
    assert lines[-2:] == ["  damaged: 3 more", "damaged"]


def test_files_given_up_are_no_damage():
    assert text(Findings("/", bad_files=1))[1:] == [
        "1 file set aside by Go as bad; nsq_data salvage lists what is in them",
        "clean",
    ]


def test_our_topics_are_told_with_their_channels():
    topic = TopicFindings("t", bytes=9, depths={"": 1, "c": 2}, damaged_records=1, problems=["something"])
    assert text(Findings("/", topics=[topic]))[1:] == [
        "topic t: 9 bytes",
        "  (no channel): depth 1",
        "  c: depth 2",
        "  damaged: 1 message",
        "  something",
        "damaged",
    ]


def test_json_holds_the_same():
    findings = Findings("/", (TopicMetadata("t", True, (ChannelMetadata("c"),)),), topics=[TopicFindings("t")])
    assert as_json(findings) == {
        "data_path": "/",
        "damaged": False,
        "metadata_error": None,
        "metadata": [{"name": "t", "paused": True, "channels": [{"name": "c", "paused": False}]}],
        "bad_files": 0,
        "go_queues": [],
        "topics": [{"name": "t", "bytes": 0, "depths": {}, "damaged_records": 0, "problems": []}],
    }
