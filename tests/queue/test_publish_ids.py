"""A topic with a dedup_window publishes messages of one id only once, also over restarts."""

import errno
import itertools
import os

import pytest

from nsq_compat.log.storage import Durability
from nsq_compat.protocol import message
from nsq_compat.protocol.headers import HeaderError, encode, with_no_headers
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.publish_batch import LargeBatch
from nsq_compat.queue.publish_ids import PublishIds, digest_of
from nsq_compat.queue.values import Refused

WINDOW = 60
POLICY = {"topic": "orders", "dedup_window": f"{WINDOW}s"}
ENDS = pytest.mark.parametrize("end", ["kill", "stop"])


@pytest.fixture
def daemon(data_path):
    return started(data_path)


def started(data_path, *policies, **options):
    """A daemon that has read the ids from the log, with a channel."""
    daemon = data_path.start(**options)
    daemon.follows(*(policies or (POLICY,)))
    for topic in daemon.broker.topics.values():
        topic.recall_ids(daemon.now_ns)
    daemon.channel()
    return daemon


def again(data_path, daemon, end="kill", *policies):
    getattr(data_path, end)(daemon)
    return started(data_path, *policies)


def payload(identity, body=b"body"):
    return encode([("nsq-id", identity)]) + body


def publish(daemon, *identities, topic="orders", body=b"body", defer=0.0):
    """Publish messages with these ids together; None is none. The bodies are the ids, or `body`."""
    payloads = [with_no_headers(body) if each is None else payload(each, each.encode() or body) for each in identities]
    daemon.topic(topic).publish_with_headers(payloads, daemon.now, daemon.now_ns, defer)


def stats(daemon, topic="orders"):
    (found,) = snapshot(daemon.broker, daemon.now, topic)
    return found


def everything(daemon, consumer):
    """What its channel has; a long read goes on at the next alarm."""
    found = consumer.takes_all()
    while daemon.channel().depth:
        daemon.waits(0)
        found += consumer.takes_all()
    return found


# --- The rule ---------------------------------------------------------------------------------------------------------


def test_a_repeated_id_is_published_once(daemon):
    consumer = daemon.consumer()
    publish(daemon, "a")
    publish(daemon, "a")
    publish(daemon, "b")
    publish(daemon, "a")
    assert consumer.takes_all() == [b"a", b"b"]
    assert daemon.topic().message_count == 2
    assert stats(daemon).duplicate_count == 2


def test_also_within_a_batch_and_partly(daemon):
    consumer = daemon.consumer()
    publish(daemon, "a", "b", "a", None)
    publish(daemon, "c", "b", "d", "c", None)
    assert consumer.takes_all() == [b"a", b"b", b"body", b"c", b"d", b"body"]
    assert stats(daemon).duplicate_count == 3


def test_a_message_without_an_id_is_published_each_time(daemon):
    consumer = daemon.consumer()
    for _ in range(2):
        publish(daemon, None)
        daemon.publishes(b"plain")
        daemon.topic().publish_with_headers([encode([("key", "nsq-id")]) + b"h"], daemon.now, daemon.now_ns)
    assert consumer.takes_all() == [b"body", b"plain", b"h"] * 2
    assert stats(daemon).duplicate_count == 0


def test_without_a_window_an_id_is_only_a_header(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    publish(daemon, "a")
    publish(daemon, "a")
    assert consumer.takes_all() == [b"a", b"a"]
    assert message.headers(consumer.frames[b"a"]) == {"nsq-id": "a"}
    assert stats(daemon).retained_bytes == 0


def test_the_log_says_once_that_ids_have_no_effect_without_a_window(data_path, caplog):
    daemon = data_path.start()
    daemon.publishes(b"plain")
    publish(daemon, None)
    publish(daemon, "a", topic="clicks")
    assert [record.args[0] for record in caplog.records] == ["clicks"]
    publish(daemon, "b", topic="clicks")
    for _ in range(2):
        caplog.clear()
        daemon.follows(POLICY)
        publish(daemon, "c")
        assert not caplog.records
        daemon.follows()
        publish(daemon, "d")
        publish(daemon, "e")
        (record,) = caplog.records
        assert "TOPIC(orders): messages have the header nsq-id, but no policy sets dedup_window" in record.getMessage()


def test_a_large_batch_says_so_too(data_path, caplog):
    daemon = data_path.start()
    batch = LargeBatch(daemon.topic(), [payload("a"), payload("b")], daemon.now, daemon.now_ns, with_headers=True)
    while not batch.step():
        pass
    assert len(caplog.records) == 1


def test_topics_know_only_their_own_ids(data_path):
    daemon = started(data_path, {"dedup_window": "60s"})
    publish(daemon, "a")
    publish(daemon, "a", topic="clicks")
    assert daemon.topic("clicks").message_count == 1


def test_an_id_is_published_again_after_the_window(daemon):
    consumer = daemon.consumer()
    publish(daemon, "a")
    daemon.waits(WINDOW - 1)
    publish(daemon, "a")
    assert consumer.takes_all() == [b"a"]
    daemon.waits(2)
    publish(daemon, "a")
    assert consumer.takes_all() == [b"a"]


def test_deferred_messages_follow_the_same_rule(daemon):
    publish(daemon, "a", defer=10)
    publish(daemon, "a", defer=10)
    publish(daemon, "a")
    assert (daemon.channel().deferred_count, daemon.channel().depth) == (1, 0)


def test_so_do_messages_that_have_expired(daemon):
    expired = encode([("nsq-id", "a"), ("nsq-expires", "1000000000")]) + b"gone"
    consumer = daemon.consumer()
    for _ in range(2):
        daemon.topic().publish_with_headers([expired], daemon.now, daemon.now_ns)
    assert consumer.takes_all() == []
    assert daemon.channel().expired_count == 1


def test_an_ephemeral_topic_knows_ids_in_memory(start):
    daemon = start()
    daemon.enforcer._now_ns = lambda: daemon.now_ns
    daemon.follows({"dedup_window": "60s"})
    consumer = daemon.consumer(topic="live#ephemeral")
    publish(daemon, "a", topic="live#ephemeral")
    publish(daemon, "a", topic="live#ephemeral")
    assert consumer.takes_all() == [b"a"]


@pytest.mark.parametrize("identity", ["", "x" * 129])
def test_an_id_has_1_to_128_bytes(daemon, identity):
    with pytest.raises(HeaderError, match=f"the value of header nsq-id must have 1 to 128 bytes, not {len(identity)}"):
        encode([("nsq-id", identity)])


def test_a_repetition_is_ok_where_the_topic_is_full(data_path):
    daemon = started(data_path, {**POLICY, "max_depth": 1})
    publish(daemon, "a")
    publish(daemon, "a")
    with pytest.raises(Exception, match="full"):
        publish(daemon, "b")
    assert stats(daemon).rejected_count + daemon.channel().rejected_count == 1


def test_what_is_published_again_on_purpose_gets_another_header(daemon):
    publish(daemon, "a")
    consumer = daemon.consumer()
    assert consumer.takes_all() == [b"a"]
    daemon.topic().republish(list(consumer.frames.values()), daemon.now, daemon.now_ns)
    assert consumer.takes_all() == [b"a"]
    assert message.headers(consumer.frames[b"a"]) == {"nsq-origin-id": "a"}


# --- Failures ---------------------------------------------------------------------------------------------------------


def test_a_publish_that_failed_may_be_repeated(daemon, disk):
    consumer = daemon.consumer()
    publish(daemon, "before")
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        publish(daemon, "a")
    disk.full = False
    publish(daemon, "a")
    publish(daemon, "a")
    assert consumer.takes_all() == [b"before", b"a"]


@pytest.fixture
def slow(data_path):
    return started(data_path, durability=Durability.FSYNC)


def test_a_repetition_waits_for_the_sync_too(slow):
    waits = 0

    def commit(log, done):
        nonlocal waits
        waits += 1
        done(None)

    publish(slow, "a")
    slow.topic().store._storage.commit = commit
    publish(slow, "a")
    assert waits == 1
    assert slow.topic().message_count == 1


def test_after_a_failed_sync_the_message_may_be_published_again(slow):
    consumer = slow.consumer()
    storage = slow.topic().store._storage
    working = storage.commit
    storage.commit = lambda log, done: done(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        publish(slow, "a")
    storage.commit = working
    publish(slow, "a")
    publish(slow, "a")
    assert consumer.takes_all() == [b"a", b"a"]


def test_a_repetition_fails_if_the_sync_of_its_message_fails_meanwhile(slow):
    publish(slow, "a")
    ids, storage = slow.topic().publish_ids, slow.topic().store._storage

    def commit(log, done):
        ids.commit_failed([digest_of(b"a")])  # as the greenlet of the first publish does
        done(None)

    storage.commit = commit
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        publish(slow, "a")


# --- Restarts ---------------------------------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize("durability", list(Durability))
def test_ids_survive_the_end_of_the_process(data_path, end, durability):
    daemon = started(data_path, durability=durability)
    publish(daemon, "a", "b")
    publish(daemon, "later", defer=600)
    getattr(data_path, end)(daemon)
    daemon = started(data_path, durability=durability)
    publish(daemon, "b", "later", "c")
    assert (daemon.channel().depth, daemon.channel().deferred_count) == (3, 1)
    assert daemon.topic().message_count == 1


def test_also_those_of_finished_messages_in_files_that_would_be_deleted(data_path):
    data_path.segment_size = 1000
    daemon = started(data_path)
    consumer = daemon.consumer()
    for number in range(100):
        publish(daemon, str(number), None, body=bytes(100))
        consumer.finishes(*consumer.takes())
        daemon.waits(0.1)
    data_path.checkpoint(daemon)
    assert len(daemon.topic().store.log.segments) > 5
    daemon = again(data_path, daemon)
    publish(daemon, *map(str, range(100)))
    assert daemon.topic().message_count == 0
    daemon.waits(WINDOW + 2)
    data_path.checkpoint(daemon)
    publish(daemon, "0")
    data_path.checkpoint(daemon)
    assert len(daemon.topic().store.log.segments) < 5
    assert daemon.topic().message_count == 1


@pytest.mark.parametrize(
    "retention", [{"retain_bytes": 1}, {"retain_for": "1s"}, {"retain_for": "1s", "retain_bytes": 1}]
)
def test_retention_does_not_end_before_the_window(data_path, retention):
    data_path.segment_size = 1000
    policy = {**POLICY, **retention}
    daemon = started(data_path, policy)
    consumer = daemon.consumer()
    for number in range(50):
        publish(daemon, str(number))
        consumer.finishes(*consumer.takes())
        daemon.waits(1)
    data_path.checkpoint(daemon)
    daemon = again(data_path, daemon, "kill", policy)
    publish(daemon, *map(str, range(50)))
    assert daemon.topic().message_count == 0


def test_ids_older_than_the_window_are_not_read(data_path):
    daemon = started(data_path)
    publish(daemon, "old")
    daemon.waits(WINDOW)
    publish(daemon, "new")
    daemon = again(data_path, daemon)
    assert len(daemon.topic().publish_ids) == 1
    publish(daemon, "old", "new")
    assert daemon.topic().message_count == 1


def test_a_topic_without_headers_is_not_read(data_path, disk):
    daemon = started(data_path)
    daemon.publishes(b"plain")
    data_path.kill(daemon)
    daemon = data_path.start()
    daemon.follows(POLICY)
    disk.unreadable = True
    assert daemon.topic().recall_ids(daemon.now_ns) == 0


def test_damage_in_the_log_hides_no_other_id(data_path):
    daemon = started(data_path)
    for identity in "abc":
        publish(daemon, identity * 50)
    data_path.kill(daemon)
    path = daemon.topic().store.log.segments[0].path
    with open(path, "r+b") as file:
        content = file.read()
        file.seek(content.index(b"b" * 50))
        file.write(b"X")
    daemon = started(data_path)
    publish(daemon, "a" * 50, "c" * 50)
    assert daemon.topic().message_count == 0


# --- Policies ---------------------------------------------------------------------------------------------------------


def test_a_policy_that_is_changed_counts_from_then_on(data_path):
    daemon = data_path.start()
    daemon.channel()
    publish(daemon, "before")
    daemon.follows(POLICY)
    publish(daemon, "before", "a")
    assert daemon.topic().message_count == 3
    daemon.waits(WINDOW - 10)
    daemon.follows({**POLICY, "dedup_window": "10s"})
    publish(daemon, "a")
    assert daemon.topic().message_count == 4
    daemon.follows()
    publish(daemon, "a")
    assert daemon.topic().message_count == 5
    assert daemon.topic().publish_ids is None


# --- Memory -----------------------------------------------------------------------------------------------------------


def frame(identity):
    return message.make_frame_of_payload(b"0" * 16, 0, payload(identity))


def ids_of_at_most(count):
    return PublishIds("orders", WINDOW, lambda: 0, max_ids=count)


def knows(ids, identity, now_ns):
    return not ids.fresh([frame(identity)], now_ns)[0]


def note(ids, identity, now_ns):
    left, digests = ids.fresh([frame(identity)], now_ns)
    ids.note(digests, now_ns)
    return bool(left)


def test_beyond_the_limit_the_oldest_are_forgotten_and_counted(caplog):
    ids, now_ns = ids_of_at_most(100), 10**18
    for number in range(150):
        assert note(ids, str(number), now_ns + number)
    assert len(ids) == 100
    assert ids.forgotten_count == 50
    assert [knows(ids, str(number), now_ns + 150) for number in (0, 49, 50, 149)] == [False, False, True, True]
    assert caplog.text.count("more than 100 publish ids within dedup_window") == 1


def test_old_ids_leave_the_memory_when_nothing_is_published(daemon):
    for number in range(200):
        publish(daemon, str(number))
        daemon.waits(0.5)
    ids = daemon.topic().publish_ids
    assert 100 < len(ids) < 130
    for _ in range(80):
        daemon.waits(1)
    assert len(ids) == 0
    assert not any(ids._numbers)
    assert not ids._times
    assert ids.forgotten_count == 0


def test_chosen_ids_do_not_fill_a_single_shard():
    ids = ids_of_at_most(10_000)
    alike = [digest for number in range(10_000) if (digest := digest_of(b"%d" % number))[0] % 64 == 7]
    assert len(alike) > 100
    ids.note(alike, 0)
    assert max(map(len, ids._numbers)) < len(alike) / 4


def test_ids_are_forgotten_a_few_thousand_at_a_time(daemon):
    ids = daemon.topic().publish_ids
    for begin in range(0, 20_000, 1000):
        ids.note([digest_of(b"%d" % number) for number in range(begin, begin + 1000)], daemon.now_ns)
    left, now = [len(ids)], daemon.now + WINDOW + 2
    daemon.now = now
    while len(ids):
        ids.on_alarm(now)
        left.append(len(ids))
    assert max(before - after for before, after in itertools.pairwise(left)) <= 4096


# --- Publishes in steps -----------------------------------------------------------------------------------------------

COUNT = 5000
MANY = [str(number) for number in range(COUNT)]


def begins(daemon, identities=MANY):
    payloads = [payload(each, each.encode()) for each in identities]
    return LargeBatch(daemon.topic(), payloads, daemon.now, daemon.now_ns, with_headers=True)


def steps(batch):
    count = 1
    while not batch.step():
        count += 1
    return count


LEVELS = pytest.mark.parametrize("durability", list(Durability))


@LEVELS
def test_known_ids_are_left_out_of_a_batch_in_steps(data_path, durability):
    daemon = started(data_path, durability=durability)
    consumer = daemon.consumer()
    publish(daemon, "7", "4999")
    batch = begins(daemon, [*MANY, "3", "4"])
    steps(batch)
    expected = [b"7", b"4999", *(each.encode() for each in MANY if each not in ("7", "4999"))]
    assert everything(daemon, consumer) == expected
    assert daemon.topic().message_count == COUNT
    assert stats(daemon).duplicate_count == 4
    assert daemon.topic().message_bytes == sum(len(message.payload(each)) for each in consumer.frames.values())
    steps(begins(daemon))
    publish(daemon, "0", "2500")
    assert daemon.topic().message_count == COUNT
    daemon = again(data_path, daemon)
    steps(begins(daemon))
    assert daemon.topic().message_count == 0


def test_a_batch_begins_again_if_one_of_its_ids_is_published_meanwhile(daemon):
    consumer = daemon.consumer()
    batch = begins(daemon)
    for _ in range(3):
        batch.step()
    publish(daemon, "11", "4000")
    steps(batch)
    expected = [b"11", b"4000", *(each.encode() for each in MANY if each not in ("11", "4000"))]
    assert everything(daemon, consumer) == expected
    assert stats(daemon).duplicate_count == 2


def test_two_batches_with_the_same_ids_are_published_once(daemon):
    first, second = begins(daemon), begins(daemon)
    while not first.step():
        assert not second.step()
    steps(second)
    assert daemon.topic().message_count == COUNT
    assert stats(daemon).duplicate_count == COUNT


def test_the_ids_of_a_batch_that_was_not_published_are_unknown(daemon):
    batch = begins(daemon)
    for _ in range(4):
        batch.step()
    batch.cancel()
    publish(daemon, "1", "2")
    steps(begins(daemon))
    assert daemon.topic().message_count == COUNT
    assert len(daemon.topic().publish_ids) >= COUNT
    for _ in range(80):
        daemon.waits(1)
    assert len(daemon.topic().publish_ids) == 0


def test_the_ids_of_batches_that_fail_leave_the_memory_although_nothing_was_ever_published(daemon):
    for number in range(3):
        invalid = [payload(f"{number} {each}") for each in MANY] + [b"\0"]
        batch = LargeBatch(daemon.topic(), invalid, daemon.now, daemon.now_ns, with_headers=True)
        with pytest.raises(HeaderError):
            steps(batch)
        for _ in range(3):
            daemon.waits(0.002)
        assert len(daemon.topic().publish_ids) == 0


def test_ids_published_meanwhile_neither_move_message_ids_ahead_nor_hold_a_batch_up_for_ever(daemon):
    batch, behind = begins(daemon), begins(daemon, [f"behind {each}" for each in MANY])

    def overtake():
        for each in MANY:
            batch.step()
            publish(daemon, each)

    with pytest.raises(Refused, match="its publish ids are being published by others"):
        overtake()
    assert daemon.topic().message_count < 100 + len(MANY), "the other batch did not wait for it"
    assert behind.step()
    publish(daemon, "later")
    latest = message.publish_tick(daemon.topic().frames.ids.last)
    assert latest < message.tick_of(daemon.now_ns + 2 * 60 * 10**9)


def test_a_window_that_is_set_or_ended_in_the_middle_of_a_batch(data_path):
    daemon = data_path.start()
    daemon.channel()
    batch = begins(daemon)
    batch.step()
    daemon.follows(POLICY)
    steps(batch)
    steps(begins(daemon))
    assert daemon.topic().message_count == COUNT
    daemon.waits(WINDOW + 2)
    batch = begins(daemon)
    batch.step()
    daemon.follows()
    steps(batch)
    assert daemon.topic().message_count == 2 * COUNT


def test_a_batch_that_is_known_as_a_whole_is_ok_where_the_topic_is_full(data_path):
    daemon = started(data_path, {**POLICY, "max_depth": COUNT})
    steps(begins(daemon))
    steps(begins(daemon))
    assert daemon.topic().message_count == COUNT
    with pytest.raises(Exception, match="full"):
        steps(begins(daemon, ["new", *MANY]))
