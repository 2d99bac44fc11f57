"""The stream of events: a process that publishes them, and one for each channel that consumes them."""

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
    # As fast as the average and a third more: it falls behind in a rush, and catches up when it is quiet.
    "billing": ("--max-in-flight=8", "--work-ms=125", "--put-off=0.03"),
}
CHANNELS = tuple(_CONSUMERS)
_STOP_SECONDS = 5.0


class EventStream:
    """From the moment it is entered until it is left."""

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
        """Raises ClientFailed when one of them has ended by itself; why, it has said on stderr."""
        for name, process in self._processes.items():
            if (status := process.poll()) is not None:
                raise ClientFailed(f"the {name} of {TOPIC} stopped by itself with status {status}")

    def __enter__(self) -> Self:
        with self._cleaning:
            for name, arguments in self._commands.items():
                process = subprocess.Popen(
                    [sys.executable, "-m", "nsq_conformance.demo.events", *arguments, f"--topic={TOPIC}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": str(_ROOT)},
                    # Ctrl-C in a terminal reaches us, and we stop them before the daemons they talk to.
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
