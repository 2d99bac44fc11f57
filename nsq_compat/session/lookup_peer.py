"""nsqd's side of a connection to nsqlookupd: identifies this nsqd, registers its topics and channels, sends pings.

The session keeps a state in sync, not a queue of commands. First it registers all topics and channels. Then it collects
the names of those that are created or deleted, and sends the current state of each name. So the backlog of a slow
nsqlookupd is never more than a set of names. When the connection ends, nothing is kept: the next one begins with all
topics and channels again.

Invariants:

- No command is sent before the reply to IDENTIFY, and at most `MAX_UNANSWERED` commands are unanswered.
- Removals are sent before additions, because UNREGISTER of a topic also removes its channels in nsqlookupd, including
  those of a new topic of that name.
- An unexpected or late reply ends the session, with the reason in `failure`.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from nsq_compat.protocol import lookup_commands
from nsq_compat.protocol.lookup_commands import LookupdInfo, LookupReplyError, PeerInfo, ReplyReader
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.topic import Topic
from nsq_compat.session.conversation import HANDSHAKE_SECONDS, Conversation, TlsFacts, Upgrade

log = logging.getLogger(__name__)

PING_SECONDS = 15.0
REPLY_TIMEOUT = 5.0
"""How long nsqlookupd may be silent while replies are outstanding."""
GRACE_SECONDS = 1.0
"""Additional time to read a reply that arrived while this process was blocked."""
MAX_UNANSWERED = 100

_Name = tuple[str, str]
"""A topic and "", or a topic and a channel."""


class LookupPeer(Conversation):
    """The session of one connection to one nsqlookupd.

    `address` names it in log lines. `wake` must make the connection call `data_to_send` soon, but not call it itself.
    `on_identified` is called with nsqlookupd's reply to IDENTIFY. With `tls` the conversation begins with a handshake,
    before which nothing is sent.
    """

    def __init__(
        self,
        broker: Broker,
        info: PeerInfo,
        *,
        address: str,
        wake: Callable[[], None],
        on_identified: Callable[[LookupdInfo], None],
        now: float,
        max_reply_size: int = lookup_commands.MAX_REPLY_SIZE,
        tls: bool = False,
        token: str = "",
    ) -> None:
        super().__init__()
        self.failure = ""
        self._broker = broker
        self._address = address
        self._wake = wake
        self._on_identified = on_identified
        self._opening = lookup_commands.MAGIC + lookup_commands.identify(info, token)
        self._reader = ReplyReader(max_reply_size)
        self._unanswered: deque[str] = deque()
        self._identified = False
        self.all_registered = False
        """Whether nsqlookupd has acknowledged all topics and channels that existed when the session began."""
        self._ping_due = now + PING_SECONDS
        self._deadline = now + HANDSHAKE_SECONDS if tls else NEVER
        self.next_wakeup = min(self._ping_due, self._deadline)
        if tls:
            self.upgrade = Upgrade(None, b"", self._upgraded, self._upgrade_failed)
        self._in_grace = False
        self._removed: OrderedDict[_Name, str] = OrderedDict()  # with the prefix of the log line
        self._added: OrderedDict[_Name, str] = OrderedDict()
        self._unregistered_topics: deque[str] = deque()

    # --- Observer of the broker ---------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        self._note(self._added, topic, "")

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        self._note(self._added, topic, channel.name)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self._note(self._removed, topic, channel.name)

    def topic_deleted(self, topic: Topic) -> None:
        for channel in (*topic.channels, ""):
            self._note(self._removed, topic, channel)

    def ping_now(self, now: float) -> None:
        """Send a ping now, to check that nsqlookupd still answers."""
        self._ping_due = min(self._ping_due, now)
        self._wake()

    def _note(self, changes: OrderedDict[_Name, str], topic: Topic, channel: str) -> None:
        if self._identified:
            changes[topic.name, channel] = "channel " if channel else "topic "
            self._wake()

    # --- Called by the shell ------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        if self.closing:
            return
        if self.upgrade is not None:
            self.upgrade.received += data
            return
        try:
            for reply in self._reader.receive_data(data):
                self._handle_reply(reply)
        except LookupReplyError as error:
            self._fail(str(error))
        self._in_grace = False
        self._deadline = now + REPLY_TIMEOUT if self._unanswered else NEVER

    def end_of_input(self) -> None:
        self._fail("TLS handshake - EOF" if self.upgrade is not None else "EOF")

    def input_failed(self, reason: str) -> bool:
        self._fail(reason)
        return True

    def data_to_send(self, now: float) -> bytes:
        """The next commands, as many as the limit on unanswered ones allows."""
        if self.upgrade is not None:
            if now >= self._deadline:
                self._upgrade_failed("timeout")
            self.next_wakeup = self._deadline
            return b""
        if now >= self._deadline:
            if self._in_grace:
                self._fail(f"no answer within {REPLY_TIMEOUT:g}s")
            self._in_grace = True
            self._deadline = now + GRACE_SECONDS
        if self.closing:
            return b""
        commands = [*self._commands(now)]
        if commands and self._deadline == NEVER:
            self._deadline = now + REPLY_TIMEOUT
        self.next_wakeup = min(self._ping_due, self._deadline)
        return b"".join(commands)

    @property
    def write_timeout(self) -> float | None:
        return REPLY_TIMEOUT

    # --- TLS ----------------------------------------------------------------------------------------------------------

    def _upgraded(self, tls: TlsFacts | None, now: float) -> None:
        self.upgrade = None
        self._deadline = NEVER

    def _upgrade_failed(self, reason: str) -> None:
        self.upgrade = None
        self._fail(f"TLS handshake - {reason}")

    # --- Commands -----------------------------------------------------------------------------------------------------

    def _commands(self, now: float) -> Iterator[bytes]:
        if self._opening:
            opening, self._opening = self._opening, b""
            self._unanswered.append("IDENTIFY")
            yield opening
        is_ping_due = now >= self._ping_due
        if is_ping_due:
            self._ping_due = now + PING_SECONDS
        if not self._identified:
            return
        if is_ping_due:
            log.debug("LOOKUPD(%s): sending heartbeat", self._address)
            self._unanswered.append("PING")
            yield lookup_commands.PING
        while len(self._unanswered) < MAX_UNANSWERED:
            if self._removed:
                name, prefix = self._removed.popitem(last=False)
                yield self._track(prefix, lookup_commands.unregister(*name))
            elif self._added:
                name, prefix = self._added.popitem(last=False)
                topic, channel = name
                found = self._broker.topics.get(topic)
                if found is not None and (not channel or channel in found.channels):
                    yield self._track(prefix, lookup_commands.register(*name))
            elif self._unregistered_topics:
                topic = self._unregistered_topics.popleft()
                # nsqd: a channel registers its topic, too.
                channels = self._broker.topics[topic].channels if topic in self._broker.topics else ()
                self._added.update(dict.fromkeys([(topic, each) for each in channels] or [(topic, "")], ""))
            else:
                return

    def _track(self, prefix: str, command: bytes) -> bytes:
        text = command.decode("ascii").rstrip()
        log.info("LOOKUPD(%s): %s%s", self._address, prefix, text)
        self._unanswered.append(text)
        return command

    # --- Replies ------------------------------------------------------------------------------------------------------

    def _handle_reply(self, reply: bytes) -> None:
        if not self._unanswered:
            raise LookupReplyError("a reply without a command")
        if not self._identified:
            self._handle_identify_reply(lookup_commands.decode_lookupd_info(reply))
        elif reply != lookup_commands.OK:
            # Go's nsqd takes anything for OK (docs/differences.md: lookup-answers).
            raise LookupReplyError(reply[:100].decode("utf-8", "backslashreplace"))
        self._unanswered.popleft()
        if not (self._unanswered or self._unregistered_topics or self._added or self._removed):
            self.all_registered = True

    def _handle_identify_reply(self, info: LookupdInfo) -> None:
        log.info(
            "LOOKUPD(%s): peer info {TCPPort:%d HTTPPort:%d Version:%s BroadcastAddress:%s}",
            self._address, info.tcp_port, info.http_port, info.version, info.broadcast_address,
        )  # fmt: skip
        if not info.broadcast_address:
            log.error("LOOKUPD(%s): no broadcast address", self._address)
        self._identified = True
        self._unregistered_topics = deque(self._broker.topics)
        self._on_identified(info)

    def _fail(self, reason: str) -> None:
        if not self.closing:
            self.failure = f"{self._unanswered[0]} - {reason}" if self._unanswered else reason
            self.closing = True
