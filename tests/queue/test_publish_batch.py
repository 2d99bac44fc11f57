"""What producers post in one turn is published together, and each hears of its own."""

import errno
from collections.abc import Callable

import pytest

from nsq_compat.protocol.schema import UniformBodies
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_batch import MAX_POSTED, PublishBatch
from nsq_compat.queue.values import Exiting, QueueLimits, Refused
from tests.broker import SlowDisk

NOW, NOW_NS = 1000.0, 1_700_000_000_000_000_000


class Poster:
    """A producer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Exception | None] = []

    def published(self, error) -> None:
        self.told.append(error)


class TurnEnd:
    """The end of the turn, when a test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def comes(self) -> None:
        while self.callbacks:
            self.callbacks.pop()()


class NoteHowMuch:
    """An admission that lets in so many at once."""

    def __init__(self, most: int) -> None:
        self.asked: list[int] = []
        self._most = most

    def __call__(self, count: int, now: float) -> None:
        self.asked.append(count)
        if sum(self.asked) > self._most:
            raise Refused("enough")


@pytest.fixture
def turn_end() -> TurnEnd:
    return TurnEnd()


@pytest.fixture
def publish_batch(turn_end) -> PublishBatch:
    return PublishBatch(turn_end.callbacks.append)


@pytest.fixture
def topic():
    topic = Broker(QueueLimits()).topic("t")
    topic.channel("c")
    return topic


@pytest.fixture
def batches(topic, monkeypatch):
    """The bodies of each ``add`` of the topic."""
    seen, add = [], topic.add

    def noting(bodies, now, now_ns):
        seen.append(list(bodies))
        add(bodies, now, now_ns)

    monkeypatch.setattr(topic, "add", noting)
    return seen


@pytest.mark.interpreted
def test_posts_of_one_iteration_are_published_once_and_in_order(publish_batch, turn_end, topic, batches):
    one, two, three = (Poster() for _ in range(3))
    assert publish_batch.post(topic, [b"a"], one, NOW, NOW_NS)
    assert publish_batch.post(topic, [b"b", b"c"], two, NOW, NOW_NS)
    assert publish_batch.post(topic, (b"d",), three, NOW, NOW_NS)
    assert (batches, one.told) == ([], [])
    turn_end.comes()
    assert batches == [[b"a", b"b", b"c", b"d"]]
    assert one.told == two.told == three.told == [None]
    assert topic.message_count == 4


def test_the_callback_is_registered_once_per_iteration(publish_batch, turn_end, topic):
    for _ in range(3):
        publish_batch.post(topic, [b"a"], Poster(), NOW, NOW_NS)
        publish_batch.post(topic, [b"b"], Poster(), NOW, NOW_NS)
        assert len(turn_end.callbacks) == 1
        turn_end.comes()


def test_a_lone_producer_publishes_by_itself(publish_batch, turn_end, topic):
    alone, other = Poster(), Poster()
    assert publish_batch.post(topic, [b"a"], alone, NOW, NOW_NS)
    turn_end.comes()
    assert not publish_batch.post(topic, [b"b"], alone, NOW, NOW_NS)
    assert not publish_batch.post(topic, [b"b"], alone, NOW, NOW_NS)
    assert turn_end.callbacks == []
    assert publish_batch.post(topic, [b"c"], other, NOW, NOW_NS)
    assert publish_batch.post(topic, [b"d"], alone, NOW, NOW_NS)


def test_each_topic_gets_its_own_messages(publish_batch, turn_end, topic):
    second = Broker(QueueLimits()).topic("second")
    for body, where in ((b"a", topic), (b"b", second), (b"c", topic)):
        publish_batch.post(where, [body], Poster(), NOW, NOW_NS)
    turn_end.comes()
    assert (topic.message_count, second.message_count) == (2, 1)


@pytest.mark.interpreted
def test_settling_publishes_before_the_end_of_the_iteration(publish_batch, turn_end, topic, batches):
    one, two = Poster(), Poster()
    publish_batch.post(topic, [b"a"], one, NOW, NOW_NS)
    publish_batch.post(topic, [b"b"], two, NOW, NOW_NS)
    publish_batch.publish_posted()
    assert batches == [[b"a", b"b"]]
    turn_end.comes()
    assert batches == [[b"a", b"b"]]
    assert one.told == [None]


@pytest.mark.interpreted
def test_full_batches_are_published_at_once(publish_batch, turn_end, topic, batches):
    posters = [Poster() for _ in range(MAX_POSTED + 1)]
    for poster in posters:
        publish_batch.post(topic, [b"x"], poster, NOW, NOW_NS)
    assert list(map(len, batches)) == [MAX_POSTED]
    assert posters[0].told == [None]
    assert posters[-1].told == []
    turn_end.comes()
    assert list(map(len, batches)) == [MAX_POSTED, 1]


def test_a_producer_with_many_messages_publishes_by_itself(publish_batch, turn_end, topic):
    assert not publish_batch.post(topic, [b"x"] * MAX_POSTED, Poster(), NOW, NOW_NS)
    assert turn_end.callbacks == []
    assert publish_batch.post(topic, [b"x"] * (MAX_POSTED - 1), Poster(), NOW, NOW_NS)


@pytest.mark.interpreted
def test_posts_that_the_disk_refuses_together_are_tried_one_by_one(
    publish_batch, turn_end, topic, batches, monkeypatch
):
    full = OSError(errno.ENOSPC, "No space left on device")
    add = topic.add

    def short_of_room(bodies, now, now_ns):
        if bodies != [b"small"]:
            raise full
        add(bodies, now, now_ns)

    monkeypatch.setattr(topic, "add", short_of_room)
    small, big = Poster(), Poster()
    publish_batch.post(topic, [b"small"], small, NOW, NOW_NS)
    publish_batch.post(topic, [b"b" * 100], big, NOW, NOW_NS)
    turn_end.comes()
    assert small.told == [None]
    assert big.told == [full]
    assert topic.message_count == 1


@pytest.mark.interpreted
def test_an_unexpected_exception_is_logged_and_answered_to_its_producer(
    publish_batch, turn_end, topic, monkeypatch, caplog
):
    add = topic.add

    def mistaken(bodies, now, now_ns):
        if b"odd" in bodies:
            raise ZeroDivisionError
        add(bodies, now, now_ns)

    monkeypatch.setattr(topic, "add", mistaken)
    usual, odd = Poster(), Poster()
    publish_batch.post(topic, [b"odd"], odd, NOW, NOW_NS)
    publish_batch.post(topic, [b"usual"], usual, NOW, NOW_NS)
    turn_end.comes()
    assert usual.told == [None]
    assert str(odd.told[0]) == "internal error"
    assert "publishing failed" in caplog.text


def test_producers_are_notified_when_their_messages_are_durable(publish_batch, turn_end, tmp_path):
    slow_disk = SlowDisk(tmp_path)
    topic = Broker(QueueLimits(), slow_disk.storage).topic("t")
    one, two = Poster(), Poster()
    publish_batch.post(topic, [b"a"], one, NOW, NOW_NS)
    publish_batch.post(topic, [b"b"], two, NOW, NOW_NS)
    turn_end.comes()
    assert (topic.message_count, one.told, two.told) == (2, [], [])
    slow_disk.syncs()
    assert one.told == two.told == [None]
    publish_batch.post(topic, [b"c"], one, NOW, NOW_NS)
    turn_end.comes()
    slow_disk.syncs(failed := OSError(errno.EIO, "the disk is broken"))
    assert one.told == [None, failed]


def test_the_admission_check_is_made_for_each_post(publish_batch, turn_end, topic):
    topic.admission = NoteHowMuch(most=3)
    posters = [Poster() for _ in range(3)]
    for poster, bodies in zip(posters, ([b"a"], [b"b", b"c"], [b"d"]), strict=True):
        publish_batch.post(topic, bodies, poster, NOW, NOW_NS)
    turn_end.comes()
    assert topic.admission.asked == [1, 2, 1]
    assert [poster.told[0] for poster in posters[:2]] == [None, None]
    assert isinstance(posters[2].told[0], Refused)
    assert topic.message_count == 3


def test_a_post_to_a_topic_that_ends_within_the_iteration_is_refused(publish_batch, turn_end, topic):
    one, two = Poster(), Poster()
    publish_batch.post(topic, [b"a"], one, NOW, NOW_NS)
    publish_batch.post(topic, [b"b"], two, NOW, NOW_NS)
    topic.delete()
    turn_end.comes()
    assert isinstance(one.told[0], Exiting)
    assert isinstance(two.told[0], Exiting)


@pytest.mark.parametrize(
    ("second", "kind"),
    [(UniformBodies((b"c", b"d")), UniformBodies), (UniformBodies((b"cc", b"dd")), list), ([b"c"], list)],
    ids=["alike", "of another size", "not known to be"],
)
@pytest.mark.interpreted
def test_uniform_bodies_stay_uniform_together(publish_batch, topic, turn_end, monkeypatch, second, kind):
    seen = []
    monkeypatch.setattr(topic, "add", lambda bodies, now, now_ns: seen.append(bodies))
    publish_batch.post(topic, UniformBodies((b"a", b"b")), Poster(), NOW, NOW_NS)
    publish_batch.post(topic, second, Poster(), NOW, NOW_NS)
    turn_end.comes()
    assert seen == [kind((b"a", b"b", *second))]
    assert type(seen[0]) is kind
