"""A streaming query's way forward: which batch comes next. What Spark's reader does on the driver, without Spark.

An offset says everything about the batch that ends with it:

    {"stream": which spool, "seq": which batch, "planned": messages planned until now, "plan": what the batch reads}

Spark keeps it and gives it back, in the same process or after a restart. That it asks what comes behind an offset is
the proof that everything up to it is committed.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.plan import Share, share_out, to_json
from pyspark_nsq.spool import Piece, Spool

Offset = dict[str, Any]


class Progress:
    """`clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.backlog = 0
        self._options = options
        self._clock = clock
        self._nodes = Nodes(options, clock)
        self._initial: Offset | None = None
        self._spool: Spool | None = None
        self._cleaned: int | None = None
        self._polled: float | None = None
        self._left: int | None = None

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins; the same however often it is asked. Everything that would make the
        query fail is found out here, before anything is consumed."""
        if self._initial is None:
            self._nodes.require()
            stream = uuid.uuid4().hex
            self._spool = Spool(self._options.spool_dir, stream)
            self._spool.create()
            self._nodes.ensure_channels()
            self._initial = {"stream": stream, "seq": 0, "planned": 0, "plan": []}
        return self._initial

    def until_now(self) -> None:
        """From now on plan no more than waits at this moment, so that the query comes to an end."""
        self._nodes.ensure_channels()
        backlog = self._nodes.whole_backlog()
        self._left = sum(depth if depth is not None else self._blind() for _, depth in backlog)

    def next(self, start: Offset, limit: int | None) -> Offset:
        """The batch behind `start`; `start` itself when there is nothing to do."""
        spool = self._spool_of(start)
        if self._left is None and self._is_too_soon():
            return start
        self.committed(start)
        self._nodes.ensure_channels()
        backlog = self._nodes.backlog()
        self.backlog = sum(depth or 0 for _, depth in backlog)
        if self._left is not None:
            limit = self._left if limit is None else min(limit, self._left)
        plan: list[Piece | Share] = [*spool.orphans(), *share_out(backlog, limit, self._options)]
        planned = sum(each.count for each in plan if isinstance(each, Share))
        if not plan:
            return start
        if self._left is not None:
            self._left -= planned
        return {
            "stream": start["stream"],
            "seq": start["seq"] + 1,
            "planned": start["planned"] + planned,
            "plan": to_json(plan),
        }

    def committed(self, offset: Offset) -> None:
        """Everything up to here will not be asked for again."""
        last = offset["seq"] - self._options.spool_retain_batches
        if last != self._cleaned:
            spool = self._spool_of(offset)
            self._cleaned = spool.clean(last, self._options.spool_retain)
            spool.suspects.forget(self._options.suspect_ttl)

    def _spool_of(self, offset: Offset) -> Spool:
        if self._spool is None or self._spool.folder.name != offset["stream"]:
            self._spool = open_spool(self._options, offset["stream"])
        return self._spool

    def _is_too_soon(self) -> bool:
        # Spark asks a hundred times a second.
        now = self._clock()
        if self._polled is not None and now - self._polled < self._options.poll_interval:
            return True
        self._polled = now
        return False

    def _blind(self) -> int:
        return self._options.max_messages_per_partition * self._options.partitions_per_nsqd


def open_spool(options: ReadOptions, stream: str) -> Spool:
    """The spool of a query that has run before. Raises ``SpoolError`` if it is gone, and that matters."""
    spool = Spool(options.spool_dir, stream)
    if options.fail_on_data_loss:
        spool.require()
    spool.create()
    return spool
