"""The two roles of a client: a producer that publishes (`Publisher`), and a consumer of a channel (`Subscription`).

`Publisher.state` says how far the last publish is. Most are ``DONE`` at once. The others are:

- ``POSTED``: it came alone and is published at the end of this event-loop iteration, together with the publishes of
  other producers (``queue.publish_batch``), and answered when it is durable.
- ``IN_STEPS``: it is too large to be published at once; `publish_step` takes the next step.

No further command is executed until the state is ``DONE`` again.

Invariants of a subscription:

- A delivery never makes more messages in flight than the ready count.
- The settings negotiated before SUB stay in force: IDENTIFY is not allowed afterwards.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from nsq_compat.log.data_path import NotMirrored, reason
from nsq_compat.protocol import commands as table
from nsq_compat.protocol.command_reader import Publish
from nsq_compat.protocol.commands import CommandSpec
from nsq_compat.protocol.errors import E_BAD_BODY, E_BAD_MESSAGE, E_NOT_MIRRORED, FatalClientError
from nsq_compat.protocol.frames import OK, OK_NO_WINDOW
from nsq_compat.protocol.headers import MAX_PART, HeaderError
from nsq_compat.protocol.message import message_ids, without_headers
from nsq_compat.protocol.names import network_of_peer
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.publish_batch import LargeBatch, PublishBatch, is_large, is_large_with_headers
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, Refused
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.session.tracing import log_delivery

DONE: Final = 0  # the only false one, so that the message path tests `state` without a comparison
POSTED: Final = 1
IN_STEPS: Final = 2
_MANY_TOPICS: Final = 1000
"""After so many topics of a client, those that are gone are forgotten."""
_WITH_HEADERS: Final = ("HPUB", "HMPUB")


def failed(spec: CommandSpec, error: Exception) -> FatalClientError:
    """The error of a command that was refused: by the queue, for its headers, or by the operating system."""
    # Of a system error only the reason: clients need not know paths.
    if isinstance(error, HeaderError):
        return FatalClientError(E_BAD_MESSAGE, f"{spec.name} {error}")
    text = reason(error) if isinstance(error, OSError) else str(error)
    if isinstance(error, NotMirrored) and spec.name in _WITH_HEADERS:
        return FatalClientError(E_NOT_MIRRORED, f"{spec.name} failed {text}")
    return FatalClientError(f"E_{spec.name}_FAILED", f"{spec.name} failed {text}")


def _not_told(_error: FatalClientError) -> None: ...


def _not_woken() -> None: ...


class Publisher:
    """The ``queue.publish_batch.Producer`` of one client. `now` is monotonic seconds, `now_ns` wall-clock time.

    `reply` takes frames for the client, `fail` an error that ends its connection, `wake` flushes the connection.
    `require` raises the error of a client that may not publish to a topic; None permits all. `recheck` does so while a
    publish waits for others.
    """

    def __init__(
        self,
        broker: Broker,
        publish_batch: PublishBatch | None,
        *,
        peer: str,
        require: Callable[[CommandSpec, bytes], None] | None,
        recheck: Callable[[CommandSpec, bytes], None] | None,
        reply: Callable[[bytes], None],
        fail: Callable[[FatalClientError], None],
        wake: Callable[[], None],
    ) -> None:
        self.state = DONE
        self.counts: dict[bytes, int] = {}
        """Published messages by topic. After the first thousand, topics that are gone may be left out."""
        self._most_counts = _MANY_TOPICS
        self.names_windows = False
        """The client has asked to be told if ids of messages have no effect."""
        self._broker = broker
        self._publish_batch = publish_batch
        self._peer = peer
        self._command: Publish | None = None  # unless the state is DONE
        # While it is IN_STEPS: the payloads so far and the parts that follow, and then the batch.
        self._payloads: list[bytes] = []
        self._parts: Iterator[list[bytes]] | None = None
        self._large: LargeBatch | None = None
        self._answer = OK
        self._sent_at = 0.0, 0  # the two times of the HMPUB
        self._require = require
        self._recheck = recheck
        self._reply = reply
        self._fail = fail
        self._wake = wake
        self._last_name = b""
        self._last_topic: Topic | None = None

    def publish(self, command: Publish, now: float, now_ns: int, delay: float = 0.0, *, is_alone: bool = False) -> None:
        """Publish a command's messages, deferred by `delay` seconds. Raises ``FatalClientError``.

        A command that came alone may be posted, and is never large.
        """
        # Hot: runs for every synchronous PUB.
        bodies = command.bodies
        try:
            name = command.tokens[1]
            if self._require is not None:
                self._require(command.spec, name)
            # The line is mostly the same as the one before, and the very same object.
            topic = self._last_topic
            if topic is None or name is not self._last_name or topic.exiting:
                topic = self._topic(command.spec, name)
                self._last_name, self._last_topic = name, topic
            if is_alone:
                if self._publish_batch is not None and self._publish_batch.post(topic, bodies, self, now, now_ns):
                    self._command = command
                    self.state = POSTED
                    return
                store = topic.store
                if store is not None and store.commits:
                    topic.add(bodies, now, now_ns)
                    self._command = command
                    self.state = POSTED
                    store.commit_later(self.published)  # a greenlet that waits would cost more
                    return
            elif is_large(bodies):
                command.bodies = ()  # the batch frees them in steps
                owned = bodies if isinstance(bodies, list) else [*bodies]  # copying 500,000 takes milliseconds
                self._large = self._begin_large(command, topic, owned, now, now_ns)
                self._command, self.state = command, IN_STEPS
                return
            topic.publish(bodies, now, now_ns, delay)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self._confirm(command, len(bodies))

    def _topic(self, spec: CommandSpec, name: bytes) -> Topic:
        topic = self._broker.topic(name.decode("ascii"))
        if self._recheck is not None:  # it waits for a new topic
            self._recheck(spec, name)
        return topic

    def _begin_large(
        self,
        command: Publish,
        topic: Topic,
        bodies: list[bytes],
        now: float,
        now_ns: int,
        *,
        with_headers: bool = False,
    ) -> LargeBatch:
        recheck = None if self._recheck is None else partial(self._recheck, command.spec, command.tokens[1])
        client = network_of_peer(self._peer)
        return LargeBatch(topic, bodies, now, now_ns, client, recheck=recheck, with_headers=with_headers)

    @property
    def is_known_producer(self) -> bool:
        """Whether it may publish again without a check, and is not in the middle of a publish."""
        return not self.state and self._last_topic is not None and self._require is None

    def needs_no_wait(self, command: Publish) -> bool:
        """Whether `publish` of this command, which came alone, does not wait: its topic exists."""
        topic = self._last_topic
        return topic is not None and command.tokens[1] is self._last_name and not topic.exiting

    def publish_with_headers(
        self, command: Publish, payloads: list[bytes], now: float, now_ns: int, delay: float = 0.0
    ) -> None:
        """As ``publish``, for an HPUB, or an HMPUB whose bodies are these payloads (``protocol.headers``)."""
        name = command.tokens[1]
        if self._require is not None:
            self._require(command.spec, name)
        try:
            topic = self._topic(command.spec, name)
            if is_large_with_headers(payloads, topic):
                command.bodies = ()
                self._large = self._begin_large(command, topic, payloads, now, now_ns, with_headers=True)
                self._command, self.state, self._answer = command, IN_STEPS, self._answer_of(topic)
                return
            topic.publish_with_headers(payloads, now, now_ns, delay)
        except (Refused, HeaderError, OSError) as error:
            raise failed(command.spec, error) from None
        self._confirm(command, len(payloads), self._answer_of(topic))

    def _answer_of(self, topic: Topic) -> bytes:
        """The answer to a publish with headers."""
        return OK_NO_WINDOW if self.names_windows and topic.publish_ids is None else OK

    def publish_parts(self, command: Publish, parts: Iterator[list[bytes]], now: float, now_ns: int) -> None:
        """As ``publish_with_headers``, for an HMPUB with these parts. A part that is not the last one is a step."""
        self._command, self.state = command, IN_STEPS
        self._parts, self._payloads, self._sent_at = parts, [], (now, now_ns)
        self._take_part(command, parts)

    def _take_part(self, command: Publish, parts: Iterator[list[bytes]]) -> None:
        try:
            part = next(parts)
        except HeaderError as error:
            self._done()
            raise FatalClientError(E_BAD_BODY, f"{command.spec.name} {error}") from None
        self._payloads += part
        if len(part) < MAX_PART:
            payloads = self._payloads
            self._done()
            self.publish_with_headers(command, payloads, *self._sent_at)

    def publish_step(self) -> bool:
        """Take the next step of a publish that is ``IN_STEPS``; return whether it is done.

        Raises ``FatalClientError``.
        """
        command, large = self._command, self._large
        assert command is not None, "a publish is in steps"
        if self._parts is not None:
            self._take_part(command, self._parts)
            return not self.state
        assert large is not None, "a publish is in steps"
        if large.is_published:
            if large.forget_bodies():
                return False
            self._done()
            return True
        try:
            if large.step():
                self._confirm(command, large.count, self._answer)
        except (Refused, HeaderError, OSError) as error:
            self._done()
            raise failed(command.spec, error) from None
        return False

    def publish_posted(self) -> None:
        """Publish now what is ``POSTED``, and wait for its answer as `publish` does."""
        if self.state == POSTED and self._publish_batch is not None:
            self._publish_batch.publish_posted()
            if self.is_unanswered and self._last_topic is not None:
                with suppress(OSError):  # `published` is told
                    self._last_topic.commit()

    @property
    def is_unanswered(self) -> bool:
        """Whether the last publish has no answer yet."""
        return self.state == POSTED

    def published(self, error: Exception | None) -> None:
        """Reply to the ``POSTED`` publish, which has failed with `error` if that is not None."""
        command = self._command
        assert command is not None, "a publish was posted"
        self._command, self.state = None, DONE
        if error is None:
            self._confirm(command, len(command.bodies))
        else:
            self._fail(failed(command.spec, error))
        self._wake()

    def cancel(self) -> None:
        """Abandon a publish that is ``IN_STEPS``."""
        if self._large is not None:
            self._large.cancel()
        if self.state == IN_STEPS:
            self._done()

    def freed(self) -> None:
        """Forget the client. What is ``POSTED`` is published, and not answered."""
        self._require, self._recheck, self._fail, self._wake = None, None, _not_told, _not_woken

    def _done(self) -> None:
        self._command, self._large, self.state = None, None, DONE
        self._parts, self._payloads, self._answer = None, [], OK

    def _confirm(self, command: Publish, count: int, answer: bytes = OK) -> None:
        name, counts = command.tokens[1], self.counts
        if name not in counts and len(counts) >= self._most_counts:
            self._forget_topics()
            counts = self.counts
        counts[name] = counts.get(name, 0) + count
        self._reply(OK * count if count > 1 and command.spec is table.PUB else answer)

    def _forget_topics(self) -> None:
        """Forget the counts of topics that do not exist any more, such as thousands of ephemeral ones."""
        topics = self._broker.topics
        self.counts = {name: count for name, count in self.counts.items() if name.decode("ascii") in topics}
        self._most_counts = max(_MANY_TOPICS, 2 * len(self.counts))


class Subscription:
    """From SUB to the end of the connection. It is the ``queue.channel.Consumer`` of its channel.

    `msg_timeout` is the time limit of a delivery in seconds, `touch_timeout` the seconds that a TOUCH adds. With
    `has_headers`, messages are delivered with their headers. `stats` returns the client's figures for /stats. Raises
    ``Exiting`` and ``TooManyConsumers``.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        msg_timeout: float,
        touch_timeout: float,
        locality: Locality,
        sample_rate: int,
        has_headers: bool,
        wake: Callable[[], None],
        close: Callable[[], None],
        stats: Callable[[], ClientStats],
    ) -> None:
        self.in_flight = InFlight()
        self.locality = locality
        self.ready_count = 0
        self.has_more = False
        self.wake = wake
        self.close = close
        self.stats = stats
        self.channel = channel
        self._msg_timeout = msg_timeout
        self._touch_timeout = touch_timeout
        self._sample_rate = sample_rate
        self._has_headers = has_headers
        self._traced_as = ""  # the name of the client in the log; empty unless deliveries are logged
        self._is_examined = False  # whether frames are sampled, logged, or looked through for headers
        self._message_count = 0
        self._finish_count = 0
        self._requeue_count = 0
        self._client: tuple[str, str] | None = None
        self._note_examined()
        channel.add_consumer(self)

    @property
    def client(self) -> tuple[str, str]:
        """The id and the address of the client."""
        if self._client is None:
            stats = self.stats()
            self._client = stats.client_id, stats.remote_address
        return self._client

    def counts(self) -> dict[str, Any]:
        """The consumer's counters, as ``ClientStats`` names them."""
        counts: dict[str, Any] = {
            "ready_count": self.ready_count,
            "in_flight_count": len(self.in_flight),
            "message_count": self._message_count,
            "finish_count": self._finish_count,
            "requeue_count": self._requeue_count,
        }
        if self.channel.zones is not None:
            counts[f"{self.locality.name.lower()}_msg_count"] = self._message_count
        return counts

    # --- Messages out -------------------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> Sequence[bytes]:
        """Frames to send now; `has_more` says whether there may be more."""
        channel = self.channel
        self.has_more = False
        room = self.ready_count - len(self.in_flight.frames)  # Hot: not `len(self.in_flight)`, which is one call more
        if room <= 0:
            channel.leave_wait_queue(self)
            return ()
        frames = channel.take(self, room, now, self._msg_timeout)
        self.has_more = 0 < len(frames) < room and channel.depth > 0 and not channel.paused
        if self._is_examined:
            frames = self._examine(frames)
        self._message_count += len(frames)
        return frames

    def trace(self, name: str) -> None:
        """Log deliveries with this name of the client from now on, or none if it is empty."""
        self._traced_as = name
        self._note_examined()

    def begin_headers(self) -> None:
        self._note_examined()

    def _note_examined(self) -> None:
        strips = self.channel.has_headers and not self._has_headers
        self._is_examined = bool(strips or self._traced_as or self._sample_rate)

    def _examine(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        if self._sample_rate:
            taken, frames = len(frames), self._sample(frames)
            self.has_more |= len(frames) < taken  # messages that were not drawn leave room for others
        if self._traced_as and frames:
            in_flight = len(self.in_flight.frames) - len(frames)
            log_delivery(self._traced_as, frames, self.ready_count, in_flight)
        if not self._has_headers and self.channel.has_headers:
            frames = without_headers(frames)
        return frames

    def _sample(self, frames: Sequence[bytes]) -> list[bytes]:
        # nsqd: a message that is not drawn is finished, and a rate of N delivers N + 1 percent.
        kept: list[bytes] = []
        discarded: list[bytes] = []
        for frame in frames:
            (kept if random.randrange(100) <= self._sample_rate else discarded).append(frame)
        self.channel.finish(self, message_ids(discarded))
        return kept

    # --- FIN, REQ, TOUCH ----------------------------------------------------------------------------------------------

    def finish(self, ids: Sequence[bytes], now: float, now_ns: int) -> list[bytes]:
        """Finish messages; return the ids that are not in flight to this client."""
        latency = self.channel.latency
        if latency is not None:
            latency.add(self.in_flight.frames_of(ids), now, now_ns)
        missing = self.channel.finish(self, ids)
        self._finish_count += len(ids) - len(missing)
        return missing

    def requeue(self, message_id: bytes, now: float, delay: float) -> None:
        """Requeue a message for another delivery after `delay` seconds. Raises ``NotInFlight``."""
        self.channel.requeue(self, message_id, now, delay)
        self._requeue_count += 1

    def touch(self, message_id: bytes, now: float) -> None:
        """Extend the time limit of a message. Raises ``NotInFlight``."""
        self.channel.touch(self, message_id, now, self._touch_timeout)
