"""Asks every nsqlookupd for the channels that a new topic has on other nodes, so that its first messages reach them.

The command that creates the topic does not wait: the topic keeps its messages (`queue.topic.Topic.await_channels`)
until the answers have arrived or their time is over (docs/decisions/0005).
"""

import logging
import time
from typing import Final
from urllib.parse import quote
from weakref import WeakKeyDictionary

import gevent
from gevent.lock import BoundedSemaphore
from gevent.pool import Group

from nsq_compat.log.data_path import reason
from nsq_compat.nsqd.http_calls import CallFailed, HttpCalls
from nsq_compat.nsqd.lookup_peers import LookupPeers, Peer
from nsq_compat.protocol.go_json import STRING, Fields, JsonError, list_of, loads_object
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.protocol.names import address_error, is_valid_name
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.errors import Exiting
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

MAX_TOPICS_AT_ONCE: Final = 32
"""Bounds the threads that ten thousand new topics cause."""
SLOW_SECONDS: Final = 1.0
"""An nsqlookupd whose failure took so long is skipped for a while, because it would delay each new topic."""
SKIP_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
"""Between attempts to create channels that the disk did not take."""
_ANSWER: Final[Fields] = {"channels": list_of(STRING)}


class TopicChannels:
    """An observer of the broker. `timeout` is the time in seconds for the answers about one topic."""

    def __init__(self, broker: Broker, peers: LookupPeers, calls: HttpCalls, timeout: float) -> None:
        self._broker = broker
        self._peers = peers
        self._calls = calls
        self._timeout = timeout
        self._turn = BoundedSemaphore(MAX_TOPICS_AT_ONCE)
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
        with self._turn:
            try:
                names = self._ask(topic.name)
            except Exception:  # the topic must not wait for ever
                log.exception("TOPIC(%s): internal error", topic.name)
        while True:
            try:
                topic.learn_channels(names)
                return
            except Exiting:
                log.debug("TOPIC(%s): ended before its channels were known", topic.name)
                return
            except OSError as error:
                log.error("TOPIC(%s): cannot create its channels - %s", topic.name, reason(error))
            gevent.sleep(RETRY_SECONDS)

    def _ask(self, topic: str) -> list[str]:
        """The channels that any nsqlookupd has for the topic."""
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
                return _channels_in(self._calls.get(_url(lookupd, topic)))
        except CallFailed as failure:
            peer.ping_now()
            if time.monotonic() - began >= SLOW_SECONDS:
                self._skipped_until[peer] = time.monotonic() + SKIP_SECONDS
            return CallFailed(f"{peer.address}: {failure}")


def _url(lookupd: LookupdInfo, topic: str) -> str:
    host = lookupd.broadcast_address
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{lookupd.http_port}/channels?topic={quote(topic, safe='')}"


def _channels_in(body: bytes) -> list[str]:
    try:
        names: tuple[str, ...] = loads_object(body, _ANSWER)["channels"]
    except JsonError as error:
        raise CallFailed(f"not a list of channels: {error}") from None
    for name in names:
        if not is_valid_name(name):
            log.warning("skipping creation of invalid channel %s", name)
    return [name for name in names if is_valid_name(name)]
