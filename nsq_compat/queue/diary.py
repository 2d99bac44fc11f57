"""What comes and goes in a topic besides messages, written into its log: channels, pauses, emptying, REQ delays.

Recovery reads it in the order of the messages, so it is written when it happens. If the disk does not take it, the
next checkpoint knows.
"""

import logging

from nsq_compat.queue.group import CHANNEL_CREATED, REQUEUED
from nsq_compat.queue.requeued import ROW, encode_requeued
from nsq_compat.queue.storage import TopicStore

log = logging.getLogger(__name__)

_NS_PER_SECOND = 1_000_000_000


class Diary:
    """Of one topic; without a store nothing is written."""

    def __init__(self, topic_name: str, store: TopicStore | None) -> None:
        self._topic_name = topic_name
        self._store = store
        self._requeued: dict[str, list[bytes]] = {}  # by channel; not written yet

    def note(self, kind: int, name: str, seq: int) -> None:
        """Something came or went, behind the message before number `seq`."""
        if self._store is not None:
            self.write_requeued()
            try:
                self._store.note(kind, name, seq)
            except OSError as error:
                log.error("TOPIC(%s): cannot write to the log - %s", self._topic_name, error)

    def note_creation(self, name: str, seq: int) -> None:
        """A channel came. Raises ``OSError`` if it must not be there without being written down."""
        if self._store is not None and self._store.always:
            self.write_requeued()
            self._store.note(CHANNEL_CREATED, name, seq)
        else:
            self.note(CHANNEL_CREATED, name, seq)

    def note_requeued(self, channel: str, message_id: bytes, attempts: int, due: float) -> None:
        """A message of a channel that is in the log was put back until `due`, in monotonic seconds.

        Those of one loop iteration are written together.
        """
        store = self._store
        if store is None or not store.always:
            return
        due_ns = int((due + store.clock_offset()) * _NS_PER_SECOND)
        is_first = not self._requeued
        self._requeued.setdefault(channel, []).append(ROW.pack(due_ns, message_id, attempts))
        if is_first:
            store.at_end_of_iteration(self.write_requeued)

    def write_requeued(self) -> None:
        """Write what ``note_requeued`` was told. If the disk does not take it, the next checkpoint knows."""
        if not self._requeued:
            return
        store, requeued = self._store, self._requeued
        self._requeued = {}
        assert store is not None, "without a store there is nothing to write"
        try:
            for channel, rows in requeued.items():
                store.append([encode_requeued(channel, rows)], store.log.end.seq, kind=REQUEUED)
        except OSError as error:
            log.error("TOPIC(%s): cannot write REQ delays to the log - %s", self._topic_name, error)

    def discard_requeued(self) -> None:
        """The topic is gone."""
        self._requeued = {}

    def settle(self) -> None:
        """Return when what was noted is as durable as a message would be. Last of all, because others run meanwhile."""
        if self._store is not None:
            try:
                self._store.commit()
            except OSError as error:
                log.error("TOPIC(%s): cannot sync the log - %s", self._topic_name, error)
