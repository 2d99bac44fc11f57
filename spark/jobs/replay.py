"""Read what a topic had in a given time, and write it to another topic or to a table.

    spark-submit replay.py --topic events --lookupd-http-address 10.0.0.5:4161 --day 2026-11-25 --dry-run

    spark-submit replay.py --topic events --lookupd-http-address 10.0.0.5:4161 \\
        --from 2026-11-25T08:00 --to 2026-11-25T12:00 --to-topic events.again --to-nsqd-tcp-address 10.0.0.7:4150

    spark-submit replay.py --topic events --lookupd-http-address 10.0.0.5:4161 --day 2026-11-25 --path /shared/replayed

Times are of publishing, in UTC unless they name another zone; the end is not included. The messages must still be
retained. They are replayed in slices of --step minutes, with a line of progress after each. The table is that of
lake.py: the same command again continues after a crash, and every message is there once. Into a topic, a slice that
fails may be published in part; the error names the time from which to continue. --dry-run counts without reading.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame

from pyspark_nsq import command_line
from pyspark_nsq.command_line import UsageError
from pyspark_nsq.log_progress import batch_ranges
from pyspark_nsq.option_table import BATCH
from pyspark_nsq.options import read_options
from pyspark_nsq.parquet_table import ParquetTable, by_hour
from pyspark_nsq.topic_logs import TopicLogs

Slice = tuple[datetime, datetime]


def moment(text: str) -> datetime:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a time such as 2026-11-25T08:00; it is {text!r}") from None
    return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "replay.py")
    command_line.add_reading_flags(made)
    times = made.add_argument_group("the time")
    times.add_argument("--day", type=moment, metavar="DATE", help="the whole day; or give --from and --to")
    times.add_argument("--from", dest="begin", type=moment, metavar="TIME")
    times.add_argument("--to", dest="end", type=moment, metavar="TIME")
    times.add_argument("--step", type=command_line.positive, default=60, metavar="MINUTES", help="(default: 60)")
    command_line.add_writing_flags(made, required=False)
    made.add_argument("--path", metavar="FOLDER", help="a table for the messages, instead of --to-topic")
    made.add_argument("--dry-run", action="store_true", help="count the messages of each slice and nsqd, and end")
    return made


def slices(given: argparse.Namespace) -> list[Slice]:
    """The slices of the time. Raises ``UsageError``."""
    begin, end = given.begin, given.end
    named = begin is not None or end is not None
    if given.day is not None and not named:
        begin, end = given.day, given.day + timedelta(days=1)
    if (given.day is not None and named) or begin is None or end is None or begin >= end:
        raise UsageError("give either --day, or --from and a later --to")
    if end > datetime.now(UTC):
        raise UsageError(f"--to must not be later than now; it is {end.isoformat()}")
    return list(_cut(begin, end, timedelta(minutes=given.step)))


def _cut(begin: datetime, end: datetime, step: timedelta) -> Iterator[Slice]:
    while begin < end:
        yield begin, min(begin + step, end)
        begin += step


def options_of(given: argparse.Namespace, time: Slice) -> dict[str, str]:
    names = ("startingTimestamp", "endingTimestamp")
    at = {name: str(round(each.timestamp() * 1000)) for name, each in zip(names, time, strict=True)}
    return command_line.reading_once(given) | at | {"startingOffsetsByTimestampStrategy": "latest"}


def warn_of_released(given: argparse.Namespace, time: Slice) -> None:
    """Say which nsqd may have had messages of this time that they no longer have."""
    options = read_options(options_of(given, time), BATCH)
    for each in TopicLogs(options).require(options.starting_timestamp).logs.values():
        if each.offset == each.first > 0:
            print(
                f"nsqd {each.nsqd} has released the messages of {each.topic} before offset {each.first}; some may be "
                "of this time",
                flush=True,
            )


def counts_of(given: argparse.Namespace, time: Slice) -> Counter[tuple[str, str]]:
    """The number of messages by topic and nsqd."""
    ranges = batch_ranges(read_options(options_of(given, time), BATCH))
    counts: Counter[tuple[str, str]] = Counter()
    for each in ranges:
        counts[each.topic, each.nsqd] += each.end - each.begin
    return counts


def job(given: argparse.Namespace) -> None:
    if given.spool is not None:
        raise UsageError("--spool: only what nsqd retains can be replayed, and that is read by offset")
    if not given.dry_run and bool(given.path) == bool(given.to_topic):
        raise UsageError("give either --path, or --to-topic and --to-nsqd-tcp-address, or --dry-run")
    target = command_line.writing(given) if given.to_topic and not given.dry_run else {}
    times = slices(given)
    counts = [counts_of(given, each) for each in times]
    total = sum(each.total() for each in counts)
    warn_of_released(given, times[0])
    if given.dry_run:
        for (begin, _), by_nsqd in zip(times, counts, strict=True):
            for (topic, nsqd), count in by_nsqd.items():
                print(f"{begin:%Y-%m-%dT%H:%M}: {count:,} messages of {topic} on {nsqd}")
        print(f"{total:,} messages would be replayed", flush=True)
        return
    spark = command_line.session("replay")
    writer = f"replay of {given.topic}, {times[0][0]} to {times[-1][1]} in steps of {given.step} minutes"
    with ParquetTable(given.path) if given.path else nullcontext() as table:
        done = 0
        for number, (time, by_nsqd) in enumerate(zip(times, counts, strict=True)):
            if not by_nsqd:
                continue
            messages = spark.read.format("nsq").options(**options_of(given, time)).load()
            if table is not None:
                table.write(by_hour(messages), number, writer)
            else:
                publish(messages.select("body"), target, time)
            done += by_nsqd.total()
            print(f"{time[0]:%Y-%m-%dT%H:%M}: {by_nsqd.total():,} messages; {done:,} of {total:,} replayed", flush=True)


def publish(bodies: DataFrame, target: dict[str, str], time: Slice) -> None:
    try:
        bodies.write.format("nsq").mode("append").options(**target).save()
    except Exception:
        print(f"continue with --from {time[0].isoformat()}; some messages after it may be published", file=sys.stderr)
        raise


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
