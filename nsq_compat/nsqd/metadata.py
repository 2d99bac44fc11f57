"""Keeps nsqd.dat up to date: it is saved soon after a topic or channel is created or deleted.

The file is for Go's nsqd, for tools, and for what the logs do not contain: which channels are paused. That a topic or
channel exists is in the topic's own log before a client is told so.
"""

import logging
import time

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from nsq_compat.log.data_path import reason
from nsq_compat.log.files import Files
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata
from nsq_compat.nsqd.durability import in_thread
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_TOPICS_AT_ONCE = 500
_PAUSE_SECONDS = 0.001  # with a sleep of 0 the event loop would not poll its sockets
_MIN_INTERVAL_PER_SAVE = 20  # times the duration of a save, so that many new topics do not keep the daemon busy


class MetadataFile:
    """An observer of the broker. Saving is done in a thread, and one save may cover several changes."""

    def __init__(self, files: Files, data_path: str, broker: Broker) -> None:
        self._files = files
        self._data_path = data_path
        self._broker = broker
        self._wanted = Event()
        self._turn = Semaphore()
        self._saving: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        self._broker.observers.append(self)
        self._saving = gevent.spawn(self._save_when_wanted)

    def stop(self) -> None:
        """Save the final state, after a save under way."""
        if self._saving is not None:
            self._saving.kill()
        self.save()

    def save(self) -> bool:
        """Save the current state; returns whether it succeeded. A failure is logged."""
        with self._turn:  # one after the other, because they write the same file
            return self._save()

    def _save(self) -> bool:
        log.info("NSQ: persisting topic/channel metadata to %s", self._data_path)
        try:
            in_thread(save_metadata, self._files, self._data_path, self._topics())
        except OSError as error:
            log.error("failed to persist metadata - %s", reason(error))
            return False
        return True

    def _topics(self) -> list[TopicMetadata]:
        """Each topic as it is when it is read, with others running in between; deleted ones are left out.

        A change meanwhile causes another save.
        """
        taken = []
        for number, (name, topic) in enumerate(list(self._broker.topics.items()), 1):
            if self._broker.topics.get(name) is topic:
                channels = tuple(ChannelMetadata(each.name, each.paused) for each in topic.channels.values())
                taken.append(TopicMetadata(name, topic.paused, channels))
            if not number % _TOPICS_AT_ONCE:
                gevent.sleep(_PAUSE_SECONDS)
        return taken

    def topic_created(self, topic: Topic) -> None:
        self._wanted.set()

    def topic_deleted(self, topic: Topic) -> None:
        self._wanted.set()

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        self._wanted.set()

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self._wanted.set()

    def _save_when_wanted(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            began = time.monotonic()
            if not self.save():
                self._wanted.set()
                gevent.sleep(_RETRY_SECONDS)
            gevent.sleep(_MIN_INTERVAL_PER_SAVE * (time.monotonic() - began))
