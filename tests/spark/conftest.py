"""Fixtures for the data source: a real nsqd, an empty spool, and options as a user writes them."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import NsqdProcess
from pyspark_nsq.options import ReadOptions, read_options
from pyspark_nsq.spool import Spool
from tests.client import conftest as of_client

nsqd, topic, lookupd, make_nsqd = of_client.nsqd, of_client.topic, of_client.lookupd, of_client.make_nsqd


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """A new spool of one stream."""
    made = Spool(tmp_path, "stream")
    made.create()
    return made


@contextlib.contextmanager
def small_disk(tmp_path: Path, *, full: bool = False, read_only: bool = False) -> Iterator[Path]:
    """Mount a file system of one megabyte."""
    if os.geteuid():
        pytest.fail("this test mounts a small file system: run it as root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        if full:
            with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        if read_only:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def written(nsqd: NsqdProcess, topic: str, tmp_path: Path) -> dict[str, str]:
    """Options for the test's topic, as a user writes them."""
    return {
        "subscribe": topic,
        "channel": "c",
        "nsqdTcpAddresses": nsqd.tcp_address,
        "nsqdHttpAddresses": nsqd.http_address,
        "spoolDir": str(tmp_path),
        # Long, so that a task ends when it has its messages, not at the timeout.
        "idleTimeoutMs": "20000",
        "maxReadMs": "20000",
        "msgTimeoutMs": "1000",
    }


OptionsWith = Callable[..., ReadOptions]


@pytest.fixture
def options_with(written: dict[str, str]) -> OptionsWith:
    """The test's options of a stream, with changes."""
    return lambda **more: read_options(written | more, "stream")


Publish = Callable[[int], list[bytes]]


@pytest.fixture
def publish(nsqd: NsqdProcess, topic: str) -> Publish:
    """Publish this number of distinct bodies to the test's topic, which has channel `c`, and return them."""
    numbers = itertools.count()
    nsqd.create_channel(topic, "c")

    def send(count: int) -> list[bytes]:
        bodies = [b"body %d" % next(numbers) for _ in range(count)]
        assert nsqd.asks("POST", f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200
        return bodies

    return send
