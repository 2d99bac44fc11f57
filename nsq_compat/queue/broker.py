"""All topics of one daemon: get or create, delete, close."""

import logging
from typing import Protocol

from nsq_compat.queue.channel import Channel
from nsq_compat.queue.exiting import Exiting
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.schedule import Schedule
from nsq_compat.queue.topic import Topic, TopicObserver

log = logging.getLogger(__name__)


class BrokerObserver(TopicObserver, Protocol):
    """Is told after the fact, with the maps as they are now."""

    def topic_created(self, topic: Topic) -> None: ...

    def topic_deleted(self, topic: Topic) -> None: ...


class Broker:
    """The heart of nsqd: knows no network, no disk and no clock."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.schedule = Schedule()
        self.topics: dict[str, Topic] = {}
        self.observers: list[BrokerObserver] = []
        self._exiting = False

    def topic(self, name: str) -> Topic:
        """The topic of that (valid) name, made if need be. Raises ``Exiting``."""
        topic = self.topics.get(name)
        if topic is None:
            if self._exiting:
                raise Exiting
            topic = self.topics[name] = Topic(name, self.limits, self.schedule, self)
            log.info("TOPIC(%s): created", name)
            for observer in self.observers:
                observer.topic_created(topic)
        return topic

    def delete_topic(self, name: str) -> None:
        """End a topic with its channels and all they hold. Raises ``KeyError``."""
        topic = self.topics.pop(name)
        log.info("TOPIC(%s): deleting", name)
        topic.close()
        for observer in self.observers:
            observer.topic_deleted(topic)

    def close(self) -> None:
        """The daemon stops: no topic takes or gives anything from now on."""
        self._exiting = True
        for topic in self.topics.values():
            topic.close()

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        for observer in self.observers:
            observer.channel_created(topic, channel)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        for observer in self.observers:
            observer.channel_deleted(topic, channel)
        # nsqd: an ephemeral topic ends with its last channel, not before it ever had one.
        if topic.ephemeral and not topic.channels and self.topics.get(topic.name) is topic:
            self.delete_topic(topic.name)
