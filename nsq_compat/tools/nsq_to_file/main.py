"""The program ``nsq_to_file``: its options, signals, and the topics that it records.

docs/differences.md lists how it differs from Go's.
"""

import logging
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import re2

from nsq_compat.cli.flags import EXIT_FAILURE
from nsq_compat.cli.kinds import DURATION, INTEGER, STRING
from nsq_compat.cli.logs import configure, parse_log_level
from nsq_compat.cli.options import option, repeated
from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.log.data_path import reason
from nsq_compat.protocol.durations import MINUTE, SECOND, seconds
from nsq_compat.tools.client_options import Unreachable, client_settings, cluster_of, refusing
from nsq_compat.tools.nsq_to_file.file_series import FileNames, FileOptions, FileSeries, recover
from nsq_compat.tools.nsq_to_file.output_file import make_folder
from nsq_compat.tools.nsq_to_file.recorder import Recording, TopicRecorder
from nsq_compat.tools.program import STOP_SIGNALS, Refused, console_script, on_signals, refuse, unless_positive
from nsq_compat.tools.progress import Progress, channel_backlog

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 5.0
"""Until topics are requested again, if no nsqlookupd answered."""
_MAX_SKIPPED: Final = 10_000
"""Topics that are remembered, and named in the log, when they are skipped. An nsqlookupd may list millions."""


@dataclass(kw_only=True)
class Options(FileOptions):
    program = "nsq_to_file"
    ignores_arguments = False
    log_level: str = option(STRING, "info", "log from this level upwards: debug, info, warn, error, fatal")
    log_prefix: str = option(STRING, "[nsq_to_file] ", "what log lines begin with")
    topic: tuple[str, ...] = repeated("topic to write")
    topic_pattern: str = option(STRING, "", "write only topics with a name in which this regular expression is found")
    topic_refresh: int = option(DURATION, MINUTE, "how often to ask nsqlookupd for topics, where none are named")
    max_topics: int = option(
        INTEGER,
        0,
        "largest number of topics to write, where none are named; each takes some threads and a file; 0: any",
    )
    channel: str = option(STRING, "nsq_to_file", "channel to read from")
    http_client_connect_timeout: int = option(DURATION, 2 * SECOND, "how long a connection to nsqlookupd may take")
    http_client_request_timeout: int = option(DURATION, 5 * SECOND, "how long an answer of nsqlookupd may take")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            parse_log_level(self.log_level)
        except ValueError:  # nsq_to_file: reported even with --version
            raise Refused("--log-level is invalid") from None


@console_script(Options)
def main(options: Options) -> None:
    timeouts = ("http_client_connect_timeout", "http_client_request_timeout")
    refuse(
        (not options.channel, "--channel is required"),
        *unless_positive(options, *timeouts, "sync_interval", "topic_refresh"),
        (options.max_topics < 0, "--max-topics must not be negative"),
        *options.address_rules(),
        (not 1 <= options.gzip_level <= 9, f"invalid --gzip-level value ({options.gzip_level}), should be 1-9"),
        (not options.topic and not options.topic_pattern, "--topic or --topic-pattern required"),
        (
            not options.topic and not options.lookupd_http_addresses,
            "--lookupd-http-address must be specified when no --topic specified",
        ),
    )
    program = NsqToFile(options)
    for flag, folder in {"work-dir": options.work_dir, "output-dir": options.output_dir}.items():
        _check_folder(flag, folder)
    configure(options.log_prefix, parse_log_level(options.log_level))
    program.run()
    if program.failed:
        raise SystemExit(EXIT_FAILURE)


def _check_folder(flag: str, folder: str) -> None:
    """Make the folder. Raises ``Refused`` if no file can be made in it, before messages wait for it."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refused(f"--{flag}={folder}: {reason(error)}") from None


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
        self._skipped: set[str] = set()
        self._events: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        client_settings("consumer-opt", options.consumer_opt)  # reports its errors although there are no topics yet
        with refusing():
            self._pattern = _compiled(options.topic_pattern)
            self._names = FileNames(options, socket.gethostname(), os.getpid())
            for topic in filter(self._wants, options.topic):
                self.recorders[topic] = self._recorder(topic)

    def run(self) -> None:
        """Return after a signal, or when a disk fails. Raises ``Refused``."""
        options = self._options
        stopping = threading.Event()

        def stop() -> None:
            stopping.set()
            self._events.put(None)

        on_signals(
            {
                signal.SIGHUP: partial(self._events.put, self._reopen),
                **dict.fromkeys(STOP_SIGNALS, stop),
            }
        )
        if options.moves:
            recover(options.work_dir, options.output_dir, self._names, self._wants)
        options.make_channels(list(self.recorders), options.channel, stopping)
        for recorder in self.recorders.values():
            recorder.start()
        if not options.topic:
            threading.Thread(target=self._poll_topics, name="topics", daemon=True).start()
        backlog = channel_backlog(self.recorders, options.channel, options)
        with Progress(lambda: sum(each.recording.recorded for each in list(self.recorders.values())), backlog):
            while (event := self._events.get()) is not None:
                event()
            with ThreadPoolExecutor(max(1, len(self.recorders))) as stops:
                list(stops.map(lambda recorder: recorder.stop(_STOP_SECONDS), self.recorders.values()))

    # --- Events -------------------------------------------------------------------------------------------------------

    def _reopen(self) -> None:
        for recorder in self.recorders.values():
            recorder.reopen()

    def _fail(self, text: str) -> None:
        """May be called by any thread, more than once."""
        log.critical("%s", text)
        self.failed = True
        self._events.put(None)

    def _follow(self, topics: Iterable[str]) -> None:
        """Begin to record new topics."""
        for topic in topics:
            if topic in self.recorders or topic in self._skipped:
                continue
            try:
                if 0 < self._options.max_topics <= len(self.recorders):
                    raise ValueError(f"--max-topics={self._options.max_topics} are written")
                if not self._wants(topic):
                    raise ValueError(f"doesn't match pattern {self._options.topic_pattern}")
                self._options.make_channel(topic, self._options.channel)
                self.recorders[topic] = self._recorder(topic)
            except Unreachable as error:  # the next time
                log.warning("topic %s: %s", topic, error)
            except (ValueError, Refused) as error:
                if len(self._skipped) < _MAX_SKIPPED:
                    log.warning("skipping topic %s (%s)", topic, error)
                    self._skipped.add(topic)
            else:
                self.recorders[topic].start()

    # --- Topics -------------------------------------------------------------------------------------------------------

    def _wants(self, topic: str) -> bool:
        """The topic is "" where names of files do not contain it."""
        named = self._options.topic
        return not topic or ((not named or topic in named) and self._pattern.search(topic) is not None)

    def _poll_topics(self) -> None:
        options = self._options
        timeouts = seconds(options.http_client_connect_timeout), seconds(options.http_client_request_timeout)
        cluster = cluster_of(options, *timeouts)
        interval = seconds(options.topic_refresh)
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
        """Raises ``Refused`` for a topic that cannot be read, and ``BadFormat`` for one that cannot name a file."""
        options = self._options
        self._names.name(topic, time.time_ns())
        label = f"{topic}/{options.channel}"
        recording = Recording(label, FileSeries(topic, self._names, options), options, time.monotonic())
        subscribe = partial(
            options.consumer,
            topic,
            options.channel,
            defaults={
                "lookupd_connect_timeout": seconds(options.http_client_connect_timeout),
                "lookupd_request_timeout": seconds(options.http_client_request_timeout),
            },
            fail=self._fail,
            max_tries=0,  # every message is written, however often it was delivered
        )
        return TopicRecorder(recording, subscribe, self._fail)
