"""`run_reader`: call a handler written for pynsq's ``Reader`` on a cluster.

When a handler gets a message, nsqd has finished it, so a requeue cannot use REQ. Instead the message is published,
deferred, to a retry topic that the same query reads. Its body is a line of JSON, then the original body:

    {"attempts": calls of the handler so far, "id": original id, "timestamp": original timestamp}

The handler gets the original body, id and timestamp, and attempts that continue to count. After `max_tries` the
original body is published to a dead-letter topic. nsqd confirms both kinds of publishes before the task succeeds. A
task that is run again calls its handlers again.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nsq_compat.protocol import command_writer
from pyspark_nsq import option_parsers
from pyspark_nsq.connection import NsqConnection, NsqdUnreachable
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.option_table import SPOOL, STREAM
from pyspark_nsq.options import OptionError, ReadOptions, read_options
from pyspark_nsq.publisher import CannotPublish

log = logging.getLogger(__name__)

FINISHED: Final = "finished"
REQUEUED: Final = "requeued"
DEAD: Final = "dead"
OUTCOMES: Final = (FINISHED, REQUEUED, DEAD)

_COLUMNS: Final = ("id", "body", "timestamp_ns", "attempts", "topic", "nsqd")
_SCHEMA: Final = "id string, body binary, timestamp_ns bigint, attempts int, topic string, nsqd string"
_RESULT: Final = "outcome string, raised boolean"
_KEYS: Final = {"attempts", "id", "timestamp"}
_PUBLISH_WINDOW: Final = 32


class CannotHandle(Exception):
    """The handler uses a feature that is impossible in Spark; the text says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """The treatment of messages that were not finished. Delays are in seconds; `max_tries` 0 means no limit."""

    topic: str
    dead_letter_topic: str
    max_tries: int
    requeue_delay: float
    max_requeue_delay: float


class Message:
    """pynsq's ``Message`` for a handler: `id` and `body` are bytes, `timestamp` is in nanoseconds."""

    def __init__(self, id: bytes, body: bytes, timestamp: int, attempts: int) -> None:
        self.id = id
        self.body = body
        self.timestamp = timestamp
        self.attempts = attempts
        self.requeue_delay: float | None = None
        """Seconds, if the message was requeued; negative: by the number of attempts."""
        self._has_responded = False
        self._is_async = False

    def finish(self) -> None:
        self._respond()

    def requeue(self, *, delay: float = -1, time_ms: float = -1, backoff: bool = True) -> None:
        """`backoff` is accepted and ignored: there is no connection to slow down."""
        self._respond()
        self.requeue_delay = delay if time_ms < 0 else time_ms / 1000

    def touch(self) -> None:
        """Do nothing: the message is finished at nsqd and cannot time out."""

    def has_responded(self) -> bool:
        return self._has_responded

    def enable_async(self) -> None:
        self._is_async = True

    def is_async(self) -> bool:
        return self._is_async

    def _respond(self) -> None:
        assert not self._has_responded, "a message can be finished or requeued only once"
        self._has_responded = True


Handler = Callable[[Message], Any]


def run_reader(
    spark: Any,
    handler: Handler,
    *,
    topic: str,
    channel: str,
    spool_dir: str,
    checkpoint: str,
    lookupd_http_addresses: str | Sequence[str] = (),
    nsqd_tcp_addresses: str | Sequence[str] = (),
    nsqd_http_addresses: str | Sequence[str] = (),
    max_tries: int = 5,
    requeue_delay: float = 90,
    max_requeue_delay: float = 15 * 60,
    retry_topic: str | None = None,
    dead_letter_topic: str | None = None,
    available_now: bool = False,
    **options: Any,
) -> Any:
    """Start a query that calls `handler` with every message, and return the query.

    Its progress has, for each batch, ``observedMetrics["run_reader"]`` with the counts `finished`, `requeued`, `dead`,
    and `raised` (exceptions of the handler).

    `retry_topic` is ``<topic>.<channel>.retry`` and `dead_letter_topic` ``<topic>.<channel>.dead`` by default.
    `options` are further options of ``format("nsq")``. With `available_now` the query ends when it has handled the
    messages that wait. Raises ``OptionError``.
    """
    from pyspark.sql import functions

    from pyspark_nsq.spark_versions import reading_available_now, start_available_now

    if not hasattr(functions, "arrow_udf"):
        raise OptionError("run_reader needs Spark 4.1 or newer: Spark 4.0 has no functions on columns of Arrow")

    retries = Retries(
        topic=retry_topic or f"{topic}.{channel}.retry",
        dead_letter_topic=dead_letter_topic or f"{topic}.{channel}.dead",
        max_tries=max_tries,
        requeue_delay=requeue_delay,
        max_requeue_delay=max_requeue_delay,
    )
    written = {"mode": SPOOL} | _option_texts(options) | {"channel": channel, "spoolDir": spool_dir}
    written |= {"lookupdHttpAddresses": _listed(lookupd_http_addresses)}
    written |= {"nsqdTcpAddresses": _listed(nsqd_tcp_addresses), "nsqdHttpAddresses": _listed(nsqd_http_addresses)}
    read_options(written | {"subscribe": topic}, STREAM)
    for name, each in (
        ("topic", topic),
        ("retry_topic", retries.topic),
        ("dead_letter_topic", retries.dead_letter_topic),
    ):
        _require_one_topic(name, each)
    written["subscribe"] = f"{topic},{retries.topic}"
    work = Work(handler, read_options(written, STREAM), retries)
    if available_now:
        written |= reading_available_now()
    messages = spark.readStream.format("nsq").schema(_SCHEMA).options(**written).load()
    writer = _handled(messages, work).writeStream.format("noop").option("checkpointLocation", checkpoint)
    return start_available_now(writer) if available_now else writer.start()


def _handled(messages: Any, work: "Work") -> Any:
    """Count the outcomes of messages. Uses a scalar Arrow function, because mapInArrow needs pandas."""
    from pyspark.sql import functions as sql

    # Spark reads these annotations.
    def outcomes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for arrays in batches:
            yield work(pa.RecordBatch.from_arrays(list(arrays), list(_COLUMNS)))

    # Marked non-deterministic, so that the optimizer does not call it twice.
    call = sql.arrow_udf(outcomes, _RESULT).asNondeterministic()
    counts = [sql.count_if(sql.col("result.outcome") == each).alias(each) for each in OUTCOMES]
    raised = sql.count_if(sql.col("result.raised")).alias("raised")
    return messages.select(call(*_COLUMNS).alias("result")).observe("run_reader", *counts, raised)


def _option_texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _listed(addresses: str | Sequence[str]) -> str:
    return addresses if isinstance(addresses, str) else ",".join(addresses)


def _require_one_topic(name: str, topic: str) -> None:
    try:
        several = len(option_parsers.topics(topic)) > 1
    except ValueError as error:
        raise OptionError(f"{name} must be {error}; it is {topic!r}") from None
    if several:
        raise OptionError(f"{name} must be one topic; it is {topic!r}")


class Work:
    """Calls the handler for each row of a batch, and publishes the messages that were not finished."""

    def __init__(self, handler: Handler, options: ReadOptions, retries: Retries) -> None:
        self._handler = handler
        self._options = options
        self._retries = retries

    def __call__(self, batch: pa.RecordBatch) -> pa.StructArray:
        """Return for each row its `outcome`, one of ``OUTCOMES``, and whether the handler `raised`."""
        results: list[dict[str, object]] = []
        commands: dict[str, list[bytes]] = {}
        for row in batch.to_pylist():
            message = decode_retry(row) if row["topic"] == self._retries.topic else _message(row)
            outcome, raised = self._outcome(message)
            results.append({"outcome": outcome, "raised": raised})
            if outcome != FINISHED:
                send = self._retry_command if outcome == REQUEUED else self._dead_letter_command
                commands.setdefault(row["nsqd"], []).append(send(message))
        # Connects only now: while a handler runs, nsqd would close a connection that does not answer heartbeats.
        for nsqd, of_nsqd in commands.items():
            self._send(nsqd, of_nsqd)
        return pa.array(results, pa.struct([("outcome", pa.string()), ("raised", pa.bool_())]))

    def _outcome(self, message: Message) -> tuple[str, bool]:
        max_tries = self._retries.max_tries
        if 0 < max_tries < message.attempts:
            return DEAD, False
        raised = self._handle(message)
        if message.requeue_delay is None:
            return FINISHED, raised
        return (DEAD if 0 < max_tries <= message.attempts else REQUEUED), raised

    def _handle(self, message: Message) -> bool:
        """Call the handler and finish or requeue the message; returns whether the handler raised."""
        raised = False
        try:
            result = self._handler(message)
            if inspect.iscoroutine(result):
                result = asyncio.run(result) or False
            assert result is not None or message.has_responded() or message.is_async(), "return True or False"
        except Exception:
            log.exception("uncaught exception while handling message %s body:%r", message.id, message.body)
            raised, result = True, False
        if message.is_async() and not message.has_responded():
            raise CannotHandle("enable_async: a handler must finish or requeue the message before it returns")
        if not message.has_responded():
            message.finish() if result else message.requeue()
        return raised

    def _dead_letter_command(self, message: Message) -> bytes:
        log.error("giving up message %s after %d attempts", message.id, message.attempts)
        return command_writer.publish(self._retries.dead_letter_topic, message.body)

    def _retry_command(self, message: Message) -> bytes:
        retries, delay = self._retries, message.requeue_delay
        assert delay is not None, "it was requeued"
        seconds = delay if delay >= 0 else retries.requeue_delay * message.attempts
        body = encode_retry(message)
        milliseconds = int(min(seconds, retries.max_requeue_delay) * 1000)
        if milliseconds:
            return command_writer.publish_deferred(retries.topic, body, milliseconds)
        return command_writer.publish(retries.topic, body)

    def _send(self, nsqd: str, commands: Sequence[bytes]) -> None:
        complaints = []
        for address in self._candidates(nsqd):
            try:
                connection = NsqConnection(address, self._options)
            except NsqdUnreachable as error:
                complaints.append(str(error))
                continue
            with connection:
                for command in commands:
                    connection.publish(command, _PUBLISH_WINDOW)
                connection.confirm()
            return
        raise CannotPublish("no nsqd can be reached to publish unfinished messages: " + "; ".join(complaints))

    def _candidates(self, nsqd: str) -> Iterator[str]:
        """The message's own nsqd first; the others are looked up only if it cannot be reached."""
        yield nsqd
        yield from dict.fromkeys(node.tcp for node in Nodes(self._options).all() if node.tcp != nsqd)


def encode_retry(message: Message) -> bytes:
    """Encode the body of a message of the retry topic."""
    header = {"attempts": message.attempts, "id": message.id.decode(), "timestamp": message.timestamp}
    return json.dumps(header).encode() + b"\n" + message.body


def decode_retry(row: dict[str, Any]) -> Message:
    """Decode a message of the retry topic. A message without the header is returned unchanged."""
    message = _message(row)
    head, _, body = message.body.partition(b"\n")
    try:
        header = json.loads(head)
        if set(header) != _KEYS:
            return message
        attempts, timestamp = int(header["attempts"]), int(header["timestamp"])
        return Message(str(header["id"]).encode(), body, timestamp, attempts + message.attempts)
    except (ValueError, TypeError):
        return message


def _message(row: dict[str, Any]) -> Message:
    return Message(row["id"].encode(), row["body"], row["timestamp_ns"], row["attempts"])
