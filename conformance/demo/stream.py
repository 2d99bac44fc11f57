"""The stream of events: a process that publishes them, and a consumer for each channel."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from nsq_conformance.clients import ClientFailed

TOPIC = "events"
_ROOT = Path(__file__).parents[2]
_CONSUMERS = {
    "archive": ("--max-in-flight=50",),
    # A third faster than the average rate: falls behind in a rush and catches up afterwards.
    "billing": ("--max-in-flight=8", "--work-ms=125", "--put-off=0.03"),
}
CHANNELS = tuple(_CONSUMERS)
_STOP_SECONDS = 5.0


class EventStream:
    """The running processes; a context manager."""

    def __init__(self, nsqd_tcp_address: str, lookupd_http_address: str) -> None:
        self._commands = {
            "publisher": ("publish", "--hostname=shop", f"--nsqd-tcp-address={nsqd_tcp_address}"),
        } | {
            f"consumer of {channel}": (
                *("consume", f"--channel={channel}", f"--hostname={channel}"),
                f"--lookupd-http-address={lookupd_http_address}",
                *options,
            )
            for channel, options in _CONSUMERS.items()
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleaning = ExitStack()

    def check(self) -> None:
        """Raise ClientFailed if a process has ended; its stderr has the reason."""
        for name, process in self._processes.items():
            if (status := process.poll()) is not None:
                raise ClientFailed(f"the {name} of {TOPIC} ended unexpectedly with status {status}")

    def __enter__(self) -> Self:
        with self._cleaning:
            for name, arguments in self._commands.items():
                process = subprocess.Popen(
                    [sys.executable, "-m", "nsq_conformance.demo.events", *arguments, f"--topic={TOPIC}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": str(_ROOT)},
                    # In its own session: Ctrl-C reaches only this process, which stops the clients before the daemons.
                    start_new_session=True,
                )
                self._processes[name] = process
                self._cleaning.callback(_stop, process)
            self._cleaning = self._cleaning.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cleaning.close()


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
