"""Count events, which are JSON objects, by key and time window.

    spark-submit windowed_counts.py --topic events --channel counts --lookupd-http-address 10.0.0.5:4161 \\
        --spool /shared/nsq-spool --checkpoint /shared/counts --key page --time time --path /shared/counts-table

An event belongs to the window in which it happened, even if it is published later. A window is final after --watermark;
events that arrive later are dropped, and counted in the progress line. With --path every final window becomes a row of
a Parquet table, once. Without --path the last windows are printed as a table when the job ends.
"""

import argparse
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from pyspark_nsq import command_line
from pyspark_nsq.events import events_of


class CountsTable:
    """The counts of the last windows. One thread updates it, another one prints it."""

    def __init__(self, windows: int, keys: int) -> None:
        self._max_windows = windows
        self._max_keys = keys
        self._counts: dict[datetime, dict[str, int]] = {}

    def update(self, rows: Iterable[Any]) -> None:
        """`rows` have the current counts of windows: window, key, events."""
        counts = {start: dict(of_keys) for start, of_keys in self._counts.items()}
        for row in rows:
            counts.setdefault(row["window"]["start"], {})[row["key"]] = row["events"]
        # One assignment, because another thread may be reading.
        self._counts = {start: counts[start] for start in sorted(counts)[-self._max_windows :]}

    def show(self) -> None:
        """Print the table if it has any events."""
        if self._counts:
            print(self.text(), flush=True)

    def text(self) -> str:
        windows = self._counts
        if not windows:
            return "no events were counted"
        totals: dict[str, int] = {}
        for of_keys in windows.values():
            for key, events in of_keys.items():
                totals[key] = totals.get(key, 0) + events
        keys = sorted(totals, key=lambda key: (-totals[key], key))[: self._max_keys]
        width = max(len("key"), *map(len, keys))
        head = [f"{'key':{width}}", *(f"{start:%H:%M:%S}" for start in windows), f"{'total':>8}"]
        rows = [
            [f"{key:{width}}", *(f"{of_keys.get(key, 0):8,}" for of_keys in windows.values()), f"{totals[key]:8,}"]
            for key in keys
        ]
        return "\n".join("  ".join(cells) for cells in [head, *rows])


def counted(messages: DataFrame, given: argparse.Namespace) -> DataFrame:
    """Rows of window, key, events."""
    happened = events_of(messages, given.key, given.time).withWatermark("happened", given.watermark)
    return happened.groupBy(sql.window("happened", given.window), "key").agg(sql.count("*").alias("events"))


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "windowed_counts.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    made.add_argument("--key", required=True, metavar="FIELD", help="field of the JSON object with the key")
    made.add_argument(
        "--time", metavar="FIELD", help="field with the time in Unix seconds (default: time of publishing)"
    )
    made.add_argument("--window", default="1 minute", help='(default: "1 minute")')
    made.add_argument("--watermark", default="10 minutes", help='how late an event may be (default: "10 minutes")')
    made.add_argument("--path", metavar="FOLDER", help="table for final windows")
    made.add_argument(
        "--show-every", type=float, metavar="SECONDS", help="without --path: print the table at this interval too"
    )
    made.add_argument(
        "--windows", type=command_line.positive, default=6, help="number shown without --path (default: 6)"
    )
    made.add_argument(
        "--keys", type=command_line.positive, default=20, help="number shown without --path (default: 20)"
    )
    return made


def job(given: argparse.Namespace) -> None:
    options = command_line.reading(given)
    spark = command_line.session("windowed_counts")
    counts = counted(spark.readStream.format("nsq").options(**options).load(), given)
    if given.path:
        rows = counts.select("window.start", "window.end", "key", "events")
        command_line.start(rows.writeStream.format("parquet").option("path", given.path), given)
        return
    table = CountsTable(given.windows, given.keys)
    shown = counts.writeStream.outputMode("update").foreachBatch(lambda frame, _: table.update(frame.collect()))
    command_line.start(shown, given, command_line.Periodic(given.show_every, table.show))
    print(table.text(), flush=True)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
