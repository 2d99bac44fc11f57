"""Group commit: publishers wait together for one sync of their topic's log, which runs in a thread.

While one sync runs, those who come gather for the next; it begins as soon as the last one returned. There is no timer:
waiting for company only makes it slower (measured).
"""

import time
from collections.abc import Callable

import gevent
from gevent.event import AsyncResult

from nsq_compat.log.topic_log import TopicLog
from nsq_compat.nsqd.waiting import in_thread
from nsq_compat.web.metrics import Metrics

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


def sync_seconds(metrics: Metrics) -> Callable[[float], None]:
    """What is told how long each disk sync took, for the figure that says so."""
    return metrics.histogram("nsqd_fsync_seconds", "Time a sync of a log took.", _BUCKETS)


class Committer:
    """One for all topics. Tells `observe` how many seconds each sync took."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
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

    def _sync(self, log: TopicLog) -> None:
        job = log.begin_sync()
        began = time.monotonic()
        try:
            in_thread(job.run)
        except OSError as error:
            log.finish_sync(job, error)
            raise
        log.finish_sync(job, None)
        self._observe(time.monotonic() - began)
