"""``nsq_replay``: read a range of a topic's log, on one nsqd or all, to standard output or to a topic of other nsqd.

It reads by offset, without a channel, so it consumes nothing. With ``--position-file``, a further run goes on where the
last one ended. The file never has a message that is not written or published yet, so after an interruption messages of
the last second may come twice, and none is left out.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import LoggedMessage, LogReader, LogReadError, OffsetGone, Producer, PublishError
from nsq_compat.client.connection import start_thread
from nsq_compat.log.data_path import reason
from nsq_compat.protocol.headers import with_origin_id
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.channel_places import WHEN
from nsq_compat.tools.client_options import (
    ClusterOptions,
    ProducerOptions,
    client_settings,
    log_settings,
    reach,
    refusing,
    shown_option,
    with_remedy,
)
from nsq_compat.tools.program import Refused, Stopping, console_script, log_plainly, refuse, say
from nsq_compat.tools.progress import Progress

_BATCH_MESSAGES: Final = 500
_BATCH_BYTES: Final = 1 << 20
_BATCHES_PER_SECOND: Final = 10
"""With a rate."""
_SAVE_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 60.0
"""For which an nsqd may be away without --retry, after the start."""

Sink = Callable[[Sequence[LoggedMessage]], object]


@dataclass(kw_only=True)
class Options(ClusterOptions, ProducerOptions):
    program = "nsq_replay"
    ignores_arguments = False
    topic: str = option(STRING, "", "topic to read")
    begin: str = option(STRING, "oldest", f"where to begin: {WHEN}", flag="from")
    end: str = option(STRING, "", "where to end, likewise; by default at the end of the log when it begins", flag="to")
    position_file: str = option(STRING, "", "file with the offsets that were reached, to go on there")
    destination_nsqd_tcp_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqd to publish to; by default messages are printed", flag="destination-nsqd-tcp-address"
    )
    destination_topic: str = option(STRING, "", "topic to publish to; by default --topic")
    rate: int = option(INTEGER, 0, "most messages a second; by default no limit")
    dry_run: bool = option(BOOLEAN, False, "report how many messages there are, and read none")
    consumer_opt: tuple[str, ...] = repeated(
        "`name,value` of an option of the client library, reading: those of TLS", secret=shown_option
    )


@console_script(Options)
def main(options: Options) -> None:
    destination = options.destination_topic or options.topic
    addresses = options.destination_nsqd_tcp_addresses
    refuse(
        (not options.topic, "--topic is required"),
        (not is_valid_name(options.topic), "--topic is invalid"),
        (not is_valid_name(destination), "--destination-topic is invalid"),
        (options.destination_topic and not addresses, "--destination-topic requires --destination-nsqd-tcp-address"),
        (options.rate < 0, "--rate must not be negative"),
        (not addresses and not options.dry_run and sys.stdout is None, "standard output is closed"),
        *options.address_rules(),
    )
    position_file = PositionFile(options.position_file, options.topic)
    make_reader = partial(
        LogReader,
        options.topic,
        nsqd_http_addresses=options.nsqd_http_addresses,
        lookupd_http_addresses=options.nsqlookupd_http_addresses,
        start=options.begin,
        end=options.end or None,
        position=position_file.load(),
        retry_timeout=None if options.retry else 0,
        **{**options.log_settings(), **log_settings(options.consumer_opt, options.user_agent)},
    )
    client_settings("producer-opt", options.producer_opt)
    log_plainly()
    stopping = Stopping()
    with refusing(ValueError, TypeError, OSError, LogReadError):
        ranges = _stopped_by(stopping, make_reader()).ranges()
        for nsqd in ranges.keys() & position_file.last.keys():
            offset, last_id = position_file.last[nsqd]
            at_nsqd = partial(make_reader, nsqd_http_addresses=nsqd, lookupd_http_addresses=(), position=None)
            _check_log(_stopped_by(stopping, at_nsqd(start=offset, end=offset + 1)), last_id)
    if stopping.is_set():
        return
    if not ranges:
        raise Refused(f"no nsqd has the topic {options.topic}")
    if options.dry_run:
        for nsqd, offsets in ranges.items():
            text = f"{len(offsets)} messages of {options.topic}, from {offsets.start} to {offsets.stop}"
            print(f"{nsqd}: {text}, would be replayed", flush=True)
        return
    with ExitStack() as closing:
        sink: Sink = _print
        if addresses:
            producer = closing.enter_context(options.producer(addresses))
            options.reached(partial(reach, addresses, producer.settings, "producer-opt"), stopping)
            sink = partial(_publish, producer, destination)
        reader = _stopped_by(stopping, make_reader(retry_timeout=None if options.retry else _AWAY_SECONDS))
        replay = Replay(reader, position_file, options.rate, stopping)
        total = sum(map(len, ranges.values()))
        closing.enter_context(Progress(lambda: replay.count, lambda: max(0, total - replay.count)))
        try:
            replay.run(sink)
        except PublishError as error:
            raise Refused(f"after {replay.count} messages: {with_remedy(str(error), 'producer-opt')}") from None
        except LogReadError as error:
            raise Refused(f"after {replay.count} messages: {error}") from None
    lost = f"; lost: {reader.lost_count}" if reader.lost_count else ""
    say(f"replayed {replay.count} messages{lost}")


def _check_log(reader: LogReader, last_id: str) -> None:
    """Raises ``LogReadError`` if the only message of `reader` is there, and has another id."""
    with reader, suppress(OffsetGone):
        for message in reader:
            if message.id.decode("ascii") != last_id:
                text = "has another message than at the last run: this is another log of the topic"
                raise LogReadError(f"offset {message.offset} {text}", message.nsqd)


def _stopped_by(stopping: Stopping, reader: LogReader) -> LogReader:
    def stop() -> None:
        stopping.wait()
        reader.stop()

    start_thread("stop", stop)
    return reader


def _publish(producer: Producer, topic: str, messages: Sequence[LoggedMessage]) -> None:
    headers = [with_origin_id(message.headers) for message in messages]
    producer.publish_many(topic, [message.body for message in messages], headers=headers)


def _print(messages: Sequence[LoggedMessage]) -> None:
    sys.stdout.buffer.write(b"".join(message.body + b"\n" for message in messages))
    sys.stdout.buffer.flush()


class Replay:
    """Reads batches, and passes them on; `count` is the number of messages so far."""

    def __init__(self, reader: LogReader, position_file: "PositionFile", rate: int, stopping: Stopping) -> None:
        self.count = 0
        self._reader = reader
        self._file = position_file
        self._rate = rate
        self._stopping = stopping
        self._batch_size = min(_BATCH_MESSAGES, max(1, rate // _BATCHES_PER_SECOND)) if rate else _BATCH_MESSAGES

    def run(self, sink: Sink) -> None:
        """Return at the end, or after a signal. Raises what `sink` raises, and ``LogReadError``."""
        began, saved_at, position = time.monotonic(), 0.0, self._reader.position
        try:
            for messages in self._batches():
                sink(messages)
                self.count += len(messages)
                self._file.note(messages)
                position = self._reached
                if time.monotonic() >= saved_at + _SAVE_SECONDS:
                    self._file.save(position)
                    saved_at = time.monotonic()
                if self._rate:
                    self._stopping.wait(max(0.0, began + self.count / self._rate - time.monotonic()))
        finally:
            self._file.save(position)

    def _batches(self) -> Iterator[Sequence[LoggedMessage]]:
        """Batches of messages; `_reached` is the position after the one that was returned last."""
        messages: list[LoggedMessage] = []
        size = 0
        failure: LogReadError | None = None
        self._reached = self._reader.position
        try:
            for message in self._reader:
                if messages and (len(messages) == self._batch_size or size + len(message.body) > _BATCH_BYTES):
                    yield messages
                    messages, size = [], 0
                messages.append(message)
                size += len(message.body)
                self._reached = self._reader.position
        except LogReadError as error:  # after what was read before
            failure = error
        if messages:
            yield messages
        self._reached = self._reader.position
        if failure is not None:
            raise failure


class PositionFile:
    """The offsets that were reached, as JSON; without a path there is none.

    `last` has the offset and the id of the last message of each nsqd. They tell when an nsqd has another log of the
    topic, because the topic was deleted and created again, or the data path is another one.
    """

    def __init__(self, path: str, topic: str) -> None:
        self._path = path
        self._topic = topic
        self.last: dict[str, tuple[int, str]] = {}

    def note(self, messages: Sequence[LoggedMessage]) -> None:
        self.last |= {each.nsqd: (each.offset, each.id.decode("ascii")) for each in messages}

    def load(self) -> dict[str, int]:
        """The next offset of each nsqd; empty if there is no file. Raises ``Refused``."""
        if not self._path:
            return {}
        try:
            with open(self._path, encoding="utf-8") as file:
                value = json.load(file)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Refused(f"--position-file={self._path}: {reason(error)}") from None
        except (ValueError, RecursionError):
            value = None
        if not _is_position(value):
            raise Refused(f"--position-file={self._path}: this is no position file")
        if value.get("topic") != self._topic:
            raise Refused(f"--position-file={self._path}: it is for another topic, {value.get('topic')}")
        self.last = {nsqd: (offset, last_id) for nsqd, (offset, last_id) in value.get("last_messages", {}).items()}
        offsets: dict[str, int] = value["next_offsets"]
        return offsets

    def save(self, position: Mapping[str, int]) -> None:
        """Replace the file. Raises ``Refused``."""
        if not self._path:
            return
        new = f"{self._path}.new"
        try:
            with suppress(FileNotFoundError):  # of a run that was killed, or a link of another user to a file of ours
                os.unlink(new)
            with open(new, "x", encoding="utf-8") as file:
                value = {"topic": self._topic, "next_offsets": position, "last_messages": self.last}
                json.dump(value, file)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            raise Refused(f"--position-file={self._path}: {reason(error)}") from None


def _is_position(value: object) -> bool:
    """Files of earlier versions have no last messages."""
    if not isinstance(value, dict):
        return False
    offsets, last = value.get("next_offsets"), value.get("last_messages", {})
    return (
        isinstance(offsets, dict)
        and all(type(each) is int for each in offsets.values())
        and isinstance(last, dict)
        and all(isinstance(each, list) and [*map(type, each)] == [int, str] for each in last.values())
    )
