"""Imports of disk queues: each message exactly once, at whatever step the process is killed.

Instead of a log, a topic has one file to which all frames are appended.
"""

import os
import shutil

import pytest

from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage, queue_name
from nsq_compat.godata.queue_import import RECEIPT, GoImport, find_go_topics
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.protocol import message
from tests.faults.disk import Crash, DyingFiles

LOG = "log"


def stored(body, attempts=0):
    return GoMessage(1_700_000_000_000_000_000, attempts, b"%016x" % int.from_bytes(body, "big"), body)


def go_has(folder, topic, channel, *bodies):
    write_queue(OsFiles(), str(folder), queue_name(topic, channel), map(stored, bodies), 1 << 20)


def import_all(files, folder):
    """What a daemon does when it starts."""
    make_our_folder(files, str(folder))
    importer = GoImport(files, str(folder))
    importer.recover()
    for topic in find_go_topics(files, str(folder)):
        staging = importer.begin(topic)
        with open(os.path.join(staging, LOG), "ab") as log:
            for queue in topic.queues:
                log.writelines(queue.frames(files, str(folder)))
        importer.commit(topic)


def ours(folder, topic):
    """The bodies in our log of a topic."""
    try:
        with open(os.path.join(topic_folder(str(folder), topic), LOG), "rb") as log:
            data = log.read()
    except FileNotFoundError:
        return []
    bodies = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        bodies.append(message.body(data[:end]))
        data = data[end:]
    return bodies


def gos(folder):
    """The bodies that are still in Go's queues."""
    files = OsFiles()
    return [
        message.body(frame)
        for topic in find_go_topics(files, str(folder))
        for queue in topic.queues
        for frame in queue.frames(files, str(folder))
    ]


def test_topics_and_channels_are_found_by_their_files(tmp_path):
    go_has(tmp_path, "b", "c", b"1")
    go_has(tmp_path, "b", None, b"2")
    go_has(tmp_path, "a", "x")
    found = find_go_topics(OsFiles(), str(tmp_path))
    assert [(topic.name, [queue.channel for queue in topic.queues]) for topic in found] == [
        ("a", ["x"]),
        ("b", [None, "c"]),
    ]
    assert [topic.is_empty(OsFiles(), str(tmp_path)) for topic in found] == [True, False]


def test_queues_that_are_ephemeral_or_have_invalid_names_are_left_alone(tmp_path, caplog):
    go_has(tmp_path, "t#ephemeral", "c", b"1")
    go_has(tmp_path, "t", "not legal", b"1")
    assert find_go_topics(OsFiles(), str(tmp_path)) == []
    assert len(caplog.messages) == 2


def test_a_queue_with_only_bad_files_is_ignored(tmp_path):
    (tmp_path / "t.diskqueue.000000.dat.bad").touch()
    assert find_go_topics(OsFiles(), str(tmp_path)) == []


def test_frames_are_those_of_the_next_delivery(tmp_path):
    write_queue(OsFiles(), str(tmp_path), "t", [stored(b"1", attempts=4)], 1 << 20)
    (topic,) = find_go_topics(OsFiles(), str(tmp_path))
    (frame,) = topic.queues[0].frames(OsFiles(), str(tmp_path))
    assert message.attempts(frame) == 5
    assert message.message_id(frame) == stored(b"1").id


def test_an_import_moves_the_files_and_leaves_no_temporary_ones(tmp_path):
    go_has(tmp_path, "t", None, b"1", b"2")
    go_has(tmp_path, "t", "c", b"3")
    go_has(tmp_path, "u", None, b"4")
    (tmp_path / "nsqd.dat").write_bytes(b"null")
    (tmp_path / "t.diskqueue.000000.dat.bad").touch()
    import_all(OsFiles(), tmp_path)
    assert (ours(tmp_path, "t"), ours(tmp_path, "u"), gos(tmp_path)) == ([b"1", b"2", b"3"], [b"4"], [])
    assert sorted(os.listdir(tmp_path)) == ["nsq_compat", "nsqd.dat", "t.diskqueue.000000.dat.bad"]
    assert sorted(os.listdir(tmp_path / "nsq_compat")) == ["imported", "t.topic", "u.topic"]
    assert os.listdir(tmp_path / "nsq_compat" / "t.topic") == [LOG]
    assert len(os.listdir(tmp_path / "nsq_compat" / "imported" / "1")) == 6


def test_an_existing_topic_keeps_its_messages(tmp_path):
    for body in (b"1", b"2"):
        go_has(tmp_path, "t", None, body)
        import_all(OsFiles(), tmp_path)
    assert ours(tmp_path, "t") == [b"1", b"2"]
    assert sorted(os.listdir(tmp_path / "nsq_compat" / "imported")) == ["1", "2"]


def test_the_files_of_an_empty_topic_are_only_moved(tmp_path):
    go_has(tmp_path, "t", None)
    make_our_folder(OsFiles(), str(tmp_path))
    (topic,) = find_go_topics(OsFiles(), str(tmp_path))
    GoImport(OsFiles(), str(tmp_path)).set_aside_empty(topic)
    assert sorted(os.listdir(tmp_path)) == ["nsq_compat"]
    assert os.listdir(tmp_path / "nsq_compat") == ["imported"]


def steps_of(prepare, tmp_path):
    """How many steps an undisturbed import takes."""
    prepare(tmp_path)
    counting = DyingFiles(10**9)
    import_all(counting, tmp_path)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    return 10**9 - counting.left


def a_new_topic(folder):
    go_has(folder, "t", None, b"1", b"2")
    go_has(folder, "t", "c", b"3")
    go_has(folder, "u", "c", b"4")


def topics_of_ours(folder):
    go_has(folder, "t", None, b"1", b"2")
    import_all(OsFiles(), folder)
    go_has(folder, "t", "c", b"3")
    go_has(folder, "u", "c", b"4")


@pytest.mark.parametrize("prepare", [a_new_topic, topics_of_ours])
def test_every_message_is_delivered_once_at_whatever_step_the_process_is_killed(prepare, tmp_path):
    steps = steps_of(prepare, tmp_path)
    assert steps > 40
    for number in range(1, steps + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        prepare(folder)
        with pytest.raises(Crash):
            import_all(DyingFiles(number), folder)
        import_all(OsFiles(), folder)
        assert (ours(folder, "t"), ours(folder, "u"), gos(folder)) == ([b"1", b"2", b"3"], [b"4"], []), number
        left = set(os.listdir(folder / "nsq_compat")) | set(os.listdir(folder / "nsq_compat" / "t.topic"))
        assert left <= {"imported", "t.topic", "u.topic", LOG}
        shutil.rmtree(folder)


def test_the_process_may_be_killed_again_while_it_recovers(tmp_path):
    steps = steps_of(topics_of_ours, tmp_path)
    for number in range(1, steps + 1, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        topics_of_ours(folder)
        with pytest.raises(Crash):
            import_all(DyingFiles(number), folder)
        for again in range(1, 25, 2):
            try:
                import_all(DyingFiles(again), folder)
            except Crash:
                continue
        import_all(OsFiles(), folder)
        assert (ours(folder, "t"), ours(folder, "u"), gos(folder)) == ([b"1", b"2", b"3"], [b"4"], []), number
        shutil.rmtree(folder)


def interrupted_before_the_files_are_moved(folder):
    """The messages are ours, the receipt is there, and Go's files still are where they were."""
    go_has(folder, "t", None, b"1")
    make_our_folder(OsFiles(), str(folder))
    importer = GoImport(OsFiles(), str(folder))
    (topic,) = find_go_topics(OsFiles(), str(folder))
    with open(os.path.join(importer.begin(topic), LOG), "ab") as log:
        log.writelines(topic.queues[0].frames(OsFiles(), str(folder)))

    class DyingHere(OsFiles):
        @staticmethod
        def mkdir(path, mode=0o700):
            raise Crash

    importer._files = DyingHere()
    with pytest.raises(Crash):
        importer.commit(topic)
    assert (ours(folder, "t"), gos(folder)) == ([b"1"], [b"1"])


def test_unused_files_are_moved_by_the_next_start(tmp_path):
    interrupted_before_the_files_are_moved(tmp_path)
    import_all(OsFiles(), tmp_path)
    assert (ours(tmp_path, "t"), gos(tmp_path)) == ([b"1"], [])


@pytest.mark.parametrize("used", ["positions", "size", "new file"])
def test_files_that_another_nsqd_has_used_are_imported_again(tmp_path, caplog, used):
    interrupted_before_the_files_are_moved(tmp_path)
    go_has(tmp_path / "nsq_compat", "t", None, b"2")  # the record of a new message
    data = (tmp_path / "nsq_compat" / "t.diskqueue.000000.dat").read_bytes()
    if used == "positions":
        (tmp_path / "t.diskqueue.meta.dat").write_bytes(b"1\n0,0\n0,0\n")
    elif used == "size":
        with open(tmp_path / "t.diskqueue.000000.dat", "ab") as file:
            file.write(data)
    else:
        (tmp_path / "t.diskqueue.000001.dat").write_bytes(data)
    import_all(OsFiles(), tmp_path)
    assert ours(tmp_path, "t") == ([b"1", b"1"] if used == "positions" else [b"1", b"1", b"2"])
    assert "another nsqd has used the files" in caplog.text


@pytest.mark.parametrize(
    "receipt",
    [b"", b"{}", b"\xff", b"[" * 10_000, b'{"folder":"../..","sizes":{},"positions":{}}',
     b'{"folder":"1","sizes":{"../x":1},"positions":{}}', b'{"folder":"1","sizes":{},"positions":{"x":""}}'],
)  # fmt: skip
def test_a_damaged_receipt_causes_another_import(tmp_path, caplog, receipt):
    interrupted_before_the_files_are_moved(tmp_path)
    (tmp_path / "nsq_compat" / "t.topic" / RECEIPT).write_bytes(receipt)
    import_all(OsFiles(), tmp_path)
    assert (ours(tmp_path, "t"), gos(tmp_path)) == ([b"1", b"1"], [])
    assert "receipt of an import is damaged" in caplog.text
