"""Publishes in batches: those of one event-loop iteration together, and one too large for an iteration in steps.

``PublishBatch``: a producer that awaits each OK publishes one message at a time. Each would be a group in the log, a
system call, and a pass through topic and channels. Producers that do so at the same time share one. Invariants:

- *An OK means published*: a producer is notified only when its topic has the message, and it is as durable as it should
  be. Until then further batches may follow.
- *A failure affects one producer only*: publishes that cannot be made together are made one by one, each with its own
  answer.
- *Order*: a producer that executes another command in the same iteration calls `publish_posted` first.

``LargeBatch``: so many messages that creating and writing them at once would block the event loop. Other greenlets run
between two steps, and may publish to the same topic. Their messages come before or after the batch, never inside it.
The last step publishes all messages of the batch; before it none is published.

Ids grow in the order of publishing. So a large batch reserves ids that are ahead of those of other publishes. If other
publishes reach these ids before the last step, the frames are created again, with ids further ahead. If they have the
publish id of a message of the batch, the frames are created again a few times, without that message.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol

from nsq_compat.log.segment import StagedBatch
from nsq_compat.protocol.headers import declared_size
from nsq_compat.protocol.message import HEADER_SIZE
from nsq_compat.protocol.schema import UniformBodies
from nsq_compat.queue.publish_ids import Part, PublishIds
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import Refused

log = logging.getLogger(__name__)

MAX_POSTED: Final = 64
"""Messages. Gathering more saves little, and would exceed CPU caches."""
MAX_AT_ONCE: Final = 16384
"""Messages published without steps, at about 0.3 us each."""
_MAX_WITH_HEADERS_AT_ONCE: Final = 2048
_MAX_WITH_IDS_AT_ONCE: Final = 1024
_MAX_BYTES_AT_ONCE: Final = 1 << 20
_MAX_HEADER_BYTES_AT_ONCE: Final = 1 << 16
"""There may be a header in five bytes, and checking one takes 2 us."""
_MIN_MESSAGES: Final = 256
"""Fewer messages are never published in steps. A step has at least one message, so little would be gained."""
_STEP: Final = 4096
_STEP_WITH_HEADERS: Final = 1024
_STEP_BYTES: Final = 1 << 20
_STEP_HEADER_BYTES: Final = 1 << 15
_FREED_AT_ONCE: Final = 1 << 15
_AHEAD_NS: Final = 60_000_000_000
"""How far the ids of a batch are ahead of the clock, which the ids of other publishes follow."""
_ROOM: Final = 1 << 14
"""Ids left for other publishes, if ids are ahead of the clock already."""
_MAX_OVERTAKEN: Final = 8
"""Times that a batch is made again because others publish its publish ids. Without a limit they could hold it up, and
the large batches behind it, for ever."""


class Producer(Protocol):
    """A connection with at most one unanswered publish."""

    def published(self, error: Exception | None) -> None:
        """Answer the client: published, or refused because of `error`."""


class PublishBatch:
    """All posted publishes of a daemon.

    `at_end_of_iteration` registers a callback for the end of the event-loop iteration.
    """

    def __init__(self, at_end_of_iteration: Callable[[Callable[[], None]], object]) -> None:
        self._at_end_of_iteration = at_end_of_iteration
        self._posts: dict[Topic, list[tuple[Sequence[bytes], Producer]]] = {}
        self._count = 0
        self._last: Producer | None = None
        self._now = 0.0
        self._now_ns = 0

    def post(self, topic: Topic, bodies: Sequence[bytes], producer: Producer, now: float, now_ns: int) -> bool:
        """Publish at the end of the iteration, and notify the producer; False if it should publish by itself.

        Publishing by itself is cheaper for a producer that is alone, or has many messages.
        """
        # Hot: runs for every synchronous PUB.
        count = len(bodies)
        if count >= MAX_POSTED:
            return False
        if not self._count:
            if producer is self._last:
                return False
            self._at_end_of_iteration(self.publish_posted)
        elif self._count >= MAX_POSTED:
            self.publish_posted()
        self._last = producer
        self._now, self._now_ns = now, now_ns
        self._count += count
        posts = self._posts.get(topic)
        if posts is None:
            self._posts[topic] = [(bodies, producer)]
        else:
            posts.append((bodies, producer))
        return True

    def publish_posted(self) -> None:
        """Publish all posted messages, and notify their producers when they are durable."""
        if self._count:
            posts, self._posts, self._count = self._posts, {}, 0
            for topic, posted in posts.items():
                self._publish(topic, posted)

    def _publish(self, topic: Topic, posts: Sequence[tuple[Sequence[bytes], Producer]]) -> None:
        # An admission check counts the messages that it refuses, and may accept one post where it refuses two.
        if len(posts) > 1 and topic.admission is None:
            batches = [bodies for bodies, _ in posts]
            size = len(batches[0][0])
            are_uniform = all(type(batch) is UniformBodies and len(batch[0]) == size for batch in batches)
            joined = chain.from_iterable(batches)
            together: Sequence[bytes] = UniformBodies(joined) if are_uniform else list(joined)
            try:
                topic.add(together, self._now, self._now_ns)
            except Exception as error:  # it may concern one of them only
                log.info("TOPIC(%s): repeating %d publishes one by one - %s", topic.name, len(posts), error)
            else:
                _answer_when_durable(topic, [producer for _, producer in posts])
                return
        for bodies, producer in posts:
            try:
                topic.add(bodies, self._now, self._now_ns)
            except (Refused, OSError) as error:
                producer.published(error)
            except Exception:  # the top of a callback
                log.exception("TOPIC(%s): publishing failed", topic.name)
                producer.published(Refused("internal error"))
            else:
                _answer_when_durable(topic, [producer])


def _answer_when_durable(topic: Topic, producers: Sequence[Producer]) -> None:
    store = topic.store
    if store is not None and store.commits:
        store.commit_later(partial(_answer, producers))
    else:
        _answer(producers, None)


def _answer(producers: Sequence[Producer], error: OSError | None) -> None:
    # Answers that are sent close together reach a client in one read.
    for producer in producers:
        producer.published(error)


def is_large(bodies: Sequence[bytes]) -> bool:
    """Whether publishing these at once would block the event loop for too long."""
    count = len(bodies)
    return count > _MIN_MESSAGES and (count > MAX_AT_ONCE or sum(map(len, bodies)) > _MAX_BYTES_AT_ONCE)


def is_large_with_headers(payloads: Sequence[bytes], topic: Topic) -> bool:
    """As ``is_large``, for messages with headers, which are checked one by one."""
    count = len(payloads)
    limit = _MAX_WITH_HEADERS_AT_ONCE if topic.publish_ids is None else _MAX_WITH_IDS_AT_ONCE
    return count > limit or (
        count > _MIN_MESSAGES
        and (
            sum(map(len, payloads)) > _MAX_BYTES_AT_ONCE
            or sum(map(declared_size, payloads)) > _MAX_HEADER_BYTES_AT_ONCE
        )
    )


class LargeBatch:
    """A publish in steps, for bodies that are ``is_large``: to be stepped to its end, or cancelled.

    Of a topic's large batches only one proceeds. Clients take turns (`client`: see ``Turns``), and the steps of each
    batch do the work of the one that proceeds, because the turns of its client may be few.

    `bodies` are consumed. The messages are written to a file of their own, which becomes a part of the log. Without one
    they stay in memory. Of the frames, those that the channels may hold in memory and those of the last step are kept.
    `recheck` is called before each part of the work, and raises what ``step`` raises then. With `with_headers`, the
    bodies are payloads (``protocol.headers``), and ``step`` raises ``HeaderError``, too; messages of which the topic
    knows the ids are left out.
    """

    def __init__(
        self,
        topic: Topic,
        bodies: list[bytes],
        now: float,
        now_ns: int,
        client: str = "",
        *,
        recheck: Callable[[], None] | None = None,
        with_headers: bool = False,
    ) -> None:
        self.count = len(bodies)
        self.size = 0
        self.kept: list[Sequence[bytes]] = []
        self.latest: Sequence[bytes] = ()
        self.staged: StagedBatch | None = None
        self.is_published = False
        """It is complete, and committed."""
        self._is_complete = False
        self._failure: Exception | None = None
        self._fresh = 0
        """Messages made so far, without those that are left out."""
        self._ids: PublishIds | None = None
        self._part: Part | None = None
        """While there are `_ids`: those of the batch."""
        self._settled: tuple[PublishIds, Part] | None = None
        """Those of a complete batch."""
        self._topic = topic
        self._client = client
        self._recheck = recheck
        self._with_headers = with_headers
        self._bodies = bodies
        self._now = now
        self._now_ns = now_ns
        # At level fsync a batch that a power cut left half written must be recognized, so it has to be one group.
        in_one_group = topic.store is not None and topic.store.syncs
        self._store = None if in_one_group else topic.store
        self._keep = self.count if in_one_group else topic.limits.mem_queue_size
        self._next = 0
        self._first_id = -1
        self._ahead_ns = _AHEAD_NS
        self._room = max(_ROOM, self.count >> 2)
        self._overtaken = 0
        topic.large_batches.add(client, self)

    def step(self) -> bool:
        """Do a part of the work; returns whether the batch is published now.

        Raises ``Refused`` and ``OSError``: then no message is published.
        """
        batches = self._topic.large_batches
        try:
            if not self._is_complete and self._failure is None:
                first: Any = batches.first
                if first is not self:
                    self._admit()
                first.advance()
            if self._failure is not None:
                raise self._failure
            if not self._is_complete:
                return False
            self._commit()
        except BaseException:
            self.cancel()
            raise
        self.is_published = True
        self._discard()
        return True

    def advance(self) -> None:
        """Do a part of the work in the turn of any batch. ``step`` raises what fails."""
        try:
            self._admit()
            if self._make():
                self._is_complete = True
                self._topic.large_batches.remove(self)
        except Exception as error:
            self._failure = error
            self._topic.large_batches.remove(self)

    def _admit(self) -> None:
        if self._recheck is not None:
            self._recheck()
        # Of a batch that may be known as a whole, only what is new must be admitted.
        topic = self._topic
        count = self._fresh if self._with_headers and topic.publish_ids is not None else self.count
        if topic.admission is not None and (count or topic.exiting):
            topic.admission(count, self._now)

    def _make(self) -> bool:
        """Make some messages, and publish all of them at last; returns whether that is done."""
        topic, ids = self._topic, self._topic.frames.ids
        if self._next < self.count:
            self._make_some()
            return False
        if self._store is not None and not self._store.spill_some():
            return False
        if ids.has_reached(self._first_id):
            self._ahead_ns *= 2
            self._room *= 2
            self._start_again()
            return False
        if self._is_overtaken():
            self._overtaken += 1
            if self._overtaken > _MAX_OVERTAKEN:
                raise Refused("its publish ids are being published by others")
            self._start_again()
            return False
        if self._fresh:
            ids.skip_to(self._first_id + self.count, self._now_ns)
            is_logged = False
            if self._store is not None and self.staged is not None:
                self._store.attach(self.staged, topic.seq)
                self.staged, is_logged = None, True
            topic.publish_prepared(self._fresh, self.size, self.kept, self.latest, is_logged=is_logged)
        if self._ids is not None and self._part is not None:
            topic.settle_ids(self._part, self.count - self._fresh, self._now)
            self._settled = self._ids, self._part
            self._ids = self._part = None
        return True

    def forget_bodies(self) -> bool:
        """Free some of the published bodies; returns whether there are more. 500,000 at once take 20 ms."""
        del self._bodies[-_FREED_AT_ONCE:]
        return len(self._bodies) > 0

    def cancel(self) -> None:
        """Abandon the batch, unless it is published already. May be called twice."""
        self._topic.large_batches.remove(self)
        self._discard()

    def _make_some(self) -> None:
        if self._first_id < 0:
            self._first_id = self._topic.frames.ids.ahead(self._now_ns + self._ahead_ns, self._room)
            if self._store is not None:
                self.staged = self._store.stage()
            if self._with_headers and self._topic.publish_ids is not None:
                self._ids = self._topic.publish_ids
                self._part = self._ids.begin(self._now_ns)
        begin, count = self._next, _STEP_WITH_HEADERS if self._with_headers else _STEP
        bodies = self._bodies[begin : begin + count]
        while (size := sum(map(len, bodies))) > _STEP_BYTES and count > 1:
            count //= 2
            bodies = bodies[:count]
        while self._with_headers and len(bodies) > 1 and sum(map(declared_size, bodies)) > _STEP_HEADER_BYTES:
            bodies = bodies[: len(bodies) // 2]
            size = sum(map(len, bodies))
        frames = self._frames(bodies, self._first_id + begin)
        made_before = self._fresh
        self._next = begin + len(bodies)
        self._fresh += len(frames)
        if self._with_headers:
            size = sum(map(len, frames)) - HEADER_SIZE * len(frames)
        if not frames:
            return
        if self._store is not None and self.staged is not None:
            self._store.add_to(self.staged, frames)
        if made_before < self._keep:
            self.kept.append(frames)
        self.latest = frames
        self.size += size

    def _frames(self, bodies: list[bytes], first_id: int) -> Sequence[bytes]:
        factory = self._topic.frames
        if not self._with_headers:
            return factory.make_from(bodies, self._now_ns, first_id)
        frames: Sequence[bytes] = factory.make_with_headers_from(bodies, self._now_ns, first_id)
        if self._ids is not None and self._part is not None:
            frames = self._ids.fresh_in(self._part, frames)
        self._topic.note_headers(frames)
        return frames

    def _is_overtaken(self) -> bool:
        """Whether the messages to be left out are others now."""
        if not self._with_headers:
            return False
        return self._topic.publish_ids is not self._ids or (self._part is not None and self._part.is_overtaken)

    def _commit(self) -> None:
        if self._settled is None:
            self._topic.commit()
        else:
            ids, part = self._settled
            self._topic.commit_ids(ids, (), part, has_known=self._fresh < self.count)

    def _start_again(self) -> None:
        """Make the batch again, behind others: they do not wait for what has to be made more than once."""
        self._topic.large_batches.remove(self)
        self._topic.large_batches.add(self._client, self)
        self._discard()
        self._next, self._first_id = 0, -1
        self.size = 0
        self._fresh = 0

    def _discard(self) -> None:
        self.kept.clear()
        if self.staged is not None:
            self.staged.discard()
            self.staged = None
        if self._ids is not None and self._part is not None:
            self._topic.drop_ids(self._ids, self._part)
        self._ids = self._part = None
