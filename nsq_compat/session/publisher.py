"""A client as a producer: its publishes on their way into topics, and the replies to them.

A publish is done at once, or `state` says what it waits for:

- ``POSTED``: it is published with those of other producers at the end of this iteration (``queue.publish_batch``).
- ``PUBLISHED``: it came alone and is published. Its OK is left to ``answer``, so that messages leave before it.
- ``IN_STEPS``: it is too large to be published at once; ``publish_on`` takes the next step.

No command that follows is executed before the state is ``DONE`` again.
"""

from collections.abc import Callable
from typing import Final

from nsq_compat.protocol import commands as table
from nsq_compat.protocol.commands import CommandSpec, Publish, SimpleCommand
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.frames import OK
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.errors import Refused
from nsq_compat.queue.large_publish import LargeBatch, is_large
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.queue.topic import Topic
from nsq_compat.session.refusals import failed

DONE: Final = 0  # the only false one, so that the message path tests `state` without a comparison
POSTED: Final = 1
PUBLISHED: Final = 2
IN_STEPS: Final = 3


class Publisher:
    """It is the ``queue.publish_batch.Producer`` of what it posts. `now` is monotonic seconds, `now_ns` wall clock.

    `reply` takes frames for the client, `fail` what ends its connection, and `wake` has sent what came of what was
    posted. `require` raises what a client hears that may not publish there; None: everybody may.
    """

    def __init__(
        self,
        broker: Broker,
        publish_batch: PublishBatch | None,
        *,
        require: Callable[[CommandSpec, bytes], None] | None,
        reply: Callable[[bytes], None],
        fail: Callable[[FatalClientError], None],
        wake: Callable[[], None],
    ) -> None:
        self.state = DONE
        """What a publish waits for: one of the constants above."""
        self.counts: dict[bytes, int] = {}
        """Messages by topic."""
        self._broker = broker
        self._publish_batch = publish_batch
        self._command: Publish | None = None  # while the state is not DONE
        self._large: LargeBatch | None = None  # while it is IN_STEPS
        self._require = require
        self._reply = reply
        self._fail = fail
        self._wake = wake
        self._last_name = b""
        self._last_topic: Topic | None = None

    @property
    def posted(self) -> Publish | None:
        return self._command if self.state == POSTED else None

    def publish(self, command: Publish, now: float, now_ns: int) -> None:
        """Publish a PUB, a run of them, or an MPUB. Raises ``FatalClientError``."""
        bodies = command.bodies
        try:
            topic = self._topic_of(command.spec, command.tokens[1])
            if is_large(bodies):
                command.bodies = ()  # the batch frees them in steps
                owned = bodies if isinstance(bodies, list) else [*bodies]  # copying 500,000 takes milliseconds
                self._large = topic.large_batch(owned, now, now_ns)
                self._command, self.state = command, IN_STEPS
                return
            topic.publish(bodies, now, now_ns)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self._confirm(command.spec, command.tokens[1], len(bodies))

    def publish_alone(self, command: Publish, now: float, now_ns: int) -> None:
        """Publish a PUB that came alone, at once or later in this turn; the reply is owed. Raises the same."""
        # Hot: runs for every synchronous PUB.
        bodies = command.bodies
        try:
            topic = self._topic_of(command.spec, command.tokens[1])
            if self._publish_batch is not None and self._publish_batch.post(topic, bodies, self, now, now_ns):
                self._command = command
                self.state = POSTED
                return
            topic.publish(bodies, now, now_ns)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self._command = command
        self.state = PUBLISHED

    def publish_deferred(self, command: SimpleCommand, delay: float, now: float, now_ns: int) -> None:
        """Publish a DPUB; `delay` in seconds. Raises ``FatalClientError``."""
        try:
            self._topic_of(command.spec, command.tokens[1]).publish([command.body], now, now_ns, defer=delay)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self._confirm(command.spec, command.tokens[1], 1)

    def publish_on(self) -> bool:
        """Take the next step of what is ``IN_STEPS``; return whether it is done. Raises ``FatalClientError``."""
        command, large = self._command, self._large
        assert command is not None, "a publish is in steps"
        assert large is not None, "a publish is in steps"
        if large.is_published:
            if large.forget_bodies():
                return False
            self._done()
            return True
        try:
            if large.step():
                self._confirm(command.spec, command.tokens[1], large.count)
        except (Refused, OSError) as error:
            self._done()
            raise failed(command.spec, error) from None
        return False

    def answer(self) -> None:
        """Reply to what is ``PUBLISHED``, if anything is."""
        # Hot: runs for every synchronous PUB, with `_confirm` written out.
        command = self._command
        if command is not None and self.state == PUBLISHED:
            self._command = None
            self.state = DONE
            topic, count, counts = command.tokens[1], len(command.bodies), self.counts
            counts[topic] = counts.get(topic, 0) + count
            self._reply(OK if count == 1 or command.spec is table.MPUB else OK * count)

    def settle(self) -> None:
        """Publish what is ``POSTED`` now, with what other producers posted, and reply."""
        if self.state == POSTED and self._publish_batch is not None:
            self._publish_batch.settle()
        self.answer()

    def published(self, error: Exception | None) -> None:
        """What was ``POSTED`` is published, or `error` says why it was refused; the reply is owed."""
        command = self._command
        assert command is not None, "only what was posted is published so"
        if error is None:
            self.state = PUBLISHED
        else:
            self._done()
            self._fail(failed(command.spec, error))
        self._wake()

    def cancel(self) -> None:
        """Publish nothing more of what is ``IN_STEPS``."""
        if self._large is not None:
            self._large.cancel()
            self._done()

    def _done(self) -> None:
        self._command, self._large, self.state = None, None, DONE

    def _topic_of(self, spec: CommandSpec, topic: bytes) -> Topic:
        # Hot: runs for every synchronous PUB, whose line is as a rule the one before, the very same object.
        if self._require is not None:
            self._require(spec, topic)
        last = self._last_topic
        if last is None or topic is not self._last_name or last.exiting:
            last = self._broker.topic(topic.decode("ascii"))
            self._last_name, self._last_topic = topic, last
        return last

    def _confirm(self, spec: CommandSpec, topic: bytes, count: int) -> None:
        self.counts[topic] = self.counts.get(topic, 0) + count
        self._reply(OK if count == 1 or spec is table.MPUB else OK * count)
