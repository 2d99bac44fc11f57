"""The publishes of one event-loop iteration, published together at its end.

A producer that awaits each OK publishes one message at a time. Each would be a group in the log, a system call, and a
pass through topic and channels. Producers that do so at the same time share one.

Invariants:

- *An OK means published*: a producer is notified only when its topic has the message.
- *No producer suffers for another*: what cannot be published together is published one by one, each with its own
  answer.
- *Order*: a producer that goes on within the iteration calls `settle` first.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, Protocol

from nsq_compat.protocol.schema import UniformBodies
from nsq_compat.queue.errors import Refused
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

MAX_POSTED: Final = 64
"""Messages. More are not gathered: little is saved by it, and CPU caches are small."""


class Producer(Protocol):
    """A connection with at most one unanswered publish."""

    def published(self, error: Exception | None) -> None:
        """Answer the client: published, or refused because of `error`."""


class PublishBatch:
    """All posted publishes of a daemon; only for topics with a `publish` that does not block.

    `at_end_of_turn` registers a callback for the end of the event-loop iteration.
    """

    def __init__(self, at_end_of_turn: Callable[[Callable[[], None]], object]) -> None:
        self._at_end_of_turn = at_end_of_turn
        self._posts: dict[Topic, list[tuple[Sequence[bytes], Producer]]] = {}
        self._count = 0
        self._last: Producer | None = None
        self._now = 0.0
        self._now_ns = 0

    def post(self, topic: Topic, bodies: Sequence[bytes], producer: Producer, now: float, now_ns: int) -> bool:
        """Publish at the end of the iteration, and notify the producer; False if it should publish by itself.

        That is cheaper for a producer that is alone, or has many messages.
        """
        # Hot: runs for every synchronous PUB.
        count = len(bodies)
        if count >= MAX_POSTED:
            return False
        if not self._count:
            if producer is self._last:
                return False
            self._at_end_of_turn(self.settle)
        elif self._count >= MAX_POSTED:
            self.settle()
        self._last = producer
        self._now, self._now_ns = now, now_ns
        self._count += count
        posts = self._posts.get(topic)
        if posts is None:
            self._posts[topic] = [(bodies, producer)]
        else:
            posts.append((bodies, producer))
        return True

    def settle(self) -> None:
        """Publish all posted messages, and notify their producers."""
        if self._count:
            posts, self._posts, self._count = self._posts, {}, 0
            for topic, posted in posts.items():
                self._publish(topic, posted)

    def _publish(self, topic: Topic, posts: Sequence[tuple[Sequence[bytes], Producer]]) -> None:
        # An admission check counts the messages that it refuses, and may accept one post where it refuses two.
        if len(posts) > 1 and topic.admission is None:
            together = _joined([bodies for bodies, _ in posts])
            try:
                topic.publish(together, self._now, self._now_ns)
            except Exception as error:  # it may concern one of them only
                log.info("TOPIC(%s): trying %d publishers one by one - %s", topic.name, len(posts), error)
            else:
                # Answers that are sent close together reach a client in one read.
                for _, producer in posts:
                    producer.published(None)
                return
        for bodies, producer in posts:
            producer.published(self._publish_one(topic, bodies))

    def _publish_one(self, topic: Topic, bodies: Sequence[bytes]) -> Exception | None:
        try:
            topic.publish(bodies, self._now, self._now_ns)
        except (Refused, OSError) as error:
            return error
        except Exception:  # the top of a callback
            log.exception("TOPIC(%s): publishing failed", topic.name)
            return Refused("internal error")
        return None


def _joined(batches: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return all bodies, as ``UniformBodies`` if they all have one size."""
    bodies = chain.from_iterable(batches)
    size = len(batches[0][0])
    are_uniform = all(type(batch) is UniformBodies and len(batch[0]) == size for batch in batches)
    return UniformBodies(bodies) if are_uniform else list(bodies)
