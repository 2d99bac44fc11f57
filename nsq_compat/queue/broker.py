"""All topics of one daemon: get or create, delete, bring back after a restart, close."""

import logging
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Protocol

from nsq_compat.log.recovery import recover
from nsq_compat.log.storage import Storage
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.errors import REFUSES_ALL, Exiting
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.schedule import Schedule
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)


class BrokerObserver(Protocol):
    """Is told after the fact, with the maps as they are now."""

    def topic_created(self, topic: Topic) -> None: ...

    def topic_deleted(self, topic: Topic) -> None: ...

    def channel_created(self, topic: Topic, channel: Channel) -> None: ...

    def channel_deleted(self, topic: Topic, channel: Channel) -> None: ...


class Broker:
    """The heart of nsqd: knows no network and no clock, and the disk only as a storage. Without one it is forgetful."""

    def __init__(self, limits: QueueLimits, storage: Storage | None = None) -> None:
        self.limits = limits
        self.schedule = Schedule()
        self.topics: dict[str, Topic] = {}
        self.observers: list[BrokerObserver] = []
        self._sorted_names: list[str] = []
        self._storage = storage
        self._changed: dict[Topic, None] = {}
        self._refuses_publishing = False

    def topic(self, name: str) -> Topic:
        """The topic of that (valid) name, made if need be. Raises ``Exiting`` and ``OSError``."""
        topic = self.topics.get(name)
        if topic is None:
            if self._refuses_publishing:
                raise Exiting
            store = None
            if self._storage is not None and not is_ephemeral(name):
                store = self._storage.create(name)
            topic = Topic(name, self.limits, self.schedule, self, store)
            self._add(topic)
            log.info("TOPIC(%s): created", name)
            for observer in self.observers:
                observer.topic_created(topic)
            if store is not None:
                store.commit()  # last, because others run meanwhile
        return topic

    def restore(self, name: str, channels: Iterable[str], now: float, now_ns: int) -> Topic:
        """Bring a topic back from the storage, with the channels it had and those named. Raises ``OSError``."""
        assert self._storage is not None, "only a storage remembers"
        store, last = self._storage.open(name)
        try:
            before = recover(last, store.log)
        except OSError:
            store.log.close()
            raise
        topic = Topic(name, self.limits, self.schedule, self, store)
        if last is None and before.end.seq and before.channels:
            _log_missing_checkpoint(name, store.log.is_whole)
        topic.restore(before, channels, now, now_ns)
        self._add(topic)
        return topic

    def sorted_names(self) -> list[str]:
        """Of all topics, as they are now."""
        return self._sorted_names.copy()

    def delete_topic(self, name: str) -> None:
        """End a topic with its channels and all they hold. Raises ``KeyError``."""
        topic = self.topics.pop(name)
        del self._sorted_names[bisect_left(self._sorted_names, name)]
        log.info("TOPIC(%s): deleting", name)
        self._changed.pop(topic, None)
        topic.delete()
        for observer in self.observers:
            observer.topic_deleted(topic)

    def _add(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        insort(self._sorted_names, topic.name)  # sorting 20,000 anew takes milliseconds

    def refuse_publishing(self) -> None:
        """From now on no topic takes messages, and none is made; what there is goes on being consumed."""
        self._refuses_publishing = True
        for topic in self.topics.values():
            topic.admission = REFUSES_ALL

    def close(self) -> None:
        """The daemon stops: no topic takes or gives anything from now on."""
        self._refuses_publishing = True
        for topic in self.topics.values():
            topic.close()

    @property
    def has_changed(self) -> bool:
        """Whether there is a topic whose checkpoint is out of date."""
        return bool(self._changed)

    def take_changed(self) -> list[Topic]:
        """Those topics whose checkpoint is out of date; from here on they announce changes anew."""
        changed, self._changed = list(self._changed), {}
        return changed

    def changed(self, topic: Topic) -> None:
        self._changed[topic] = None

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        for observer in self.observers:
            observer.channel_created(topic, channel)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        for observer in self.observers:
            observer.channel_deleted(topic, channel)
        # nsqd: an ephemeral topic ends with its last channel, not before it ever had one.
        if topic.ephemeral and not topic.channels and self.topics.get(topic.name) is topic:
            self.delete_topic(topic.name)


def _log_missing_checkpoint(topic: str, log_is_whole: bool) -> None:
    """A topic with channels gets its first checkpoint a moment after its first channel."""
    if log_is_whole:
        log.warning(
            "TOPIC(%s): there is no checkpoint, all messages in the log come again, finished or not (expected only if "
            "nsqd ended right after the topic got its first channel)",
            topic,
        )
    else:
        log.error(
            "TOPIC(%s): the checkpoint is missing, all messages that are left in the log come again, finished or not, "
            "in every channel",
            topic,
        )
