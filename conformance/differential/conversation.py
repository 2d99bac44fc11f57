"""The stream generated so far, and its open connections.

The account predicts the number of replies and the messages to wait for. If they are not certain, the act is the last of
its connection: `shut_down` reads until EOF.
"""

import random
import struct
from urllib.parse import urlencode

from nsq_conformance.differential.account import Account, Channel, Client
from nsq_conformance.differential.acts import TOPIC, Act, Answer, ReadStats, Request, Send, ShutDown, Sync, Take, Wait
from nsq_conformance.differential.vocabulary import TOPICS


class Conversation:
    """Acts and their account. All random choices come from `random`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.acts: list[Act] = []
        self.account = Account()
        self._clients: list[Client] = []
        self._connections = 0
        self._bodies = 0

    # --- Choices ------------------------------------------------------------------------------------------------------

    def some_client(self) -> Client:
        """An open client, or a new one."""
        if not self._clients or (len(self._clients) < 3 and self.random.random() < 0.2):
            client = Client(self._connections)
            self._connections += 1
            self._clients.append(client)
            self.send(client, b"  V2", 0)
            return client
        return self.random.choice(self._clients)

    def topic(self) -> bytes:
        consumed = self.account.consumed()
        return self.random.choice(consumed if consumed and self.random.random() < 0.5 else TOPICS)

    def topic_without_consumers(self) -> bytes:
        """A topic without consumers, now and later, for publishes that may or may not succeed."""
        unread = [each for each in TOPICS if not self.account.has_consumers(each)]
        name = self.random.choice(unread) if unread and self.random.random() < 0.3 else TOPIC + b".d"
        self.account.topic(name).is_certain = False
        return name

    def body(self) -> bytes:
        """A body that is unique in the stream."""
        self._bodies += 1
        return b"m%d" % self._bodies + b"." * self.random.choice((0, 0, 0, 10, 100, 800))

    def bodies(self, most: int) -> list[bytes]:
        return [self.body() for _ in range(self.random.randint(1, most))]

    # --- Acts ---------------------------------------------------------------------------------------------------------

    def send(self, client: Client, data: bytes, replies: int = 1) -> None:
        self.acts.append(Send(client.number, data, replies))

    def sync(self, client: Client, data: bytes = b"") -> None:
        self.acts.append(Sync(client.number, data))

    def answer(self, client: Client, verb: bytes, body: bytes, tail: bytes = b"") -> None:
        self.acts.append(Answer(client.number, verb, body, tail))

    def shut_down(self, client: Client, data: bytes) -> None:
        """Add the last act of a connection."""
        self._clients.remove(client)
        self.acts.append(ShutDown(client.number, data))
        self.account.left(client)
        if client.channel.endswith(b"#ephemeral"):
            self.acts.append(Wait())

    def request(self, method: str, path: str, query: dict[str, str], body: bytes = b"") -> None:
        self.acts.append(Request(method, f"{path}?{urlencode(query)}", body))

    def settle(self, topic: bytes) -> None:
        """Wait until the messages of a topic are in its channels."""
        if topic in self.account.topics and not self.account.topic(topic).is_settled:
            self.acts.append(Wait())
            self.account.topic(topic).is_settled = True

    def end(self) -> None:
        for client in list(self._clients):
            self.shut_down(client, b"")
        self.acts.append(ReadStats())

    # --- Effects ------------------------------------------------------------------------------------------------------

    def published(self, topic: bytes, bodies: list[bytes]) -> None:
        self.account.topic(topic).add(bodies)
        for channel in self.account.topic(topic).channels.values():
            self.deliver(channel)

    def deliver(self, channel: Channel) -> None:
        """Wait for the messages that nsqd delivers now."""
        if (count := channel.deliver()) and channel.consumer:
            self.acts.append(Take(channel.consumer.number, count))


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def batch(bodies: list[bytes]) -> bytes:
    """The body of an MPUB, without its size."""
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
