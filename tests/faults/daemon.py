"""A live nsqd, and an nsqlookupd, that the fault tests start, disturb, observe and end."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nsq_compat.log import checkpoint
from nsq_conformance.daemon_process import DaemonProcess, own_host
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.faults.watched_nsqd import HELD, watched_nsqd
from tests.v2_client import Client

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_REMEMBERED_LINES = 20_000
_NONE_FINISHED = 1 << 62


def wait_until(condition: Callable[[], object], within: float = 60.0) -> None:
    """Poll a condition of a live process."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)


def wait_for_more(count: Callable[[], int], more: int) -> None:
    """Wait until something has grown by more than that."""
    enough = count() + more
    wait_until(lambda: count() > enough, 40)


class _Disturbed(DaemonProcess):
    def hang(self) -> None:
        """Suspend the process; its connections stay open."""
        self.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End the process in any state."""
        if hasattr(self, "_process") and self._process.poll() is None:
            self.kill()


class Daemon(_Disturbed, NsqdProcess):
    """An nsqd on `data_path`. `command` is a command line that finally runs it (``bash -c 'ulimit ...'``).

    Without `command`, a watchdog observes its event loop (``watched_nsqd``).
    """

    def __init__(self, data_path: Path, options: Sequence[str] = (), command: str | None = None) -> None:
        super().__init__(command or watched_nsqd(), data_path, options=options)
        self.data_path = data_path
        self._last_lines = deque(maxlen=_REMEMBERED_LINES)

    # --- The process --------------------------------------------------------------------------------------------------

    def wait_for_end(self, timeout: float = 30.0) -> int:
        """Wait for the exit status; afterwards the log is complete. Raises ``subprocess.TimeoutExpired``."""
        status = self._process.wait(timeout)
        self._reader.join()
        return status

    @property
    def log(self) -> str:
        """Its last log lines."""
        return "".join(self._last_lines)

    @property
    def held(self) -> list[str]:
        """The log lines that report an event loop blocked for more than ``HELD_SECONDS`` of CPU time."""
        return [line for line in self._last_lines if HELD in line]

    @property
    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1]) * _PAGE / 1e6

    @property
    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def cpu_seconds(self) -> float:
        """The user and system time of the process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    # --- Requests -----------------------------------------------------------------------------------------------------

    def client(self, opening: bytes = b"  V2", *, timeout: float = 30.0, **fields: object) -> Client:
        """A new connection, see ``Client``."""
        return Client(self.tcp_address, opening, timeout=timeout, **fields)

    def publishes(self, *bodies: bytes, topic: bytes = b"t") -> None:
        """PUB each body from a client of its own."""
        with self.client() as producer:
            producer.publishes(*bodies, topic=topic)

    def consumes(self, count: int, topic: bytes = b"t", channel: bytes = b"c", within: float = 60.0) -> list[bytes]:
        """The bodies, in order, that a new consumer takes and finishes until there are `count`."""
        with self.client() as consumer:
            consumer.subscribes(topic, channel, ready=2500)
            return [message.body for message in consumer.takes(count, within, finishing=True)]

    def http(self, path: str, body: bytes | None = None, **query: object) -> tuple[int, bytes]:
        """Send a request, POST if there is a `body`; returns status and body."""
        answer = self.asks("GET" if body is None else "POST", f"/{path}?{urlencode(query)}", body or b"")
        return answer.status, answer.body

    def control(self, act: str, topic: str, channel: str | None = None) -> None:
        """``pause``, ``unpause``, ``empty`` or ``delete`` a topic or channel. Raises ``OSError`` if nsqd is gone."""
        names = {"topic": topic} if channel is None else {"topic": topic, "channel": channel}
        status, answer = self.http(f"{'topic' if channel is None else 'channel'}/{act}", b"", **names)
        assert status == 200, answer

    def ping(self) -> str:
        return self.http("ping")[1].decode()

    def stats(self, topic: str = "") -> list[dict[str, Any]]:
        """The topics of ``/stats``, without clients."""
        found = self.stats_document(include_mem="false", include_clients="false", topic=topic)["topics"]
        return list(found)

    def channels(self, topic: str) -> Iterator[dict[str, Any]]:
        for each in self.stats(topic):
            yield from each["channels"]

    def unfinished(self, topic: str) -> dict[str, int]:
        """The number of waiting, in-flight and deferred messages of each channel."""
        return {
            each["channel_name"]: each["depth"] + each["in_flight_count"] + each["deferred_count"]
            for each in self.channels(topic)
        }

    # --- Its checkpoints ----------------------------------------------------------------------------------------------

    def _checkpoint(self, topic: str, data_path: Path | None = None) -> Path:
        return (data_path or self.data_path) / "nsq_compat" / f"{topic}.topic" / "checkpoint"

    def checkpoint_written_at(self, topic: str) -> float:
        """The wall-clock time of the topic's last checkpoint; 0.0 before the first."""
        try:
            return self._checkpoint(topic).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def checkpoint_says_unfinished(self, topic: str, channel: str, data_path: Path | None = None) -> int:
        """The number of the channel's messages that are not finished in its topic's checkpoint, or in one elsewhere."""
        try:
            last = checkpoint.decode(self._checkpoint(topic, data_path).read_bytes())
            place = last.channels[channel]
        except (FileNotFoundError, KeyError):
            return _NONE_FINISHED
        return len(place.entries) + last.end.seq - place.position - sum(end - begin for begin, end in place.gaps)


class Directory(_Disturbed, NsqlookupdProcess):
    """An nsqlookupd on its own address, so that its ports stay free for a restart."""

    def __init__(self) -> None:
        host = own_host()
        listens = [f"--{name}-address={host}:0" for name in ("tcp", "http")]
        super().__init__(installed_nsqlookupd(), options=[*listens, f"--broadcast-address={host}"])

    @property
    def flag(self) -> str:
        """The flag of nsqd for this nsqlookupd."""
        return f"--lookupd-tcp-address={self.tcp_address}"

    def create_channel(self, topic: str, channel: str) -> None:
        """Register a channel, as of another nsqd."""
        assert self.asks("POST", f"/channel/create?topic={topic}&channel={channel}").status == 200

    def topics(self) -> set[str]:
        """The registered topics."""
        return {topic for node in self.get("/nodes")["producers"] for topic in node["topics"]}
