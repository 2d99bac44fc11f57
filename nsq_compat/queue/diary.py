"""What comes and goes in a topic besides messages, written into its log: channels, pauses, emptying.

Recovery reads it in the order of the messages, so it is written when it happens. If the disk does not take it, the
next checkpoint knows.
"""

import logging

from nsq_compat.queue.group import CHANNEL_CREATED
from nsq_compat.queue.storage import TopicStore

log = logging.getLogger(__name__)


class Diary:
    """Of one topic; without a store nothing is written."""

    def __init__(self, topic_name: str, store: TopicStore | None) -> None:
        self._topic_name = topic_name
        self._store = store

    def note(self, kind: int, name: str, seq: int) -> None:
        """Something came or went, behind the message before number `seq`."""
        if self._store is not None:
            try:
                self._store.note(kind, name, seq)
            except OSError as error:
                log.error("TOPIC(%s): cannot write to the log - %s", self._topic_name, error)

    def note_creation(self, name: str, seq: int) -> None:
        """A channel came. Raises ``OSError`` if it must not be there without being written down."""
        if self._store is not None and self._store.always:
            self._store.note(CHANNEL_CREATED, name, seq)
        else:
            self.note(CHANNEL_CREATED, name, seq)

    def settle(self) -> None:
        """Return when what was noted is as durable as a message would be. Last of all, because others run meanwhile."""
        if self._store is not None:
            try:
                self._store.commit()
            except OSError as error:
                log.error("TOPIC(%s): cannot sync the log - %s", self._topic_name, error)
