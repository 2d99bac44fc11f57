"""Registers this nsqd with every nsqlookupd, and asks them for the channels of a new topic.

Each peer connects and runs its session (`session.lookup_peer`) in a greenlet of its own, so that it does not delay
others. After a connection ends, it connects again, at first soon and then every few seconds. Registrations are read
from the broker when they are sent, so nothing accumulates while an nsqlookupd is unreachable, and all topics are
registered when it returns.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from weakref import WeakKeyDictionary

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from gevent.pool import Group

from nsq_compat.log.data_path import reason
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopTick, yield_to_loop
from nsq_compat.net.sockets import Dialer, split_host_port
from nsq_compat.net.tls_codec import Tls
from nsq_compat.nsqd.durability import in_thread
from nsq_compat.nsqd.http_calls import MAX_ANSWER_BYTES, CallFailed, HttpCalls, client_tls, tls_reason
from nsq_compat.protocol.go_json import INT64, STRING, Fields, JsonError, list_of, loads_object, object_of
from nsq_compat.protocol.lookup_commands import LookupdInfo, PeerInfo
from nsq_compat.protocol.names import address_error, is_ephemeral, is_valid_name
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import Exiting
from nsq_compat.session.lookup_peer import LookupPeer

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

TLS_SCHEME: Final = "tls://"
"""Begins the address of an nsqlookupd's port with TLS."""
CONNECT_SECONDS = 3.0
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
MAX_TOPICS_AT_ONCE: Final = 32
"""Bounds the number of threads when ten thousand topics are created at once."""
SLOW_SECONDS: Final = 1.0
"""An nsqlookupd that took this long to fail is skipped for a while, because it would delay each new topic."""
SKIP_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
"""Between attempts to create channels while writing to the disk fails."""
_CHANNELS_AT_ONCE: Final = 8
"""Created in one iteration of the event loop, at about 50 us each."""
MAX_LEARNED_CHANNELS: Final = 4_000
"""Of one answer, the first ones, which nsqlookupd has known for the longest time. A program that registers nsqds can
register any number of channels. Each takes 13 KB in every nsqd that creates the topic, and 12 us of each checkpoint."""
_MAX_READ_AT_ONCE: Final = 32 * 1024
"""Bytes of an answer; reading a longer one takes milliseconds, so a thread does that."""
_MAX_NODES_BYTES: Final = 64 << 20
"""Of a list of nodes, each with all its topics."""
_MAX_INVALID_LOGGED: Final = 10
_ANSWER: Final[Fields] = {"channels": list_of(STRING)}
_NODES: Final[Fields] = {"producers": list_of(object_of({"broadcast_address": STRING, "tcp_port": INT64}))}


class LookupdTls:
    """nsqd's side of TLS to nsqlookupds: made when it is first needed, by `make`, which may raise ``OSError``."""

    def __init__(self, make: Callable[[], "ssl.SSLContext"]) -> None:
        self._make = make
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> "ssl.SSLContext":
        """Raises ``OSError``."""
        if self._context is None:
            self._context = self._make()
        return self._context

    def reload(self) -> None:
        """Read the files again, if they are in use. If one cannot be used, log that and keep what is in force."""
        if self._context is not None:
            try:
                self._context = self._make()
            except OSError as error:
                log.error("LOOKUP: keeping the certificates in use - %s", tls_reason(error))


class Peer:
    """One nsqlookupd, from `start` to `stop`. `tls` is used if its address begins with ``tls://``.

    `lookupd` is its description of itself while it is connected. `was_tried` is set when this has been received for the
    first time, or the first attempt to connect has failed.
    """

    def __init__(
        self,
        address: str,
        broker: Broker,
        new_session: "partial[LookupPeer]",
        tick: LoopTick | None,
        tls: LookupdTls,
        token: str,
    ) -> None:
        self.address = address
        self._token = token
        self._tls = tls if address.startswith(TLS_SCHEME) else None
        self.lookupd: LookupdInfo | None = None
        self.was_tried = Event()
        self._broker = broker
        self._new_session = new_session
        self._tick = tick
        self._host_and_port = address.removeprefix(TLS_SCHEME)
        self._dialer = Dialer(self._host_and_port)
        self._connection: Connection[LookupPeer] | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._last_failure = ""
        self._running = gevent.Greenlet(self._run)

    def start(self) -> None:
        self._running.start()

    def stop(self) -> None:
        """nsqd: close the connection without a command; nsqlookupd then forgets the registrations."""
        self._running.kill(timeout=_CLOSE_SECONDS)

    def ping_now(self) -> None:
        """Ping an nsqlookupd that does not answer HTTP requests, to detect soon whether it is alive."""
        if self._connection is not None:
            self._connection.session.ping_now(time.monotonic())

    def get(self, calls: HttpCalls, path: str, max_answer: int = MAX_ANSWER_BYTES) -> bytes:
        """The answer of its HTTP API, which it describes while connected. Raises ``CallFailed``."""
        lookupd = self.lookupd
        assert lookupd is not None, "it is connected"
        url = f"{_base_url(lookupd, 'http' if self._tls is None else 'https')}/{path}"
        log.debug("CI: querying nsqlookupd %s", url)
        tls = None if self._tls is None else self._tls.context
        return calls.call(url, max_answer=max_answer, tls=tls, token=self._token)

    def _make_tls(self) -> Tls:
        assert self._tls is not None, "the session asks for TLS"
        from nsq_compat.net.tls import StandardTls  # not without TLS: see `net.tls_codec`

        host, _ = split_host_port(self._host_and_port) or ("", "")
        return StandardTls(self._tls.context, host or "localhost")

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
        # An nsqlookupd that is down for a day must not cause a log line every few seconds.
        log.log(logging.DEBUG if self._last_failure else logging.INFO, "LOOKUP connecting to %s", self.address)
        if self._tls is not None:
            _ = self._tls.context  # raises for a file that cannot be read
        client = self._dialer.connect(CONNECT_SECONDS)
        connection = self._connection = Connection(
            client, self.address, self._make_session, self._make_tls, tick=self._tick
        )
        connection.actor = "LOOKUPD"
        connection.wake()
        began = time.monotonic()
        self._broker.observers.append(connection.session)
        try:
            connection.run(begins_handshake=self._tls is not None)
        finally:
            self._broker.observers.remove(connection.session)
            self.lookupd = self._connection = None
        # Otherwise the pause keeps growing, also for an nsqlookupd that accepts all registrations and then disconnects.
        if connection.session.all_registered and time.monotonic() - began > MAX_PAUSE_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
            self._last_failure = ""
        self._note_failure(connection.session.failure)

    def _make_session(self, connection: Connection[LookupPeer], now: float, now_ns: int) -> LookupPeer:
        return self._new_session(
            address=self.address,
            wake=connection.wake,
            on_identified=self._identified,
            now=now,
            tls=self._tls is not None,
        )

    def _identified(self, lookupd: LookupdInfo) -> None:
        self.lookupd = lookupd
        self.was_tried.set()

    def _note_failure(self, failure: str) -> None:
        if failure:
            level = logging.DEBUG if failure == self._last_failure else logging.ERROR
            log.log(level, "LOOKUPD(%s): %s", self.address, failure)
            self._last_failure = failure


class LookupPeers:
    """All nsqlookupds. `info` describes this daemon to them, `tls` is for those that have TLS, `token` for those with
    an access file.

    With the `tick` of the clients' connections, REGISTER of a new topic leaves before the OK of the producer that
    created it, so that a lookup right after the OK finds the topic.
    """

    def __init__(
        self,
        broker: Broker,
        info: PeerInfo,
        tick: LoopTick | None = None,
        tls: LookupdTls | None = None,
        token: str = "",
    ) -> None:
        self._token = token
        self._broker = broker
        self._tls = tls or LookupdTls(partial(client_tls, "", 0))
        self._tick = tick
        self._new_session = partial(LookupPeer, broker, info, token=token)
        self._peers: dict[str, Peer] = {}

    @property
    def peers(self) -> list[Peer]:
        """The configured nsqlookupds, whether connected or not."""
        return list(self._peers.values())

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Register all topics with these nsqlookupds and no others. Connections to those that remain are kept."""
        wanted = dict.fromkeys(addresses)
        before, self._peers = self._peers, {}
        for address in wanted:
            peer = before.pop(address, None)
            if peer is None:
                log.info("LOOKUP(%s): adding peer", address)
                peer = Peer(address, self._broker, self._new_session, self._tick, self._tls, self._token)
                peer.start()
            self._peers[address] = peer
        for address, peer in before.items():
            log.info("LOOKUP(%s): removing peer", address)
            peer.stop()  # waits, while other greenlets run

    def lists(self, broadcast_address: str, tcp_port: int, calls: HttpCalls) -> bool:
        """Whether an nsqlookupd lists this nsqd. One that does not answer says nothing."""
        for peer in self.peers:
            lookupd = peer.lookupd
            if lookupd is None or address_error(lookupd.broadcast_address, HTTP=lookupd.http_port):
                continue
            try:
                answer = peer.get(calls, "nodes", _MAX_NODES_BYTES)
                nodes = in_thread(loads_object, answer, _NODES)["producers"]
            except (CallFailed, JsonError) as failure:
                log.warning("LOOKUPD(%s): cannot list nodes - %s", peer.address, failure)
                continue
            if any((each["broadcast_address"], each["tcp_port"]) == (broadcast_address, tcp_port) for each in nodes):
                return True
        return False

    def stop(self) -> None:
        """Close all connections, which ends the registrations."""
        before, self._peers = self._peers, {}
        if before:
            log.info("LOOKUP: closing")
        for peer in before.values():
            peer.stop()


class TopicChannels:
    """Asks every nsqlookupd for a new topic's channels on other nodes, so that its first messages reach them.

    The command that creates the topic does not wait: the topic keeps its messages (`queue.topic.Topic.await_channels`)
    until the answers have arrived, or for `timeout` seconds (docs/decisions/0005). An observer of the broker.
    """

    def __init__(self, broker: Broker, peers: LookupPeers, calls: HttpCalls, timeout: float) -> None:
        self._broker = broker
        self._peers = peers
        self._calls = calls
        self._timeout = timeout
        self._slots = BoundedSemaphore(MAX_TOPICS_AT_ONCE)
        self._learning = Group()
        self._asking = Group()
        self._skipped_until: WeakKeyDictionary[Peer, float] = WeakKeyDictionary()

    def start(self) -> None:
        """Ask again for topics that were waiting when the last process ended."""
        self._broker.observers.append(self)
        for topic in list(self._broker.topics.values()):
            if topic.awaits_channels:
                self._learning.spawn(self._learn, topic)

    def stop(self) -> None:
        """Topics that are waiting continue to wait after the next start."""
        self._learning.kill()
        self._asking.kill()

    def topic_created(self, topic: Topic) -> None:
        if self._peers.peers:
            topic.await_channels()
            self._learning.spawn(self._learn, topic)

    def topic_deleted(self, *_: object) -> None: ...

    channel_created = channel_deleted = topic_deleted

    def _learn(self, topic: Topic) -> None:
        names: list[str] = []
        with self._slots:
            try:
                names = self._ask(topic.name)
            except Exception:  # the topic must not wait forever
                log.exception("TOPIC(%s): internal error", topic.name)
        created = 0
        while True:
            try:
                while created < len(names):
                    for name in names[created : created + _CHANNELS_AT_ONCE]:
                        topic.channel(name)
                    created += _CHANNELS_AT_ONCE
                    yield_to_loop()
                topic.learn_channels()
                return
            except Exiting:
                log.debug("TOPIC(%s): ended before its channels were known", topic.name)
                return
            except OSError as error:
                log.error("TOPIC(%s): cannot create its channels - %s", topic.name, reason(error))
            gevent.sleep(RETRY_SECONDS)

    def _ask(self, topic: str) -> list[str]:
        """The channels of the topic that at least one nsqlookupd knows."""
        asking = [self._asking.spawn(self._outcome, peer, topic) for peer in self._peers.peers]
        outcomes = [each.get() for each in asking]
        failures = [outcome for outcome in outcomes if isinstance(outcome, CallFailed)]
        if failures:
            log.warning(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s",
                topic, "; ".join(map(str, failures)),
            )  # fmt: skip
        answers = [outcome for outcome in outcomes if isinstance(outcome, list)]
        if outcomes and not answers and not failures:
            log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic)
        return sorted({name for names in answers for name in names})

    def _outcome(self, peer: Peer, topic: str) -> list[str] | CallFailed | None:
        """The answer of one nsqlookupd; None if it is not connected or skipped."""
        began = time.monotonic()
        try:
            with gevent.Timeout(self._timeout, CallFailed("no answer in time")):
                peer.was_tried.wait()
                lookupd = peer.lookupd
                if lookupd is None or not lookupd.broadcast_address or began < self._skipped_until.get(peer, 0.0):
                    return None
                if problem := address_error(lookupd.broadcast_address, HTTP=lookupd.http_port):
                    return CallFailed(f"{peer.address}: {problem}")
                body = peer.get(self._calls, f"channels?topic={quote(topic, safe='')}")
                if len(body) > _MAX_READ_AT_ONCE:
                    return in_thread(_channels_in, topic, body)
                return _channels_in(topic, body)
        except CallFailed as failure:
            peer.ping_now()
            if time.monotonic() - began >= SLOW_SECONDS:
                self._skipped_until[peer] = time.monotonic() + SKIP_SECONDS
            return CallFailed(f"{peer.address}: {failure}")


def _base_url(lookupd: LookupdInfo, scheme: str) -> str:
    host = lookupd.broadcast_address
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{lookupd.http_port}"


def _channels_in(topic: str, body: bytes) -> list[str]:
    try:
        names: tuple[str, ...] = loads_object(body, _ANSWER)["channels"]
    except JsonError as error:
        raise CallFailed(f"not a list of channels: {error}") from None
    for name in islice(filterfalse(is_valid_name, names), _MAX_INVALID_LOGGED):
        log.warning("skipping creation of invalid channel %s", name)
    # nsqd: not the ephemeral ones, which have no consumer here.
    lasting = [name for name in names if is_valid_name(name) and not is_ephemeral(name)]
    if len(lasting) > MAX_LEARNED_CHANNELS:
        log.error(
            "an nsqlookupd names %d channels for topic %s, of which the first %d are created",
            len(lasting), topic, MAX_LEARNED_CHANNELS,
        )  # fmt: skip
    return lasting[:MAX_LEARNED_CHANNELS]
