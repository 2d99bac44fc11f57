from collections.abc import Sequence
from typing import SupportsIndex

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq_compat.queue.backlog import FrameQueue

PLENTY = 1 << 40


class Watched(list[bytes]):
    """A batch that notes how much of it was copied."""

    copied = 0

    def __getitem__(self, index: SupportsIndex | slice) -> list[bytes]:  # type: ignore[override]
        part = super().__getitem__(index)
        assert isinstance(part, list), "a queue takes batches apart by slices"
        self.copied += len(part)
        return part


@pytest.fixture
def queue() -> FrameQueue:
    return FrameQueue()


def test_frames_come_out_in_the_order_they_went_in_whatever_their_batches(queue):
    queue.extend([b"a", b"b", b"c"])
    queue.extend((b"d",))
    queue.extend([b"e", b"f"])
    assert list(queue.take(2, PLENTY)) == [b"a", b"b"]
    assert list(queue.take(3, PLENTY)) == [b"c", b"d", b"e"]
    assert list(queue.take(3, PLENTY)) == [b"f"]


def test_a_batch_that_is_taken_whole_is_not_copied(queue):
    batch = [b"a", b"b"]
    queue.extend(batch)
    assert queue.take(2, PLENTY) is batch


def test_the_latest_frames_can_be_peeked_at(queue):
    queue.extend([b"a", b"b", b"c"])
    queue.extend((b"d",))
    queue.extend([b"e", b"f"])
    assert queue.latest(4) == [b"c", b"d", b"e", b"f"]
    queue.take(1, PLENTY)
    assert queue.latest(100) == [b"b", b"c", b"d", b"e", b"f"]
    assert (queue.latest(0), queue.length) == ([], 5)


def test_a_shared_batch_is_never_changed(queue):
    batch = [b"a", b"b", b"c"]
    queue.extend(batch)
    queue.extend([b"d"])
    queue.take(2, PLENTY)
    queue.take(2, PLENTY)
    assert batch == [b"a", b"b", b"c"]


def test_an_empty_queue_has_nothing_to_take(queue):
    assert list(queue.take(5, PLENTY)) == []
    queue.extend([])
    assert queue.length == 0
    assert list(queue.take(5, PLENTY)) == []


def test_a_limit_of_zero_takes_nothing(queue):
    queue.extend([b"a"])
    assert list(queue.take(0, PLENTY)) == []
    assert queue.length == 1


def test_one_frame_is_taken_whatever_its_size(queue):
    queue.extend([b"12345", b"67890"])
    assert list(queue.take(2, 3)) == [b"12345"]
    assert queue.length == 1


def test_frames_beyond_the_bytes_stay_first_in_the_queue(queue):
    queue.extend([b"aa"])
    queue.extend([b"bb", b"cc", b"dd"])
    queue.extend([b"ee"])
    assert list(queue.take(5, 6)) == [b"aa", b"bb", b"cc"]
    assert list(queue.take(5, PLENTY)) == [b"dd", b"ee"]


def test_taking_a_little_of_a_big_batch_copies_a_little(queue):
    batch = Watched(b"%010d" % number for number in range(1000))
    queue.extend([b"first"])
    queue.extend(batch)
    queue.take(1, PLENTY)
    taken = [frame for _ in range(100) for frame in queue.take(8, 40)]
    assert taken == list(batch)[:400]
    assert batch.copied == 100 * 8


def test_emptying_drops_the_rest(queue):
    queue.extend([b"a", b"b", b"c"])
    queue.take(1, PLENTY)
    queue.empty()
    assert queue.length == 0
    queue.extend([b"d", b"e"])
    assert list(queue.take(5, PLENTY)) == [b"d", b"e"]


def first_that_fit(frames: list[bytes], limit: int, max_bytes: int) -> list[bytes]:
    """The plain meaning of `take`."""
    taken: list[bytes] = []
    for frame in frames[: max(limit, 0)]:
        if taken and sum(map(len, taken)) + len(frame) > max_bytes:
            break
        taken.append(frame)
    return taken


class BacklogIsAQueue(RuleBasedStateMachine):
    """Batches in, parts of them out: never told from one plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FrameQueue()
        self.model: list[bytes] = []
        self.serial = 0

    @rule(sizes=st.lists(st.integers(0, 20), max_size=12), kind=st.sampled_from([list, tuple]))
    def extend(self, sizes: list[int], kind: type[list[bytes]] | type[tuple[bytes, ...]]) -> None:
        batch = [b"%d:" % (self.serial + number) + b"x" * size for number, size in enumerate(sizes)]
        self.serial += len(batch)
        self.queue.extend(kind(batch))
        self.model += batch

    @rule(limit=st.integers(-1, 15), max_bytes=st.integers(0, 80))
    def take(self, limit: int, max_bytes: int) -> None:
        taken: Sequence[bytes] = self.queue.take(limit, max_bytes)
        assert list(taken) == first_that_fit(self.model, limit, max_bytes)
        del self.model[: len(taken)]

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        self.model.clear()

    @invariant()
    def they_have_the_same_length(self) -> None:
        assert self.queue.length == len(self.model)


TestBacklogIsAQueue = BacklogIsAQueue.TestCase
