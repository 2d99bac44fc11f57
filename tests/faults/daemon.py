"""A live nsqd that the fault tests start, disturb, observe and end."""

import json
import os
import socket
import urllib.error
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from nsq_compat.log import checkpoint
from nsq_conformance.nsqd_process import NsqdProcess
from tests.faults.watched_nsqd import HELD, watched_nsqd

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_REMEMBERED_LINES = 20_000


class Daemon(NsqdProcess):
    """An nsqd on `data_path`. `command` is a command line that finally runs it (``bash -c 'ulimit ...'``).

    Without `command`, a watchdog observes its event loop (``watched_nsqd``).
    """

    def __init__(self, data_path: Path, options: Sequence[str] = (), command: str | None = None) -> None:
        super().__init__(command or watched_nsqd(), data_path, options=options)
        self.data_path = data_path
        self._last_lines = deque(maxlen=_REMEMBERED_LINES)

    # --- The process --------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_for_end(self, timeout: float = 30.0) -> int:
        """Wait for the exit status; afterwards the log is complete. Raises ``subprocess.TimeoutExpired``."""
        status = self._process.wait(timeout)
        self._reader.join()
        return status

    def end(self) -> None:
        """End the process in any state."""
        if hasattr(self, "_process") and self._process.poll() is None:
            self.kill()

    @property
    def log(self) -> str:
        """Its last log lines."""
        return "".join(self._last_lines)

    @property
    def held(self) -> list[str]:
        """The log lines that report an event loop blocked for more than ``loop_watchdog.HELD_SECONDS`` of CPU time."""
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

    def address(self, protocol: str = "TCP") -> tuple[str, int]:
        host, _, port = self._addresses[protocol].rpartition(":")
        return host, int(port)

    def http(self, path: str, body: bytes | None = None, **query: object) -> tuple[int, bytes]:
        """Send a request, POST if there is a `body`; returns status and body."""
        url = f"http://{self.http_address}/{path}?{urlencode(query)}"
        try:
            with urlopen(Request(url, data=body), timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def control(self, act: str, topic: str, channel: str | None = None) -> None:
        """``pause``, ``unpause``, ``empty`` or ``delete`` a topic or channel. Raises ``OSError`` if nsqd is gone."""
        names = {"topic": topic} if channel is None else {"topic": topic, "channel": channel}
        status, answer = self.http(f"{'topic' if channel is None else 'channel'}/{act}", b"", **names)
        assert status == 200, answer

    def ping(self) -> str:
        return self.http("ping")[1].decode()

    def stats(self, topic: str = "") -> list[dict[str, Any]]:
        """The topics of ``/stats``, without clients."""
        _, body = self.http("stats", format="json", include_mem="false", include_clients="false", topic=topic)
        topics: list[dict[str, Any]] = json.loads(body)["topics"]
        return topics

    def channels(self, topic: str) -> Iterator[dict[str, Any]]:
        for each in self.stats(topic):
            yield from each["channels"]

    def unfinished(self, topic: str) -> dict[str, int]:
        """The number of waiting, in-flight and deferred messages of each channel."""
        return {
            each["channel_name"]: each["depth"] + each["in_flight_count"] + each["deferred_count"]
            for each in self.channels(topic)
        }

    def checkpoint_written_at(self, topic: str) -> float:
        """The wall-clock time of the topic's last checkpoint; 0.0 before the first."""
        try:
            return (self.data_path / "nsq_compat" / f"{topic}.topic" / "checkpoint").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def checkpoint_says_unfinished(self, topic: str, channel: str) -> int:
        """The number of the channel's messages that are not finished in its topic's checkpoint."""
        try:
            content = (self.data_path / "nsq_compat" / f"{topic}.topic" / "checkpoint").read_bytes()
        except FileNotFoundError:
            return 1 << 62
        last = checkpoint.decode(content)
        place = last.channels.get(channel)
        return 1 << 62 if place is None else len(place.entries) + last.end.seq - place.position

    def connect(self) -> socket.socket:
        """A new TCP connection, without the magic."""
        return socket.create_connection(self.address(), timeout=30)
