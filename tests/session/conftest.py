"""A daemon without sockets: the real queue and real sessions, a clock that a test moves, and clients that say and hear.

`says` and `hears` make the two columns of a conversation. `hears` names everything that came since the last time, in
order: a response by its data, an error by its data, a message by its body.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import pytest

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.queue.values import ClientStats, QueueLimits
from nsq_compat.session.authorization import Authorize, not_asked
from nsq_compat.session.negotiation import NsqdLimits
from nsq_compat.session.nsqd_session import NsqdSession
from tests.v2_client import (
    ASKS_FOR_HEADERS,
    ERROR,
    MESSAGE,
    MESSAGES,
    RESPONSE,
    Conversation,
    Frame,
    Message,
    mpub,
    sized,
    split_frames,
)

TURNS_AT_MOST = 10_000


class Nsqd:
    """Serves sessions as net/connection does: sends the bytes of a session that was woken or is due.

    Options are the fields of ``NsqdLimits`` and ``QueueLimits``. `now` is monotonic seconds and moves in `waits`.
    """

    def __init__(self, **options: Any) -> None:
        of_the_queue = {field.name for field in fields(QueueLimits)} & set(options)
        self.broker = Broker(QueueLimits(**{name: options.pop(name) for name in of_the_queue}))
        self._ending: list[Callable[[], None]] = []
        self.publish_batch = PublishBatch(self._ending.append)
        self.limits = NsqdLimits(**options)
        self.now = 1000.0
        self.clients: list[Client] = []
        self.authorize: Authorize = not_asked
        """Asked with ``auth_required``; it may let time pass."""

    @property
    def now_ns(self) -> int:
        return 1_700_000_000_000_000_000 + int(self.now * 1e9)

    def connect(self, opening: bytes = b"  V2", host: str = "127.0.0.1") -> "Client":
        """A new client, which has said its magic unless told otherwise."""
        client = Client(self, host)
        self.clients.append(client)
        return client.says(opening)

    def waits(self, seconds: float) -> None:
        """Time passes; what is due on the way happens at its time."""
        end = self.now + seconds
        while True:
            at = min([self.broker.schedule.run(self.now), *(each.next_wakeup() for each in self.clients)])
            if at > end:
                break
            self.now = max(self.now, at)
            self.broker.schedule.run(self.now)
            for client in self.clients:
                client.woken = client.woken or client.next_wakeup() <= self.now
            self.turns()
        self.now = end
        self.turns()

    def turns(self) -> None:
        """Let all woken sessions send, in turn, until none is woken."""
        for _ in range(TURNS_AT_MOST):
            while self._ending:
                self._ending.pop()()
            for client in self.clients:
                while client.session.has_unread:
                    client.session.read_on(self.now, self.now_ns)
                    client.woken = True
            woken = [client for client in self.clients if client.woken]
            if not woken:
                return
            for client in woken:
                client.flush()
        raise AssertionError("the daemon does not come to rest")


class Client(Conversation):
    """One connection, seen from the other end."""

    def __init__(self, nsqd: Nsqd, host: str) -> None:
        self.woken = False
        self.is_open = True
        self.reads = True
        self.received: list[Message] = []
        self.bytes_heard = b""
        self._nsqd = nsqd
        self.unparsed = b""
        self._unheard: list[Frame] = []
        self.session = NsqdSession(
            nsqd.broker,
            nsqd.limits,
            peer=f"{host}:5000",
            host=host,
            wake=self._wake,
            abort=self._close,
            authorize=lambda credentials: nsqd.authorize(credentials),
            publish_batch=nsqd.publish_batch,
            now=nsqd.now,
            now_ns=nsqd.now_ns,
        )

    # --- What the client does -----------------------------------------------------------------------------------------

    def says(self, *pieces: bytes) -> Self:
        """Send bytes; each argument arrives by itself, and is answered before the next."""
        for piece in pieces:
            if self.is_open:
                self.session.receive_data(piece, self._nsqd.now, self._nsqd.now_ns)
                self.woken = True
                self._nsqd.turns()
        return self

    def says_at_once(self, *pieces: bytes) -> "Client":
        """Send bytes by the piece, all within one turn, which goes on."""
        for piece in pieces:
            self.session.receive_data(piece, self._nsqd.now, self._nsqd.now_ns)
        self.woken = True
        return self

    def stops_sending(self) -> "Client":
        """Close its half of the connection."""
        if self.is_open:
            self.session.end_of_input()
            self.woken = True
            self._nsqd.turns()
        return self

    def disconnects(self) -> "Client":
        """Be gone, without a word."""
        self._close()
        self._nsqd.turns()
        return self

    def stops_reading(self) -> "Client":
        """Its socket is full: nothing more is asked of its session until it reads again."""
        self.reads = False
        self.session.stalled()
        self._nsqd.turns()
        return self

    def reads_on(self) -> "Client":
        """Its socket takes bytes again."""
        self.reads = True
        self.woken = True
        self._nsqd.turns()
        return self

    # --- What the client notices --------------------------------------------------------------------------------------

    def hears(self, *texts: bytes) -> Self:
        """Exactly these frames came since the last time: an error looks like one, a response like one."""
        expected = [Frame(_type_of(text), text) for text in texts]
        heard, self._unheard = self._unheard, []
        assert heard == expected
        return self

    def asks_for_headers(self) -> Self:
        """Negotiate messages with headers."""
        self.identifies(**ASKS_FOR_HEADERS)
        assert json.loads(self.hears_anything()[0].data)["nsq_compat"] == {"headers": True}
        return self

    def hears_anything(self) -> list[Frame]:
        """The frames that came since the last time, whatever they are."""
        heard, self._unheard = self._unheard, []
        return heard

    def and_is_closed(self) -> "Client":
        assert not self.is_open, "the connection should be closed by now"
        return self

    def and_stays(self) -> "Client":
        assert self.is_open, "the connection should still be open"
        return self

    def id_of(self, body: bytes) -> bytes:
        """The id of a message it has got."""
        return next(message.id for message in reversed(self.received) if message.body == body)

    def bodies(self) -> list[bytes]:
        """Of every message it ever got, in order."""
        return [message.body for message in self.received]

    @property
    def stats(self) -> ClientStats:
        return self.session.stats()

    # --- The connection -----------------------------------------------------------------------------------------------

    def next_wakeup(self) -> float:
        return self.session.next_wakeup if self.is_open and self.reads else float("inf")

    def flush(self) -> None:
        self.woken = False
        if not self.is_open or not self.reads:
            return
        data = self.session.data_to_send(self._nsqd.now)
        self._receive(data if isinstance(data, bytes) else b"".join(data))
        if self.session.closing:
            self._close()
        elif self.session.has_more:
            self.woken = True

    def _wake(self) -> None:
        self.woken = True

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.session.closed()

    def _receive(self, data: bytes) -> None:
        self.bytes_heard += data
        frames, self.unparsed = split_frames(self.unparsed + data)
        assert len(self.unparsed) < 8, "a frame is always sent whole"
        for frame in frames:
            if frame.type in MESSAGES:
                self.received.append(Message.of(frame))
                self._unheard.append(Frame(MESSAGE, self.received[-1].body))
            else:
                self._unheard.append(frame)


def _type_of(text: bytes) -> int:
    if text.startswith(b"E_"):
        return ERROR
    return RESPONSE if text in (b"OK", b"CLOSE_WAIT", b"_heartbeat_") or text.startswith(b"{") else MESSAGE


class Building:
    """Bytes that a test would not want to spell out."""

    sized = staticmethod(sized)
    mpub = staticmethod(mpub)


@pytest.fixture(scope="session")
def make_nsqd() -> type[Nsqd]:
    """For a test that wants its own limits, or one daemon per example."""
    return Nsqd


@pytest.fixture(scope="session")
def build() -> type[Building]:
    return Building


@pytest.fixture
def nsqd() -> Nsqd:
    return Nsqd()


@pytest.fixture
def client(nsqd: Nsqd) -> Client:
    """Connected, and past the magic."""
    return nsqd.connect()


@pytest.fixture
def producer(nsqd: Nsqd) -> Client:
    return nsqd.connect()


@pytest.fixture
def consumer(nsqd: Nsqd) -> Client:
    """Subscribed to channel c of topic t, and not ready for anything yet."""
    return nsqd.connect().subscribes()
