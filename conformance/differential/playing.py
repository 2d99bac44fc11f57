"""Acts become what one nsqd answered.

What differs from play to play is made equal: message ids are shown as the bodies they belong to, times and addresses
are left out, and what came in no certain order is sorted.
"""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from conformance.differential.acts import NOBODY, TOPIC, Act, Answer, Ask, Rest, Say, Sync, Take
from conformance.raw_client import ERROR, HEARTBEAT, MESSAGE, Frame, Message, RawClient

PATIENCE: Final = 1.0
"""Seconds to wait for what should come. What does not is part of the observation."""

REST: Final = 0.02
QUIET: Final = 0.05
"""A consumer that heard nothing for so long has heard all: nsqd holds messages back for less, to send them together."""

_ALIKE_ONLY_BY_CHANCE: Final = frozenset({"remote_address", "connect_ts"})
_KNOWN_TO_DIFFER: Final = frozenset({"pub_counts", "global_msg_count"})
"""Of /stats; the reasons are in docs/differences.md."""
_LEFT_OUT: Final = _ALIKE_ONLY_BY_CHANCE | _KNOWN_TO_DIFFER

Observation = tuple[object, ...]
"""What came of one act, in a form that can be compared and printed."""


class Nsqd:
    """Where one nsqd is; ``host:port`` each."""

    def __init__(self, tcp_address: str, http_address: str) -> None:
        self.tcp, self.http = tcp_address, http_address


class _Connection:
    """One client's end: frames sorted into replies and messages, as they come."""

    def __init__(self, address: str) -> None:
        self.replies: list[bytes] = []
        self.messages: list[tuple[bytes, int]] = []  # body and attempts
        self.ids: dict[bytes, bytes] = {}  # by body
        self.taken = 0
        self.may_consume = False
        self.is_over = False
        self._client = RawClient(address, magic=b"")

    def send(self, data: bytes) -> None:
        self.may_consume = self.may_consume or b"SUB" in data
        with contextlib.suppress(OSError):  # nsqd has closed; what it said before is still to be read
            self._client.sends(data)

    def await_replies(self, count: int) -> None:
        self._read_until(lambda: len(self.replies) >= count)

    def await_reply_with(self, part: bytes) -> None:
        self._read_until(lambda: any(part in reply for reply in self.replies))

    def await_messages(self, count: int) -> None:
        self.taken += count
        self._read_until(lambda: len(self.messages) >= self.taken)

    def await_message(self, body: bytes) -> None:
        self._read_until(lambda: body in self.ids)

    def read_until_quiet(self) -> None:
        count = -1
        while count != len(self.messages):
            count = len(self.messages)
            self._read_until(lambda: False, QUIET)

    def read_to_the_end(self) -> None:
        with contextlib.suppress(OSError):
            self._client.ends_sending()
        self._read_until(lambda: False)
        self._client.close()

    def _read_until(self, enough: Callable[[], bool], patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not self.is_over and not enough():
            try:
                frame = self._client.frame(deadline - time.monotonic())
            except TimeoutError:
                return
            except (EOFError, OSError):
                self.is_over = True
            else:
                self._sort(frame)

    def _sort(self, frame: Frame) -> None:
        if frame.kind == MESSAGE:
            message = Message.of(frame.data)
            self.messages.append((message.body, message.attempts))
            self.ids[message.body] = message.id
        elif frame.data != HEARTBEAT:
            self.replies.append((b"error " if frame.kind == ERROR else b"") + frame.data)


class _Play:
    def __init__(self, nsqd: Nsqd, topic: bytes) -> None:
        assert len(topic) == len(TOPIC), "sizes that count must not change"
        self._nsqd = nsqd
        self._topic = topic
        self._connections: dict[int, _Connection] = {}

    def act(self, act: Act) -> Observation:
        if isinstance(act, Rest):
            time.sleep(REST)
            return ()
        if isinstance(act, Ask):
            return self._ask(act)
        connection = self._connections.get(act.connection)
        if connection is None:
            connection = self._connections[act.connection] = _Connection(self._nsqd.tcp)
        if isinstance(act, Say):
            connection.send(self._named(act.data))
            connection.await_replies(act.replies)
            return self._replies(connection)
        if isinstance(act, Sync):
            connection.send(self._named(act.data) + b"FIN %b\n" % NOBODY)
            connection.await_reply_with(NOBODY)
            return self._replies(connection)
        if isinstance(act, Take):
            connection.await_messages(act.count)
            return ()
        if isinstance(act, Answer):
            connection.await_message(act.body)
            if act.body in connection.ids:
                connection.send(b"%b %b%b\n" % (act.verb, connection.ids[act.body], act.tail))
            return (act.body in connection.ids,)
        if connection.messages or connection.may_consume:
            connection.read_until_quiet()
        connection.send(self._named(act.data))
        connection.read_to_the_end()
        return *self._replies(connection), sorted(connection.messages), "closed" if connection.is_over else "open"

    def _replies(self, connection: _Connection) -> Observation:
        """Those that came since the last act that looked."""
        replies = [self._anonymous(reply, connection) for reply in connection.replies]
        connection.replies.clear()
        return (replies,)

    def _ask(self, act: Ask) -> Observation:
        target = act.target.replace(TOPIC.decode(), self._topic.decode())
        connection = http.client.HTTPConnection(self._nsqd.http, timeout=10)
        try:
            connection.request(act.method, target, act.body)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if act.target.startswith("/stats"):
            return response.status, _stats(json.loads(body), self._topic.decode())
        return response.status, body.replace(self._topic, TOPIC)

    def _named(self, data: bytes) -> bytes:
        return data.replace(TOPIC, self._topic)

    def _anonymous(self, reply: bytes, connection: _Connection) -> bytes:
        for body, message_id in connection.ids.items():
            reply = reply.replace(message_id, b"<id of %b>" % body)
        return reply.replace(self._topic, TOPIC)

    def end(self) -> None:
        for connection in self._connections.values():
            connection.read_to_the_end()
        for name in (".a", ".b", ".c%23ephemeral", ".d"):
            self._ask(Ask("POST", f"/topic/delete?topic={TOPIC.decode()}{name}"))


def play(acts: Sequence[Act], nsqd: Nsqd, topic: bytes) -> list[Observation]:
    """One observation for each act. `topic` is five bytes that no other play on this nsqd has."""
    stage = _Play(nsqd, topic)
    try:
        return [stage.act(act) for act in acts]
    finally:
        stage.end()


def _stats(document: dict[str, Any], topic: str) -> object:
    topics = [each for each in document["topics"] or () if each["topic_name"].startswith(topic)]
    return json.loads(json.dumps(_comparable(topics), sort_keys=True).replace(topic, TOPIC.decode()))


def _comparable(value: object) -> object:
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items() if key not in _LEFT_OUT}
    if isinstance(value, list):
        return sorted((_comparable(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


def topic_names() -> Iterator[bytes]:
    """As many as 33 million, each as long as ``TOPIC``."""
    digits = b"abcdefghijklmnopqrstuvwxyzABCDEF"
    for number in range(len(digits) ** len(TOPIC)):
        yield bytes(digits[number >> 5 * place & 31] for place in range(len(TOPIC)))
