"""A cluster of nsqlookupds and nsqds, each on its own address, so that a stopped daemon can restart on its ports."""

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import HTTPError

from nsq_conformance.clients import Running
from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

PATIENCE = 60.0
"""Longest wait for an expected state, in seconds. Go's nsqd takes up to 15 s to register again."""


class Cluster:
    """A context manager. The commands alternate: with two of them, every second daemon is of the second kind."""

    def __init__(
        self,
        folder: Path,
        nsqd_commands: Sequence[str],
        nsqlookupd_commands: Sequence[str],
        *,
        nsqds: int = 3,
        nsqlookupds: int = 2,
    ) -> None:
        self.nsqlookupds: list[NsqlookupdProcess] = []
        self.nsqds: list[NsqdProcess] = []
        self._folder = folder
        self._nsqd_commands = list(islice(cycle(nsqd_commands), nsqds))
        self._nsqlookupd_commands = list(islice(cycle(nsqlookupd_commands), nsqlookupds))
        self._running = ExitStack()

    @property
    def lookupd_http(self) -> list[str]:
        """The HTTP addresses of the nsqlookupds."""
        return [each.http_address for each in self.nsqlookupds]

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for command in self._nsqlookupd_commands:
                nsqlookupd = NsqlookupdProcess(command, options=_addresses())
                self.nsqlookupds.append(starting.enter_context(nsqlookupd))
            directories = [f"--lookupd-tcp-address={each.tcp_address}" for each in self.nsqlookupds]
            for number, command in enumerate(self._nsqd_commands):
                data_path = self._folder / f"nsqd{number}"
                data_path.mkdir()
                nsqd = NsqdProcess(command, data_path, options=[*_addresses(), *directories])
                self.nsqds.append(starting.enter_context(nsqd))
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()


def _addresses() -> list[str]:
    host = own_host()
    return [f"--tcp-address={host}:0", f"--http-address={host}:0", f"--broadcast-address={host}"]


def end(nsqd: NsqdProcess) -> None:
    """Stop an nsqd abruptly without losing messages: SIGKILL, or SIGTERM for Go's, which keeps messages in memory."""
    usage = subprocess.run([nsqd.arguments[0], "--help"], capture_output=True, text=True, timeout=30, check=False)
    if "durability" in usage.stdout + usage.stderr:
        nsqd.kill()
    else:
        nsqd.stop()


def producers(nsqlookupd: NsqlookupdProcess, topic: str) -> int:
    """The number of nsqds that nsqlookupd returns for the topic."""
    try:
        return len(nsqlookupd.get("/lookup", topic=topic)["producers"])
    except HTTPError as error:
        error.close()
        return 0


def count(nsqd: NsqdProcess, topic: str, channel: str, name: str) -> int:
    """``depth`` or ``client_count`` of a channel; 0 if there is no such channel."""
    try:
        return int(nsqd.channel_stats(topic, channel)[name])
    except LookupError:
        return 0


def eventually(condition: Callable[[], object], client: Running | None = None) -> None:
    """Wait until the condition holds; fails if the client ends first or after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert client is None or client.process.poll() is None, client.report()
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)
