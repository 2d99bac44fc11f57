"""Messages that were tried as often as a policy allows, on their way to their dead-letter topic.

How it works. A message that a consumer requeues or lets time out after its last attempt does not go back to its
channel: it moves into the channel's box, where it counts as in flight. `send` publishes what lies in the boxes, body by
body as the producer gave them, and only when the dead-letter topic has taken a message does the channel forget it. So
a crash in between leaves it in both, never in none.

A dead-letter topic is made with a channel of its own, so that what lies there waits for whoever redrives it, also
after somebody had a look with a channel that came and went.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from nsq_compat.policy.limits import LogThrottle
from nsq_compat.policy.policies import DeadLettering
from nsq_compat.protocol.message import attempts, body, message_id, next_attempts
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.errors import Exiting, Refused
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

REDRIVE_CHANNEL: Final = "redrive"
"""The channel a dead-letter topic begins with."""
_AT_ONCE: Final = 256
_NEVER: Final = 1 << 16  # more than attempts can count


class DeadLetterQueue:
    """One channel's."""

    def __init__(self, office: "DeadLetterQueues", channel: Channel) -> None:
        self.in_flight = InFlight()  # without deadlines: what is here waits as long as it has to
        self.channel = channel
        self.target = ""  # the name of its dead-letter topic
        self.tally = LogThrottle()
        self._office = office
        self._max_attempts = _NEVER

    def follow(self, policy: DeadLettering | None) -> None:
        """From now on do as the policy says; without one nothing more is put in."""
        topic, channel = self.channel.topic_name, self.channel.name
        target = "" if policy is None else policy.topic_for(topic, channel)
        self._max_attempts = _NEVER
        if policy is not None and is_valid_name(target):
            self.target, self._max_attempts = target, policy.max_attempts
        elif policy is not None:
            log.error("CHANNEL(%s:%s): no dead-letter topic, %s is no valid name", topic, channel, target)

    @property
    def is_open(self) -> bool:
        """Whether anything is still put in."""
        return self._max_attempts != _NEVER

    def enqueue_exhausted(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Keep what was tried often enough; return the others. What a dead-letter topic holds is tried for ever."""
        if not self.is_open or self._office.is_target(self.channel.topic_name):
            return frames
        dead = [frame for frame in frames if attempts(frame) >= self._max_attempts]
        if dead:
            self.in_flight.frames.update((message_id(frame), frame) for frame in dead)
            self._office.gather(self)
        return [frame for frame in frames if attempts(frame) < self._max_attempts]

    def discard(self, ids: Sequence[bytes]) -> None:
        """Forget messages for good: the dead-letter topic has them."""
        self.channel.dead_letter_count += len(ids) - len(self.in_flight.finish(ids))
        self.channel.on_change()

    def put_back(self, ids: Sequence[bytes]) -> None:
        """Give messages back to the channel, to be delivered again: no dead-letter topic takes them."""
        frames = self.in_flight.frames_of(ids)
        self.in_flight.finish(ids)
        self.channel.put_back(next_attempts(frames))


class DeadLetterQueues:
    """All boxes. `wake` is called when there is something to send; it must not send at once."""

    def __init__(self, broker: Broker, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self._broker = broker
        self._boxes: dict[Channel, DeadLetterQueue] = {}
        self._targets: set[str] = set()
        self._waiting: dict[DeadLetterQueue, None] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._waiting)

    def is_target(self, topic: str) -> bool:
        """Whether this is a dead-letter topic."""
        return topic in self._targets

    def apply(self, channel: Channel, policy: DeadLettering | None) -> None:
        """Put a policy in force for a channel, or take it back."""
        box = self._boxes.get(channel)
        if box is None and policy is not None:
            box = channel.dead_letters = self._boxes[channel] = DeadLetterQueue(self, channel)
        if box is not None:
            box.follow(policy)
            self._targets = {each.target for each in self._boxes.values()}

    def forget(self, channel: Channel) -> None:
        """The channel is gone, with what was in its box."""
        box = self._boxes.pop(channel, None)
        if box is not None:
            self._waiting.pop(box, None)

    def gather(self, box: DeadLetterQueue) -> None:
        """A box has something to send."""
        self._waiting[box] = None
        self.wake()

    def send(self, now: float, now_ns: int) -> bool:
        """Publish a batch of every box; others may run meanwhile. Returns False if any was refused: try again later."""
        outcomes = [self._send(box, now, now_ns) for box in list(self._waiting)]
        return all(outcomes)

    def _send(self, box: DeadLetterQueue, now: float, now_ns: int) -> bool:
        dead = dict(islice(box.in_flight.frames.items(), _AT_ONCE))
        channel, ids = box.channel, list(dead)
        try:
            if dead:
                self._topic(box.target).publish(list(map(body, dead.values())), now, now_ns)
        except Exiting:  # the daemon drains, which waits for every message to be consumed
            box.put_back(ids)
        except (Refused, OSError) as error:
            if box.tally.add(len(ids), now):
                log.error(
                    "CHANNEL(%s:%s): %s takes no dead letters - %s", channel.topic_name, channel.name, box.target, error
                )
            return False
        else:
            box.discard(ids)
            if count := box.tally.add(len(ids), now):
                log.warning("CHANNEL(%s:%s): %d more to %s", channel.topic_name, channel.name, count, box.target)
        if not box.in_flight:
            self._waiting.pop(box, None)
        return True

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topic(name)
        if not topic.channels:
            topic.channel(REDRIVE_CHANNEL)
        return topic
