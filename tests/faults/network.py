"""A host at the other end of a cable: a network namespace of the test's own, and a link to it that can be cut.

Whoever is cut off hears nothing and says nothing; no FIN and no RST crosses. It takes root and iproute2.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

_numbers = itertools.count()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


class Cable:
    """A context manager. `near` is this side's address, `far` the other's; both are gone with it."""

    def __init__(self) -> None:
        number = next(_numbers)
        # One network of four addresses for each process and cable, in a block for benchmarks of networks (RFC 2544).
        network = (os.getpid() * 8 + number % 8) % (1 << 15) * 4
        self.near, self.far = (f"198.{18 + (network >> 16)}.{network >> 8 & 255}.{(network & 255) + n}" for n in (1, 2))
        self._host = f"nsqd-{os.getpid()}-{number}"
        self._links = (f"n{os.getpid()}.{number}", f"f{os.getpid()}.{number}")

    def __enter__(self) -> Self:
        near, far = self._links
        _ip("netns", "add", self._host)
        try:
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._host)
            _ip("address", "add", f"{self.near}/30", "dev", near)
            _ip("link", "set", near, "up")
            _ip("-n", self._host, "address", "add", f"{self.far}/30", "dev", far)
            self.mend()
        except BaseException:
            _ip("netns", "delete", self._host)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _ip("netns", "delete", self._host)

    def cut(self) -> None:
        """Nothing passes from now on, in either direction."""
        _ip("-n", self._host, "link", "set", self._links[1], "down")

    def mend(self) -> None:
        """It is as it was."""
        _ip("-n", self._host, "link", "set", self._links[1], "up")

    @contextmanager
    def run(self, program: str) -> Iterator["subprocess.Popen[str]"]:
        """A Python program on the far host, killed in the end; what it prints can be read from ``stdout``."""
        command = ["ip", "netns", "exec", self._host, sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()
