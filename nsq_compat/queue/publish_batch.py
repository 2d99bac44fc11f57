"""What producers say within one turn of the event loop: published together at its end.

Whoever awaits each OK sends one message at a time. By itself each would be a group in the log, a system call, and a
round through topic and channels; producers who do so at the same time share one.

Invariants:

- *An OK still means published*: a producer is told only when its topic has taken what it posted.
- *No producer suffers for another*: what cannot be published together is published one by one, each with an answer of
  its own.
- A producer that goes on before the end of the turn calls `settle` first, so what it asks for takes effect in order.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, Protocol

from nsq_compat.protocol.uniform_bodies import UniformBodies
from nsq_compat.queue.errors import Refused
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

ENOUGH: Final = 64
"""Messages: so many are published without waiting for more. Little is to be saved then, and caches are small."""


class Producer(Protocol):
    """Whoever posts; one thing at a time."""

    def published(self, error: Exception | None) -> None:
        """What was posted is published, or was refused for this reason: let the client know."""


class PublishBatch:
    """One daemon's. `at_end_of_turn` calls back once, when everybody who is ready has been heard.

    Only for topics whose `publish` does not wait.
    """

    def __init__(self, at_end_of_turn: Callable[[Callable[[], None]], object]) -> None:
        self._at_end_of_turn = at_end_of_turn
        self._posts: dict[Topic, list[tuple[Sequence[bytes], Producer]]] = {}
        self._count = 0
        self._last: Producer | None = None
        self._now = 0.0
        self._now_ns = 0

    def post(self, topic: Topic, bodies: Sequence[bytes], producer: Producer, now: float, now_ns: int) -> bool:
        """Publish this soon, and tell the producer; False if it had better do so itself, being alone."""
        # Hot: runs for every synchronous PUB.
        count = len(bodies)
        if count >= ENOUGH:
            return False
        if not self._count:
            if producer is self._last:
                return False
            self._at_end_of_turn(self.settle)
        elif self._count >= ENOUGH:
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
        """Publish what was posted, and tell who posted it."""
        if self._count:
            posts, self._posts, self._count = self._posts, {}, 0
            for topic, some in posts.items():
                self._publish(topic, some)

    def _publish(self, topic: Topic, posts: Sequence[tuple[Sequence[bytes], Producer]]) -> None:
        # A admission counts whom it turns away, and one post may pass where two do not.
        if len(posts) > 1 and topic.admission is None:
            together = _together([bodies for bodies, _ in posts])
            try:
                topic.publish(together, self._now, self._now_ns)
            except Exception as error:  # whatever it is, it need not concern all of them
                log.info("TOPIC(%s): trying %d publishers one by one - %s", topic.name, len(posts), error)
            else:
                # Answers that leave close together find a client awake that hears several of them.
                for _, producer in posts:
                    producer.published(None)
                return
        for bodies, producer in posts:
            producer.published(self._refusal(topic, bodies))

    def _refusal(self, topic: Topic, bodies: Sequence[bytes]) -> Exception | None:
        try:
            topic.publish(bodies, self._now, self._now_ns)
        except (Refused, OSError) as error:
            return error
        except Exception:  # the top of a callback
            log.exception("TOPIC(%s): publishing failed", topic.name)
            return Refused("internal error")
        return None


def _together(batches: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """All of them; it still shows if they are alike."""
    bodies = chain.from_iterable(batches)
    size = len(batches[0][0])
    alike = all(type(each) is UniformBodies and len(each[0]) == size for each in batches)
    return UniformBodies(bodies) if alike else list(bodies)
