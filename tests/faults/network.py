"""A simulated host: a network namespace, and a link to it that can be cut.

After a cut, no packet crosses, and so neither FIN nor RST. Needs root and iproute2.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Self

_numbers = itertools.count()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


class Cable:
    """The link; a context manager. `near` is the local address, `far` that of the host; both are removed at the end."""

    def __init__(self) -> None:
        number = next(_numbers)
        # A network of four addresses for each process and cable, in the block for network benchmarks (RFC 2544).
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

    def __exit__(self, *_: object) -> None:
        _ip("netns", "delete", self._host)

    def cut(self) -> None:
        """Drop all packets in both directions."""
        _ip("-n", self._host, "link", "set", self._links[1], "down")

    def mend(self) -> None:
        """Restore the link."""
        _ip("-n", self._host, "link", "set", self._links[1], "up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command line that run it on the far host."""
        return "ip", "netns", "exec", self._host

    @contextmanager
    def receives_only(self) -> Iterator[None]:
        """The far host sends nothing that arrives."""
        _ip("-n", self._host, "route", "add", "blackhole", f"{self.near}/32")
        try:
            yield
        finally:
            _ip("-n", self._host, "route", "delete", "blackhole", f"{self.near}/32")

    @contextmanager
    def sends_only(self) -> Iterator[None]:
        """The far host gets no answers."""
        _ip("route", "add", "blackhole", f"{self.far}/32")
        try:
            yield
        finally:
            _ip("route", "delete", "blackhole", f"{self.far}/32")

    @contextmanager
    def is_cut(self) -> Iterator[None]:
        self.cut()
        try:
            yield
        finally:
            self.mend()

    @contextmanager
    def run(self, *command: str) -> Iterator[IO[str]]:
        """Run a program on the far host and kill it at the end; yields its output."""
        with subprocess.Popen([*self.prefix, *command], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
                assert process.poll() is None, "the other end is not notified"
            finally:
                process.kill()

    def run_python(self, text: str) -> AbstractContextManager[IO[str]]:
        """Run a Python program as `run` does."""
        return self.run(sys.executable, "-c", text)
