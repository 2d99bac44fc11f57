"""A client as a producer: its messages on their way into topics, and what it hears of them.

What came alone is posted, if there is an intake, to be published with what others post in this turn (see
``queue.intake``). The client is answered when that is done, and nothing it asks for afterwards is looked at before.
"""

from collections.abc import Callable

from nsq_compat.protocol import command_table as table
from nsq_compat.protocol.command_table import CommandSpec
from nsq_compat.protocol.commands import Line, Publish
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.frames import OK
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.exiting import Refused
from nsq_compat.queue.intake import Intake
from nsq_compat.queue.large_batch import LargeBatch, is_large
from nsq_compat.queue.topic import Topic
from nsq_compat.session.refusals import failed


class Publisher:
    """It is the ``queue.intake.Producer`` of what it posts. `now` is monotonic seconds, `now_ns` wall clock.

    `reply` takes frames for the client, `fail` what ends its connection, and `wake` has sent what came of what was
    posted. `require` raises what a client hears that may not publish there; None: everybody may.
    """

    def __init__(
        self,
        broker: Broker,
        intake: Intake | None,
        *,
        require: Callable[[CommandSpec, bytes], None] | None,
        reply: Callable[[bytes], None],
        fail: Callable[[FatalClientError], None],
        wake: Callable[[], None],
    ) -> None:
        self.posted: Publish | None = None
        self.unanswered: Publish | None = None
        """What is published, and what the client is told of by ``answer``, which must come before another reply."""
        self.batch: tuple[Publish, LargeBatch] | None = None
        """An MPUB that is too large to be published at once; see ``publish_on``."""
        self.counts: dict[bytes, int] = {}
        """Messages by topic."""
        self._broker = broker
        self._intake = intake
        self._require = require
        self._reply = reply
        self._fail = fail
        self._wake = wake
        self._last_name = b""
        self._last_topic: Topic | None = None

    def publish(self, command: Publish, now: float, now_ns: int) -> None:
        """A PUB, a run of them, or an MPUB. Raises ``FatalClientError``."""
        bodies = command.bodies
        try:
            topic = self._topic_of(command.spec, command.tokens[1])
            if is_large(bodies):
                command.bodies = ()  # the batch frees them in steps
                self.batch = command, topic.large_batch([*bodies], now, now_ns)
                return
            topic.publish(bodies, now, now_ns)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self._confirm(command)

    def publish_on(self) -> bool:
        """The next step of `batch`; whether that was the last. Raises ``FatalClientError``."""
        assert self.batch is not None, "there is a batch under way"
        command, batch = self.batch
        if batch.is_published:
            if batch.forget_bodies():
                return False
            self.batch = None
            return True
        try:
            if batch.step():
                self._count(command.tokens[1], batch.count)
                self._reply(OK if command.spec is table.MPUB else OK * batch.count)
        except (Refused, OSError) as error:
            self.batch = None
            raise failed(command.spec, error) from None
        return False

    def publish_alone(self, command: Publish, now: float, now_ns: int) -> None:
        """The same, perhaps later in this turn: `posted` says so. Raises ``FatalClientError``."""
        # Hot: runs for every synchronous PUB.
        bodies = command.bodies
        try:
            topic = self._topic_of(command.spec, command.tokens[1])
            if self._intake is not None and self._intake.post(topic, bodies, self, now, now_ns):
                self.posted = command
                return
            topic.publish(bodies, now, now_ns)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self.unanswered = command

    def answer(self) -> None:
        """Tell the client of what is `unanswered`. Consumers who wait for it need not wait for this."""
        # Hot: runs for every synchronous PUB.
        command, self.unanswered = self.unanswered, None
        if command is not None:
            self._confirm(command)

    def publish_deferred(self, command: Line, delay: float, now: float, now_ns: int) -> None:
        """A DPUB; `delay` in seconds. Raises ``FatalClientError``."""
        try:
            self._topic_of(command.spec, command.tokens[1]).publish([command.body], now, now_ns, defer=delay)
        except (Refused, OSError) as error:
            raise failed(command.spec, error) from None
        self._count(command.tokens[1], 1)
        self._reply(OK)

    def settle(self) -> None:
        """Publish what is posted, and whatever others have posted with it, now; nothing is left to be told."""
        if self.posted is not None and self._intake is not None:
            self._intake.settle()
        self.answer()

    def published(self, error: Exception | None) -> None:
        """What was posted is published, or was refused for this reason; the client hears it in its turn."""
        command, self.posted = self.posted, None
        assert command is not None, "only what was posted is published so"
        if error is None:
            self.unanswered = command
        else:
            self._fail(failed(command.spec, error))
        self._wake()

    def cancel(self) -> None:
        """Publish nothing more of `batch`, if there is one."""
        if self.batch is not None:
            self.batch[1].cancel()
            self.batch = None

    def _topic_of(self, spec: CommandSpec, topic: bytes) -> Topic:
        # Hot: runs for every synchronous PUB, whose line is as a rule the one before, the very same object.
        if self._require is not None:
            self._require(spec, topic)
        last = self._last_topic
        if last is None or topic is not self._last_name or last.exiting:
            last = self._broker.topic(topic.decode("ascii"))
            self._last_name, self._last_topic = topic, last
        return last

    def _confirm(self, command: Publish) -> None:
        # Hot: runs for every synchronous PUB, with `_count` written out.
        topic, count, counts = command.tokens[1], len(command.bodies), self.counts
        counts[topic] = counts.get(topic, 0) + count
        self._reply(OK if count == 1 or command.spec is table.MPUB else OK * count)

    def _count(self, topic: bytes, messages: int) -> None:
        self.counts[topic] = self.counts.get(topic, 0) + messages
