"""The channels a new topic has on other nodes: asked of every nsqlookupd, so that its first messages reach them all.

Whoever makes the topic does not wait: the topic keeps what it is given (`queue.topic.Topic.await_channels`) until the
answers are in or their time is over (docs/decisions/0005).
"""

import logging
import time
from collections.abc import Iterable
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
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.errors import Exiting
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""Topics asked for at a time, so that ten thousand new ones do not become as many threads."""
SLOW_SECONDS: Final = 1.0
"""An nsqlookupd whose failure took that long is left alone for a while: it would hold up each new topic in turn."""
LEFT_ALONE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
"""Between two attempts to write down what the disk did not take."""
_ANSWER: Final[Fields] = {"channels": list_of(STRING)}


class TopicChannels:
    """An observer of the broker. `patience`: how many seconds the answers for one topic may take."""

    def __init__(self, broker: Broker, peers: LookupPeers, calls: HttpCalls, patience: float) -> None:
        self._broker = broker
        self._peers = peers
        self._calls = calls
        self._patience = patience
        self._turn = BoundedSemaphore(AT_ONCE)
        self._learning = Group()
        self._asking = Group()
        self._left_alone: WeakKeyDictionary[Peer, float] = WeakKeyDictionary()  # until then

    def start(self) -> None:
        """Topics that were waiting when the last process ended are asked for again."""
        self._broker.observers.append(self)
        for topic in list(self._broker.topics.values()):
            if topic.awaits_channels:
                self._learning.spawn(self._learn, topic)

    def stop(self) -> None:
        """Topics that wait do so until the next start."""
        self._learning.kill()
        self._asking.kill()

    def topic_created(self, topic: Topic) -> None:
        if self._peers.peers:
            topic.await_channels()
            self._learning.spawn(self._learn, topic)

    def topic_deleted(self, topic: Topic) -> None: ...

    def channel_created(self, topic: Topic, channel: Channel) -> None: ...

    def channel_deleted(self, topic: Topic, channel: Channel) -> None: ...

    def _learn(self, topic: Topic) -> None:
        try:
            with self._turn:
                names = self._ask_safely(topic.name)
            while not self._make(topic, names):
                gevent.sleep(RETRY_SECONDS)
        except Exiting:
            log.debug("TOPIC(%s): ended before its channels were known", topic.name)

    def _make(self, topic: Topic, names: Iterable[str]) -> bool:
        try:
            topic.learn_channels(names)
        except OSError as error:
            log.error("TOPIC(%s): cannot create its channels - %s", topic.name, reason(error))
            return False
        return True

    # --- Asking -------------------------------------------------------------------------------------------------------

    def _ask_safely(self, topic: str) -> list[str]:
        try:
            return self._ask(topic)
        except Exception:  # whatever it is, it must not keep the topic waiting for ever
            log.exception("TOPIC(%s): internal error", topic)
            return []

    def _ask(self, topic: str) -> list[str]:
        """The channels that any nsqlookupd knows."""
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
        """What one nsqlookupd answers; None if it is not there to be asked."""
        began = time.monotonic()
        try:
            with gevent.Timeout(self._patience, CallFailed("no answer in time")):
                peer.was_tried.wait()
                lookupd = peer.lookupd
                if lookupd is None or not lookupd.broadcast_address or began < self._left_alone.get(peer, 0.0):
                    return None
                if problem := address_error(lookupd.broadcast_address, HTTP=lookupd.http_port):
                    return CallFailed(f"{peer.address}: {problem}")
                return _channels_in(self._calls.get(_url(lookupd, topic)))
        except CallFailed as failure:
            self._peers.suspect(peer)
            if time.monotonic() - began >= SLOW_SECONDS:
                self._left_alone[peer] = time.monotonic() + LEFT_ALONE_SECONDS
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
