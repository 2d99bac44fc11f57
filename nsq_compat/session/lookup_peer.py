"""A conversation with nsqlookupd, nsqd's side of it: who this daemon is, what it has, and that it is still there.

What nsqlookupd is to know is a state, not a queue of commands. A conversation begins with all there is; from then on
the names of what came and went are noted, and what is said of a name is what is true when its turn comes. So however
slow nsqlookupd is, nothing piles up but names, once each; and when the conversation ends, nothing is kept at all: the
next one begins with all there is.

Invariants:

- Nothing is said before IDENTIFY was answered, and never are more than `WINDOW` commands unanswered.
- What went is said before what came: to nsqlookupd, the end of a topic is the end of its channels, also of those that a
  new topic of that name has.
- Whatever is not an answer in time ends the conversation, with the reason in `failure`.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from nsq_compat.protocol import lookup_commands
from nsq_compat.protocol.lookup_commands import LookupdInfo, LookupReplyError, PeerInfo, ReplyReader
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.topic import Topic
from nsq_compat.session.conversation import Conversation

log = logging.getLogger(__name__)

PING_SECONDS = 15.0
ANSWER_SECONDS = 5.0
"""How long nsqlookupd may say nothing while it owes answers."""
GRACE_SECONDS = 1.0
"""After that: it may be us who was held up, with the answer unread."""
WINDOW = 100

_Name = tuple[str, str]
"""A topic and "", or a topic and a channel."""


class LookupPeer(Conversation):
    """One connection to one nsqlookupd, from the magic on.

    `address` names it in log lines. `wake` asks the shell to call `data_to_send` soon and must not do so itself;
    `greeted` is called when nsqlookupd has said who it is.
    """

    def __init__(
        self,
        broker: Broker,
        info: PeerInfo,
        *,
        address: str,
        wake: Callable[[], None],
        greeted: Callable[[LookupdInfo], None],
        now: float,
        max_reply_size: int = lookup_commands.DEFAULT_MAX_REPLY_SIZE,
    ) -> None:
        super().__init__()
        self.failure = ""
        self._broker = broker
        self._address = address
        self._wake = wake
        self._greeted = greeted
        self._opening = lookup_commands.MAGIC + lookup_commands.identify(info)
        self._reader = ReplyReader(max_reply_size)
        self._unanswered: deque[str] = deque()
        self._has_greeted = False
        self._told_all = False
        self._ping_due = now + PING_SECONDS
        self._deadline = NEVER
        self.next_wakeup = self._ping_due
        self._in_grace = False
        self._gone: OrderedDict[_Name, None] = OrderedDict()
        self._come: OrderedDict[_Name, str] = OrderedDict()  # with the word that log lines begin with
        self._untold: deque[str] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether nsqlookupd has acknowledged all there was when the conversation began."""
        return self._told_all

    # --- What came and went -------------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        self._note_come(topic.name, "")

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        self._note_come(topic.name, channel.name)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self._note_gone(topic.name, channel.name)

    def topic_deleted(self, topic: Topic) -> None:
        for channel in topic.channels:
            self._note_gone(topic.name, channel)
        self._note_gone(topic.name, "")

    def ping_now(self, now: float) -> None:
        """Find out whether it is still there."""
        self._ping_due = min(self._ping_due, now)
        self._wake()

    def _note_come(self, topic: str, channel: str) -> None:
        if self._has_greeted:
            self._come[topic, channel] = "channel " if channel else "topic "
            self._wake()

    def _note_gone(self, topic: str, channel: str) -> None:
        if self._has_greeted:
            self._gone[topic, channel] = None
            self._wake()

    # --- What the shell calls -----------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        """Feed what the socket gave."""
        if self.closing:
            return
        try:
            for reply in self._reader.receive_data(data):
                self._answered(reply)
        except LookupReplyError as error:
            self._fail(str(error))
        self._in_grace = False
        self._deadline = now + ANSWER_SECONDS if self._unanswered else NEVER

    def end_of_input(self) -> None:
        """nsqlookupd has closed its side."""
        self._fail("EOF")

    def data_to_send(self, now: float) -> bytes:
        """The next commands, as far as answers have come for earlier ones."""
        if now >= self._deadline:
            self._doubt(now)
        if self.closing:
            return b""
        commands = [*self._open(), *self._ping(now), *self._registrations()]
        if commands and self._deadline == NEVER:
            self._deadline = now + ANSWER_SECONDS
        self.next_wakeup = min(self._ping_due, self._deadline)
        return b"".join(commands)

    @property
    def write_timeout(self) -> float | None:
        return ANSWER_SECONDS

    def closed(self) -> None:
        """The connection is over."""
        self.closing = True

    # --- Saying -------------------------------------------------------------------------------------------------------

    def _open(self) -> Iterator[bytes]:
        if self._opening:
            opening, self._opening = self._opening, b""
            self._unanswered.append("IDENTIFY")
            yield opening

    def _ping(self, now: float) -> Iterator[bytes]:
        if now >= self._ping_due:
            self._ping_due = now + PING_SECONDS
            if self._has_greeted:
                log.debug("LOOKUPD(%s): sending heartbeat", self._address)
                self._unanswered.append("PING")
                yield lookup_commands.PING

    def _registrations(self) -> Iterator[bytes]:
        if not self._has_greeted:
            return
        while len(self._unanswered) < WINDOW:
            if self._gone:
                name, _ = self._gone.popitem(last=False)
                yield self._say("channel " if name[1] else "topic ", lookup_commands.unregister(*name))
            elif self._come:
                name, prefix = self._come.popitem(last=False)
                if self._is_there(*name):
                    yield self._say(prefix, lookup_commands.register(*name))
            elif self._untold:
                topic = self._untold.popleft()
                # nsqd: a channel registers its topic, too.
                channels = self._broker.topics[topic].channels if topic in self._broker.topics else ()
                self._come.update(dict.fromkeys([(topic, channel) for channel in channels] or [(topic, "")], ""))
            else:
                return

    def _is_there(self, topic: str, channel: str) -> bool:
        found = self._broker.topics.get(topic)
        return found is not None and (not channel or channel in found.channels)

    def _say(self, prefix: str, command: bytes) -> bytes:
        text = command.decode("ascii").rstrip()
        log.info("LOOKUPD(%s): %s%s", self._address, prefix, text)
        self._unanswered.append(text)
        return command

    # --- Hearing ------------------------------------------------------------------------------------------------------

    def _answered(self, reply: bytes) -> None:
        if not self._unanswered:
            raise LookupReplyError("an answer to nothing")
        if not self._has_greeted:
            self._greet(lookup_commands.decode_lookupd_info(reply))
        elif reply != lookup_commands.OK:
            # Go's nsqd takes anything for OK (docs/differences.md: lookup-answers).
            raise LookupReplyError(reply[:100].decode("utf-8", "backslashreplace"))
        self._unanswered.popleft()
        if not (self._unanswered or self._untold or self._come or self._gone):
            self._told_all = True

    def _greet(self, info: LookupdInfo) -> None:
        log.info(
            "LOOKUPD(%s): peer info {TCPPort:%d HTTPPort:%d Version:%s BroadcastAddress:%s}",
            self._address, info.tcp_port, info.http_port, info.version, info.broadcast_address,
        )  # fmt: skip
        if not info.broadcast_address:
            log.error("LOOKUPD(%s): no broadcast address", self._address)
        self._has_greeted = True
        self._untold = deque(self._broker.topics)
        self._greeted(info)

    def _doubt(self, now: float) -> None:
        if self._in_grace:
            self._fail(f"no answer within {ANSWER_SECONDS:g}s")
        self._in_grace = True
        self._deadline = now + GRACE_SECONDS

    def _fail(self, reason: str) -> None:
        if not self.closing:
            self.failure = f"{self._unanswered[0]} - {reason}" if self._unanswered else reason
            self.closing = True
