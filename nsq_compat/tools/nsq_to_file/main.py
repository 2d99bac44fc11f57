"""The program ``nsq_to_file``: its options, signals, and the topics that it records.

docs/differences.md lists where it is better than Go's.
"""

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import re2

from nsq_compat import NSQ_VERSION
from nsq_compat.cli.flags import EXIT_FAILURE, parse_arguments
from nsq_compat.cli.kinds import BOOLEAN, DURATION, INTEGER, STRING, STRINGS
from nsq_compat.cli.logs import configure, parse_log_level
from nsq_compat.cli.options import option, table_of
from nsq_compat.client import Consumer
from nsq_compat.client.message import Handler
from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.protocol.durations import MINUTE, SECOND
from nsq_compat.tools.client_options import ReadingOptions, cluster_of, consumer_options
from nsq_compat.tools.nsq_to_file.file_names import REVISION, BadFormat, FileNames
from nsq_compat.tools.nsq_to_file.file_series import FileSeries, Rules
from nsq_compat.tools.nsq_to_file.output_file import recover
from nsq_compat.tools.nsq_to_file.recorder import Recording, SyncRules, TopicRecorder
from nsq_compat.tools.program import Refused, one_kind_of_address, run, user_agent
from nsq_compat.tools.progress import Progress, channel_backlog

log = logging.getLogger(__name__)

PROGRAM: Final = "nsq_to_file"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 5.0
"""Until topics are requested again, if no nsqlookupd answered."""


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    log_level: str = option("log-level", STRING, "info", "log from this level upwards: debug, info, warn, error, fatal")
    log_prefix: str = option("log-prefix", STRING, "[nsq_to_file] ", "what log lines begin with")
    topic: tuple[str, ...] = option("topic", STRINGS, (), "topic to write (repeat for several)")
    topic_pattern: str = option(
        "topic-pattern", STRING, "", "write only topics in whose name this regular expression is found"
    )
    topic_refresh: int = option(
        "topic-refresh", DURATION, MINUTE, "how often to ask nsqlookupd for topics, where none are named"
    )
    channel: str = option("channel", STRING, "nsq_to_file", "channel to read from")
    max_in_flight: int = option("max-in-flight", INTEGER, 200, "most messages of a topic that wait to be synced")
    http_client_connect_timeout: int = option(
        "http-client-connect-timeout", DURATION, 2 * SECOND, "how long a connection to nsqlookupd may take"
    )
    http_client_request_timeout: int = option(
        "http-client-request-timeout", DURATION, 5 * SECOND, "how long an answer of nsqlookupd may take"
    )
    output_dir: str = option("output-dir", STRING, "/tmp", "folder for the files")
    work_dir: str = option("work-dir", STRING, "", "folder for unfinished files; by default the output directory")
    filename_format: str = option(
        "filename-format",
        STRING,
        f"<TOPIC>.<HOST>{REVISION}.<DATETIME>.log",
        f"names of files: <TOPIC>, <HOST>, <PID>, <DATETIME> and {REVISION}, which counts files of the same name",
    )
    datetime_format: str = option("datetime-format", STRING, "%Y-%m-%d_%H", "<DATETIME> in strftime's codes")
    host_identifier: str = option(
        "host-identifier", STRING, "", "<HOST> in names, in which <SHORT_HOST> and <HOSTNAME> are replaced"
    )
    gzip: bool = option("gzip", BOOLEAN, False, "compress files")
    gzip_level: int = option("gzip-level", INTEGER, 6, "from 1 (fast) to 9 (small)")
    skip_empty_files: bool = option(
        "skip-empty-files", BOOLEAN, False, "open a file only when there is a message to write"
    )
    rotate_size: int = option("rotate-size", INTEGER, 0, "size in bytes, uncompressed, at which a new file begins")
    rotate_interval: int = option("rotate-interval", DURATION, 0, "age at which a new file begins")
    sync_interval: int = option("sync-interval", DURATION, 30 * SECOND, "longest time between two syncs to the disk")


def main() -> None:
    """The console script."""
    run(to_file)


def to_file(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = _options(words)
    program = NsqToFile(options)
    configure(options.log_prefix, parse_log_level(options.log_level))
    program.run()
    if program.failed:
        raise SystemExit(EXIT_FAILURE)


def _options(words: Sequence[str]) -> Options:
    arguments = parse_arguments(PROGRAM, table_of(Options), words)
    if arguments.rest:
        raise Refused(f"unknown arguments: [{' '.join(arguments.rest)}]")
    options = Options(**arguments.given)
    try:
        parse_log_level(options.log_level)
    except ValueError:
        raise Refused("--log-level is invalid") from None
    if options.version:
        print(f"{PROGRAM} v{NSQ_VERSION}")
        raise SystemExit(0)
    _check(options)
    return options


def _check(options: Options) -> None:
    if not options.channel:
        raise Refused("--channel is required")
    for flag in ("http_client_connect_timeout", "http_client_request_timeout", "sync_interval", "topic_refresh"):
        if getattr(options, flag) <= 0:
            raise Refused(f"--{flag.replace('_', '-')} should be positive")
    one_kind_of_address(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    for refused, complaint in (
        (not 1 <= options.gzip_level <= 9, f"invalid --gzip-level value ({options.gzip_level}), should be 1-9"),
        (not options.topic and not options.topic_pattern, "--topic or --topic-pattern required"),
        (
            not options.topic and not options.lookupd_http_addresses,
            "--lookupd-http-address must be specified when no --topic specified",
        ),
    ):
        if refused:
            raise Refused(complaint)


def _compiled(pattern: str) -> Any:
    """Compile a regular expression as Go does, with RE2. Raises ``Refused``."""
    quiet = re2.Options()
    quiet.log_errors = False
    try:
        return re2.compile(pattern, quiet)
    except re2.error as error:
        raise Refused(f"--topic-pattern: {error.args[0].decode('utf-8', 'replace')}") from None


class NsqToFile:
    """A recorder for each topic, and a queue of events that concern all of them."""

    def __init__(self, options: Options) -> None:
        """Raises ``Refused``."""
        self.failed = False
        self.recorders: dict[str, TopicRecorder] = {}
        self._options = options
        self._refused_topics: set[str] = set()
        self._events: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._consumer_options = self._read_consumer_options()
        self._rules = Rules(
            output_dir=options.output_dir,
            work_dir=options.work_dir or options.output_dir,
            gzip_level=options.gzip_level if options.gzip else None,
            rotate_size=options.rotate_size,
            rotate_interval=options.rotate_interval / SECOND,
        )
        try:
            self._pattern = _compiled(options.topic_pattern)
            self._names = FileNames.of(
                options.filename_format,
                options.datetime_format,
                hostname=socket.gethostname(),
                host_identifier=options.host_identifier,
                pid=os.getpid(),
                needs_revisions=self._rules.needs_revisions,
                gzip=options.gzip,
            )
            for topic in filter(self._wants, options.topic):
                self.recorders[topic] = self._recorder(topic)
        except (BadFormat, ValueError, TypeError) as error:
            raise Refused(str(error)) from error

    def run(self) -> None:
        """Return after a signal, or when a disk fails."""
        options = self._options
        # Before any thread starts, because all of them inherit the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=self._receive_signals, name="signals", daemon=True).start()
        if self._rules.moves:
            recover(self._rules.work_dir, self._rules.output_dir, self._names, self._wants)
        for recorder in self.recorders.values():
            recorder.start()
        if not options.topic:
            threading.Thread(target=self._poll_topics, name="topics", daemon=True).start()
        backlog = channel_backlog(self.recorders, options.channel, options.lookupd_http_addresses)
        with Progress(self._recorded, backlog):
            while (event := self._events.get()) is not None:
                event()
            self._stop()

    def _recorded(self) -> int:
        return sum(recorder.recording.recorded for recorder in list(self.recorders.values()))

    # --- Events -------------------------------------------------------------------------------------------------------

    def _receive_signals(self) -> None:
        # sigwait instead of a handler: the system may deliver a signal to any thread, and Python would call a handler
        # only when the main thread wakes up next.
        while True:
            self._events.put(self._reopen if signal.sigwait(_SIGNALS) == signal.SIGHUP else None)

    def _reopen(self) -> None:
        for recorder in self.recorders.values():
            recorder.reopen()

    def _fail(self) -> None:
        self.failed = True
        self._events.put(None)

    def _follow(self, topics: Iterable[str]) -> None:
        """Begin to record new topics."""
        for topic in topics:
            if topic in self.recorders or topic in self._refused_topics:
                continue
            try:
                if not self._wants(topic):
                    raise ValueError(f"doesn't match pattern {self._options.topic_pattern}")
                self.recorders[topic] = self._recorder(topic)
            except ValueError as error:
                log.warning("skipping topic %s (%s)", topic, error)
                self._refused_topics.add(topic)
            else:
                self.recorders[topic].start()

    def _stop(self) -> None:
        stops = [
            threading.Thread(target=recorder.stop, args=(_STOP_SECONDS,), name=f"stop {topic}")
            for topic, recorder in self.recorders.items()
        ]
        for each in stops:
            each.start()
        for each in stops:
            each.join()

    # --- Topics -------------------------------------------------------------------------------------------------------

    def _wants(self, topic: str) -> bool:
        """The topic is "" where names of files do not contain it."""
        named = self._options.topic
        return not topic or ((not named or topic in named) and self._pattern.search(topic) is not None)

    def _poll_topics(self) -> None:
        options = self._options
        cluster = cluster_of(
            options.lookupd_http_addresses,
            connect_timeout=options.http_client_connect_timeout / SECOND,
            request_timeout=options.http_client_request_timeout / SECOND,
        )
        interval = options.topic_refresh / SECOND
        while True:
            try:
                answer = cluster.topics()
            except AllFailed as error:
                log.error("could not retrieve topic list: %s", error)
                time.sleep(min(interval, _RETRY_SECONDS))
                continue
            except Exception:  # the top of a thread that must not end
                log.exception("could not retrieve topic list: internal error")
            else:
                for each in answer.errors:
                    log.warning("could not retrieve all of the topic list: %s", each)
                self._events.put(partial(self._follow, answer.value))
            time.sleep(interval)

    def _recorder(self, topic: str) -> TopicRecorder:
        """Raises ``ValueError`` for a topic that cannot be subscribed to, or (``BadFormat``) cannot name a file."""
        options, now_ns = self._options, time.time_ns()
        self._names.name(topic, now_ns)
        label = f"{topic}/{options.channel}"
        rules = SyncRules(
            interval=options.sync_interval / SECOND,
            max_unsynced=options.max_in_flight,
            skip_empty=options.skip_empty_files,
        )
        recording = Recording(label, FileSeries(topic, self._names, self._rules), rules, time.monotonic())
        return TopicRecorder(label, recording, partial(self._subscribe, topic), self._fail)

    def _subscribe(self, topic: str, handler: Handler) -> Consumer:
        options = self._options
        return Consumer(
            topic,
            options.channel,
            handler,
            nsqd_tcp_addresses=options.nsqd_tcp_addresses,
            lookupd_http_addresses=options.lookupd_http_addresses,
            **self._consumer_options,
        )

    def _read_consumer_options(self) -> dict[str, Any]:
        options = self._options
        return {
            "lookupd_connect_timeout": options.http_client_connect_timeout / SECOND,
            "lookupd_request_timeout": options.http_client_request_timeout / SECOND,
            **consumer_options(options.consumer_opt),
            "user_agent": user_agent(PROGRAM),
            "max_in_flight": options.max_in_flight,
            # Every message is written, however often it was delivered.
            "max_tries": 0,
        }


if __name__ == "__main__":
    main()
