"""Events counted by key and window of time: JSON objects that say what happened and when.

    spark-submit windowed_counts.py --topic events --channel counts --lookupd-http-address 10.0.0.5:4161 \\
        --spool /shared/nsq-spool --checkpoint /shared/counts --key page --time time --path /shared/counts-table

An event belongs to the window in which it happened, however late it is published; a window is final when --watermark
has gone by, and what comes later still is left out and counted in the line of progress. With --path every final
window is a row of a Parquet table, once. Without, the last windows are shown as a table when the job ends.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from pyspark_nsq import command_line


class Board:
    """The counts of the last windows; filled by one thread, shown by another."""

    def __init__(self, windows: int, keys: int) -> None:
        self._most_windows = windows
        self._most_keys = keys
        self._counts: dict[datetime, dict[str, int]] = {}

    def update(self, rows: Iterable[Any]) -> None:
        """`rows` have the counts of windows as they are now: window, key, events."""
        counts = {start: dict(of_keys) for start, of_keys in self._counts.items()}
        for row in rows:
            counts.setdefault(row["window"]["start"], {})[row["key"]] = row["events"]
        # In one step: somebody may be looking.
        self._counts = {start: counts[start] for start in sorted(counts)[-self._most_windows :]}

    def text(self) -> str:
        windows = self._counts
        if not windows:
            return "no events were counted"
        totals: dict[str, int] = {}
        for of_keys in windows.values():
            for key, events in of_keys.items():
                totals[key] = totals.get(key, 0) + events
        keys = sorted(totals, key=lambda key: (-totals[key], key))[: self._most_keys]
        width = max(len("key"), *map(len, keys))
        head = [f"{'key':{width}}", *(f"{start:%H:%M:%S}" for start in windows), f"{'together':>8}"]
        rows = [
            [f"{key:{width}}", *(f"{of_keys.get(key, 0):8,}" for of_keys in windows.values()), f"{totals[key]:8,}"]
            for key in keys
        ]
        return "\n".join("  ".join(cells) for cells in [head, *rows])


class Regularly:
    """Calls `action` every so many seconds, if it is itself called often enough; never without `seconds`."""

    def __init__(self, seconds: float | None, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._last = time.monotonic()

    def __call__(self) -> None:
        if self._seconds is not None and time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._action()


def counted(messages: DataFrame, given: argparse.Namespace) -> DataFrame:
    """Rows of window, key, events. An event without a time is taken for published when it happened, one without a key
    has the key (none)."""
    text = sql.col("body").cast("string")
    happened = sql.get_json_object(text, f"$.{given.time}").try_cast("double") if given.time else sql.lit(None)
    events = messages.select(
        sql.coalesce(sql.timestamp_micros((happened * 1_000_000).cast("bigint")), "timestamp").alias("happened"),
        sql.coalesce(sql.get_json_object(text, f"$.{given.key}"), sql.lit("(none)")).alias("key"),
    )
    windows = events.withWatermark("happened", given.watermark).groupBy(sql.window("happened", given.window), "key")
    return windows.agg(sql.count("*").alias("events"))


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "windowed_counts.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    made.add_argument("--key", required=True, metavar="FIELD", help="of the JSON object")
    made.add_argument("--time", metavar="FIELD", help="Unix seconds (default: when it was published)")
    made.add_argument("--window", default="1 minute", help='(default: "1 minute")')
    made.add_argument("--watermark", default="10 minutes", help='how late an event may be (default: "10 minutes")')
    made.add_argument("--path", metavar="FOLDER", help="a table for final windows")
    made.add_argument("--show-every", type=float, metavar="SECONDS", help="not only at the end, without --path")
    made.add_argument("--windows", type=command_line.positive, default=6, help="shown without --path (default: 6)")
    made.add_argument("--keys", type=command_line.positive, default=20, help="shown without --path (default: 20)")
    return made


def job(given: argparse.Namespace) -> None:
    options = command_line.reading(given)
    spark = command_line.session("windowed_counts")
    counts = counted(spark.readStream.format("nsq").options(**options).load(), given)
    if given.path:
        rows = counts.select("window.start", "window.end", "key", "events")
        command_line.start(rows.writeStream.format("parquet").option("path", given.path), given)
        return
    board = Board(given.windows, given.keys)
    shown = counts.writeStream.outputMode("update").foreachBatch(lambda frame, _: board.update(frame.collect()))
    command_line.start(shown, given, Regularly(given.show_every, lambda: print(board.text(), flush=True)))
    print(board.text(), flush=True)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
