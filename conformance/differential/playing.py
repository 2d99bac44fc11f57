"""Plays acts on one nsqd and records its answers.

Observations are normalized: message ids are replaced by their bodies, times and addresses are left out, and values
without a defined order are sorted.
"""

import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsq_conformance.differential.acts import (
    TOPIC,
    UNKNOWN_ID,
    Act,
    Answer,
    ReadStats,
    Request,
    Send,
    ShutDown,
    Sync,
    Take,
    Wait,
)
from nsq_conformance.differential.http_client import HttpClient
from nsq_conformance.differential.loop import Loop
from nsq_conformance.differential.tcp_connection import TcpConnection

_VARYING: Final = frozenset({"remote_address", "connect_ts"})
_KNOWN_DIFFERENCES: Final = frozenset({"pub_counts", "global_msg_count"})
"""Members of /stats; docs/differences.md has the reasons."""
_LEFT_OUT: Final = _VARYING | _KNOWN_DIFFERENCES

Observation = tuple[object, ...]
"""The result of one act, in a form that can be compared and printed."""
Playing = Generator[float, None, Observation]


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts in seconds. A timeout is part of the observation."""

    reply: float
    """For expected frames."""
    quiet: float
    """Time without frames after which no more are expected; longer than nsqd's output buffer timeout."""
    wait: float
    """Time for nsqd to delete ephemeral topics and channels in the background."""
    stats: float
    """Time in which requests for ``/stats`` are gathered, to share one answer."""


AMONG_MANY: Final = Patience(reply=60.0, quiet=0.2, wait=0.3, stats=1.0)
"""For plays among many others, where waiting costs nothing."""
ALONE: Final = Patience(reply=2.0, quiet=0.05, wait=0.05, stats=0.0)


class Nsqd:
    """One of the two nsqd. The addresses are ``host:port``."""

    def __init__(self, loop: Loop, tcp_address: str, http_address: str) -> None:
        host, _, port = tcp_address.rpartition(":")
        self.loop = loop
        self.tcp = host, int(port)
        self.http = HttpClient(loop, http_address)


class Play:
    """One play of a stream on one nsqd."""

    def __init__(self, nsqd: Nsqd, topic: bytes, patience: Patience) -> None:
        assert len(topic) == len(TOPIC), "sizes in the stream must stay valid"
        self._nsqd = nsqd
        self._topic = topic
        self._patience = patience
        self._connections: dict[int, TcpConnection] = {}

    def run(self, acts: Sequence[Act]) -> Generator[float, None, list[Observation]]:
        """Play the acts and return an observation for each. The topics are deleted at the end in any case."""
        observations = []
        for act in acts:
            observations.append((yield from self._act(act)))
        for connection in self._connections.values():
            connection.close()
        if not acts or not isinstance(acts[-1], ReadStats):
            yield from self._read_stats()
        return observations

    def _act(self, act: Act) -> Playing:
        if isinstance(act, Wait):
            deadline = time.monotonic() + self._patience.wait
            while time.monotonic() < deadline:
                yield deadline
            # An answer shows that nsqd was scheduled meanwhile, however busy the machine is.
            return (yield from self._nsqd.http.request("GET", "/ping"))
        if isinstance(act, Request):
            return (yield from self._request(act))
        if isinstance(act, ReadStats):
            return (yield from self._read_stats())
        connection = self._connections.get(act.connection)
        if connection is None:
            connection = self._connections[act.connection] = TcpConnection(self._nsqd.loop, self._nsqd.tcp)
        return (yield from self._with(connection, act))

    def _with(self, connection: TcpConnection, act: Send | Sync | Take | Answer | ShutDown) -> Playing:
        patience = self._patience.reply
        if isinstance(act, Send):
            connection.send(self._named(act.data))
            yield from connection.await_replies(act.replies, patience)
            return self._replies(connection)
        if isinstance(act, Sync):
            connection.send(self._named(act.data) + b"FIN %b\n" % UNKNOWN_ID)
            yield from connection.await_reply_with(UNKNOWN_ID, patience)
            return self._replies(connection)
        if isinstance(act, Take):
            yield from connection.await_messages(act.count, patience)
            return ()
        if isinstance(act, Answer):
            yield from connection.await_message(act.body, patience)
            if act.body in connection.ids:
                connection.send(b"%b %b%b\n" % (act.verb, connection.ids[act.body], act.tail))
            return (act.body in connection.ids,)
        if connection.messages or connection.may_consume:
            yield from connection.await_quiet(self._patience.quiet)
        connection.send(self._named(act.data))
        yield from connection.await_the_end(patience)
        return *self._replies(connection), sorted(connection.messages), "closed" if connection.is_over else "open"

    def _replies(self, connection: TcpConnection) -> Observation:
        """The replies since the last act that read them."""
        replies = [self._anonymous(reply, connection) for reply in connection.replies]
        connection.replies.clear()
        return (replies,)

    def _request(self, act: Request) -> Playing:
        target = act.target.replace(TOPIC.decode(), self._topic.decode())
        status, body = yield from self._nsqd.http.request(act.method, target, act.body)
        return status, body.replace(self._topic, TOPIC)

    def _read_stats(self) -> Playing:
        topics = (yield from self._nsqd.http.read_stats(len(TOPIC), self._patience.stats)).get(self._topic, [])
        for each in topics:
            name = each["topic_name"].replace("#", "%23")
            yield from self._nsqd.http.request("POST", f"/topic/delete?topic={name}")
        comparable = json.dumps(_comparable(topics), sort_keys=True)
        return (json.loads(comparable.replace(self._topic.decode(), TOPIC.decode())),)

    def _named(self, data: bytes) -> bytes:
        return data.replace(TOPIC, self._topic)

    def _anonymous(self, reply: bytes, connection: TcpConnection) -> bytes:
        for body, message_id in connection.ids.items():
            reply = reply.replace(message_id, b"<" + body + b">")
        return reply.replace(self._topic, TOPIC)


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items() if key not in _LEFT_OUT}
    if isinstance(value, list):
        return sorted((_comparable(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


_DIGITS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEF"
NAMES: Final = len(_DIGITS) ** len(TOPIC)


def topic_names(first: int = 0) -> Iterator[bytes]:
    """Yield names as long as ``TOPIC``, beginning with number `first` of 33 million."""
    for number in range(first, NAMES):
        yield bytes(_DIGITS[number >> 5 * place & 31] for place in range(len(TOPIC)))
