"""/topic/offsets, /topic/read, /channel/rewind and /channel/create with `from`."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import gevent
import pytest

from nsq_compat.log.data_path import make_our_folder, our_folder
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.offsets import Frames, OffsetReader, Retention
from nsq_compat.log.segment import split_location
from nsq_compat.log.storage import Done, Durability, Storage, sync_at_once
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.policy.enforcer import CreationRefused
from nsq_compat.protocol.message import body, message_id
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import QueueLimits
from nsq_compat.web import topic_log
from tests.faults.disk import SimulatedDisk
from tests.web.conftest import SECOND, Caller, Daemon, code, refused


@pytest.fixture
def daemon(daemon, tmp_path):
    """A daemon with a data path."""
    make_our_folder(OsFiles(), str(tmp_path))
    storage = Storage(OsFiles(), str(tmp_path), durability=Durability.OS, segment_size=2000)
    daemon.broker = Broker(QueueLimits(), storage)
    yield daemon
    for topic in daemon.broker.topics.values():
        if topic.store is not None:
            topic.store.log.close()


@pytest.fixture
def topic(daemon) -> Topic:
    """A topic with ten messages, one a second, and deferred ones at the offsets 3 and 4."""
    daemon.wall_ns = 1_700_000_000 * SECOND
    topic: Topic = daemon.broker.topic("t")
    topic.channel("c")
    for number in range(10):
        if number == 3:
            topic.publish([b"3", b"4"], 50.0, daemon.wall_ns, defer=0.001)
        elif number != 4:
            topic.publish([b"%d" % number], 50.0, daemon.wall_ns)
        daemon.wall_ns += SECOND
    return topic


def answer(call: Caller, method: str, url: str) -> Any:
    response = call(method, url)
    assert response.status == 200, response
    return json.loads(response.body)


def bodies(call: Caller, query: str) -> list[bytes]:
    response = call("GET", f"/topic/read?topic=t&{query}")
    assert response.status == 200, response
    data = b"".join((response.body, *response.rest))
    found: list[bytes] = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(body(data[:size]))
        data = data[size:]
    return found


def test_the_offsets_of_a_topic(call, daemon, topic):
    found = answer(call, "GET", "/topic/offsets?topic=t")
    last = daemon.wall_ns - SECOND
    assert found.pop("bytes") > 500
    times = {"first_timestamp": last - 9 * SECOND, "last_timestamp": last}
    assert found == {"first": 0, "next": 10, **times, "retained": False}
    topic.retain(Retention(seconds=60, size=None))
    assert answer(call, "GET", "/topic/offsets?topic=t")["retained"]


def test_the_offsets_of_several_topics(call, daemon, topic):
    daemon.broker.topic("other").publish([b"x"], 50.0, daemon.wall_ns)
    daemon.broker.topic("t#ephemeral")
    found = answer(call, "GET", "/topic/offsets?topics=t,other,unknown,t%23ephemeral&at=latest")["topics"]
    assert {name: (each["first"], each["next"], each["offset"]) for name, each in found.items()} == {
        "t": (0, 10, 10),
        "other": (0, 1, 1),
    }


def test_the_offset_at_some_time(call, daemon, topic):
    def at(when: str) -> int:
        found: int = answer(call, "GET", f"/topic/offsets?topic=t&at={when}")["offset"]
        return found

    assert [at(when) for when in ("oldest", "latest", "7")] == [0, 10, 7]
    assert [at(when) for when in ("3s", "2500ms", "1h", "1ns")] == [7, 8, 0, 10]
    moment = datetime.fromtimestamp((daemon.wall_ns - 2 * SECOND) // SECOND, UTC)
    assert at(moment.strftime("%Y-%m-%dT%H:%M:%SZ")) == 8
    assert at(moment.strftime("%Y-%m-%dT%H:%M:%S%%2B00:00")) == 8


def test_the_offset_after_the_last_message_before_some_time(call, daemon):
    daemon.wall_ns = 1_700_000_000 * SECOND
    topic = daemon.broker.topic("o")

    def publish(minutes_ago: int) -> None:
        topic.publish([b"x"], 50.0, daemon.wall_ns - minutes_ago * 60 * SECOND)

    def end(until: str) -> int:
        found: int = answer(call, "GET", f"/topic/offsets?topic=o&until={until}")["end"]
        assert answer(call, "GET", f"/topic/offsets?topics=o&until={until}")["topics"]["o"]["end"] == found
        return found

    for minutes_ago in (60, 50, 40, 30):
        publish(minutes_ago)
    # Ids may be two minutes ahead, so messages of these are not left out.
    assert [end(until) for until in ("63m", "61m", "55m", "45m", "40m", "1m")] == [0, 1, 1, 2, 3, 4]
    # The clock was set back for a while. Ids stay ahead of it.
    for minutes_ago in (55, 20, 10):
        publish(minutes_ago)
    assert [end(until) for until in ("63m", "50m", "25m", "15m", "1m")] == [5, 5, 5, 6, 7]
    # Of what an earlier run has published, only the ids are known.
    topic.frames.ids.start_after(topic.frames.ids.last)
    publish(5)
    assert [end(until) for until in ("63m", "8m", "1m")] == [7, 7, 8]


@pytest.mark.parametrize("when", ["yesterday", "", "-1", "-1h", "11", "2026-01-31T15:04:05", "99999999999999999999999"])
def test_what_is_no_place_is_refused(call, topic, when):
    for method, url in (
        ("GET", f"/topic/offsets?topic=t&at={when}"),
        ("POST", f"/channel/rewind?topic=t&channel=c&to={when}"),
        ("POST", f"/channel/create?topic=t&channel=new&from={when}"),
    ):
        response = call(method, url)
        assert response.status == 400
        assert b"INVALID_ARG_" in response.body
    assert "new" not in topic.channels


def test_messages_are_read_as_frames(call, topic):
    assert bodies(call, "from=0") == [b"%d" % number for number in range(10)]
    assert bodies(call, "from=3&to=7") == [b"3", b"4", b"5", b"6"]
    assert bodies(call, "from=4&to=5") == [b"4"]
    assert bodies(call, "from=2&max_bytes=1") == [b"2"]
    assert bodies(call, "from=10") == []
    response = call("GET", "/topic/read?topic=t&from=4&to=8")
    assert dict(response.headers)["X-NSQ-First-Offset"] == "4"
    assert dict(response.headers)["X-NSQ-Next-Offset"] == "8"
    assert "X-NSQ-Gap" not in dict(response.headers)
    assert dict(response.headers)["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ("", (400, "MISSING_ARG_FROM")),
        ("from=x", (400, "INVALID_ARG_FROM: a number up to 10")),
        ("from=11", (400, "INVALID_ARG_FROM: a number up to 10")),
        ("from=1&to=11", (400, "INVALID_ARG_TO: a number up to 10")),
        ("from=1&max_bytes=-1", (400, "INVALID_ARG_MAX_BYTES: a number up to 16777216")),
        ("from=1&wait=1000000", (400, "INVALID_ARG_WAIT: a number up to 60000")),
    ],
)
def test_bad_ranges_are_refused(call, topic, query, refusal):
    assert code(call("GET", f"/topic/read?topic=t&{query}")) == refused(*refusal)


def test_a_read_at_the_end_waits_for_the_next_message(call, daemon, topic):
    daemon.while_waiting = lambda: topic.publish([b"new"], 50.0, daemon.wall_ns)
    assert bodies(call, "from=9&wait=1500") == [b"9"]
    assert daemon.waited == []
    assert bodies(call, "from=10&wait=1500") == [b"new"]
    assert daemon.waited == [1.5]


def test_released_offsets_are_gone(call, daemon, topic):
    while len(topic.store.log.segments) < 4:
        topic.publish([bytes(500)], 50.0, daemon.wall_ns)
    topic.store.log.release(topic.seq, list, sync=topic.store.log.sync)
    first = answer(call, "GET", "/topic/offsets?topic=t")["first"]
    assert first > 0
    gone = refused(410, f"OFFSET_GONE: the first offset is {first}")
    assert code(call("GET", f"/topic/read?topic=t&from={first - 1}")) == gone
    assert code(call("POST", "/channel/rewind?topic=t&channel=c&to=0")) == gone
    assert answer(call, "POST", "/channel/rewind?topic=t&channel=c&to=oldest")["offset"] == first


def test_an_offset_that_is_released_while_a_reader_waits_for_it_is_gone(call, daemon, topic):
    def publish_and_release() -> None:
        while len(topic.store.log.segments) < 4:
            topic.publish([bytes(500)], 50.0, daemon.wall_ns)
        topic.store.log.release(topic.seq, list, sync=topic.store.log.sync)

    daemon.while_waiting = publish_and_release
    gone = code(call("GET", "/topic/read?topic=t&from=10&wait=100"))
    first = answer(call, "GET", "/topic/offsets?topic=t")["first"]
    assert first > 10
    assert gone == refused(410, f"OFFSET_GONE: the first offset is {first}")


def test_damage_is_a_gap_that_the_answer_names(call, daemon, topic):
    log = topic.store.log
    segment = log.segments[-1]
    sixth = message_id(OffsetReader(log, 6).read()[0].frames[0])
    _, place, _ = split_location(log.locate([sixth])[sixth])
    fd = segment._descriptors.use(segment.file)
    segment._files.pwrite(fd, b"\xa5" * 8, place)
    first = call("GET", "/topic/read?topic=t&from=0")
    assert dict(first.headers)["X-NSQ-Next-Offset"] == "6"
    second = call("GET", "/topic/read?topic=t&from=6")
    assert dict(second.headers)["X-NSQ-Gap"] == "6-6"
    assert dict(second.headers)["X-NSQ-First-Offset"] == "7"
    assert dict(second.headers)["X-NSQ-Next-Offset"] == "10"
    assert topic.store.log.damage.records == 1


def test_a_gap_that_ends_behind_the_range_brings_no_later_messages(call, daemon, topic):
    log = topic.store.log
    segment = log.segments[-1]
    for offset in (6, 7):
        lost = message_id(OffsetReader(log, offset).read()[0].frames[0])
        _, place, _ = split_location(log.locate([lost])[lost])
        segment._files.pwrite(segment._descriptors.use(segment.file), b"\xa5" * 8, place)
    response = call("GET", "/topic/read?topic=t&from=6&to=7")
    assert not response.body + b"".join(response.rest)
    assert dict(response.headers)["X-NSQ-Gap"] == "6-6"
    assert dict(response.headers)["X-NSQ-Next-Offset"] == "7"
    assert bodies(call, "from=6&to=9") == [b"8"]


def test_damage_at_the_end_is_a_gap_too(call, daemon, topic):
    log = topic.store.log
    segment = log.segments[-1]
    last = message_id(OffsetReader(log, 9).read()[0].frames[0])
    _, place, _ = split_location(log.locate([last])[last])
    segment._files.ftruncate(segment._descriptors.use(segment.file), place)
    first = call("GET", "/topic/read?topic=t&from=0")
    assert dict(first.headers)["X-NSQ-Next-Offset"] == "9"
    second = call("GET", "/topic/read?topic=t&from=9")
    assert second.body == b""
    assert dict(second.headers)["X-NSQ-Gap"] == "9-9"
    assert dict(second.headers)["X-NSQ-Next-Offset"] == "10"


def test_at_level_memory_what_waits_in_memory_is_written_first(call, daemon, tmp_path):
    storage = Storage(OsFiles(), str(tmp_path), durability=Durability.MEMORY, segment_size=2000)
    daemon.broker = Broker(QueueLimits(mem_queue_size=100), storage)
    topic = daemon.broker.topic("t")
    channel = topic.channel("c")
    for when in ("oldest", "1h", "0"):
        topic.publish([b"1", b"2"], 50.0, daemon.wall_ns)
        waiting = channel.depth
        assert answer(call, "POST", f"/channel/rewind?topic=t&channel=c&to={when}")["offset"] == 0
        assert channel.depth == waiting
    assert bodies(call, "from=4") == [b"1", b"2"]
    daemon.while_waiting = lambda: topic.publish([b"new"], 50.0, daemon.wall_ns)
    assert bodies(call, "from=6&wait=1500") == [b"new"]


def test_answers_that_are_not_taken_are_bounded_together(call, daemon, topic, monkeypatch):
    monkeypatch.setattr(topic_log, "_MAX_UNSENT_BYTES", 5_000_000)
    for _ in range(40):
        topic.publish([bytes(1000)] * 100, 50.0, daemon.wall_ns)
    read = "/topic/read?topic=t&from=10&max_bytes=16777216"
    whole = call("GET", read)
    assert len(whole.body) + sum(map(len, whole.rest)) > 4_000_000
    kept = [whole, call("GET", read), *(call("GET", read) for _ in range(20))]
    assert max(len(each.body) + sum(map(len, each.rest)) for each in kept[2:]) < 300_000
    for each in kept:
        while each.rest:
            each.rest.popleft()  # as it is sent
    again = call("GET", read)
    assert len(again.body) + sum(map(len, again.rest)) > 4_000_000


def test_an_emptied_topic_has_no_times(call, topic):
    topic.empty()
    found = answer(call, "GET", "/topic/offsets?topic=t")
    assert (found["first"], found["first_timestamp"], found["last_timestamp"]) == (10, None, None)


def test_the_offsets_name_a_dedup_window_that_retains(call, topic):
    def settings():
        names = ("retain_for", "retain_bytes", "dedup_window")
        return {name: value for name, value in answer(call, "GET", "/topic/offsets?topic=t").items() if name in names}

    topic.retain(Retention(seconds=0.0, size=None, least_seconds=600.0))
    assert settings() == {"dedup_window": "10m0s"}
    topic.retain(Retention(seconds=60.0, size=None, least_seconds=600.0))
    assert settings() == {"retain_for": "1m0s", "dedup_window": "10m0s"}


def test_the_offsets_name_the_policy_that_retains(call, topic):
    assert "retain_for" not in answer(call, "GET", "/topic/offsets?topic=t")
    topic.retain(Retention(seconds=259_200.0, size=5_000_000))
    settings = {"retain_for": "72h0m0s", "retain_bytes": 5_000_000}
    assert settings.items() <= answer(call, "GET", "/topic/offsets?topic=t").items()


def test_what_was_emptied_is_not_found_by_its_time(call, daemon, topic):
    topic.empty()
    topic.publish([b"new"], 50.0, daemon.wall_ns)
    assert answer(call, "GET", "/topic/offsets?topic=t&at=1h")["offset"] == 10
    topic.empty_channel("c")
    assert answer(call, "POST", "/channel/rewind?topic=t&channel=c&to=1h") == {"offset": 10, "next": 11, "depth": 1}


def test_a_channel_is_rewound(call, topic):
    channel = topic.channels["c"]
    topic.move_channel("c", 10, 0)
    assert channel.depth == 0
    found = answer(call, "POST", "/channel/rewind?topic=t&channel=c&to=6")
    assert found == {"offset": 6, "next": 10, "depth": 4}
    assert channel.depth == 4
    assert answer(call, "POST", "/channel/rewind?topic=t&channel=c&to=3s&drop_pending=true")["offset"] == 7
    assert code(call("POST", "/channel/rewind?topic=t&channel=c&to=1&drop_pending=maybe")) == refused(
        400, "INVALID_ARG_DROP_PENDING"
    )


def test_what_a_rewind_would_bring_is_told_before(call, topic):
    topic.move_channel("c", 8, 0)
    places = {"channel_offset": 8, "channel_depth": 2}
    assert places.items() <= answer(call, "GET", "/topic/offsets?topic=t&channel=c").items()
    for when, depth in (("6", 4), ("oldest", 10), ("9", 1), ("latest", 0)):
        found = answer(call, "GET", f"/topic/offsets?topic=t&channel=c&at={when}")
        assert (places | {"depth": depth}).items() <= found.items()
    assert answer(call, "GET", "/topic/offsets?topic=t&channel=c&at=6&drop_pending=true")["depth"] == 4
    assert topic.channels["c"].depth == 2
    topic.channel("e#ephemeral")
    for name, refusal in (
        ("other", (404, "CHANNEL_NOT_FOUND")),
        ("e%23ephemeral", (400, "INVALID_ARG_CHANNEL: an ephemeral channel cannot be moved")),
        ("c&drop_pending=maybe", (400, "INVALID_ARG_DROP_PENDING")),
    ):
        assert code(call("GET", f"/topic/offsets?topic=t&at=6&channel={name}")) == refused(*refusal)


def test_a_channel_is_created_at_a_place(call, topic):
    found = answer(call, "POST", "/channel/create?topic=t&channel=replay&from=oldest")
    assert found == {"offset": 0, "next": 10, "depth": 10}
    again = call("POST", "/channel/create?topic=t&channel=replay&from=oldest")
    assert code(again) == refused(400, "INVALID_ARG_FROM: the channel exists; /channel/rewind moves it")


def test_channels_that_are_created_at_the_same_time_do_not_exceed_a_limit(call, daemon, topic):
    for _ in range(12_000):  # the search for the place takes several steps
        topic.add([b"later"], 50.0, daemon.wall_ns, 3600.0)
    topic.commit()
    checked: list[str] = []

    def check(name: str, channel: str) -> None:
        checked.append(channel)
        if len(topic.channels) >= 3:
            raise CreationRefused("max_channels", f"channel {name}:{channel}")

    daemon.broker.creation_check = check
    topic.store.log.in_steps = True
    urls = [f"/channel/create?topic=t&channel=new{number // 2}&from=10" for number in range(20)]
    answers = [each.get() for each in [gevent.spawn(call, "POST", url) for url in urls]]
    assert Counter(each.status for each in answers)[200] == 2
    assert len(topic.channels) == 3
    assert len(checked) > 10


def test_messages_are_shown_with_their_offsets(call, topic):
    def offsets(path: str, key: str = "messages") -> list[int]:
        shown = answer(call, "GET", f"/{path}?topic=t&channel=c&limit=20")[key]
        return [each["offset"] for each in shown]

    assert offsets("topic/recent") == list(range(10))
    assert offsets("channel/peek") == [0, 1, 2, 5, 6, 7, 8, 9]
    assert offsets("channel/peek", "deferred") == [3, 4]


def test_what_has_no_log_cannot_be_read_or_moved(call, daemon, topic):
    daemon.broker.topic("e#ephemeral").channel("c")
    topic.channel("c#ephemeral")
    for url in ("/topic/offsets?topic=e%23ephemeral", "/topic/read?topic=e%23ephemeral&from=0"):
        assert code(call("GET", url)) == refused(400, "INVALID_TOPIC: an ephemeral topic has no log")
    for path in ("rewind?channel=c%23ephemeral&to=0", "create?channel=new%23ephemeral&from=0"):
        response = call("POST", f"/channel/{path}&topic=t")
        assert response.status == 400
        assert b"ephemeral channel" in response.body


@pytest.mark.parametrize("url", ["/topic/offsets?", "/topic/read?from=0&", "/channel/rewind?channel=c&to=0&"])
def test_unknown_names_are_refused(call, topic, url):
    method = "POST" if "rewind" in url else "GET"
    assert code(call(method, url + "topic=other")) == refused(404, "TOPIC_NOT_FOUND")
    assert code(call(method, url)) == refused(400, "MISSING_ARG_TOPIC")
    assert code(call("POST", "/channel/rewind?topic=t&channel=other&to=0")) == refused(404, "CHANNEL_NOT_FOUND")


@pytest.mark.interpreted
def test_many_small_groups_are_read_in_small_steps(call, daemon, topic, monkeypatch):
    assert topic.store is not None
    topic.store.log._segment_size = 1 << 20
    for _ in range(5000):
        topic.publish([b"x" * 100], 50.0, daemon.wall_ns)
    lengths: list[int] = []
    read = OffsetReader.read_frames

    def read_frames(reader: OffsetReader, max_bytes: int) -> Frames | None:
        frames = read(reader, max_bytes)
        lengths.append(len(frames.pieces) if frames is not None else 0)
        return frames

    monkeypatch.setattr(OffsetReader, "read_frames", read_frames)
    assert len(bodies(call, "from=0")) == 5010
    assert max(lengths) <= 256 * 2


@pytest.mark.interpreted
def test_a_topic_that_is_deleted_during_a_request_is_not_found(call, daemon, topic, monkeypatch):
    read = OffsetReader.read_frames

    def read_frames(reader: OffsetReader, max_bytes: int) -> Frames | None:
        if "t" in daemon.broker.topics:
            daemon.broker.delete_topic("t")
            raise BlockingIOError
        return read(reader, max_bytes)

    monkeypatch.setattr(OffsetReader, "read_frames", read_frames)
    assert code(call("GET", "/topic/read?topic=t&from=0")) == refused(404, "TOPIC_NOT_FOUND")


# --- What a power cut leaves ------------------------------------------------------------------------------------------


@contextmanager
def synced(daemon: Daemon, files: Files, path: str) -> Iterator[Topic]:
    """A topic at level ``fsync``, on a disk on which only ``/topic/read`` and ``/topic/offsets`` wait for a sync."""
    storage = Storage(files, path, durability=Durability.FSYNC, segment_size=2000)
    daemon.broker = Broker(QueueLimits(), storage)
    for name in storage.names():
        daemon.broker.restore(name, (), 50.0, daemon.wall_ns)
    topic: Topic = daemon.broker.topic("t")
    assert topic.store is not None
    yield topic
    topic.store.log.close()


def publish_unsynced(topic: Topic, *bodies: bytes, defer: float = 0.0) -> None:
    """Publish without waiting for the sync, as producers do that have no OK yet."""
    assert topic.store is not None
    topic.store.commits = False
    topic.publish(bodies, 50.0, 1_700_000_000 * SECOND, defer=defer)
    topic.store.commits = True


def test_what_was_read_at_level_fsync_survives_a_power_cut(call, daemon):
    for seed in range(50):
        random = Random(seed)
        disk = SimulatedDisk()
        disk.mkdir("/data")
        disk.mkdir(our_folder("/data"))
        disk.fsync_folder("/")
        disk.fsync_folder("/data")
        read: list[bytes] = []
        for life in range(4):
            with synced(daemon, disk, "/data") as topic:
                for number in range(random.randrange(8)):
                    publish_unsynced(topic, b"%d-%d" % (life, number), defer=random.choice((0, 9)))
                    if random.random() < 0.3:
                        read = bodies(call, "from=0")
                    if random.random() < 0.3:
                        found = answer(call, "GET", "/topic/offsets?topic=t&at=latest")
                        assert found["next"] == found["offset"]
                        read += bodies(call, f"from={len(read)}&to={found['next']}")
                disk = disk.power_cut(random)
            with synced(daemon, disk, "/data"):
                assert bodies(call, "from=0")[: len(read)] == read, seed


def test_old_messages_are_read_without_a_sync(call, daemon, tmp_path, monkeypatch):
    make_our_folder(OsFiles(), str(tmp_path))
    with synced(daemon, OsFiles(), str(tmp_path)) as topic:
        topic.publish([b"0", b"1"], 50.0, daemon.wall_ns)
        publish_unsynced(topic, b"2")
        store = topic.store
        assert store is not None
        syncs: list[TopicLog] = []

        def commit(log: TopicLog, done: Done) -> None:
            syncs.append(log)
            sync_at_once(log, done)

        monkeypatch.setattr(store._storage, "commit", commit)
        assert bodies(call, "from=0") == [b"0", b"1"]
        assert bodies(call, "from=1&to=2") == [b"1"]
        found = answer(call, "GET", "/topic/offsets?topic=t")
        assert (found["next"], found["last_timestamp"]) == (2, daemon.wall_ns)
        assert not syncs
        assert bodies(call, "from=2") == [b"2"]
        assert len(syncs) == 1


def test_a_sync_that_fails_is_an_error(call, daemon, tmp_path, monkeypatch):
    make_our_folder(OsFiles(), str(tmp_path))
    with synced(daemon, OsFiles(), str(tmp_path)) as topic:
        publish_unsynced(topic, b"0")
        assert topic.store is not None

        def fail(log: TopicLog) -> None:
            raise OSError

        monkeypatch.setattr(topic.store._storage, "commit", fail)
        for url in ("/topic/read?topic=t&from=0", "/topic/offsets?topic=t"):
            assert code(call("GET", url)) == refused(500, "INTERNAL_ERROR")
