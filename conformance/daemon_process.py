"""Any of NSQ's daemons, ours or Go's, as a child process: started from a command line, found by what it logs, stopped
by a signal.

Nothing here knows what the command is. The ports are read from the lines every daemon logs once it listens
(``TCP: listening on 127.0.0.1:40123``), so port 0 can be asked for and no test owns a number.
"""

import http.client
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LISTENING = re.compile(r"\b(TCP|HTTPS?): listening on (\S+:\d+)$")


def installed(program: str) -> str:
    """The program that was installed beside the running Python, as a command line."""
    return shlex.quote(str(Path(sys.executable).with_name(program)))


_ANSWER_SECONDS = 20.0

_hosts = itertools.count(1)


def own_host() -> str:
    """An address of this machine that no other test uses: a daemon that is started again finds its ports free there."""
    number, pid = next(_hosts), os.getpid()
    return f"127.{1 + pid % 254}.{pid // 254 % 256}.{number % 254 + 1}"


@dataclass(frozen=True, slots=True)
class Answer:
    """To an HTTP request."""

    status: int
    body: bytes
    headers: Message

    def json(self) -> Any:
        return json.loads(self.body)


class DaemonFailed(Exception):
    """A daemon could not be started, or stopped by itself; the text ends with its last log lines."""


class DaemonProcess:
    """One running daemon with an HTTP port and, as a rule, a TCP port; a context manager that stops it on the way out.

    ``command`` is a shell-like command line to which the addresses and ``options`` are added; `program` is what the
    texts call it. With ``echo`` its log lines also go to our stderr as they come.
    """

    program = "the daemon"
    speaks_tcp = True
    """False: HTTP is all it listens for."""

    def __init__(
        self, command: str, *, tcp_port: int = 0, http_port: int = 0, options: Sequence[str] = (), echo: bool = False
    ) -> None:
        self.arguments: list[str] = [
            *shlex.split(command),
            *([f"--tcp-address=127.0.0.1:{tcp_port}"] if self.speaks_tcp else ()),
            f"--http-address=127.0.0.1:{http_port}",
            *options,
        ]
        has_https = any(argument.startswith("--tls-cert=") for argument in self.arguments)
        self._listeners = {"HTTP", *(("TCP",) if self.speaks_tcp else ()), *(("HTTPS",) if has_https else ())}
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

    @property
    def https_address(self) -> str:
        """Of a daemon that was given ``--tls-cert=`` (and ``--https-address``, or it is NSQ's port)."""
        return self._addresses["HTTPS"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def asks(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        """One HTTP request, whatever its answer."""
        connection = http.client.HTTPConnection(self.http_address, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(), response.headers)
        finally:
            connection.close()

    def logs(self, text: str, timeout: float = 20.0) -> bool:
        """Whether one of its last log lines contains the text, or does so in time."""
        deadline = time.monotonic() + timeout
        while not any(text in line for line in tuple(self._last_lines)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def start(self, timeout: float = 30.0) -> Self:
        """Return once both listeners are open. Raises DaemonFailed if that does not happen within ``timeout``.

        Once it has ended it may be started again, and is where it was.
        """
        where_it_was = [f"--{name.lower()}-address={address}" for name, address in self._addresses.items()]
        self._addresses.clear()
        self._ready_or_gone.clear()
        try:
            # A session of its own: Ctrl-C in a terminal reaches us, and we stop the daemon after its clients.
            self._process = subprocess.Popen(
                [*self.arguments, *where_it_was],
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonFailed(f"cannot start {self.arguments[0]}: {error}") from error
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if not self._ready_or_gone.wait(timeout) or not self._is_ready:
            self.stop()
            raise DaemonFailed(self._with_log(f"{self.program} did not open all its listeners"))
        return self

    def check(self) -> None:
        """Raises DaemonFailed when it has stopped by itself."""
        status = self._process.poll()
        if status is not None:
            self._reader.join()
            raise DaemonFailed(self._with_log(f"{self.program} stopped by itself with status {status}"))

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

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

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
                    if self._is_ready:
                        self._ready_or_gone.set()
        self._ready_or_gone.set()

    @property
    def _is_ready(self) -> bool:
        return self._listeners <= self._addresses.keys()

    def _with_log(self, sentence: str) -> str:
        return "\n".join([f"{sentence}: {shlex.join(self.arguments)}", "".join(self._last_lines).rstrip()])
