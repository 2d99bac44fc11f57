"""How a batch is shared out: so many messages from each nsqd, in so many tasks.

A plan is made of lists of text and numbers, because it is part of the offset that Spark keeps as JSON: a batch that is
wanted again after a restart has the plan it had.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_nsq.nodes import Node
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.spool import Piece

_NSQD: Final = "nsqd"
_ORPHAN: Final = "orphan"


@dataclass(frozen=True, slots=True)
class Share:
    """At most `count` messages of a topic from one nsqd, over one connection. `http` may be empty: not known."""

    topic: str
    nsqd: str
    count: int
    http: str = ""


def share_out(backlog: Sequence[tuple[Node, int | None]], limit: int | None, options: ReadOptions) -> list[Share]:
    """The tasks of a batch of at most `limit` messages. A node whose backlog nobody knows is read as if it had enough
    for all the tasks it may have."""
    blind = options.max_messages_per_partition * options.partitions_per_nsqd
    waiting = [(node, blind if depth is None else depth) for node, depth in backlog]
    total = sum(depth for _, depth in waiting)
    granted = total if limit is None else min(total, limit)
    shares: list[Share] = []
    before = 0
    for node, depth in waiting:
        # In proportion, and so that the rounded shares add up to what is granted.
        count = granted * (before + depth) // total - granted * before // total if total else 0
        before += depth
        tasks = max(
            options.partitions_per_nsqd,
            -(-count // options.max_messages_per_partition),
            -(-options.min_partitions * count // granted) if granted else 0,
        )
        shares += [Share(node.topic, node.tcp, each, node.http) for each in _split(count, min(tasks, count))]
    return shares


def _split(count: int, tasks: int) -> list[int]:
    return [count * (each + 1) // tasks - count * each // tasks for each in range(tasks)]


def to_json(plan: Sequence[Piece | Share]) -> list[list[Any]]:
    return [
        [_ORPHAN, each.file, each.size, each.rows]
        if isinstance(each, Piece)
        else [_NSQD, each.topic, each.nsqd, each.count, each.http]
        for each in plan
    ]


def from_json(plan: list[list[Any]]) -> list[Piece | Share]:
    return [Piece(*rest) if kind == _ORPHAN else Share(*rest) for kind, *rest in plan]
