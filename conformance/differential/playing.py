"""Acts become what one nsqd answered.

What differs from play to play is made equal: message ids are shown as the bodies they belong to, times and addresses
are left out, and what came in no certain order is sorted.
"""

import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsq_conformance.differential.acts import NOBODY, TOPIC, Act, Answer, Ask, Hang, Look, Rest, Say, Sync, Take
from nsq_conformance.differential.asking import Desk
from nsq_conformance.differential.lines import Line
from nsq_conformance.differential.loop import Loop

_ALIKE_ONLY_BY_CHANCE: Final = frozenset({"remote_address", "connect_ts"})
_KNOWN_TO_DIFFER: Final = frozenset({"pub_counts", "global_msg_count"})
"""Of /stats; the reasons are in docs/differences.md."""
_LEFT_OUT: Final = _ALIKE_ONLY_BY_CHANCE | _KNOWN_TO_DIFFER

Observation = tuple[object, ...]
"""What came of one act, in a form that can be compared and printed."""
Playing = Generator[float, None, Observation]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. What does not come in time is part of the observation."""

    reply: float
    """For what should come."""
    quiet: float
    """Who has heard nothing for so long has heard all: nsqd holds messages back for less, to send them together."""
    rest: float
    """What an nsqd that ends ephemeral things in the background may need for it."""
    look: float
    """So long looks at ``/stats`` are gathered, and one answer serves them all."""


AMONG_MANY: Final = Patience(reply=60.0, quiet=0.2, rest=0.3, look=1.0)
"""Waiting costs nothing while others go on."""
ALONE: Final = Patience(reply=2.0, quiet=0.05, rest=0.05, look=0.0)


class Nsqd:
    """One of the two as a loop sees it. The addresses are ``host:port`` each."""

    def __init__(self, loop: Loop, tcp_address: str, http_address: str) -> None:
        host, _, port = tcp_address.rpartition(":")
        self.loop = loop
        self.tcp = host, int(port)
        self.desk = Desk(loop, http_address)


class Play:
    """One stream with one nsqd."""

    def __init__(self, nsqd: Nsqd, topic: bytes, patience: Patience) -> None:
        assert len(topic) == len(TOPIC), "sizes that count must not change"
        self._nsqd = nsqd
        self._topic = topic
        self._patience = patience
        self._lines: dict[int, Line] = {}

    def run(self, acts: Sequence[Act]) -> Generator[float, None, list[Observation]]:
        """What came of each act. The topics are deleted in the end, whatever the acts are."""
        observations = []
        for act in acts:
            observations.append((yield from self._act(act)))
        for line in self._lines.values():
            line.close()
        if not acts or not isinstance(acts[-1], Look):
            yield from self._look()
        return observations

    def _act(self, act: Act) -> Playing:
        if isinstance(act, Rest):
            deadline = time.monotonic() + self._patience.rest
            while time.monotonic() < deadline:
                yield deadline
            # Who has answered was awake meanwhile, however busy the machine is.
            return (yield from self._nsqd.desk.ask("GET", "/ping"))
        if isinstance(act, Ask):
            return (yield from self._ask(act))
        if isinstance(act, Look):
            return (yield from self._look())
        line = self._lines.get(act.connection)
        if line is None:
            line = self._lines[act.connection] = Line(self._nsqd.loop, self._nsqd.tcp)
        return (yield from self._with(line, act))

    def _with(self, line: Line, act: Say | Sync | Take | Answer | Hang) -> Playing:
        patience = self._patience.reply
        if isinstance(act, Say):
            line.send(self._named(act.data))
            yield from line.await_replies(act.replies, patience)
            return self._replies(line)
        if isinstance(act, Sync):
            line.send(self._named(act.data) + b"FIN %b\n" % NOBODY)
            yield from line.await_reply_with(NOBODY, patience)
            return self._replies(line)
        if isinstance(act, Take):
            yield from line.await_messages(act.count, patience)
            return ()
        if isinstance(act, Answer):
            yield from line.await_message(act.body, patience)
            if act.body in line.ids:
                line.send(b"%b %b%b\n" % (act.verb, line.ids[act.body], act.tail))
            return (act.body in line.ids,)
        if line.messages or line.may_consume:
            yield from line.await_quiet(self._patience.quiet)
        line.send(self._named(act.data))
        yield from line.await_the_end(patience)
        return *self._replies(line), sorted(line.messages), "closed" if line.is_over else "open"

    def _replies(self, line: Line) -> Observation:
        """Those that came since the last act that looked."""
        replies = [self._anonymous(reply, line) for reply in line.replies]
        line.replies.clear()
        return (replies,)

    def _ask(self, act: Ask) -> Playing:
        target = act.target.replace(TOPIC.decode(), self._topic.decode())
        status, body = yield from self._nsqd.desk.ask(act.method, target, act.body)
        return status, body.replace(self._topic, TOPIC)

    def _look(self) -> Playing:
        topics = (yield from self._nsqd.desk.look(len(TOPIC), self._patience.look)).get(self._topic, [])
        for each in topics:
            name = each["topic_name"].replace("#", "%23")
            yield from self._nsqd.desk.ask("POST", f"/topic/delete?topic={name}")
        comparable = json.dumps(_comparable(topics), sort_keys=True)
        return (json.loads(comparable.replace(self._topic.decode(), TOPIC.decode())),)

    def _named(self, data: bytes) -> bytes:
        return data.replace(TOPIC, self._topic)

    def _anonymous(self, reply: bytes, line: Line) -> bytes:
        for body, message_id in line.ids.items():
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
    """Each as long as ``TOPIC``; of 33 million the `first` one and those that follow."""
    for number in range(first, NAMES):
        yield bytes(_DIGITS[number >> 5 * place & 31] for place in range(len(TOPIC)))
