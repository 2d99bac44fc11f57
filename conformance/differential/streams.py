"""A seed becomes a conversation: mostly what clients say, some of it wrong in the ways clients and networks are wrong.

The generator keeps account of what each connection may do, only to know how many replies to wait for. Where it cannot
know, the act is the connection's last: `Hang` reads until the end. Whatever depends on who is quicker is left out: one
connection consumes a channel, and what is not answered by a reply is followed by something that is.
"""

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from conformance.differential.acts import NOBODY, TOPIC, Act, Answer, Ask, Hang, Rest, Say, Sync, Take

MAX_MSG_SIZE: Final = 2000
MAX_BODY_SIZE: Final = 6000
MAX_RDY: Final = 50
MAX_DELAY_MS: Final = 30_000
"""Longer than any stream takes: what was put off does not come back meanwhile, and is seen in /stats only."""
OPTIONS: Final = (
    f"--max-msg-size={MAX_MSG_SIZE}",
    f"--max-body-size={MAX_BODY_SIZE}",
    f"--max-rdy-count={MAX_RDY}",
    f"--max-req-timeout={MAX_DELAY_MS}ms",
    "--max-msg-timeout=5m",
    "--max-heartbeat-interval=2m",
    "--output-buffer-timeout=25ms",
)
"""What both nsqd are started with: limits that a stream of some kilobytes can reach."""

_TOPICS = (TOPIC + b".a", TOPIC + b".b", TOPIC + b".c#ephemeral")
_CHANNELS = (b"c", b"d", b"e#ephemeral")
_BAD_NAMES = (
    b"",
    b"a$b",
    b"#ephemeral",
    TOPIC + b"#ephemeralx",
    TOPIC * 13,
    b"\xff",
    b"a\x00",
    b"\xc3\xa9",
    b'"',
    b"\t",
)
_NUMBERS = (
    b"0",
    b"1",
    b"2",
    b"007",
    b"",
    b"49",
    b"50",
    b"51",
    b"30000",
    b"30001",
    b"-1",
    b"+1",
    b"1.5",
    b"1e3",
    b"x",
    b"0x1",
)
_BAD_DELAYS = (b"30001", b"-1", b"+1", b"1.5", b"1e3", b"x", b"0x1")
"""Not short ones: what is due while the stream goes on comes when it comes."""

_EDGES: Final[tuple[object, ...]] = (
    None, True, 0, 1, -1, -2, 63, 64, 99, 100, 999, 1000, 16384, 65536, 65537, 60000, 120000, 120001, 300000, 300001,
    1.5, 1e3, "1000", "", [], {}, 2**31, 2**63,
)  # fmt: skip
_INTEGERS = (
    "heartbeat_interval", "output_buffer_size", "output_buffer_timeout", "sample_rate", "msg_timeout", "deflate_level",
)  # fmt: skip
_TEXTS = ("client_id", "hostname", "user_agent", "topology_zone", "topology_region", "short_id", "long_id")
_DOCUMENTS = (
    b"",
    b"null",
    b"[]",
    b"1",
    b'""',
    b"{",
    b"{}",
    b"{}x",
    b" {} ",
    b'{"client_id":"\xff"}',
    b'{"CLIENT_ID":"x"}',
    b"\x00",
)


@dataclass(slots=True)
class _Client:
    """What the generator believes of a connection."""

    number: int
    state: str = "init"
    topic: bytes = b""
    channel: bytes = b""
    held: list[bytes] = field(default_factory=list)
    """Bodies it was sent and has not finished."""
    ready: int = 0


class _Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.acts: list[Act] = []
        self._clients: list[_Client] = []
        self._connections = 0
        self._bodies = 0
        self._waiting: dict[bytes, list[bytes]] = {}  # by topic, what its consumer has not been sent
        self._consumers: dict[bytes, _Client] = {}
        self._paused: set[tuple[bytes, bytes]] = set()  # topic and channel, or nothing for the topic itself

    def generate(self) -> list[Act]:
        for _ in range(self.random.randint(2, 24)):
            self._step()
        for client in list(self._clients):
            self._hang(client, b"")
        self._ask("GET", "/stats", {"format": "json"})
        return self.acts

    # --- What may happen ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        client = self._some_client()
        steps: list[tuple[int, Callable[[_Client], None]]] = [
            (6, self._publish),
            (2, self._publish_many),
            (2, self._publish_deferred),
            (3, self._identify),
            (6, self._subscribe if client.state == "init" else self._consume),
            (8, self._answer if client.held else self._subscribe if client.state == "init" else self._consume),
            (1, self._nothing),
            (1, self._say_wrong),
            (1, self._break_off),
            (1, self._close_gently),
            (2, self._control),
            (1, self._publish_over_http),
        ]
        weights, choices = zip(*steps, strict=True)
        self.random.choices(choices, weights)[0](client)

    def _some_client(self) -> _Client:
        if not self._clients or (len(self._clients) < 3 and self.random.random() < 0.2):
            client = _Client(self._connections)
            self._connections += 1
            self._clients.append(client)
            self._say(client, b"  V2", 0)
            return client
        return self.random.choice(self._clients)

    def _publish(self, client: _Client) -> None:
        topic, bodies = self._topic(), self._some_bodies(4)
        lines = b"".join(b"PUB %b\n" % topic + _sized(body) for body in bodies)
        self._say(client, lines, len(bodies))
        self._published(topic, bodies)

    def _publish_many(self, client: _Client) -> None:
        topic, bodies = self._topic(), self._some_bodies(6)
        self._say(client, b"MPUB %b\n" % topic + _sized(_batch(bodies)))
        self._published(topic, bodies)

    def _publish_deferred(self, client: _Client) -> None:
        topic, body = self._topic(), self._body()
        delay_ms = self.random.choice((MAX_DELAY_MS - 1, MAX_DELAY_MS))
        self._say(client, b"DPUB %b %d\n" % (topic, delay_ms) + _sized(body))

    def _identify(self, client: _Client) -> None:
        if client.state != "init":
            return self._hang(client, b"IDENTIFY\n" + _sized(b"{}"))
        if self.random.random() < 0.15:
            return self._hang(client, b"IDENTIFY\n" + _sized(self.random.choice(_DOCUMENTS)))
        members = {
            name: self.random.choice(_EDGES) for name in self.random.sample(_INTEGERS, self.random.randint(0, 2))
        }
        members |= dict.fromkeys(self.random.sample(_TEXTS, self.random.randint(0, 2)), "x")
        if self.random.random() < 0.1:
            members[self.random.choice(_TEXTS)] = self.random.choice(_EDGES)
        members["feature_negotiation"] = self.random.choice((True, True, False, None))
        if self.random.random() < 0.2:
            members["tls_v1"] = self.random.choice((True, False, None))  # there are no certificates
        if self.random.random() < 0.1:  # one alone would begin another stream
            members |= {"snappy": True, "deflate": True}
        # Whether it is refused is not for us to know: then it was the last thing said.
        data = b"IDENTIFY\n" + _sized(json.dumps(members).encode())
        harmless = not {*_INTEGERS, "snappy"} & set(members) and all(
            isinstance(members.get(name, ""), str) for name in _TEXTS
        )
        return (
            self._say(client, data)
            if harmless
            else self._hang(client, data + b"PUB %b\n" % self._lonely_topic() + _sized(b"x"))
        )

    def _subscribe(self, client: _Client) -> None:
        topic = self._topic()
        if topic in self._consumers or client.state != "init":
            return self._nothing(client)
        client.state, client.topic, client.channel = "subscribed", topic, self.random.choice(_CHANNELS)
        self._say(client, b"SUB %b %b\n" % (topic, client.channel))
        self._consumers[topic] = client
        if self.random.random() < 0.8:
            self._consume(client)
        return None

    def _consume(self, client: _Client) -> None:
        ready = self.random.choice((0, 1, 2, 3, 10, 49, 50))
        if client.state != "subscribed":
            return self._sync(client, b"RDY %d\n" % ready)
        client.ready = ready
        self._sync(client, b"RDY %d\n" % ready)
        self._deliver(client)
        return None

    def _answer(self, client: _Client) -> None:
        body = self.random.choice(client.held)
        verb, tail = self.random.choice(
            ((b"FIN", b""), (b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b""), (b"REQ", b" 30000"))
        )
        self.acts.append(Answer(client.number, verb, body, tail))
        if verb != b"TOUCH":
            client.held.remove(body)
        if tail == b" 0":
            self._waiting.setdefault(client.topic, []).append(body)
        self._sync(client)
        if self.random.random() < 0.2:  # a second answer to the same message
            self.acts.append(Answer(client.number, self.random.choice((b"FIN", b"TOUCH")), body))
            self._sync(client)
        self._deliver(client)

    def _nothing(self, client: _Client) -> None:
        if client.state == "init":
            self._say(client, b"NOP\n" * self.random.randint(1, 3), 0)
        else:
            self._sync(client, b"NOP\n")

    def _close_gently(self, client: _Client) -> None:
        if client.state == "subscribed":
            client.ready, client.state = 0, "closing"
            self._say(client, b"CLS\n")
        else:
            self._hang(client, b"CLS\n")

    def _control(self, client: _Client) -> None:
        topic = self._topic()
        what = self.random.choice(("topic", "channel"))
        act = self.random.choice(("create", "empty", "pause", "unpause", "delete"))
        query, channel = {"topic": topic.decode()}, b""
        if what == "channel":
            channel = self.random.choice(_CHANNELS)
            query["channel"] = channel.decode()
        if topic in self._consumers and act in ("pause", "delete", "empty", "unpause"):
            act = "create"  # what a consumer is sent meanwhile depends on who is quicker
        if self.random.random() < 0.1:
            query.pop(self.random.choice(list(query)))
        elif act == "pause":
            self._paused.add((topic, channel))
        elif act in ("unpause", "delete"):
            self._paused.discard((topic, channel))
        if act in ("empty", "delete"):
            self._waiting.pop(topic, None)
        self._ask("POST", f"/{what}/{act}", query)
        if act == "delete":
            self.acts.append(Rest())

    def _publish_over_http(self, client: _Client) -> None:
        topic = self._topic()
        query = {"topic": topic.decode("latin-1")}
        path, body = self.random.choice((("/pub", self._body()), ("/mpub", b"\n".join(self._some_bodies(4)))))
        if self.random.random() < 0.3:
            query["defer"] = self.random.choice(("x", "-1", "30001", "1.5", ""))
        elif self.random.random() < 0.1:
            query["binary"] = self.random.choice(("true", "false", "1", "x"))
            body = _batch(self._some_bodies(3)) if self.random.random() < 0.7 else body
        elif topic in self._consumers:
            return
        self._ask("POST", path, query, body)

    # --- What goes wrong ----------------------------------------------------------------------------------------------

    def _say_wrong(self, client: _Client) -> None:
        """A command that is complete and not as it should be."""
        name, number = self.random.choice(_BAD_NAMES), self.random.choice(_NUMBERS)
        topic, channel = self._lonely_topic(), self.random.choice(_CHANNELS)
        size = self.random.choice((0, -1, MAX_MSG_SIZE + 1, MAX_BODY_SIZE + 1, 2**31 - 1, -(2**31)))
        count = self.random.choice((0, -1, 1, 3, 2**31 - 1))
        wrong = self.random.choice((
            b"PUB %b\n" % name + _sized(b"x"),
            b"MPUB %b\n" % name + _sized(_batch([b"x"])),
            b"DPUB %b %b\n" % (topic, self.random.choice(_BAD_DELAYS)) + _sized(b"x"),
            b"SUB %b %b\n" % (topic, name),
            b"SUB %b %b\n" % (name, channel),
            b"RDY %b\n" % (number if client.state == "init" else b"51"),  # a right one would be a race for the messages
            b"REQ %b %b\n" % (NOBODY, number),
            b"FIN %b\n" % name,
            b"TOUCH %b\n" % NOBODY,
            b"PUB %b\n" % topic + struct.pack(">i", size),
            b"MPUB %b\n" % topic + struct.pack(">i", size),
            b"MPUB %b\n" % topic + _sized(struct.pack(">i", count) + _sized(b"x")),
            b"MPUB %b\n" % topic + _sized(struct.pack(">i", 2) + _sized(b"x") + struct.pack(">i", size)),
            b"IDENTIFY\n" + struct.pack(">i", size),
            b"AUTH\n" + _sized(b"secret"),
            b"AUTH %b\n" % name + _sized(b"secret"),
            b"%b\n" % name,
            b"pub %b\n" % topic + _sized(b"x"),
            b"PUB  %b\n" % topic + _sized(b"x"),
            b"PUB %b extra\r\n" % topic + _sized(b"x"),
            b"NOP\r\r\n",
            b"NOP extra\r\n",
            b"PUB\n", b"SUB\n", b"RDY\n", b"FIN\n", b"REQ\n", b"TOUCH\n", b"DPUB\n", b"MPUB\n", b"CLS extra\n",
            b"X" * self.random.choice((16383, 16384, 17000)) + b"\n",
        ))  # fmt: skip
        self._hang(client, wrong)

    def _break_off(self, client: _Client) -> None:
        """Something right, cut at any place or with one byte changed."""
        topic = self._lonely_topic()
        data = self.random.choice((
            b"PUB %b\n" % topic + _sized(self._body()),
            b"MPUB %b\n" % topic + _sized(_batch(self._some_bodies(3))),
            b"DPUB %b 29999\n" % topic + _sized(self._body()),
            b"IDENTIFY\n" + _sized(b"{}"),
            b"SUB %b c\n" % topic,
        ))  # fmt: skip
        place = self.random.randrange(len(data))
        if self.random.random() < 0.5:
            return self._hang(client, data[:place])
        if TOPIC in data[max(0, place - len(TOPIC) + 1) : place + len(TOPIC)]:
            place = 0
        return self._hang(client, data[:place] + self.random.randbytes(1) + data[place + 1 :])

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _say(self, client: _Client, data: bytes, replies: int = 1) -> None:
        self.acts.append(Say(client.number, data, replies))

    def _sync(self, client: _Client, data: bytes = b"") -> None:
        self.acts.append(Sync(client.number, data))

    def _hang(self, client: _Client, data: bytes) -> None:
        self._clients.remove(client)
        # What it is ready for may still come, or not: nobody knows who is quicker.
        if client.ready and self._waiting.get(client.topic):
            self._sync(client, b"RDY 0\n")
        self.acts.append(Hang(client.number, data))
        if client.channel.endswith(b"#ephemeral"):
            self.acts.append(Rest())
        self._consumers.pop(client.topic, None)
        # What it held comes back when its time is over, long after the stream; others must not wait for it.
        self._waiting.pop(client.topic, None)

    def _ask(self, method: str, path: str, query: dict[str, str], body: bytes = b"") -> None:
        self.acts.append(Ask(method, f"{path}?{urlencode(query)}", body))

    def _published(self, topic: bytes, bodies: list[bytes]) -> None:
        self._waiting.setdefault(topic, []).extend(bodies)
        if topic in self._consumers:
            self._deliver(self._consumers[topic])

    def _deliver(self, client: _Client) -> None:
        """Wait for what nsqd sends now, as far as we know what that is."""
        if {(client.topic, b""), (client.topic, client.channel)} & self._paused:
            return
        waiting = self._waiting.get(client.topic, [])
        count = min(max(0, client.ready - len(client.held)), len(waiting))
        if count:
            self.acts.append(Take(client.number, count))
            client.held += waiting[:count]
            del waiting[:count]

    def _topic(self) -> bytes:
        if self._consumers and self.random.random() < 0.5:
            return self.random.choice(list(self._consumers))
        return self.random.choice(_TOPICS)

    def _lonely_topic(self) -> bytes:
        """One that nobody consumes, for publishing what may or may not succeed."""
        return self.random.choice([each for each in (*_TOPICS, TOPIC + b".d") if each not in self._consumers])

    def _some_bodies(self, most: int) -> list[bytes]:
        return [self._body() for _ in range(self.random.randint(1, most))]

    def _body(self) -> bytes:
        self._bodies += 1
        return b"m%d" % self._bodies + b"." * self.random.choice((0, 0, 0, 10, 100, 800))


def stream(seed: int) -> list[Act]:
    """The conversation of a seed; the same one for ever."""
    return _Generator(seed).generate()


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _batch(bodies: list[bytes]) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(map(_sized, bodies))
