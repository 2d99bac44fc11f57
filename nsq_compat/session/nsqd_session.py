"""One client's conversation with nsqd (V2), without sockets, greenlets or clocks.

Invariants:

- *Any bytes lead to frames, to an error frame, or to a fatal error frame and a close*, never to another exception.
- Between an IDENTIFY that was granted an upgrade and the upgrade nothing is read, and nothing is sent but its reply.
- Commands take effect in order. If one fails fatally, those before it have taken effect, and those after it have not.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Final, Protocol

from nsq_compat.protocol import commands as table
from nsq_compat.protocol import headers
from nsq_compat.protocol.command_reader import NO_READER, Command, CommandReader, Finish, Publish, SimpleCommand
from nsq_compat.protocol.commands import INIT, CommandSpec, parse_number, tls_missing
from nsq_compat.protocol.compression import Deflate, Snappy
from nsq_compat.protocol.errors import (
    E_AUTH_DISABLED,
    E_BAD_PROTOCOL,
    E_IDENTIFY_FAILED,
    E_INVALID,
    FatalClientError,
    NsqError,
    SilentClose,
    shortened,
)
from nsq_compat.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK, error_frame, response_frame
from nsq_compat.protocol.identify import decode_identify
from nsq_compat.protocol.schema import MAGIC_V2
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import NOT_IN_FLIGHT, NOT_OWNER, NotInFlight, TooManyConsumers
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.values import ClientStats, Refused
from nsq_compat.session import negotiation
from nsq_compat.session.authorization import NO_GRANTS, Access, AuthFailed, Authorize, Credentials, Grants, not_asked
from nsq_compat.session.client_roles import DONE, IN_STEPS, Publisher, Subscription, failed
from nsq_compat.session.conversation import HANDSHAKE_SECONDS, Conversation, TlsFacts, Upgrade
from nsq_compat.session.negotiation import Layers, NsqdLimits, command_timeout
from nsq_compat.session.tracing import TracedReader

log = logging.getLogger(__name__)


MAGIC: Final = MAGIC_V2.value
MAX_COMMANDS: Final = 128
"""Commands executed in one call. The most expensive ones, which fail and are logged, take about 30 us each."""
SENT_APART: Final = 1 << 14
"""Bytes of a message from which on joining it with others costs more than passing it to the system as it is."""
_MIRROR_EFFORT: Final = 32
_IDENTIFY_BYTES: Final = 64
"""The bytes of an IDENTIFY body that count as one command."""
_DPUB_EFFORT: Final = 8
"""The number of commands a DPUB or HPUB counts for: it is a log write of its own, of about 20 us."""


def _ignored() -> None: ...


class Standby(Protocol):
    """Executes the commands of a primary that uses this nsqd as its standby."""

    def execute(self, session: object, verb: str, argument: str, body: bytes) -> bytes:
        """Raises ``FatalClientError``. May wait for the disk."""

    def ended(self, session: object) -> None:
        """The connection has ended."""


class NsqdSession(Conversation):
    """One TCP client, from its magic to its close.

    `host` is its address without the port, "" for a unix socket; `peer` names it in log lines and stats. `wake` asks
    the connection to call `data_to_send` soon and must not do so itself; `abort` closes the connection at once.
    `authorize` may wait within `receive_data`; the connection may call all other methods meanwhile. With a
    `publish_batch`, a publish that came alone may be executed at the end of the event-loop iteration.
    """

    reads_at_once: ClassVar[bool] = True

    def __init__(
        self,
        broker: Broker,
        limits: NsqdLimits,
        *,
        peer: str,
        host: str,
        wake: Callable[[], None],
        abort: Callable[[], None],
        authorize: Authorize = not_asked,
        publish_batch: PublishBatch | None = None,
        standby: "Standby | None" = None,
        now: float,
        now_ns: int,
    ) -> None:
        super().__init__()
        self.peer = peer
        self.subscription: Subscription | None = None
        self.state = INIT
        self.wake = wake
        self.abort = abort
        self._broker = broker
        self._limits = limits
        self._standby = standby
        self._access: Access | None = None
        if limits.auth_required:
            self._access = Access(partial(self._ask, authorize, host), due=now + limits.client_timeout_ms / 1000)
        self._now = now
        self._now_ns = now_ns
        self._connect_ts = now_ns // 1_000_000_000
        self._opening: bytes | None = b""  # the received part of the magic; None after it
        self._reader = CommandReader(self._admit, max_msg_size=limits.max_msg_size, max_body_size=limits.max_body_size)
        self._commands: Iterator[Command] = iter(())
        self._effort = 0  # of the commands executed in this call
        self._settings = negotiation.settings_before_identify(host, limits)
        self._command_timeout = command_timeout(self._settings)
        # nsqd: the first IDENTIFY fixes the settings of deliveries; another one changes the rest.
        self._delivery = self._settings
        self._layers = Layers()
        self._heartbeat_due = NEVER
        self._deadline = NEVER
        self._renew_deadline()
        self.next_wakeup = self._deadline
        self._publisher = Publisher(
            broker,
            publish_batch,
            peer=self.peer,
            require=self._require if limits.auth_required else None,
            recheck=self._access.recheck if self._access is not None else None,
            reply=self._replies.append,
            fail=self._fail,
            wake=wake,
        )

    # --- Called by the connection -------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        publisher = self._publisher
        if publisher.state:
            publisher.publish_posted()
        self.awaits_publish = False
        if self.has_unread:
            self._read_all()
        if self.closing:
            return
        self._now, self._now_ns = now, now_ns
        if self.upgrade is not None:
            self.upgrade.received += data
            return
        try:
            if (alone := self._reader.receive_single(data)) is not None:
                # Hot: a command that came alone, which is never the case before the magic.
                if isinstance(alone, Publish):
                    publisher.publish(alone, now, now_ns, is_alone=True)
                    self.awaits_publish = publisher.state != DONE
                else:
                    self._finish(alone)
                self._deadline = now + self._command_timeout
            else:
                self._receive(data)
        except (FatalClientError, SilentClose) as error:
            self._fail(error)

    def receive_at_once(self, data: bytes, now: float, now_ns: int) -> bool:
        # Hot: runs for every synchronous PUB where sessions may wait.
        publisher = self._publisher
        if not publisher.is_known_producer or self.has_unread or self.closing or self.upgrade is not None:
            return False
        if isinstance(self._reader, TracedReader):
            return False  # the command would be logged twice
        alone = self._reader.receive_single(data)
        if not isinstance(alone, Publish) or not publisher.needs_no_wait(alone):
            return False
        self._now, self._now_ns = now, now_ns
        self.awaits_publish = False
        try:
            publisher.publish(alone, now, now_ns, is_alone=True)
            self.awaits_publish = publisher.state != DONE
            self._deadline = now + self._command_timeout
        except FatalClientError as error:
            self._fail(error)
        return True

    def read_on(self, now: float, now_ns: int) -> None:
        if self.closing:
            self._forget_unread()
            return
        self._now, self._now_ns = now, now_ns
        try:
            if self._publisher.state != IN_STEPS or self._publisher.publish_step():
                self._execute()
            self._renew_deadline()  # that time was ours, not the client's
        except (FatalClientError, SilentClose) as error:
            self._fail(error)

    def end_of_input(self) -> None:
        self._read_all()
        self._stop_reading("EOF")

    def data_to_send(self, now: float) -> bytes | list[bytes]:
        """The replies, then one batch of messages; `has_more` says whether there may be another."""
        self.has_more = False
        if now >= self._deadline:
            self._stop_reading("i/o timeout")
        if now >= self._heartbeat_due and not self.closing and self.upgrade is None:
            self._replies.append(HEARTBEAT)
            while self._heartbeat_due <= now:
                self._heartbeat_due += self._delivery.heartbeat_interval / 1000
            if self._deadline == NEVER:
                self._now = now  # a command takes long, and the next deadline counts from here
        deadline, heartbeat_due = self._deadline, self._heartbeat_due
        self.next_wakeup = deadline if deadline < heartbeat_due or self.upgrade is not None else heartbeat_due
        replies, subscription = self._replies, self.subscription
        if subscription is not None and not self.closing:
            frames = subscription.next_batch(now)
            self.has_more = subscription.has_more
            if not replies:
                if len(frames) == 1:
                    return frames[0]
                return list(frames) if frames and len(frames[0]) >= SENT_APART else b"".join(frames)
            replies += frames
        # Hot: a producer has one reply at a time, which needs no join.
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        return data

    @property
    def write_timeout(self) -> float | None:
        # nsqd: the heartbeat interval; None without heartbeats.
        return self._settings.heartbeat_interval / 1000 or None

    def stalled(self) -> None:
        """Let messages go to other consumers while the socket takes no more."""
        if self.subscription is not None:
            self.subscription.channel.leave_wait_queue(self.subscription)

    def closed(self) -> None:
        """Leave the channel, and forget what was received."""
        self.closing = True
        self._forget_unread()
        self._reader = NO_READER
        if self.upgrade is None:
            self._layers = Layers()  # a compression has up to half a megabyte
        if self.subscription is not None:
            self.subscription.channel.remove_consumer(self.subscription)
        if self._standby is not None:
            self._standby.ended(self)

    def freed(self) -> None:
        super().freed()
        self.wake = self.abort = _ignored
        self.subscription = self._access = None
        self._publisher.freed()

    def stats(self) -> ClientStats:
        """The client's figures in /stats, as a consumer and as a producer."""
        settings, layers, tls, access = self._settings, self._layers, self._layers.tls, self._access
        counts = self.subscription.counts() if self.subscription is not None else {}
        grants = access.grants if access is not None else NO_GRANTS
        published = sorted((topic.decode("ascii"), count) for topic, count in self._publisher.counts.items())
        return ClientStats(
            client_id=settings.client_id,
            hostname=settings.hostname,
            version="V2",
            remote_address=self.peer,
            state=self.state,
            **counts,
            connect_ts=self._connect_ts,
            sample_rate=settings.sample_rate,
            deflate=isinstance(layers.compression, Deflate),
            snappy=isinstance(layers.compression, Snappy),
            user_agent=settings.user_agent,
            authed=bool(grants.authorizations),
            auth_identity=grants.identity,
            auth_identity_url=grants.identity_url,
            topology_zone=settings.topology_zone,
            topology_region=settings.topology_region,
            pub_counts=tuple(published),
            tls=tls is not None,
            tls_cipher_suite=tls.cipher_suite if tls else "",
            tls_version=tls.version if tls else "",
            tls_negotiated_protocol_is_mutual=tls is not None,  # nsqd: whatever was negotiated
        )

    def trace(self, is_on: bool) -> None:
        """Log commands and deliveries from now on, or stop that."""
        reader = self._reader
        if isinstance(reader, TracedReader):
            reader = reader.inner
        self._reader = TracedReader(reader, self.peer) if is_on else reader
        if self.subscription is not None:
            self.subscription.trace(self.peer if is_on else "")

    @property
    def has_published(self) -> bool:
        return bool(self._publisher.counts)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._opening is not None:
            data = self._opening + data
            if len(data) < len(MAGIC):
                self._opening = data
                return
            magic, data = data[: len(MAGIC)], data[len(MAGIC) :]
            if magic != MAGIC:
                raise FatalClientError(E_BAD_PROTOCOL)
            log.info("CLIENT(%s): desired protocol magic '%s'", self.peer, magic.decode())
            self._opening = None
            self._restart_heartbeat()  # before its magic a client is sent nothing
            self._renew_deadline()
        if data:
            self._commands = self._reader.receive_data(data)
            self._execute()
            if self._effort:
                self._renew_deadline()

    def _execute(self) -> None:
        """Execute a bounded number of waiting commands; `has_unread` says whether there may be more."""
        self._effort, topic_count = 0, len(self._broker.topics)
        for command in self._commands:
            self._effort += 1
            if isinstance(command, Publish):
                self._publisher.publish(command, self._now, self._now_ns)
                if self._publisher.state == IN_STEPS:
                    break
            elif isinstance(command, Finish):
                self._finish(command)
            else:
                _ON_LINE[command.spec.name](self, command)
            # Creating a topic takes as long as a hundred other commands.
            if self._effort >= MAX_COMMANDS or len(self._broker.topics) != topic_count:
                break
        else:
            self.has_unread = False
            return
        self.has_unread = True

    def _read_all(self) -> None:
        while self.has_unread:
            self.read_on(self._now, self._now_ns)

    def _forget_unread(self) -> None:
        self.has_unread = False
        self._commands = iter(())
        self._publisher.cancel()

    def _renew_deadline(self) -> None:
        self._deadline = self._now + (HANDSHAKE_SECONDS if self.upgrade is not None else self._command_timeout)
        if self._access is not None:
            self._deadline = min(self._deadline, self._access.due)

    def _restart_heartbeat(self) -> None:
        interval = self._delivery.heartbeat_interval / 1000
        self._heartbeat_due = self._now + interval if interval else NEVER

    # --- Checks before the body is received ---------------------------------------------------------------------------

    def _admit(self, tokens: list[bytes]) -> CommandSpec:
        # The reader checks a repeated PUB or MPUB line only once, so the result must not change later. The publisher
        # checks permissions.
        if self._lacks_tls() and tokens[0] != b"IDENTIFY":
            raise tls_missing(tokens[0])
        heartbeats = self._settings.heartbeat_interval > 0
        spec = table.check(tokens, self.state, heartbeats=heartbeats, headers=self._settings.message_headers)
        if spec is table.MIRROR and self._standby is None:
            raise FatalClientError(E_INVALID, b"invalid command MIRROR")  # as without the command
        if self._access is not None:
            self._access.admit(spec, has_identified=self._layers.are_negotiated)
        if spec is table.DPUB or (spec is table.HPUB and len(tokens) > 2):
            table.delay_of(tokens, self._limits.max_defer_timeout_ms)
        elif spec is table.MPUB or spec is table.HMPUB:
            # nsqd: only MPUB checks permission, and creates its topic, before its body is received.
            self._require(spec, tokens[1])
            try:
                self._broker.topic(tokens[1].decode("ascii"))
            except (Refused, OSError) as error:
                raise failed(spec, error) from None
        return spec

    def _lacks_tls(self) -> bool:
        return self._limits.tls_required and self._layers.tls is None

    # --- Commands -----------------------------------------------------------------------------------------------------

    def _publish_deferred(self, command: SimpleCommand) -> None:
        delay = table.delay_of(command.tokens, self._limits.max_defer_timeout_ms)
        publish = Publish(command.spec, command.tokens, [command.body])
        self._publisher.publish(publish, self._now, self._now_ns, delay)
        self._effort += _DPUB_EFFORT - 1

    def _publish_with_headers(self, command: SimpleCommand) -> None:
        publish, delay = Publish(command.spec, command.tokens, ()), 0.0
        if command.spec is table.HMPUB:
            parts = headers.split_batch(command.body, self._limits.max_msg_size)
            self._publisher.publish_parts(publish, parts, self._now, self._now_ns)
        else:
            if len(command.tokens) > 2:
                delay = table.delay_of(command.tokens, self._limits.max_defer_timeout_ms)
            self._publisher.publish_with_headers(publish, [command.body], self._now, self._now_ns, delay)
        self._effort += MAX_COMMANDS if self._publisher.state == IN_STEPS else _DPUB_EFFORT - 1

    def _finish(self, command: Finish) -> None:
        subscription = self._subscribed(table.FIN)
        if missing := subscription.finish(command.ids, self._now, self._now_ns):
            elsewhere = subscription.channel.in_flight_of(missing)
            for message_id in missing:
                why = NOT_OWNER if message_id in elsewhere else NOT_IN_FLIGHT
                self._refuse(table.not_in_flight(table.FIN, message_id, why))
            self._count_search(subscription)

    def _requeue(self, command: SimpleCommand) -> None:
        subscription = self._subscribed(command.spec)
        message_id, delay_ms = command.tokens[1], parse_number(command.tokens[2])
        if delay_ms is None:
            raise FatalClientError(E_INVALID, b"REQ could not parse timeout " + command.tokens[2])
        if delay_ms > self._limits.max_req_timeout_ms:
            # nsqd: clamped, unlike that of DPUB.
            log.info("[%s] REQ timeout %d out of range 0-%d", self.peer, delay_ms, self._limits.max_req_timeout_ms)
            delay_ms = self._limits.max_req_timeout_ms
        try:
            subscription.requeue(message_id, self._now, delay_ms / 1000)
        except NotInFlight as error:
            self._refuse(table.not_in_flight(command.spec, message_id, str(error)))
            self._count_search(subscription)

    def _touch(self, command: SimpleCommand) -> None:
        subscription, message_id = self._subscribed(command.spec), command.tokens[1]
        try:
            subscription.touch(message_id, self._now)
        except NotInFlight as error:
            self._refuse(table.not_in_flight(command.spec, message_id, str(error)))
            self._count_search(subscription)

    def _count_search(self, subscription: Subscription) -> None:
        """Count the search for a message that is not in flight here, which asks each consumer of the channel."""
        self._effort += len(subscription.channel.consumers) >> 5

    def _subscribe(self, command: SimpleCommand) -> None:
        self._require(command.spec, *command.tokens[1:3])
        topic, channel = (name.decode("ascii") for name in command.tokens[1:3])
        try:
            parent = self._broker.topic(topic)
            # Creating these may have waited for the disk or the standby, and the permission been taken away meanwhile.
            self._require(command.spec, *command.tokens[1:3])
            found = self._broker.channel(parent, channel)
            self._require(command.spec, *command.tokens[1:3])
            self.subscription = Subscription(
                found,
                msg_timeout=self._delivery.msg_timeout / 1000,
                touch_timeout=self._settings.msg_timeout / 1000,
                locality=negotiation.locality(self._delivery, self._limits),
                sample_rate=self._delivery.sample_rate,
                has_headers=self._settings.message_headers,
                wake=self.wake,
                close=self.abort,
                stats=self.stats,
            )
        except (Refused, TooManyConsumers, OSError) as error:
            raise failed(command.spec, error) from None
        if self._access is not None:
            self._access.subscribed = (topic, channel)
        if isinstance(self._reader, TracedReader):
            self.subscription.trace(self.peer)
        self.state = table.SUBSCRIBED
        self._replies.append(OK)

    def _ready(self, command: SimpleCommand) -> None:
        subscription = self._subscribed(command.spec)
        if self.state == table.CLOSING:
            return  # nsqd: its count is not even parsed
        raw = command.tokens[1] if len(command.tokens) > 1 else b"1"
        count = parse_number(raw)
        if count is None:
            raise FatalClientError(E_INVALID, b"RDY could not parse count " + raw)
        if count > self._limits.max_rdy_count:
            raise FatalClientError(E_INVALID, f"RDY count {count} out of range 0-{self._limits.max_rdy_count}")
        subscription.ready_count = count

    def _start_closing(self, command: SimpleCommand) -> None:
        self._subscribed(command.spec).ready_count = 0
        self.state = table.CLOSING
        self._replies.append(CLOSE_WAIT)

    def _identify(self, command: SimpleCommand) -> None:
        self._effort += len(command.body) // _IDENTIFY_BYTES
        request = decode_identify(command.body)
        log.info("[%s] IDENTIFY: %s", self.peer, shortened(str(request)))
        self._settings = negotiation.negotiate(request, self._settings, self._limits)
        self._publisher.names_windows = self._settings.publish_ids
        self._command_timeout = command_timeout(self._settings)
        if not self._layers.are_negotiated:
            self._layers.are_negotiated = True
            self._delivery = self._settings
            self._restart_heartbeat()
        if not request.feature_negotiation:
            self._replies.append(OK)
            return
        response = negotiation.grant(self._settings, self._limits)
        self._layers.want(response)
        self._replies.append(response_frame(response.encode()))
        self._begin_upgrade(self._reader.hand_back)

    def _begin_upgrade(self, received: Callable[[], bytes]) -> None:
        """Ask for the next codec if there is one; bytes received from here on are for it."""
        if self._layers.wanted:
            self.upgrade = Upgrade(self._layers.wanted[0], received(), self._upgraded, self._upgrade_failed)

    def _upgraded(self, tls: TlsFacts | None, now: float) -> None:
        self._now = now
        self._layers.add(tls)
        self._replies.append(OK)
        self.upgrade = None
        self._begin_upgrade(bytes)
        self._renew_deadline()

    def _upgrade_failed(self, reason: str) -> None:
        self.upgrade = None
        self._fail(FatalClientError(E_IDENTIFY_FAILED, f"IDENTIFY failed {reason}"))

    def _authenticate(self, command: SimpleCommand) -> None:
        if self._access is None:
            raise FatalClientError(E_AUTH_DISABLED, "AUTH disabled")
        self._replies.append(response_frame(self._access.authenticate(command.body)))

    def _mirror(self, command: SimpleCommand) -> None:
        standby = self._standby
        assert standby is not None, "otherwise there is no such command"
        if self._access is not None:
            self._access.require_mirror(command.spec, self._now)
        verb, argument = (b" ".join(command.tokens[1:]) + b" ").decode("utf-8", "replace").split(" ", 1)
        self._deadline = NEVER  # this time is ours, not the primary's
        self._replies.append(response_frame(standby.execute(self, verb, argument.strip(), command.body)))
        self._renew_deadline()
        self._effort += _MIRROR_EFFORT - 1

    def _subscribed(self, spec: CommandSpec) -> Subscription:
        if self.subscription is None:
            # A run of FINs is not checked by `_admit`.
            raise tls_missing(b"FIN") if self._lacks_tls() else table.wrong_state(spec)
        return self.subscription

    # --- Permission ---------------------------------------------------------------------------------------------------

    def _require(self, spec: CommandSpec, topic: bytes, channel: bytes = b"") -> None:
        if self._access is not None:
            self._access.require(spec, topic, channel, self._now)

    def may_continue(self, ask: Callable[[bytes], Grants]) -> bool:
        """Look up the client's permissions again, without waiting. Returns whether its connection may stay."""
        return self._access is None or self._access.renew(ask)

    def _ask(self, authorize: Authorize, host: str, secret: bytes) -> Grants:
        # The client's deadline is suspended: this time is ours.
        began, deadline, self._deadline = self._now, self._deadline, NEVER
        self.wake()  # earlier replies and heartbeats are sent meanwhile
        try:
            tls = self._layers.tls
            name = tls.common_name if tls is not None else ""
            renews = self._access is not None and len(self._access.grants.authorizations) > 0
            grants = authorize(Credentials(secret, host, tls=tls is not None, common_name=name, renews=renews))
        except AuthFailed as error:
            log.warning("PROTOCOL(V2): [%s] AUTH failed %s", self.peer, error)
            raise
        waited = max(0.0, grants.received_at - began)
        self._deadline = deadline + waited
        self._now = began + waited
        self._now_ns += int(waited * 1e9)
        return grants

    # --- Errors -------------------------------------------------------------------------------------------------------

    def _stop_reading(self, cause: str) -> None:
        self._publisher.publish_posted()
        if self.closing:
            return
        if self.upgrade is not None:
            self._upgrade_failed(cause)
        else:
            try:
                self._reader.end_of_input()
            except (FatalClientError, SilentClose) as error:
                self._fail(error)

    def _fail(self, error: FatalClientError | SilentClose) -> None:
        if isinstance(error, FatalClientError):
            self._refuse(error)
        self.closing = True
        self._forget_unread()

    def _refuse(self, error: NsqError) -> None:
        """Reply with an error; the only place where errors become frames."""
        # As text, because a log record that is kept would keep its traceback.
        log.error("[%s] - %s", self.peer, shortened(str(error)))
        self._replies.append(error_frame(error.data))
        self._effort += 1


_ON_LINE: dict[str, Callable[[NsqdSession, SimpleCommand], None]] = {
    "IDENTIFY": NsqdSession._identify,
    "AUTH": NsqdSession._authenticate,
    "SUB": NsqdSession._subscribe,
    "DPUB": NsqdSession._publish_deferred,
    "HPUB": NsqdSession._publish_with_headers,
    "HMPUB": NsqdSession._publish_with_headers,
    "RDY": NsqdSession._ready,
    "FIN": lambda session, command: session._finish(Finish([command.tokens[1]])),
    "REQ": NsqdSession._requeue,
    "TOUCH": NsqdSession._touch,
    "CLS": NsqdSession._start_closing,
    "NOP": lambda session, command: None,
    "MIRROR": NsqdSession._mirror,
}
