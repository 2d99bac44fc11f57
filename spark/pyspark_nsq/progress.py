"""Offsets and batches of a streaming query: the driver's part of Spark's reader, without Spark.

An offset describes the batch that ends with it:

    {"stream": name of the spool, "seq": number of the batch, "planned": messages planned so far, "plan": its tasks}

Spark stores offsets and passes them back, in the same process or after a restart. If it asks for the batch after an
offset, everything up to that offset is committed.
"""

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from pyspark_nsq.nodes import Interval, Nodes
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.plan import HoldBack, Share, from_json, plan_batch, to_json
from pyspark_nsq.spool import Orphan, Spool

log = logging.getLogger(__name__)

_LOOKUPS: Final = 2

Offset = dict[str, Any]


class Progress:
    """`clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._nodes = Nodes(options, clock)
        self._initial: Offset | None = None
        self._spool: Spool | None = None
        self._cleaned: int | None = None
        # Spark asks 100 times a second.
        self._polls = Interval(options.poll_interval, clock)
        self._holds = HoldBack(options, clock)
        self._left: int | None = None
        self._planned_last: int | None = None

    def initial(self) -> Offset:
        """The offset of a query without a checkpoint; the same for every call.

        Checks all prerequisites of the query before a message is consumed.
        """
        if self._initial is None:
            self._nodes.require()
            stream = uuid.uuid4().hex
            self._spool = Spool(self._options.spool_dir, stream)
            self._spool.create()
            self._nodes.create_channels(self._options.connect_timeout)
            self._initial = {"stream": stream, "seq": 0, "planned": 0, "plan": []}
        return self._initial

    def stop_at_current_end(self) -> None:
        """Plan no more messages than wait now, so that the query ends."""
        self._nodes.create_channels(self._options.connect_timeout)
        backlog = self._nodes.settled_backlog()
        assumed = self._options.max_messages_per_partition * self._options.partitions_per_nsqd
        self._left = sum(assumed if depth is None else depth for _, depth in backlog)

    def next(self, start: Offset, limit: int | None) -> Offset:
        """The end of the batch after `start`, or `start` if there is nothing to read."""
        spool = self._spool_of(start)
        if self._left is None and not self._polls.is_due():
            return start
        if self._left is not None:
            self._left += self._unread(start)
        self.committed(start)
        self._nodes.create_channels()
        backlog = self._nodes.backlog(self._options.connect_timeout if self._left is not None else None)
        if self._left is not None:
            limit = self._left if limit is None else min(limit, self._left)
        plan: list[Orphan | Share] = [*spool.orphans(), *plan_batch(backlog, limit, self._options)]
        planned = sum(each.count for each in plan if isinstance(each, Share))
        if not plan or (self._left is None and self._holds.holds_back(planned)):
            return start
        if self._left is not None:
            self._left -= planned
        self._planned_last = start["seq"] + 1
        return {
            "stream": start["stream"],
            "seq": start["seq"] + 1,
            "planned": start["planned"] + planned,
            "plan": to_json(plan),
        }

    def _unread(self, offset: Offset) -> int:
        """How many messages the batch that ends with this offset was to read and has not: its tasks ended early.

        0 if it read none: then what waits is not delivered, and another batch would not get it either.
        """
        if offset["seq"] != self._planned_last:
            return 0
        self._planned_last = None
        spool, planned, read = self._spool_of(offset), 0, 0
        for part, work in enumerate(from_json(offset["plan"])):
            if isinstance(work, Share):
                planned += work.count
                read += sum(piece.rows for piece in spool.partition(offset["seq"], part).sealed() or ())
        if planned and not read:
            log.warning("%d messages wait, but nsqd does not deliver them", planned)
        return planned - read if read else 0

    def report(self) -> dict[str, Any]:
        """What Spark shows as `latestOffset` in its progress."""
        return {"backlog": sum(depth for _, depth in self._nodes.heard.values()), "nsqds": self._nodes.report()}

    def committed(self, offset: Offset) -> None:
        """Clean the spool: batches up to `offset` are not read again."""
        last = offset["seq"] - self._options.spool_retain_batches
        if last != self._cleaned:
            spool = self._spool_of(offset)
            options = self._options
            # An nsqd that was killed is found again after as long as this, and then delivers finished messages again.
            until_found = _LOOKUPS * options.lookup_interval if options.lookupd_http_addresses else 0.0
            self._cleaned = spool.clean(last, max(options.spool_retain, until_found))
            spool.suspects.forget(self._options.suspect_ttl)

    def _spool_of(self, offset: Offset) -> Spool:
        if self._spool is None or self._spool.folder.name != offset["stream"]:
            self._spool = open_spool(self._options, offset["stream"])
        return self._spool


def open_spool(options: ReadOptions, stream: str) -> Spool:
    """Open the spool of a query that has run before. Raises ``SpoolError`` if it is gone, with failOnDataLoss."""
    spool = Spool(options.spool_dir, stream)
    if options.fail_on_data_loss:
        spool.require()
    spool.create()
    return spool
