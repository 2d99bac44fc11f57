"""What --log-level=debug shows of a conversation with nsqd: the commands received, in the words of Go's nsqd.

A session has either the reader or this one around it, so that a message costs nothing more at other levels.
"""

import logging
from collections.abc import Iterator, Sequence

from nsq_compat.protocol.command_reader import Command, CommandReader, Finish, Publish
from nsq_compat.protocol.commands import MPUB
from nsq_compat.protocol.message import body, message_id

log = logging.getLogger(__name__)


class TracedReader(CommandReader):
    """Logs the commands that `inner` reads. `peer` names the client."""

    def __init__(self, inner: CommandReader, peer: str) -> None:
        super().__init__(inner._admit, max_msg_size=0, max_body_size=0)
        self.inner = inner
        self._peer = peer

    def receive_single(self, data: bytes) -> Publish | Finish | None:
        return None  # `receive_data` reads such commands as well

    def receive_data(self, data: bytes) -> Iterator[Command]:
        for command in self.inner.receive_data(data):
            for line in _lines(command):
                log.debug("PROTOCOL(V2): [%s] [%s]", self._peer, line.decode("utf-8", "backslashreplace"))
            yield command

    def hand_back(self) -> bytes:
        return self.inner.hand_back()

    def end_of_input(self) -> None:
        self.inner.end_of_input()


def _lines(command: Command) -> Sequence[bytes]:
    """The lines of a run of commands, without their bodies."""
    if isinstance(command, Finish):
        return [b"FIN " + each for each in command.ids]
    line = b" ".join(command.tokens)
    if isinstance(command, Publish) and command.spec is not MPUB:
        return [line] * len(command.bodies)
    return [line]


def log_delivery(peer: str, frames: Sequence[bytes], ready: int, in_flight: int) -> None:
    """Log messages that are about to be sent to a consumer, which has its RDY and that many messages in flight."""
    log.debug("[%s] state rdy: %4d inflt: %4d", peer, ready, in_flight)
    for frame in frames:
        text = body(frame).decode("utf-8", "backslashreplace")
        log.debug("PROTOCOL(V2): writing msg(%s) to client(%s) - %s", message_id(frame).decode("ascii"), peer, text)
