"""One client's conversation with nsqd: received bytes in, bytes to send out. Knows no socket, no greenlet, no clock.

The shell feeds `receive_data` and `end_of_input`, sends what `data_to_send` returns, comes back at `next_wakeup` at the
latest, and closes the socket when `closing` is set and everything is sent; then it calls `closed`.

Invariants:

- *Any bytes lead to frames, to an error frame, or to a fatal error frame and a close*, never to another exception.
- Commands take effect in order; what a failing command does not reach never happened, what came before it did.
- A subscribed consumer never has more in flight than its ready count allows at the moment of delivery.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence

from nsq_compat.protocol import command_table as table
from nsq_compat.protocol.command_reader import CommandReader
from nsq_compat.protocol.command_table import CLOSING, COMMANDS, INIT, SUBSCRIBED, CommandSpec
from nsq_compat.protocol.commands import Finish, Line, Publish
from nsq_compat.protocol.errors import (
    E_AUTH_DISABLED,
    E_BAD_CHANNEL,
    E_BAD_PROTOCOL,
    E_BAD_TOPIC,
    E_FIN_FAILED,
    E_INVALID,
    E_REQ_FAILED,
    E_TOUCH_FAILED,
    ClientError,
    FatalClientError,
    NsqError,
    SilentClose,
)
from nsq_compat.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK, error_frame, response_frame
from nsq_compat.protocol.identify import decode_identify
from nsq_compat.protocol.message import message_ids
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.protocol.quoting import quote
from nsq_compat.protocol.schema import MAGIC_V2, MESSAGE_ID_LENGTH
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel, NotInFlight, TooManyConsumers
from nsq_compat.queue.data_path import reason
from nsq_compat.queue.exiting import Exiting
from nsq_compat.queue.in_flight import NEVER, InFlight
from nsq_compat.queue.stats import ClientStats
from nsq_compat.session.nsqd_limits import (
    NsqdLimits,
    identify_response,
    negotiate,
    settings_before_identify,
)

log = logging.getLogger(__name__)

MAGIC = MAGIC_V2.value
_MAX_DIGITS = 19
_BEYOND_64_BITS = 1 << 64


class NsqdSession:
    """One TCP client, from its magic to its close.

    `host` is its address without the port, "" for a unix socket; `peer` names it in log lines and stats. `wake` asks
    the shell to call `data_to_send` soon and must not do so itself; `drop` asks it to close the connection at once.
    Times: `now` monotonic seconds, `now_ns` nanoseconds since 1970.
    """

    def __init__(
        self,
        broker: Broker,
        limits: NsqdLimits,
        *,
        peer: str,
        host: str,
        wake: Callable[[], None],
        drop: Callable[[], None],
        now: float,
        now_ns: int,
    ) -> None:
        self.peer = peer
        self.in_flight = InFlight()
        self.closing = False
        self.has_more = False
        self.state = INIT
        self.wake = wake
        self.close = drop
        self._broker = broker
        self._limits = limits
        self._now = now
        self._now_ns = now_ns
        self._connect_ts = now_ns // 1_000_000_000
        self._opening = b""
        self._opened = False
        self._reader = CommandReader(self._admit, max_msg_size=limits.max_msg_size, max_body_size=limits.max_body_size)
        self._settings = settings_before_identify(host, limits)
        # nsqd: the first IDENTIFY fixes what concerns delivery, a repeated one changes the rest.
        self._delivery = self._settings
        self._identified = False
        self._replies: list[bytes] = []
        self._channel: Channel | None = None
        self._ready_count = 0
        self._heartbeat_due = NEVER
        self._deadline = NEVER
        self._renew_deadline()
        self._message_count = 0
        self._finish_count = 0
        self._requeue_count = 0
        self._pub_counts: Counter[str] = Counter()

    # --- What the shell calls -----------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        """Feed what the socket gave."""
        if self.closing:
            return
        self._now, self._now_ns = now, now_ns
        self._within_boundary(self._receive, data)

    def end_of_input(self) -> None:
        """The client will send no more; what it is still owed goes out before the close."""
        if not self.closing:
            self._within_boundary(self._reader.end_of_input)

    def data_to_send(self, now: float) -> bytes:
        """Replies first, then one batch of messages; `has_more` says whether to come back for another."""
        self.has_more = False
        if now >= self._deadline and not self.closing:
            self.end_of_input()
        if now >= self._heartbeat_due and not self.closing:
            self._replies.append(HEARTBEAT)
            while self._heartbeat_due <= now:
                self._heartbeat_due += self._delivery.heartbeat_ms / 1000
        frames = self._next_batch(self._channel, now) if self._channel is not None and not self.closing else ()
        if not self._replies:
            return b"".join(frames)
        data = b"".join([*self._replies, *frames])
        self._replies.clear()
        return data

    def next_wakeup(self) -> float:
        """When a heartbeat is due or the client's silence has lasted too long; monotonic seconds."""
        return min(self._heartbeat_due, self._deadline)

    @property
    def write_timeout(self) -> float | None:
        """How long, in seconds, the client may take nothing of what is sent; None without heartbeats (nsqd)."""
        return self._settings.heartbeat_ms / 1000 or None

    @property
    def owed_replies(self) -> int:
        """Bytes of replies that wait to be sent."""
        return sum(map(len, self._replies))

    def stalled(self) -> None:
        """The socket takes no more for now: messages go to other consumers meanwhile."""
        if self._channel is not None:
            self._channel.stand_back(self)

    def closed(self) -> None:
        """The connection is over: leave the channel."""
        self.closing = True
        if self._channel is not None:
            self._channel.remove_consumer(self)
            self._channel = None

    def stats(self) -> ClientStats:
        """What /stats shows of this client, as a consumer and as a producer."""
        settings = self._settings
        return ClientStats(
            client_id=settings.client_id,
            hostname=settings.hostname,
            version="V2",
            remote_address=self.peer,
            state=self.state,
            ready_count=self._ready_count,
            in_flight_count=len(self.in_flight),
            message_count=self._message_count,
            finish_count=self._finish_count,
            requeue_count=self._requeue_count,
            connect_ts=self._connect_ts,
            sample_rate=settings.sample_rate,
            user_agent=settings.user_agent,
            topology_zone=settings.topology_zone,
            topology_region=settings.topology_region,
            pub_counts=tuple(sorted(self._pub_counts.items())),
        )

    @property
    def has_published(self) -> bool:
        return bool(self._pub_counts)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if not self._opened:
            data = self._receive_magic(data)
        complete = False
        for command in self._reader.receive_data(data) if data else ():
            complete = True
            if isinstance(command, Publish):
                self._publish(command)
            elif isinstance(command, Finish):
                self._finish(command)
            else:
                _ON_LINE[command.spec.name](self, command)
        if complete:
            self._renew_deadline()

    def _receive_magic(self, data: bytes) -> bytes:
        """Returns what came behind the magic."""
        self._opening += data
        if len(self._opening) < len(MAGIC):
            return b""
        magic, rest = self._opening[: len(MAGIC)], self._opening[len(MAGIC) :]
        if magic != MAGIC:
            raise FatalClientError(E_BAD_PROTOCOL)
        log.info("CLIENT(%s): desired protocol magic '%s'", self.peer, magic.decode())
        self._opened = True
        self._opening = b""
        self._restart_heartbeat()  # who has not said what it speaks is not spoken to
        self._renew_deadline()
        return rest

    def _renew_deadline(self) -> None:
        # nsqd: a complete command within two heartbeat intervals; parts of one do not count.
        interval = self._settings.heartbeat_ms / 1000
        self._deadline = self._now + 2 * interval if interval else NEVER

    def _restart_heartbeat(self) -> None:
        interval = self._delivery.heartbeat_ms / 1000
        self._heartbeat_due = self._now + interval if interval else NEVER

    # --- What can be judged from a line -------------------------------------------------------------------------------

    def _admit(self, tokens: Sequence[bytes]) -> CommandSpec:
        spec = COMMANDS.get(tokens[0])
        if spec is None:
            raise FatalClientError(E_INVALID, b"invalid command " + tokens[0])
        if self.state not in spec.states:
            raise _wrong_state(spec)
        if spec is table.SUB and not self._settings.heartbeat_ms:
            raise FatalClientError(E_INVALID, "cannot SUB with heartbeats disabled")
        if len(tokens) < spec.tokens:
            raise FatalClientError(E_INVALID, f"{spec.name} {spec.shortage}")
        if spec is table.AUTH and len(tokens) > 1:
            raise FatalClientError(E_INVALID, "AUTH invalid number of parameters")
        if spec.has_topic and not is_valid_name(tokens[1]):
            raise _bad_name(spec, E_BAD_TOPIC, "topic", tokens[1])
        if spec.has_channel and not is_valid_name(tokens[2]):
            raise _bad_name(spec, E_BAD_CHANNEL, "channel", tokens[2])
        if spec.has_message_id and len(tokens[1]) != MESSAGE_ID_LENGTH:
            raise FatalClientError(E_INVALID, "invalid message ID")
        if spec is table.DPUB:
            self._delay_of(tokens)
        elif spec is table.MPUB:
            self._make_topic(tokens)
        return spec

    def _delay_of(self, tokens: Sequence[bytes]) -> float:
        """A DPUB's delay in seconds."""
        delay_ms = _number(tokens[2])
        if delay_ms is None:
            raise FatalClientError(E_INVALID, b"DPUB could not parse timeout " + tokens[2])
        limit = self._limits.max_defer_timeout_ms
        if delay_ms > limit:
            raise FatalClientError(E_INVALID, f"DPUB timeout {delay_ms} out of range 0-{limit}")
        return delay_ms / 1000

    def _make_topic(self, tokens: Sequence[bytes]) -> None:
        # nsqd: MPUB makes its topic before it looks at the body.
        try:
            self._broker.topic(tokens[1].decode("ascii"))
        except (Exiting, OSError) as error:
            raise _failed(table.MPUB, error) from None

    # --- Commands -----------------------------------------------------------------------------------------------------

    def _publish(self, command: Publish) -> None:
        # Hot: runs for every synchronous PUB.
        spec, tokens, bodies = command
        name = tokens[1].decode("ascii")
        try:
            self._broker.topic(name).publish(bodies, self._now, self._now_ns)
        except (Exiting, OSError) as error:
            raise _failed(spec, error) from None
        self._pub_counts[name] += len(bodies)
        self._replies.append(OK if spec is table.MPUB else OK * len(bodies))

    def _publish_deferred(self, command: Line) -> None:
        name = command.tokens[1].decode("ascii")
        try:
            self._broker.topic(name).publish(
                [command.body], self._now, self._now_ns, defer=self._delay_of(command.tokens)
            )
        except (Exiting, OSError) as error:
            raise _failed(command.spec, error) from None
        self._pub_counts[name] += 1
        self._replies.append(OK)

    def _finish(self, command: Finish) -> None:
        channel = self._subscribed(table.FIN)
        missing = channel.finish(self, command.ids)
        self._finish_count += len(command.ids) - len(missing)
        for message_id in missing:
            self._refuse(_not_in_flight(E_FIN_FAILED, "FIN", message_id, channel.why_not(message_id)))

    def _finish_line(self, command: Line) -> None:
        self._finish(Finish([command.tokens[1]]))

    def _requeue(self, command: Line) -> None:
        channel = self._subscribed(command.spec)
        message_id, delay_ms = command.tokens[1], _number(command.tokens[2])
        if delay_ms is None:
            raise FatalClientError(E_INVALID, b"REQ could not parse timeout " + command.tokens[2])
        if delay_ms > self._limits.max_req_timeout_ms:
            # nsqd: unlike DPUB's, this one is clamped.
            log.info("[%s] REQ timeout %d out of range 0-%d", self.peer, delay_ms, self._limits.max_req_timeout_ms)
            delay_ms = self._limits.max_req_timeout_ms
        try:
            channel.requeue(self, message_id, self._now, delay_ms / 1000)
        except NotInFlight as error:
            self._refuse(_not_in_flight(E_REQ_FAILED, "REQ", message_id, str(error)))
        else:
            self._requeue_count += 1

    def _touch(self, command: Line) -> None:
        channel = self._subscribed(command.spec)
        message_id = command.tokens[1]
        try:
            channel.touch(self, message_id, self._now, self._settings.msg_timeout_ms / 1000)
        except NotInFlight as error:
            self._refuse(_not_in_flight(E_TOUCH_FAILED, "TOUCH", message_id, str(error)))

    def _subscribe(self, command: Line) -> None:
        topic, channel = (name.decode("ascii") for name in command.tokens[1:3])
        try:
            target = self._broker.topic(topic).channel(channel)
            target.add_consumer(self)
        except (Exiting, TooManyConsumers, OSError) as error:
            raise _failed(command.spec, error) from None
        self._channel = target
        self.state = SUBSCRIBED
        self._replies.append(OK)

    def _ready(self, command: Line) -> None:
        if self.state == CLOSING:
            return  # nsqd: not even parsed
        raw = command.tokens[1] if len(command.tokens) > 1 else b"1"
        count = _number(raw)
        if count is None:
            raise FatalClientError(E_INVALID, b"RDY could not parse count " + raw)
        if count > self._limits.max_rdy_count:
            raise FatalClientError(E_INVALID, f"RDY count {count} out of range 0-{self._limits.max_rdy_count}")
        self._ready_count = count

    def _start_closing(self, command: Line) -> None:
        self._ready_count = 0
        self.state = CLOSING
        self._replies.append(CLOSE_WAIT)

    def _identify(self, command: Line) -> None:
        request = decode_identify(command.body)
        log.info("[%s] IDENTIFY: %s", self.peer, request)
        self._settings = negotiate(request, self._settings, self._limits)
        if not self._identified:
            self._identified = True
            self._delivery = self._settings
            self._restart_heartbeat()
        if request.feature_negotiation:
            self._replies.append(response_frame(identify_response(self._settings, self._limits).encode()))
        else:
            self._replies.append(OK)

    def _authenticate(self, command: Line) -> None:
        raise FatalClientError(E_AUTH_DISABLED, "AUTH disabled")

    def _do_nothing(self, command: Line) -> None:
        pass

    def _subscribed(self, spec: CommandSpec) -> Channel:
        if self._channel is None:
            raise _wrong_state(spec)
        return self._channel

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _next_batch(self, channel: Channel, now: float) -> Sequence[bytes]:
        room = self._ready_count - len(self.in_flight)
        if room <= 0:
            channel.stand_back(self)
            return ()
        frames = channel.take(self, room, now, self._delivery.msg_timeout_ms / 1000)
        self.has_more = 0 < len(frames) < room and channel.depth > 0 and not channel.paused
        if self._delivery.sample_rate:
            taken, frames = len(frames), self._sample(channel, frames)
            self.has_more |= len(frames) < taken  # what was not drawn has left room for as many
        self._message_count += len(frames)
        return frames

    def _sample(self, channel: Channel, frames: Sequence[bytes]) -> list[bytes]:
        # nsqd: what is not drawn is gone for the channel, and a rate of N lets N + 1 percent through.
        kept: list[bytes] = []
        discarded: list[bytes] = []
        for frame in frames:
            (kept if random.randrange(100) <= self._delivery.sample_rate else discarded).append(frame)
        channel.finish(self, message_ids(discarded))
        return kept

    def _within_boundary(self, act: Callable[..., None], *args: bytes) -> None:
        """The one place where errors become frames."""
        try:
            act(*args)
        except FatalClientError as error:
            self._refuse(error)
            self.closing = True
        except SilentClose:
            self.closing = True

    def _refuse(self, error: NsqError) -> None:
        log.error("[%s] - %s", self.peer, str(error))  # whoever keeps a record must not keep the error's frames
        self._replies.append(error_frame(error.data))


def _number(raw: bytes) -> int | None:
    """A decimal parameter: digits only, an empty one is 0; None for anything else.

    What does not fit 64 bits is too big for every limit (nsqd lets it wrap around; docs/differences.md: numbers).
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_DIGITS else _BEYOND_64_BITS


def _wrong_state(spec: CommandSpec) -> FatalClientError:
    return FatalClientError(E_INVALID, f"cannot {spec.name} in current state")


def _bad_name(spec: CommandSpec, code: str, noun: str, name: bytes) -> FatalClientError:
    # nsqd: MPUB alone says its code twice.
    again = f"{code} " if spec is table.MPUB else ""
    return FatalClientError(code, f"{again}{spec.name} {noun} name {quote(name)} is not valid")


def _failed(spec: CommandSpec, error: Exception) -> FatalClientError:
    # Of what the system refused the reason alone: clients need not know paths.
    text = reason(error) if isinstance(error, OSError) else str(error)
    return FatalClientError(f"E_{spec.name}_FAILED", f"{spec.name} failed {text}")


def _not_in_flight(code: str, name: str, message_id: bytes, reason: str) -> ClientError:
    return ClientError(code, f"{name} ".encode("ascii") + message_id + f" failed {reason}".encode("ascii"))


_ON_LINE: dict[str, Callable[[NsqdSession, Line], None]] = {
    "IDENTIFY": NsqdSession._identify,
    "AUTH": NsqdSession._authenticate,
    "SUB": NsqdSession._subscribe,
    "DPUB": NsqdSession._publish_deferred,
    "RDY": NsqdSession._ready,
    "FIN": NsqdSession._finish_line,
    "REQ": NsqdSession._requeue,
    "TOUCH": NsqdSession._touch,
    "CLS": NsqdSession._start_closing,
    "NOP": NsqdSession._do_nothing,
}
