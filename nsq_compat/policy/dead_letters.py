"""Dead letters: messages that reached a policy's max_attempts, or expired, on their way to the dead-letter topic.

When a consumer requeues a message after its last attempt, or lets it time out, the message does not return to its
channel. It moves to the channel's dead-letter queue, where it counts as in flight. `send` publishes the queued
messages, with headers that tell where they come from, and a message leaves its channel only when the dead-letter topic
has accepted it. So after a crash in between, both have the message.

A dead-letter topic is created with a channel, REDRIVE_CHANNEL, so that its messages wait there until they are redriven,
even if another channel is created to inspect them and deleted again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from nsq_compat.log.data_path import NotMirrored, reason
from nsq_compat.policy.log_throttle import LogThrottle
from nsq_compat.policy.policies import DEFAULT_DEAD_LETTER_TOPIC, DeadLettering
from nsq_compat.protocol.headers import (
    ATTEMPTS,
    DEAD_LETTER_REASON,
    EXPIRES,
    FIRST_PUBLISHED,
    ORIGIN_CHANNEL,
    ORIGIN_EXPIRES,
    ORIGIN_MESSAGE_ID,
    ORIGIN_TOPIC,
    HeaderError,
    encode,
    with_origin_id,
)
from nsq_compat.protocol.message import (
    attempts,
    body,
    headers,
    message_id,
    next_attempts,
    timestamp_ns,
    with_attempts,
)
from nsq_compat.protocol.names import is_ephemeral, is_valid_name
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import Exiting, Refused

log = logging.getLogger(__name__)

REDRIVE_CHANNEL: Final = "redrive"
_BATCH_SIZE: Final = 256
_MAX_WAITING: Final = 256
"""Messages of a channel that wait while the dead-letter topic refuses them. The channel keeps the others."""
_MAX_QUEUED: Final = 65_536
"""Messages of a channel that are to be sent otherwise."""
_SENT_AT_ONCE: Final = 4
"""Queues of which a batch is sent before others are served, at about 0.3 ms each if it has one message."""
_UNLIMITED: Final = 1 << 16  # attempts has 16 bits
# Why a message became a dead letter.
FAILED: Final = "attempts"
EXPIRED: Final = "expired"
OPERATOR: Final = "operator"


class Transfer:
    """Messages that an operator sends to the dead-letter topic of their channel, and what has become of them."""

    def __init__(self, queue: "DeadLetterQueue") -> None:
        self.pending: set[bytes] = set()
        """The ids of those that the dead-letter topic does not have yet. They stay in the queue until it has them."""
        self.moved = 0
        self.error = ""
        """Why the last attempt to move them failed."""
        self.queue = queue

    def add(self, frames: Sequence[bytes]) -> None:
        """Enqueue messages that were taken out of the channel; their attempts are those of the next delivery."""
        self.queue.enqueue(list(map(_not_delivered, frames)), OPERATOR)
        self.pending.update(map(message_id, frames))

    @property
    def is_over(self) -> bool:
        """Whether all are moved, or an attempt failed. Messages that have left the queue otherwise do not count."""
        self.pending &= self.queue.in_flight.frames.keys()
        return not self.pending or self.error != ""


class DeadLetterQueue:
    """The dead letters of one channel."""

    def __init__(self, queues: "DeadLetterQueues", channel: Channel) -> None:
        self.in_flight = InFlight()  # without deadlines
        self.channel = channel
        self.target = ""  # the dead-letter topic's name
        self.error = ""
        """Why the dead-letter topic refused messages the last time; empty if it took them."""
        self.log_throttle = LogThrottle()
        self.transfers: list[Transfer] = []
        self._reasons: dict[bytes, str] = {}
        """Of the messages in flight, by id, if it is not that they have failed."""
        self._logged_in: Topic | None = None
        self._logged: set[bytes] = set()
        """The ids of messages that are in the log of this dead-letter topic, but that the standby did not confirm."""
        self._queues = queues
        self._max_attempts = _UNLIMITED
        self._takes_expired = False

    def apply(self, policy: DeadLettering | None) -> None:
        """Apply a policy; without one no more messages are enqueued."""
        self._max_attempts = _UNLIMITED
        self._takes_expired = False
        if policy is None:
            return
        topic, channel = self.channel.topic_name, self.channel.name
        target = policy.topic_for(topic, channel)
        if is_valid_name(target):
            self.target, self._max_attempts = target, policy.max_attempts
            self._takes_expired = policy.takes_expired
        else:
            log.error("CHANNEL(%s:%s): no dead-letter topic, %s is not a valid name", topic, channel, target)

    def enqueue_exhausted(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Enqueue the messages that have no attempts left; returns the others. Dead-letter topics have no limit."""
        if self._max_attempts == _UNLIMITED or self.channel.topic_name in self._queues.targets:
            return frames
        dead = [frame for frame in frames if attempts(frame) >= self._max_attempts][: self.room]
        if not dead:
            return frames
        self.enqueue(dead, FAILED)
        gone = frozenset(map(message_id, dead))
        return [frame for frame in frames if message_id(frame) not in gone]

    def enqueue_expired(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Enqueue expired messages if the policy says so; returns those that there is no room for."""
        if not self._takes_expired or self.channel.topic_name in self._queues.targets:
            return ()
        room = self.room
        self.enqueue(list(map(_not_delivered, frames[:room])), EXPIRED)
        return frames[room:]

    @property
    def room(self) -> int:
        """The number of messages that it may take. While the dead-letter topic refuses them, that is soon none."""
        return max(0, (_MAX_WAITING if self.error else _MAX_QUEUED) - len(self.in_flight))

    def enqueue(self, frames: Sequence[bytes], reason: str) -> None:
        """Keep messages until the dead-letter topic has them."""
        if frames:
            if not self.in_flight:
                self._reasons.clear()
                self._logged.clear()
            self.in_flight.frames.update((message_id(frame), frame) for frame in frames)
            if reason != FAILED:
                self._reasons.update((message_id(frame), reason) for frame in frames)
            self._queues.schedule(self)

    def payload(self, frame: bytes) -> bytes:
        """What the dead-letter topic gets. A message that has no room for more headers keeps its own."""
        own = dict(with_origin_id(headers(frame)))
        expires = own.pop(EXPIRES, "")  # a dead letter stays
        name = message_id(frame)
        origin = {
            ORIGIN_TOPIC: self.channel.topic_name,
            ORIGIN_CHANNEL: self.channel.name,
            ORIGIN_MESSAGE_ID: name.decode("ascii"),
            DEAD_LETTER_REASON: self._reasons.get(name, FAILED),
            ATTEMPTS: str(attempts(frame)),
        }
        if expires:
            origin[ORIGIN_EXPIRES] = expires
        try:
            block = encode(({FIRST_PUBLISHED: str(timestamp_ns(frame))} | own | origin).items())
        except HeaderError:
            block = encode(own.items())
        return block + body(frame)

    def publish(self, target: Topic, dead: Mapping[bytes, bytes], now: float, now_ns: int) -> None:
        """Publish messages, given by id, and wait until they are durable. Raises as a topic does.

        If only the standby did not confirm them, the next call does not publish them again.
        """
        if self._logged_in is not target:
            self._logged_in = target
            self._logged.clear()
        payloads = [self.payload(frame) for each, frame in dead.items() if each not in self._logged]
        if not payloads:
            target.commit()
            return
        try:
            target.publish_with_headers(payloads, now, now_ns)
        except NotMirrored:
            self._logged.update(dead)
            raise

    def forget(self, ids: Sequence[bytes]) -> None:
        """Forget messages that have left."""
        self._logged.difference_update(ids)
        for each in ids:
            self._reasons.pop(each, None)


def _not_delivered(frame: bytes) -> bytes:
    """A message whose attempts are those of its next delivery, with those that it had."""
    return with_attempts(frame, (attempts(frame) - 1) % _UNLIMITED)


class DeadLetterQueues:
    """The dead-letter queues of all channels. `wake` is called when there is something to send; it must not block."""

    def __init__(self, broker: Broker, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self._broker = broker
        self._queues: dict[Channel, DeadLetterQueue] = {}
        self.targets: Counter[str] = Counter()
        """The dead-letter topics, with the number of channels that each is for."""
        self._scheduled: dict[DeadLetterQueue, None] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._scheduled)

    def apply(self, channel: Channel, policy: DeadLettering | None) -> None:
        """Apply a policy to a channel; None ends an earlier one."""
        queue = self._queues.get(channel)
        if queue is None and policy is not None:
            queue = channel.dead_letters = self._queues[channel] = DeadLetterQueue(self, channel)
        if queue is not None:
            before = queue.target
            queue.apply(policy)
            self._count_target(queue.target, 1)  # not all queues again: there may be thousands, each with a policy
            self._count_target(before, -1)

    @contextmanager
    def transfer(self, channel: Channel) -> Iterator[Transfer]:
        """Send messages to the channel's dead-letter topic, without a policy to the default one. Raises ``Refused``."""
        queue = self._queues.get(channel)
        if queue is None or not queue.target:
            self.apply(channel, DeadLettering(_UNLIMITED, DEFAULT_DEAD_LETTER_TOPIC))
            queue = self._queues[channel]
        if not queue.target or channel.topic_name in self.targets:
            reason = "is a dead-letter topic itself" if queue.target else "has no valid name for a dead-letter topic"
            raise Refused(f"{channel.full_name} {reason}")
        transfer = Transfer(queue)
        queue.transfers.append(transfer)
        try:
            yield transfer
        finally:
            queue.transfers.remove(transfer)

    def forget(self, channel: Channel) -> None:
        """Remove the queue of a deleted channel, with its messages."""
        if queue := self._queues.pop(channel, None):
            self._scheduled.pop(queue, None)
            self._count_target(queue.target, -1)

    def _count_target(self, target: str, change: int) -> None:
        if target:
            self.targets[target] += change
            if not self.targets[target]:
                del self.targets[target]

    def schedule(self, queue: DeadLetterQueue) -> None:
        """Include a queue in the next `send`."""
        self._scheduled[queue] = None
        self.wake()

    def send(self, now: float, now_ns: int, pause: Callable[[], None] = lambda: None) -> bool:
        """Publish a batch of every queue, which may wait for the disk. Returns False if any was refused.

        `pause` is called between some of them: each may create a topic.
        """
        outcome = True
        for number, queue in enumerate(list(self._scheduled), 1):
            if queue in self._scheduled:  # its channel may have been deleted meanwhile
                outcome = self._send(queue, now, now_ns) and outcome
            if number % _SENT_AT_ONCE == 0:
                pause()
        return outcome

    def _send(self, queue: DeadLetterQueue, now: float, now_ns: int) -> bool:
        channel, in_flight = queue.channel, queue.in_flight
        name = f"{channel.topic_name}:{channel.name}"
        dead = dict(islice(in_flight.frames.items(), _BATCH_SIZE))
        ids = list(dead)
        try:
            if dead:
                # Clients create ephemeral ones again and again, each of which may leave a dead-letter topic.
                lasts = not (is_ephemeral(channel.name) or is_ephemeral(channel.topic_name))
                target = self._broker.topic(queue.target, checked=not lasts)
                if not target.channels:
                    target.channel(REDRIVE_CHANNEL)
                queue.publish(target, dead, now, now_ns)
        except Exiting:  # the daemon drains, so consumers have to receive the messages
            frames = in_flight.frames_of(ids)
            in_flight.finish(ids)
            queue.forget(ids)
            channel.put_back(next_attempts(frames), now)
        except (Refused, OSError) as error:
            if queue.log_throttle.add(len(ids), now):
                log.error("CHANNEL(%s): cannot move dead letters to %s - %s", name, queue.target, error)
            queue.error = reason(error) if isinstance(error, OSError) else str(error)
            for transfer in queue.transfers:
                transfer.error = queue.error
            return False
        else:
            queue.error = ""
            for transfer in queue.transfers:
                transfer.moved += len(transfer.pending.intersection(ids))
                transfer.pending.difference_update(ids)
            channel.dead_letter_count += len(ids) - len(in_flight.finish(ids))
            queue.forget(ids)
            channel.on_change()
            if count := queue.log_throttle.add(len(ids), now):
                log.warning("CHANNEL(%s): dead letters moved to %s: %d", name, queue.target, count)
        if not in_flight:
            self._scheduled.pop(queue, None)
        return True
