"""Any nsqd, ours or Go's, as a child process: started from a command line, found by what it logs, stopped by a signal.

Nothing here knows what the command is. The ports are read from the lines every nsqd logs once it listens
(``TCP: listening on 127.0.0.1:40123``), so port 0 can be asked for and no test owns a number.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import Request, urlopen

_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+:\d+)$")


def installed_nsqd() -> str:
    """The nsqd that was installed beside the running Python, as a command line."""
    return shlex.quote(str(Path(sys.executable).with_name("nsqd")))


class NsqdFailed(Exception):
    """nsqd could not be started, or stopped by itself; the text ends with its last log lines."""


class NsqdProcess:
    """One running nsqd; a context manager that stops it on the way out.

    ``command`` is a shell-like command line to which the addresses, the data path and ``options`` are added.
    With ``echo`` its log lines also go to our stderr as they come.
    """

    def __init__(
        self,
        command: str,
        data_path: Path,
        *,
        tcp_port: int = 0,
        http_port: int = 0,
        options: Sequence[str] = (),
        echo: bool = False,
    ) -> None:
        self.arguments = [
            *shlex.split(command),
            f"--tcp-address=127.0.0.1:{tcp_port}",
            f"--http-address=127.0.0.1:{http_port}",
            f"--data-path={data_path}",
            *options,
        ]
        self._echo = echo
        self._addresses: dict[str, str] = {}
        self._last_lines: deque[str] = deque(maxlen=30)
        self._ready_or_gone = threading.Event()

    @property
    def tcp_address(self) -> str:
        return self._addresses["TCP"]

    @property
    def http_address(self) -> str:
        return self._addresses["HTTP"]

    def start(self, timeout: float = 30.0) -> Self:
        """Return once both listeners are open. Raises NsqdFailed if that does not happen within ``timeout``."""
        try:
            # A session of its own: Ctrl-C in a terminal reaches us, and we stop nsqd after its clients.
            self._process = subprocess.Popen(
                self.arguments, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
            )
        except OSError as error:
            raise NsqdFailed(f"cannot start {self.arguments[0]}: {error}") from error
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if not self._ready_or_gone.wait(timeout) or len(self._addresses) < 2:
            self.stop()
            raise NsqdFailed(self._with_log("nsqd did not open its TCP and HTTP listeners"))
        return self

    def wait(self) -> None:
        """Sleep for as long as nsqd runs. Raises NsqdFailed when it has stopped by itself."""
        status = self._process.wait()
        self._reader.join()
        raise NsqdFailed(self._with_log(f"nsqd stopped by itself with status {status}"))

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM, then SIGKILL for one that ignores it. Returns the exit status."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        self._reader.join()
        return status

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """What ``/stats`` says of one channel. Raises LookupError while there is no such channel."""
        query = urlencode({"format": "json", "topic": topic, "channel": channel})
        with urlopen(f"http://{self.http_address}/stats?{query}", timeout=10) as response:
            topics = json.load(response)["topics"]
        for each_topic in topics or ():
            for each_channel in each_topic["channels"]:
                if (each_topic["topic_name"], each_channel["channel_name"]) == (topic, channel):
                    stats: dict[str, Any] = each_channel
                    return stats
        raise LookupError(f"/stats shows no channel {channel} of topic {topic}")

    def create_channel(self, topic: str, channel: str) -> None:
        """Make the channel, and its topic if need be, before anybody publishes or subscribes."""
        for path, names in (("topic", {"topic": topic}), ("channel", {"topic": topic, "channel": channel})):
            url = f"http://{self.http_address}/{path}/create?{urlencode(names)}"
            urlopen(Request(url, method="POST"), timeout=10).close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last_lines.append(line)
                if self._echo:
                    sys.stderr.write(line)
                if match := _LISTENING.search(line.rstrip()):
                    self._addresses[match[1]] = match[2]
                    if len(self._addresses) == 2:
                        self._ready_or_gone.set()
        self._ready_or_gone.set()

    def _with_log(self, sentence: str) -> str:
        return "\n".join([f"{sentence}: {shlex.join(self.arguments)}", "".join(self._last_lines).rstrip()])
