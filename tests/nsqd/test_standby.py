"""Taking over, when it fails or is interrupted, and what a standby refuses."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import gevent
import pytest
from gevent.event import Event

from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata
from nsq_compat.log.mirror_copy import MirrorCopy
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.nsqd import standby as module
from nsq_compat.nsqd.durability import in_thread
from nsq_compat.nsqd.standby import Standby
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.headers import encode
from nsq_compat.protocol.mirror import MAKE_FOLDER, REMOVE_FOLDER, WRITE, ZEROS, Change
from nsq_compat.queue.topic import Topic
from tests.broker import DataPath

PRIMARY = "1" * 32
FILES = cast(Files, OsFiles())


class Killed(BaseException):
    """nsqd ends here."""


class Node:
    """A standby on a data path, and the copy of one primary."""

    def __init__(self, folder: Path) -> None:
        make_our_folder(FILES, str(folder))
        self.folder = folder
        self.copy = folder / "nsq_compat" / "mirrors" / PRIMARY
        self.failures: list[BaseException] = []
        self.data_path = DataPath(FILES, str(folder))

    def has_copy(self, *topics: str, channel: str = "c", paused: bool = True, identities: Sequence[str] = ()) -> None:
        """Of topics with two messages in a channel, and others with these ids."""
        self.copy.mkdir(parents=True, exist_ok=True)
        make_our_folder(FILES, str(self.copy))
        primary = DataPath(FILES, str(self.copy))
        daemon = primary.start(node_id=1)
        for name in topics:
            topic = daemon.topic(name)
            topic.channel(channel)
            topic.publish([b"1", b"2"], daemon.now, daemon.now_ns)
            if identities:
                payloads = [encode([("nsq-id", each)]) + b"x" for each in identities]
                topic.publish_with_headers(payloads, time.time(), time.time_ns())
        primary.stop(daemon)
        channels = (ChannelMetadata(channel, paused),)
        save_metadata(FILES, str(self.copy), [TopicMetadata(name, channels=channels) for name in topics])
        (self.copy / "mirror.json").write_text(json.dumps({"identity": PRIMARY, "is_complete": True}))

    def start(self, save_metadata: Callable[[], object] = lambda: None) -> Standby:
        """It starts from the logs."""
        self.daemon = self.data_path.start(node_id=2)
        self.broker = self.daemon.broker
        self.standby = Standby(
            FILES,
            Storage(FILES, str(self.folder), durability=Durability.OS, segment_size=1 << 20),
            self.broker,
            identity="2" * 32,
            syncs=False,
            takeover_after=None,
            is_listed=lambda host, port: False,
            save=self._save,
            save_metadata=save_metadata,
            new_ids=self.daemon.enforcer.new_ids,
        )
        self.standby.start()
        self.standby._watching.kill()
        return self.standby

    def _save(self, topic: Topic) -> None:
        if self.failures:
            raise self.failures.pop()
        self.data_path.checkpoint(self.daemon, topic.name)

    def is_paused(self, topic: str, channel: str = "c") -> bool:
        return self.broker.topics[topic].channels[channel].paused

    def depth(self, topic: str, channel: str = "c") -> int:
        return self.broker.topics[topic].channels[channel].depth


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.data_path.close()


def kill() -> None:
    raise Killed


def test_what_was_paused_is_paused_when_a_take_over_is_interrupted(node):
    node.has_copy("a", "b")
    with pytest.raises(Killed):
        node.start(save_metadata=kill).adopt(PRIMARY)
    node.start()
    assert not node.is_paused("a"), "otherwise the test would prove nothing"
    node.standby.adopt(PRIMARY)
    assert node.is_paused("a")
    assert node.is_paused("b")
    assert node.depth("a") == node.depth("b") == 2


def test_a_new_channel_of_a_merged_topic_is_paused_when_a_take_over_is_interrupted(node):
    node.has_copy("a")
    node.start()
    node.broker.topic("a")
    node.failures = [Killed()]
    with pytest.raises(Killed):
        node.standby.adopt(PRIMARY)
    node.start()
    node.standby.adopt(PRIMARY)
    assert node.is_paused("a")


def test_a_channel_that_the_standby_has_itself_is_not_paused(node):
    node.has_copy("a")
    node.start()
    node.broker.topic("a").channel("c")
    node.standby.adopt(PRIMARY)
    assert not node.is_paused("a")


def test_messages_come_once_when_the_checkpoint_after_a_merge_fails(node):
    node.has_copy("a")
    node.start()
    node.broker.topic("a").channel("c")
    node.failures = [OSError(28, "No space left on device")] * 2
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            node.standby.adopt(PRIMARY)
    assert node.standby.adopt(PRIMARY) == ["a"]
    assert node.depth("a") == 2
    assert not os.path.exists(topic_folder(str(node.copy), "a"))


def test_topics_that_need_no_merge_are_taken_over_first(node):
    node.has_copy("a", "b", "c")
    node.start()
    node.broker.topic("a")
    node.failures = [Killed()]
    with pytest.raises(Killed):
        node.standby.adopt(PRIMARY)
    assert sorted(node.broker.topics) == ["a", "b", "c"]
    assert node.depth("b") == node.depth("c") == 2


def test_a_topic_that_cannot_be_taken_over_does_not_keep_the_others_from_it(node):
    node.has_copy("a", "b")
    checkpoint = Path(topic_folder(str(node.copy), "a")) / "checkpoint"
    content = checkpoint.read_bytes()
    checkpoint.unlink()
    checkpoint.mkdir()
    node.start()
    with pytest.raises(OSError, match="directory"):
        node.standby.adopt(PRIMARY)
    assert list(node.broker.topics) == ["b"]
    checkpoint.rmdir()
    checkpoint.write_bytes(content)
    assert node.standby.adopt(PRIMARY) == ["a"]
    assert node.depth("a") == 2


def test_the_rest_of_a_merged_copy_is_deleted_and_not_taken_over(node):
    node.has_copy("a")
    folder = topic_folder(str(node.copy), "a")
    node.start()
    shutil.copytree(folder, folder.removesuffix(".topic") + ".deleted-1")
    node.start()
    assert sorted(os.listdir(node.copy / "nsq_compat")) == ["a.topic"]


def hello(node: Node, identity: str, node_id: int = 1, address: str = "") -> object:
    """The session of a primary that has connected."""
    session = object()
    answer_to(node, session, identity=identity, node_id=node_id, broadcast_address=address)
    return session


def answer_to(node: Node, session: object, **facts: object) -> dict[str, object]:
    body = json.dumps({"epoch": 1, "identity": PRIMARY, **facts}).encode()
    answer: dict[str, object] = json.loads(node.standby.execute(session, "hello", "", body))
    return answer


def test_of_two_primaries_with_one_data_path_the_second_is_refused(node):
    node.start()
    for _ in range(2):
        assert answer_to(node, object(), node_id=1, epoch=4, runs=["a", "before"])["knows_run"]
        with pytest.raises(FatalClientError, match="another nsqd with a copy of its data path was here in epoch 4"):
            answer_to(node, object(), node_id=1, epoch=4, runs=["b", "before"])
        node.start()  # the standby knows it also after a restart


def test_a_primary_learns_that_the_copy_is_of_a_run_that_it_does_not_know(node):
    node.start()
    assert answer_to(node, object(), node_id=1, epoch=4, runs=["a"])["knows_run"]
    assert answer_to(node, object(), node_id=1, epoch=5, runs=["b", "a"])["knows_run"]
    assert not answer_to(node, object(), node_id=1, epoch=6, runs=["c", "a"])["knows_run"]
    assert answer_to(node, object(), node_id=1, epoch=6, runs=["c", "a"])["knows_run"]


def test_a_primary_with_the_same_node_id_is_refused(node):
    node.start()
    with pytest.raises(FatalClientError, match="E_MIRROR_FAILED MIRROR failed both nsqds have --node-id=2"):
        hello(node, PRIMARY, node_id=2)
    assert not node.copy.exists()


def test_two_primaries_with_one_node_id_are_not_connected_together(node):
    node.start()
    first = hello(node, PRIMARY, node_id=1, address="first")
    with pytest.raises(FatalClientError, match="E_MIRROR_FAILED MIRROR failed first:0 has --node-id=1 as well"):
        hello(node, 32 * "3", node_id=1, address="second")
    hello(node, PRIMARY, node_id=1, address="first")
    hello(node, 32 * "4", node_id=1, address="first")  # its disk was lost
    hello(node, 32 * "3", node_id=3, address="second")
    assert first is not node.standby.mirrors[PRIMARY].session


def test_a_primary_cannot_fill_the_log_with_its_address(node):
    node.start()
    with pytest.raises(FatalClientError, match="a broadcast address of 256 characters"):
        hello(node, PRIMARY, address=256 * "a")


def test_copies_are_limited_in_number(node, monkeypatch):
    monkeypatch.setattr(module, "_MAX_COPIES", 2)
    node.start()
    for digit in "34":
        hello(node, 32 * digit)
    with pytest.raises(FatalClientError, match="there are 2 copies of other nsqds in .*; delete the old ones"):
        hello(node, 32 * "5")
    hello(node, 32 * "3")


def test_what_is_stored_beside_a_copy_is_that_of_one_moment(node, monkeypatch):
    def in_thread_and_meanwhile(work, state):
        assert state.adopted == {}
        node.standby.mirrors[PRIMARY].state.adopted["t"] = (1, "")
        work(state)

    node.start()
    monkeypatch.setattr(module, "in_thread", in_thread_and_meanwhile)
    hello(node, PRIMARY)
    assert json.loads((node.copy / "mirror.json").read_bytes())["adopted"] == {}


@pytest.mark.parametrize("offset", [(1 << 40) + 1, (1 << 64) - 1])
def test_a_file_that_no_primary_has_is_refused(tmp_path, offset):
    copy = MirrorCopy(FILES, str(tmp_path), syncs=False)
    with pytest.raises(ValueError, match="would be larger than 1099511627776 bytes"):
        copy.apply([Change(ZEROS, "nsqd.dat", offset)])


def test_summing_up_a_file_ends_with_the_connection(tmp_path):
    class ClosingFiles(OsFiles):
        def pread(self, fd, size, offset):
            copy.close()  # as another thread may
            return os.pread(fd, size, offset)

    copy = MirrorCopy(cast(Files, ClosingFiles()), str(tmp_path), syncs=False)
    copy.apply([Change(WRITE, "nsqd.dat", 0, b"{}")])
    with pytest.raises(ValueError, match="the connection has ended"):
        copy.sums("nsqd.dat")


LOG = "nsq_compat/t.topic/log.00000000000000000001"
TOPIC = Change(MAKE_FOLDER, "nsq_compat/t.topic")


def body_of(*changes: Change) -> bytes:
    return b"".join(change.encode() for change in changes)


def test_other_clients_are_served_while_many_changes_are_applied(node, monkeypatch):
    served = []
    monkeypatch.setattr(module, "yield_to_loop", lambda: served.append(1))
    node.start()
    primary = hello(node, PRIMARY)
    node.standby.execute(primary, "changes", "", body_of(TOPIC, *1000 * [Change(WRITE, LOG, 0, b"x")]))
    assert len(served) >= 7
    node.standby.execute(primary, "changes", "", body_of(Change(WRITE, LOG, 1, b"y")))
    assert (node.copy / LOG).read_bytes() == b"xy"


def test_changes_of_a_connection_end_when_the_primary_connects_again(node, monkeypatch):
    monkeypatch.setattr(module, "yield_to_loop", lambda: hello(node, PRIMARY))
    node.start()
    primary = hello(node, PRIMARY)
    changes = [Change(WRITE, LOG, number, b"x") for number in range(1000)]
    with pytest.raises(FatalClientError, match="the connection has ended"):
        node.standby.execute(primary, "changes", "", body_of(TOPIC, *changes))
    assert len((node.copy / LOG).read_bytes()) < 200
    with pytest.raises(FatalClientError, match="hello comes first"):
        node.standby.execute(primary, "changes", "", b"")


def test_a_primary_that_connects_while_its_topics_are_taken_over_is_refused(node, monkeypatch):
    node.has_copy("t")
    node.start()
    taking_over = gevent.Greenlet(node.standby.adopt, PRIMARY)

    def in_thread_and_meanwhile(work, *arguments, **options):
        taking_over.start()
        return in_thread(work, *arguments, **options)

    monkeypatch.setattr(module, "in_thread", in_thread_and_meanwhile)
    with pytest.raises(FatalClientError, match="its topics are taken over now"):
        hello(node, PRIMARY)
    assert taking_over.get() == ["t"]
    assert node.standby.mirrors[PRIMARY].session is None


def test_a_primary_that_connects_while_nsqlookupds_are_asked_is_not_taken_over(node):
    node.has_copy("t")
    node.start()
    node.standby._is_listed = lambda host, port: not hello(node, PRIMARY)
    assert not node.standby._is_lost(node.standby.mirrors[PRIMARY], after=0.0)


def test_a_take_over_is_interrupted_before_nsqd_closes_its_topics(node):
    node.has_copy("t")
    node.start()
    node.broker.topic("t").channel("c")
    saving = Event()

    def save(topic):
        saving.set()
        Event().wait()

    node.standby._save = save
    taking_over = gevent.spawn(node.standby.adopt, PRIMARY)
    assert saving.wait(30)
    node.standby.stop()
    assert taking_over.ready()
    with pytest.raises(ValueError, match="nsqd stops"):
        node.standby.adopt(PRIMARY)
    node.start()
    assert node.standby.adopt(PRIMARY) == ["t"]
    assert node.depth("t") >= 2, "they may come twice, as after a crash"


@pytest.mark.parametrize("verb", ["complete", "forgotten", "remove", "files", f"sums {LOG}", "ends"])
def test_what_takes_long_runs_in_a_thread(node, monkeypatch, verb):
    node.start()
    primary = hello(node, PRIMARY)
    node.standby.execute(primary, "changes", "", body_of(TOPIC, Change(WRITE, LOG, 0, b"x")))
    threads = []

    class NotedFiles(OsFiles):
        """Notes the threads in which it is used."""

        def __getattribute__(self, name):
            if name != "close":
                threads.append(threading.get_ident())
            return super().__getattribute__(name)

    mirrored = node.standby.mirrors[PRIMARY]
    mirrored.state.is_complete = verb == "files"
    mirrored.files = mirrored.copy._files = NotedFiles()
    if verb == "remove":
        node.standby.execute(primary, "changes", "", body_of(Change(REMOVE_FOLDER, TOPIC.path)))
        assert os.listdir(node.copy / "nsq_compat") == []
    else:
        answer = node.standby.execute(primary, *f"{verb} ".split(" ")[:2], b"")
        assert answer == b"OK" or json.loads(answer) is not None
    assert threads
    assert threading.get_ident() not in threads


# --- Publish ids ------------------------------------------------------------------------------------------------------

WINDOW: dict[str, object] = {"dedup_window": "1h"}


def knows(node: Node, topic: str, *identities: str) -> bool:
    """Whether none of these is published."""
    real = node.broker.topics[topic]
    before = real.message_count
    real.publish_with_headers([encode([("nsq-id", each)]) + b"x" for each in identities], time.time(), time.time_ns())
    return real.message_count == before


def start_with_window(node: Node) -> None:
    node.start()
    node.daemon.enforcer._now_ns = time.time_ns
    node.daemon.follows(WINDOW)
    for topic in node.broker.topics.values():
        topic.recall_ids(time.time_ns())


def test_the_ids_of_a_merged_copy_are_known_once_although_the_checkpoint_after_it_fails(node):
    node.has_copy("a", identities=["1", "2"])
    start_with_window(node)
    node.broker.topic("a").channel("c")
    node.failures = [OSError(28, "No space left on device")]
    with pytest.raises(OSError, match="No space left"):
        node.standby.adopt(PRIMARY)
    assert knows(node, "a", "1", "2")
    assert node.standby.adopt(PRIMARY) == ["a"]
    assert node.depth("a") == 4
    start_with_window(node)
    assert knows(node, "a", "1", "2")
    assert not knows(node, "a", "3")


def test_a_standby_without_a_window_takes_over_messages_with_ids(node):
    node.has_copy("a", "b", identities=["1"])
    node.start()
    node.broker.topic("a").channel("c")
    node.standby.adopt(PRIMARY)
    assert node.depth("a") == node.depth("b") == 3
    assert not knows(node, "a", "1")


def test_a_topic_that_is_created_while_the_ids_of_its_copy_are_read_is_merged(node, monkeypatch):
    node.has_copy("a", identities=["1"])
    start_with_window(node)
    in_thread = vars(module)["in_thread"]

    def in_thread_and_meanwhile(work, *arguments, **options):
        found = in_thread(work, *arguments, **options)
        if getattr(work, "__name__", "") == "recall":
            node.broker.topic("a").channel("c")
        return found

    monkeypatch.setattr(module, "in_thread", in_thread_and_meanwhile)
    node.standby.adopt(PRIMARY)
    assert node.depth("a") == 3
    assert knows(node, "a", "1")
    assert not os.path.exists(topic_folder(str(node.copy), "a"))
