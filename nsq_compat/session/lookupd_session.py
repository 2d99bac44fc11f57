"""nsqlookupd's side of a connection from nsqd: received bytes in, bytes to send out. Uses no socket and no clock.

Invariants:

- *Any bytes lead to replies, or to an error and a close*, never to another exception. Every error is fatal.
- A connection's registrations end with the connection.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from nsq_compat.protocol import lookup_commands as table
from nsq_compat.protocol.command_reader import NO_READER, Command, CommandReader, SimpleCommand
from nsq_compat.protocol.commands import CommandSpec
from nsq_compat.protocol.durations import SECOND, format_duration
from nsq_compat.protocol.errors import (
    E_BAD_PROTOCOL,
    E_INVALID,
    E_UNAUTHORIZED,
    FatalClientError,
    SilentClose,
    shortened,
)
from nsq_compat.protocol.go_json import encode
from nsq_compat.protocol.lookup_commands import MAGIC, MAX_BODY_SIZE, LookupdInfo
from nsq_compat.protocol.names import address_error
from nsq_compat.queue.schedule import NEVER
from nsq_compat.registry.registration_db import Producer, RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.conversation import HANDSHAKE_SECONDS, Conversation, TlsFacts, Upgrade

log = logging.getLogger(__name__)

IDENTIFY_TIMEOUT: Final = 60.0
"""Seconds for each step up to IDENTIFY. After that a silent nsqd only becomes inactive.

PING is such a step only where every client may register: otherwise strangers could keep connections open with it."""
WRITE_TIMEOUT: Final = 30.0
_EXPECTS_TLS: Final = FatalClientError(E_BAD_PROTOCOL, "this port expects TLS")
MAX_COMMANDS_PER_CALL: Final = 64
"""Commands that one call executes; each takes about 20 us, and most are logged."""


class LookupdSession(Conversation):
    """The session of one TCP client. `peer` is its address, which is also its name in replies of the HTTP API.

    With `tls` the conversation begins with a handshake.
    """

    def __init__(
        self,
        db: RegistrationDb,
        info: LookupdInfo,
        policy: RegistrationPolicy,
        *,
        peer: str,
        now: float,
        tls: bool = False,
    ) -> None:
        super().__init__()
        self.peer = peer
        self._db = db
        self._info = info
        self._policy = policy
        self._tls: TlsFacts | None = None
        self._registrant = "", b""
        """Broadcast address and token."""
        self._opening = b""
        self._opened = False
        self._reader = CommandReader(self._admit, max_msg_size=MAX_BODY_SIZE, max_body_size=MAX_BODY_SIZE)
        self._commands: Iterator[Command] = iter(())  # received, not executed yet
        self._producer: Producer | None = None
        self._now = now
        self._now_ns = 0
        self._deadline = self.next_wakeup = now + (HANDSHAKE_SECONDS if tls else IDENTIFY_TIMEOUT)
        if tls:
            self.upgrade = Upgrade(None, b"", self._upgraded, self._upgrade_failed)

    # --- Called by the shell ------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        if self.closing:
            return
        if self.upgrade is not None:
            self.upgrade.received += data
            return
        self._now, self._now_ns = now, now_ns
        self._within_boundary(self._receive, data)

    def read_on(self, now: float, now_ns: int) -> None:
        self._now, self._now_ns = now, now_ns
        self._within_boundary(self._execute)

    def end_of_input(self) -> None:
        if self.upgrade is not None:
            self.upgrade = None
            self.closing = True
        while self.has_unread:
            self.read_on(self._now, self._now_ns)
        if not self.closing:
            self._within_boundary(self._reader.end_of_input)

    def data_to_send(self, now: float) -> bytes:
        if now >= self._deadline and not self.closing and not self.has_unread:
            if self.upgrade is not None:
                self._upgrade_failed("timeout")
            self.end_of_input()
        self.next_wakeup = self._deadline
        data = b"".join(self._replies)
        self._replies.clear()
        return data

    def may_continue(self) -> bool:
        """Whether nothing is registered, or the token still permits it. Nothing else can have changed."""
        address, token = self._registrant
        return self._producer is None or not self._policy.refuse_token(token, address)

    @property
    def write_timeout(self) -> float | None:
        return WRITE_TIMEOUT

    def closed(self) -> None:
        self.closing = True
        self.has_unread = False
        self._commands, self._reader = iter(()), NO_READER
        if self._opened:
            log.info("PROTOCOL(V1): [%s] exiting ioloop", self.peer)
            self._opened = False
        if self._producer is not None:
            self._db.forget(self._producer)
            self._producer = None

    # --- TLS ----------------------------------------------------------------------------------------------------------

    def _upgraded(self, tls: TlsFacts | None, now: float) -> None:
        self.upgrade = None
        self._tls = tls
        self._deadline = now + IDENTIFY_TIMEOUT

    def _upgrade_failed(self, reason: str) -> None:
        log.warning("CLIENT(%s): TLS handshake failed - %s", self.peer, reason)
        if self.upgrade is not None and self.upgrade.received.startswith(MAGIC):
            self._replies.append(table.reply(_EXPECTS_TLS.data))
        self.upgrade = None
        self.closing = True

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if not self._opened:
            data = self._opening + data
            if len(data) < len(MAGIC):
                self._opening = data
                return
            magic, data = data[: len(MAGIC)], data[len(MAGIC) :]
            log.info("CLIENT(%s): desired protocol magic '%s'", self.peer, magic.decode("utf-8", "backslashreplace"))
            if magic != MAGIC:
                raise FatalClientError(E_BAD_PROTOCOL)
            self._opened = True
            self._deadline = self._now + IDENTIFY_TIMEOUT
        if data:
            self._commands = self._reader.receive_data(data)
            self._execute()

    def _execute(self) -> None:
        self.has_unread = False
        for count, command in enumerate(self._commands, 1):
            if not isinstance(command, SimpleCommand):  # well-formed FINs are not checked by `_admit`
                raise FatalClientError(E_INVALID, "invalid command FIN")
            self._replies.append(table.reply(_ON_COMMAND[command.spec.name](self, command)))
            if self._producer is None and self._policy.admits_all:
                self._deadline = self._now + IDENTIFY_TIMEOUT
            if count == MAX_COMMANDS_PER_CALL:
                self.has_unread = True
                return

    def _admit(self, tokens: list[bytes]) -> CommandSpec:
        spec = table.check(tokens)
        if spec.name == "IDENTIFY" and self._producer is not None:
            raise FatalClientError(E_INVALID, "cannot IDENTIFY again")
        if spec.name in ("REGISTER", "UNREGISTER") and self._producer is None:
            raise FatalClientError(E_INVALID, "client must IDENTIFY")
        return spec

    # --- Commands; each returns the data of its reply -----------------------------------------------------------------

    def _ping(self, command: SimpleCommand) -> bytes:
        producer = self._producer
        if not self.may_continue():
            raise FatalClientError(E_UNAUTHORIZED, "PING refused: the registration is not permitted any more")
        if producer is not None:  # nsqlookupd: PING is answered even before IDENTIFY
            since = format_duration(int((self._now - producer.last_update) * SECOND))
            log.info("CLIENT(%s): pinged (last ping %s)", self.peer, since)
            self._db.heard_of(producer, self._now, self._now_ns)
        return table.OK

    def _identify(self, command: SimpleCommand) -> bytes:
        info = table.decode_peer_info(command.body)
        log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self.peer, shortened(info.broadcast_address), info.tcp_port, info.http_port, shortened(info.version),
        )  # fmt: skip
        if problem := address_error(info.broadcast_address, TCP=info.tcp_port, HTTP=info.http_port):
            log.warning(
                "CLIENT(%s): %s; clients that look up a topic, and nsqadmin, skip this nsqd", self.peer, problem
            )
        self._registrant = info.broadcast_address, table.token_of(command.body)
        if refusal := self._refusal():
            log.warning("CLIENT(%s): registration refused - %s", self.peer, refusal)
            raise FatalClientError(E_UNAUTHORIZED, f"IDENTIFY refused: {refusal}")
        self._producer = self._db.identify(self.peer, info, self._now, self._now_ns)
        self._deadline = NEVER
        return encode(self._info)

    def _refusal(self) -> str:
        tls, (address, token) = self._tls, self._registrant
        return self._policy.refusal(address, tls=tls is not None, names=tls.names if tls else (), token=token)

    def _register(self, command: SimpleCommand) -> bytes:
        """REGISTER and UNREGISTER."""
        assert self._producer is not None, "admitted only after IDENTIFY"
        address, token = self._registrant
        if why := self._policy.refuse_token(token, address):  # it may have expired
            raise FatalClientError(E_UNAUTHORIZED, f"{command.spec.name} refused: {why}")
        change = self._db.register if command.spec.name == "REGISTER" else self._db.unregister
        change(self._producer, *table.registration(command.tokens))
        return table.OK

    # --- Errors -------------------------------------------------------------------------------------------------------

    def _within_boundary(self, act: Callable[..., None], *args: bytes) -> None:
        """Call `act`, and turn errors into replies."""
        try:
            act(*args)
        except FatalClientError as error:
            log.error("[%s] - %s", self.peer, shortened(str(error)))
            self._replies.append(table.reply(error.data))
            self.closing = True
        except SilentClose:
            self.closing = True


_ON_COMMAND: Final[dict[str, Callable[[LookupdSession, SimpleCommand], bytes]]] = {
    "PING": LookupdSession._ping,
    "IDENTIFY": LookupdSession._identify,
    "REGISTER": LookupdSession._register,
    "UNREGISTER": LookupdSession._register,
}
