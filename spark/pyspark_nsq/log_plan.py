"""The plan of a batch that reads logs: which offsets, in how many tasks."""

import itertools
from dataclasses import dataclass, replace

from pyspark_nsq.option_parsers import Positions
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.plan import MAX_TASKS
from pyspark_nsq.topic_logs import Mark, TopicLog


@dataclass(frozen=True, slots=True)
class Range:
    """A task: the messages of a topic on one nsqd from the offset `begin` up to, and without, `end`.

    `tcp` is the nsqd's other address, which the column `nsqd` shows. `mark` is the last message that the log had when
    the range was planned.
    """

    topic: str
    nsqd: str
    begin: int
    end: int
    tcp: str = ""
    mark: Mark | None = None


def limited(begin: Positions, end: Positions, limit: int | None) -> Positions:
    """Offsets between these two, with at most `limit` messages between: the same part of what waits in each log."""
    waiting = {(topic, nsqd): at - begin[topic][nsqd] for topic, nsqds in end.items() for nsqd, at in nsqds.items()}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return end
    chosen: Positions = {}
    before = 0
    for (topic, nsqd), count in waiting.items():
        # In proportion, and rounded so that the parts add up to `limit`.
        part = limit * (before + count) // total - limit * before // total
        before += count
        chosen.setdefault(topic, {})[nsqd] = end[topic][nsqd] - count + part
    return chosen


def parts(count: int, total: int, log: TopicLog, options: ReadOptions) -> int:
    """The number of tasks for `count` messages of a log, in a batch of `total`."""
    messages = log.next - log.first
    size = log.bytes * count // messages if messages else 0
    wanted = max(
        options.partitions_per_nsqd,
        -(-count // options.max_messages_per_partition),
        -(-size // options.max_bytes_per_partition),
        -(-options.min_partitions * count // total),
    )
    return min(wanted, count, MAX_TASKS)


def split(work: Range, tasks: int) -> list[Range]:
    """Split a range into ranges of about the same size."""
    count = work.end - work.begin
    places = [work.begin + count * task // tasks for task in range(tasks + 1)]
    return [replace(work, begin=begin, end=end) for begin, end in itertools.pairwise(places)]
