"""Registration at every nsqlookupd: a greenlet for each, so that none waits for another.

A peer connects and has its conversation (`session.lookup_peer`). When that ends for any reason it connects again, at
first soon and then every few seconds. Registrations are read from the broker when they are sent, so nothing accumulates
while an nsqlookupd is unreachable, and one that returns is told everything.
"""

import logging
import random
import time
from collections.abc import Iterable

import gevent
from gevent.event import Event

from nsq_compat.net.connection import Connection
from nsq_compat.net.sockets import Dialer
from nsq_compat.protocol.lookup_commands import LookupdInfo, PeerInfo
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.session.lookup_peer import LookupPeer

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
_CLOSE_SECONDS = 1.0


class Peer:
    """One nsqlookupd, from `start` to `stop`.

    `lookupd` is its description of itself while it is connected. `was_tried` is set when that has been received for the
    first time, or the first attempt has failed.
    """

    def __init__(self, address: str, broker: Broker, info: PeerInfo, max_reply_size: int) -> None:
        self.address = address
        self.lookupd: LookupdInfo | None = None
        self.was_tried = Event()
        self._broker = broker
        self._info = info
        self._max_reply_size = max_reply_size
        self._dialer = Dialer(address)
        self._connection: Connection[LookupPeer] | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._last_failure = ""
        self._running: gevent.Greenlet[[], None] | None = None

    @property
    def session(self) -> LookupPeer | None:
        """The conversation under way."""
        return self._connection.session if self._connection is not None else None

    def start(self) -> None:
        self._running = gevent.spawn(self._run)

    def stop(self) -> None:
        """nsqd: close the connection without a command; nsqlookupd then forgets the registrations."""
        if self._running is not None:
            self._running.kill(timeout=_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                self._converse()
            except OSError as error:
                self._note_failure(f"connecting - {str(error.strerror or error).lower()}")
            except Exception:  # the top of a greenlet
                log.exception("LOOKUPD(%s): internal error", self.address)
            self.was_tried.set()
            gevent.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    def _converse(self) -> None:
        """Connect, and return when the conversation has ended. Raises ``OSError`` if it cannot connect."""
        log.log(self._level(), "LOOKUP connecting to %s", self.address)
        client = self._dialer.connect(CONNECT_SECONDS)
        connection = self._connection = Connection(client, self.address, self._make_session)
        connection.actor = "LOOKUPD"
        connection.wake()
        began = time.monotonic()
        try:
            connection.run()
        finally:
            self.lookupd = self._connection = None
        # An nsqlookupd that accepts everything and then closes, repeatedly, is not asked ten times a second.
        if connection.session.all_registered and time.monotonic() - began > MAX_PAUSE_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
            self._last_failure = ""
        self._note_failure(connection.session.failure)

    def _make_session(self, connection: Connection[LookupPeer], now: float, now_ns: int) -> LookupPeer:
        return LookupPeer(
            self._broker,
            self._info,
            address=self.address,
            wake=connection.wake,
            on_identified=self._greeted,
            now=now,
            max_reply_size=self._max_reply_size,
        )

    def _greeted(self, lookupd: LookupdInfo) -> None:
        self.lookupd = lookupd
        self.was_tried.set()

    def _note_failure(self, failure: str) -> None:
        if failure:
            level = logging.DEBUG if failure == self._last_failure else logging.ERROR
            log.log(level, "LOOKUPD(%s): %s", self.address, failure)
            self._last_failure = failure

    def _level(self) -> int:
        # An nsqlookupd that is down for a day must not cause a line every few seconds.
        return logging.DEBUG if self._last_failure else logging.INFO


class LookupPeers:
    """All nsqlookupds; an observer of the broker. `info` describes this daemon to them."""

    def __init__(self, broker: Broker, info: PeerInfo, max_reply_size: int) -> None:
        self._broker = broker
        self._info = info
        self._max_reply_size = max_reply_size
        self._peers: dict[str, Peer] = {}

    @property
    def peers(self) -> list[Peer]:
        """The configured nsqlookupds, whether connected or not."""
        return list(self._peers.values())

    def start(self, addresses: Iterable[str]) -> None:
        """Connect to these; topics and channels that exist already are registered too."""
        self._broker.observers.append(self)
        self.set_addresses(addresses)

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Register at these and no others; connections that stay are not affected."""
        wanted = dict.fromkeys(addresses)
        before, self._peers = self._peers, {}
        for address in wanted:
            peer = before.pop(address, None)
            if peer is None:
                log.info("LOOKUP(%s): adding peer", address)
                peer = Peer(address, self._broker, self._info, self._max_reply_size)
                peer.start()
            self._peers[address] = peer
        for address, peer in before.items():
            log.info("LOOKUP(%s): removing peer", address)
            peer.stop()  # others run meanwhile

    def stop(self) -> None:
        """Close all registrations."""
        before, self._peers = self._peers, {}
        if before:
            log.info("LOOKUP: closing")
        for peer in before.values():
            peer.stop()

    def suspect(self, peer: Peer) -> None:
        """Ping a peer now whose HTTP does not answer, to learn soon whether it is alive."""
        if peer.session is not None:
            peer.session.ping_now(time.monotonic())

    def topic_created(self, topic: Topic) -> None:
        for session in self._sessions():
            session.topic_created(topic)

    def topic_deleted(self, topic: Topic) -> None:
        for session in self._sessions():
            session.topic_deleted(topic)

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        for session in self._sessions():
            session.channel_created(topic, channel)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        for session in self._sessions():
            session.channel_deleted(topic, channel)

    def _sessions(self) -> list[LookupPeer]:
        return [peer.session for peer in self._peers.values() if peer.session is not None]
