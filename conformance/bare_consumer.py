"""A consumer without a client library that takes an exact number of messages and leaves none in flight."""

from types import TracebackType

from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import HEARTBEAT, PATIENCE_SECONDS, RESPONSE, Frame, RawClient

_MAX_RDY = 2500


class BareConsumer(RawClient):
    """A subscribed connection that answers heartbeats while it receives."""

    def __init__(self, nsqd: NsqdProcess, topic: str, channel: str) -> None:
        super().__init__(nsqd.tcp_address)
        self.subscribes(topic, channel)

    def take(self, count: int) -> list[bytes]:
        """Receive and finish `count` messages; returns their bodies. Raises ``TimeoutError`` if they do not arrive."""
        bodies: list[bytes] = []
        while len(bodies) < count:
            room = min(_MAX_RDY, count - len(bodies))
            messages = self.is_ready(room).messages(room)
            self.is_ready(0).finishes(*messages)
            bodies += [message.body for message in messages]
        return bodies

    def leave(self) -> None:
        """Close the subscription; returns when nsqd has executed all commands."""
        assert self.sends(b"CLS\n").response() == b"CLOSE_WAIT"

    def reply(self, timeout: float = PATIENCE_SECONDS) -> Frame:
        while (frame := self.frame(timeout)) == (RESPONSE, HEARTBEAT):
            self.sends(b"NOP\n")
        return frame

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.leave()
        finally:
            self.close()
