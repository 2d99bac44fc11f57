"""What the pipelines in ``spark/jobs`` share: flags, a session, a line of progress, and errors as sentences.

A job is a parser and a function. The function checks what it was given before it asks for a session, since that costs
seconds; what Spark reports of a failed task comes down to the sentence this package said in it.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark_nsq.option_table import BATCH, STREAM
from pyspark_nsq.options import OptionError, read_options, write_options

_SENTENCE: Final = re.compile(r"pyspark_nsq\.[\w.]+: (.+)")


class Complaint(ValueError):
    """What a job cannot do; the text is for the user."""


def run(parser: argparse.ArgumentParser, job: Callable[[argparse.Namespace], None], arguments: Sequence[str]) -> int:
    """The exit status: 0, 2 for what was wrongly asked for, 1 for what failed."""
    given = parser.parse_args(arguments)
    try:
        job(given)
    except (OptionError, Complaint) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        sentence = _sentence_in(error)
        if sentence is None:
            raise
        print(f"{parser.prog}: {sentence}", file=sys.stderr)
        return 1
    return 0


def _sentence_in(error: Exception) -> str | None:
    """What this package said in a task, or Spark of a query that cannot be; None for anything else."""
    from pyspark.errors import AnalysisException

    if sentences := _SENTENCE.findall(str(error)):
        return str(sentences[-1]).strip()
    return str(error).splitlines()[0] if isinstance(error, AnalysisException) else None


def parser_of(module_docstring: str | None, program: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=program, description=module_docstring, formatter_class=argparse.RawTextHelpFormatter
    )


def positive(text: str) -> int:
    """For argparse."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1; it is {text!r}")
    return int(text)


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Where messages come from; `reading` makes options of what was given."""
    flags = parser.add_argument_group("reading")
    flags.add_argument("--topic", required=True, help="several with commas")
    flags.add_argument("--channel", required=True, help="of this job alone; made where it is not")
    flags.add_argument("--lookupd-http-address", action="append", default=[], metavar="HOST:PORT", help="repeatable")
    flags.add_argument(
        "--nsqd-tcp-address", action="append", default=[], metavar="HOST:PORT", help="instead of nsqlookupd; repeatable"
    )
    flags.add_argument(
        "--nsqd-http-address", action="append", default=[], metavar="HOST:PORT", help="of the same nsqd, in this order"
    )
    flags.add_argument("--spool", required=True, metavar="FOLDER", help="shared by the driver and all executors")
    flags.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="any other of docs/spark.md; repeatable"
    )


def add_streaming_flags(parser: argparse.ArgumentParser) -> None:
    """How a stream runs; `start` obeys them."""
    flags = parser.add_argument_group("the stream")
    flags.add_argument("--checkpoint", required=True, metavar="FOLDER", help="where it goes on when started again")
    flags.add_argument("--once", action="store_true", help="end when what waits now has been read")
    flags.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after so long")
    flags.add_argument("--every", metavar="INTERVAL", help='a batch so often, "10 seconds" (default: at once)')


def add_writing_flags(parser: argparse.ArgumentParser) -> None:
    """Where messages go; `writing` makes options of what was given."""
    flags = parser.add_argument_group("writing")
    flags.add_argument("--to-topic", required=True)
    flags.add_argument("--to-nsqd-tcp-address", action="append", required=True, metavar="HOST:PORT", help="repeatable")
    flags.add_argument(
        "--to-option", action="append", default=[], metavar="NAME=VALUE", help="any other of docs/spark.md; repeatable"
    )


def reading(given: argparse.Namespace, use: str = STREAM) -> dict[str, str]:
    """Raises ``OptionError`` or ``Complaint``."""
    options = {"subscribe": given.topic, "channel": given.channel, "spoolDir": given.spool}
    for name in ("lookupd_http_address", "nsqd_tcp_address", "nsqd_http_address"):
        if addresses := getattr(given, name):
            options[f"{name}es"] = ",".join(addresses)
    options |= _named(given.option, "--option")
    read_options(options, use)
    return options


def reading_once(given: argparse.Namespace) -> dict[str, str]:
    """`reading`, for what is no stream."""
    return reading(given, BATCH)


def writing(given: argparse.Namespace) -> dict[str, str]:
    """Raises ``OptionError`` or ``Complaint``."""
    options = {"topic": given.to_topic, "nsqdTcpAddresses": ",".join(given.to_nsqd_tcp_address)}
    options |= _named(given.to_option, "--to-option")
    write_options(options)
    return options


def _named(pairs: Sequence[str], flag: str) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise Complaint(f"{flag} must be NAME=VALUE; it is {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def session(name: str) -> Any:
    """The session of spark-submit, with ``format("nsq")``."""
    from pyspark.sql import SparkSession

    from pyspark_nsq import register

    spark = SparkSession.builder.appName(name).getOrCreate()
    register(spark)
    return spark


def start(writer: Any, given: argparse.Namespace, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run a stream to its end, or until Ctrl-C, with a line for every batch that had something in it. `meanwhile` is
    called now and then."""
    writer = writer.option("checkpointLocation", given.checkpoint)
    if given.once:
        writer = writer.trigger(availableNow=True)
    elif given.every:
        writer = writer.trigger(processingTime=given.every)
    query = writer.start()
    end = None if given.seconds is None else time.monotonic() + given.seconds
    line = ProgressLine()
    try:
        while not query.awaitTermination(0.5):
            line.show(query.recentProgress)
            meanwhile()
            if end is not None and time.monotonic() > end:
                break
    except KeyboardInterrupt:
        print("\nstopping; with the same checkpoint and spool it goes on from here", flush=True)
    finally:
        query.stop()
        line.show(query.recentProgress)
        line.end()


class ProgressLine:
    """One line, written over and over on a terminal, and line after line elsewhere."""

    def __init__(self) -> None:
        self._shown = -1
        self._messages = 0
        self._dropped = 0

    def show(self, progress: Sequence[Any]) -> None:
        """`progress` is what Spark says of the last batches, the oldest first."""
        news = [each for each in progress if each["batchId"] > self._shown and each["numInputRows"]]
        for each in news:
            self._shown = each["batchId"]
            self._messages += each["numInputRows"]
            self._dropped += dropped(each)
        if news:
            print(self._text(news[-1]), end="\r" if sys.stdout.isatty() else "\n", flush=True)

    def end(self) -> None:
        if sys.stdout.isatty():
            print()

    def _text(self, progress: Any) -> str:
        rate = progress["processedRowsPerSecond"] or 0
        text = f"batch {progress['batchId']}: {self._messages:,} messages so far, {rate:,.0f} a second"
        waiting = backlog(progress)
        text += f", {waiting:,} wait" if waiting is not None else ""
        return text + (f", {self._dropped:,} left out" if self._dropped else "")


def dropped(progress: Any) -> int:
    """Rows that stateful operators left out of a batch: too late, or there before."""
    return sum(
        operator["numRowsDroppedByWatermark"] + operator["customMetrics"].get("numDroppedDuplicateRows", 0)
        for operator in progress["stateOperators"]
    )


def backlog(progress: Any) -> int | None:
    """What waited at nsqd when the batch was planned, if the source is NSQ."""
    said = [json.loads(each["latestOffset"] or "null") for each in progress["sources"]]
    counts = [each["backlog"] for each in said if isinstance(each, dict) and "backlog" in each]
    return sum(counts) if counts else None
