"""What nsq_to_file has written of one topic and not finished yet.

Invariant: a message is finished after the file that holds it was synced, never before. A sync is due when so many
messages wait for one, when the interval is over, when a file ends, and in time for nsqd not to give up waiting.

`now` is monotonic, `now_ns` wall clock; nothing here waits or knows a thread.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from nsq_compat.client import Message
from nsq_compat.tools.file_series import FileSeries

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRules:
    """When to sync, and what to do when there is nothing to write; seconds."""

    interval: float
    at_most: int
    """Messages that wait for a sync."""
    skip_empty: bool = False
    """A file is opened when there is something to write, not before."""


class Recording:
    def __init__(self, label: str, series: FileSeries, rules: SyncRules, now: float) -> None:
        self.series = series
        self.recorded = 0
        """Messages that were synced and finished."""
        self.unsynced: list[Message] = []
        self._label = label
        self._rules = rules
        self._tick_due = now + rules.interval
        self._patience_ends = 0.0

    def write(self, messages: Sequence[Message], now: float, now_ns: int, patience: float) -> None:
        """`patience`: the seconds within which nsqd should hear of them."""
        if not self.unsynced:
            self._patience_ends = now + patience
        # Those whose connection is gone will come again.
        left = [message for message in messages if not message.is_lost]
        while left:
            if self.series.must_rotate(now, now_ns):
                self.sync()
                self.series.open_next(now, now_ns)
            bodies = [message.body for message in left]
            count = self.series.fitting(bodies)
            self.series.write(bodies[:count])
            self.unsynced += left[:count]
            left = left[count:]
        if len(self.unsynced) >= self._rules.at_most:
            self.sync()

    def due(self) -> float:
        """When `tick` wants to be called."""
        return min(self._tick_due, self._patience_ends) if self.unsynced else self._tick_due

    def tick(self, now: float, now_ns: int) -> None:
        """Sync; and when the interval is over, see whether the file is."""
        self.sync()
        if now < self._tick_due:
            return
        self._tick_due = now + self._rules.interval
        if self.series.must_rotate(now, now_ns):
            if self._rules.skip_empty:
                self.series.close()
            else:
                self.series.open_next(now, now_ns)

    def sync(self) -> None:
        if not self.unsynced:
            return
        log.info("[%s] syncing %d records to disk", self._label, len(self.unsynced))
        self.series.sync()
        for message in self.unsynced:
            message.finish()
        self.recorded += len(self.unsynced)
        self.unsynced.clear()

    def close(self) -> None:
        """Sync, finish, and put the file in place; the next message opens the next."""
        self.sync()
        self.series.close()

    def give_back(self) -> None:
        """The disk has failed: somebody else may write what is not safe."""
        for message in self.unsynced:
            if not message.is_answered:
                message.requeue(delay=0, backoff=False)
        self.unsynced.clear()
