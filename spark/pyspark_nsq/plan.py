"""The plan of a batch: how many messages come from each nsqd, and in how many tasks.

A plan consists of lists of strings and numbers, because it is part of the offset that Spark stores as JSON. A batch
that is repeated after a restart therefore has the same plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_nsq.nodes import Node
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.spool import Orphan

_NSQD: Final = "nsqd"
_ORPHAN: Final = "orphan"
MAX_TASKS: Final = 10_000
"""Of a batch for a topic on one nsqd, whatever backlog that claims to have: the driver plans and runs them all."""


@dataclass(frozen=True, slots=True)
class Share:
    """A task: at most `count` messages of a topic from one nsqd, over one connection. `http` is empty if unknown."""

    topic: str
    nsqd: str
    count: int
    http: str = ""


class HoldBack:
    """Decides whether a batch waits until there are more messages. `clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float]) -> None:
        self._least = options.min_messages_per_trigger
        self._delay = options.max_trigger_delay
        self._clock = clock
        self._last: float | None = None

    def holds_back(self, count: int) -> bool:
        """Whether a batch of so many messages waits. The first one after a start does not."""
        now = self._clock()
        if 0 < count < self._least and self._last is not None and now - self._last < self._delay:
            return True
        if count:
            self._last = now
        return False


def plan_batch(backlog: Sequence[tuple[Node, int | None]], limit: int | None, options: ReadOptions) -> list[Share]:
    """Return the tasks of a batch of at most `limit` messages.

    A node with an unknown backlog is assumed to have enough messages for all its tasks.
    """
    assumed = options.max_messages_per_partition * options.partitions_per_nsqd
    waiting = [(node, assumed if depth is None else depth) for node, depth in backlog]
    total = sum(depth for _, depth in waiting)
    granted = total if limit is None else min(total, limit)
    shares: list[Share] = []
    before = 0
    for node, depth in waiting:
        # In proportion, and rounded so that the shares add up to `granted`.
        count = granted * (before + depth) // total - granted * before // total if total else 0
        before += depth
        tasks = max(
            options.partitions_per_nsqd,
            -(-count // options.max_messages_per_partition),
            -(-options.min_partitions * count // granted) if granted else 0,
        )
        shares += [Share(node.topic, node.tcp, each, node.http) for each in _split(count, min(tasks, count, MAX_TASKS))]
    return shares


def _split(count: int, tasks: int) -> list[int]:
    return [count * (each + 1) // tasks - count * each // tasks for each in range(tasks)]


def to_json(plan: Sequence[Orphan | Share]) -> list[list[Any]]:
    return [
        [_ORPHAN, each.file, each.start, each.size]
        if isinstance(each, Orphan)
        else [_NSQD, each.topic, each.nsqd, each.count, each.http]
        for each in plan
    ]


def from_json(plan: list[list[Any]]) -> list[Orphan | Share]:
    return [Orphan(*rest) if kind == _ORPHAN else Share(*rest) for kind, *rest in plan]
