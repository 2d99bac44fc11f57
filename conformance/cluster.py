"""Several nsqlookupds and nsqds, each on an address of its own, so that whoever is ended can come back where it was."""

import itertools
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import HTTPError

from conformance.clients import Running
from conformance.daemon_process import own_host
from conformance.nsqd_process import NsqdProcess
from conformance.nsqlookupd_process import NsqlookupdProcess

PATIENCE = 60.0
"""Seconds for what takes a few. Go's nsqd takes up to 15 to register again."""


class Cluster:
    """A context manager. The commands are taken in turn: with two of them, every other daemon is of the second kind."""

    def __init__(
        self,
        folder: Path,
        nsqd_commands: Sequence[str],
        nsqlookupd_commands: Sequence[str],
        *,
        nsqds: int = 3,
        nsqlookupds: int = 2,
    ) -> None:
        self.nsqlookupds = [
            _nsqlookupd(command) for command in itertools.islice(itertools.cycle(nsqlookupd_commands), nsqlookupds)
        ]
        flags = [f"--lookupd-tcp-address={_host_of(each)}:4160" for each in self.nsqlookupds]
        self.nsqds = [
            _nsqd(command, folder / f"nsqd{number}", flags)
            for number, command in enumerate(itertools.islice(itertools.cycle(nsqd_commands), nsqds))
        ]
        self._running = ExitStack()

    @property
    def lookupd_http(self) -> list[str]:
        """Whom consumers ask."""
        return [each.http_address for each in self.nsqlookupds]

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for each in [*self.nsqlookupds, *self.nsqds]:
                starting.enter_context(each)
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()


def _host_of(nsqlookupd: NsqlookupdProcess) -> str:
    return nsqlookupd.arguments[-1].removeprefix("--broadcast-address=")


def _nsqlookupd(command: str) -> NsqlookupdProcess:
    host = own_host()
    options = [f"--tcp-address={host}:4160", f"--http-address={host}:4161", f"--broadcast-address={host}"]
    return NsqlookupdProcess(command, options=options)


def _nsqd(command: str, data_path: Path, flags: Sequence[str]) -> NsqdProcess:
    host = own_host()
    data_path.mkdir()
    options = [f"--tcp-address={host}:4150", f"--http-address={host}:4151", f"--broadcast-address={host}", *flags]
    return NsqdProcess(command, data_path, options=options)


def end(nsqd: NsqdProcess) -> None:
    """As hard as it can be without losing anything: SIGKILL, but for an nsqd whose memory dies with it (Go's)."""
    usage = subprocess.run([nsqd.arguments[0], "--help"], capture_output=True, text=True, timeout=30, check=False)
    if "durability" in usage.stdout + usage.stderr:
        nsqd.kill()
    else:
        nsqd.stop()


def producers(nsqlookupd: NsqlookupdProcess, topic: str) -> int:
    """How many nsqds it knows to have the topic."""
    try:
        return len(nsqlookupd.get("/lookup", topic=topic)["producers"])
    except HTTPError as error:
        error.close()
        return 0


def count(nsqd: NsqdProcess, topic: str, channel: str, name: str) -> int:
    """A figure of a channel, ``depth`` or ``client_count``; 0 while there is no such channel."""
    try:
        return int(nsqd.channel_stats(topic, channel)[name])
    except LookupError:
        return 0


def eventually(condition: Callable[[], object], client: Running | None = None) -> None:
    """Return once the condition holds; fail when the client ends before, or it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert client is None or client.process.poll() is None, client.report()
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)
