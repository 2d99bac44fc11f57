"""Group commit: publishers wait together for one sync of their topic's log, which runs in a thread.

While one sync runs, those who come gather for the next; it begins as soon as the last one returned. There is no timer:
waiting for company only makes it slower (measured).
"""

import gevent
from gevent.event import AsyncResult

from nsq_compat.nsqd.waiting import in_thread
from nsq_compat.queue.topic_log import TopicLog


class Committer:
    """One for all topics."""

    def __init__(self) -> None:
        self._gathering: dict[TopicLog, AsyncResult[None]] = {}
        self._syncing: set[TopicLog] = set()

    def commit(self, log: TopicLog) -> None:
        """Return when everything appended so far is on the disk. Raises ``OSError`` when it may not be."""
        turn = self._gathering.setdefault(log, AsyncResult())
        if log not in self._syncing:
            self._syncing.add(log)
            gevent.spawn(self._sync_while_wanted, log)
        turn.get()

    def _sync_while_wanted(self, log: TopicLog) -> None:
        try:
            while log in self._gathering:
                turn = self._gathering.pop(log)
                try:
                    self._sync(log)
                except OSError as error:
                    turn.set_exception(error)
                else:
                    turn.set(None)
        finally:
            self._syncing.discard(log)

    @staticmethod
    def _sync(log: TopicLog) -> None:
        job = log.begin_sync()
        try:
            in_thread(job.run)
        except OSError as error:
            log.finish_sync(job, error)
            raise
        log.finish_sync(job, None)
