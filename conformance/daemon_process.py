"""A daemon of NSQ, ours or Go's, as a child process.

It is started from any command line and stopped by a signal. Its ports are read from its log lines
(``TCP: listening on 127.0.0.1:40123``), so that it can be started with port 0.
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
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

_LISTENING = re.compile(r"\b(TCP|TLS|HTTPS?): listening on (\S+:\d+)$")


def installed(program: str) -> str:
    """The command line of a program installed beside the running Python."""
    return shlex.quote(str(Path(sys.executable).with_name(program)))


_ANSWER_SECONDS = 20.0
_END_SECONDS = 5.0

_hosts = itertools.count(1)


def own_host() -> str:
    """A loopback address that no other test uses, so that a restarted daemon finds its ports free."""
    number, pid = next(_hosts), os.getpid()
    return f"127.{1 + pid % 254}.{pid // 254 % 256}.{number % 254 + 1}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an HTTP request."""

    status: int
    body: bytes
    headers: Message

    def json(self) -> Any:
        return json.loads(self.body)


class DaemonFailed(Exception):
    """A daemon did not start, or ended unexpectedly; the text ends with its last log lines."""


class DaemonProcess:
    """A daemon with an HTTP port and usually a TCP port; a context manager that starts and stops it.

    ``command`` is a shell-like command line, to which addresses and ``options`` are appended. `program` is the name in
    error texts. Log lines are also written to ``log``.
    """

    program = "the daemon"
    speaks_tcp = True
    """False if the daemon listens for HTTP only."""

    def __init__(
        self,
        command: str,
        *,
        tcp_port: int = 0,
        http_port: int = 0,
        options: Sequence[str] = (),
        log: TextIO | None = None,
    ) -> None:
        self.arguments: list[str] = [
            *shlex.split(command),
            *([f"--tcp-address=127.0.0.1:{tcp_port}"] if self.speaks_tcp else ()),
            f"--http-address=127.0.0.1:{http_port}",
            *options,
        ]
        has_https = any(argument.startswith("--tls-cert=") for argument in self.arguments)
        has_tls = any(argument.startswith("--tls-tcp-address=") for argument in self.arguments)
        self._listeners = {"HTTP", *(("TCP",) if self.speaks_tcp else ()), *(("HTTPS",) if has_https else ())}
        self._listeners |= {"TLS"} if has_tls else set()
        self._listeners -= {name for name in ("TCP", "HTTP") if f"--{name.lower()}-address=" in self.arguments}
        self._log = log
        self._addresses: dict[str, str] = {}
        self._last_lines: deque[str] = deque(maxlen=30)
        self._ready_or_gone = threading.Event()
        self._reader: threading.Thread

    @property
    def tcp_address(self) -> str:
        return self._addresses["TCP"]

    @property
    def http_address(self) -> str:
        return self._addresses["HTTP"]

    @property
    def tls_address(self) -> str:
        """The address for TCP with TLS, if nsqlookupd was started with ``--tls-tcp-address=``."""
        return self._addresses["TLS"]

    @property
    def https_address(self) -> str:
        """The HTTPS address, if the daemon was started with ``--tls-cert=``; NSQ's port without ``--https-address``."""
        return self._addresses["HTTPS"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def asks(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        """Send an HTTP request and return the answer, whatever its status."""
        connection = http.client.HTTPConnection(self.http_address, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(), response.headers)
        finally:
            connection.close()

    def logs(self, text: str, timeout: float = 20.0) -> bool:
        """Wait for a log line that contains the text; returns whether there is one within `timeout`."""
        deadline = time.monotonic() + timeout
        while not any(text in line for line in tuple(self._last_lines)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def start(self, timeout: float = 30.0) -> Self:
        """Start the daemon and wait until its listeners are open. Raises DaemonFailed after ``timeout`` seconds.

        A daemon that has ended may be started again, on the same addresses.
        """
        flags = {"TLS": "tls-tcp"}
        where_it_was = [
            f"--{flags.get(name, name.lower())}-address={address}" for name, address in self._addresses.items()
        ]
        if self._ready_or_gone.is_set():
            self._reader.join()  # it notes the end of the daemon before, which a signal may have ended
        self._addresses.clear()
        self._ready_or_gone.clear()
        try:
            # In its own session: Ctrl-C reaches only this process, which stops the daemon after its clients.
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
        is_answered = self._ready_or_gone.wait(timeout)
        if not self._is_ready:
            with suppress(subprocess.TimeoutExpired):
                # Its log ends shortly before itself.
                self._process.wait(_END_SECONDS if is_answered else 0)
            status = self._process.poll()
            ended = "" if status is None else f"ended with status {status} and "
            self.stop()
            raise DaemonFailed(self._with_log(f"{self.program} {ended}did not open all its listeners"))
        return self

    def check(self) -> None:
        """Raise DaemonFailed if the daemon has ended."""
        status = self._process.poll()
        if status is not None:
            self._reader.join()
            raise DaemonFailed(self._with_log(f"{self.program} ended unexpectedly with status {status}"))

    def stop(self, timeout: float = 20.0) -> int:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. Returns the exit status."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        self._reader.join()
        return status

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
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
                if self._log is not None:
                    self._log.write(line)
                    self._log.flush()
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
