"""F5 on a live process: strace makes fdatasync fail, as a defective disk would."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.client import Client, Refused
from tests.faults.daemon import Daemon


@contextmanager
def failing(daemon: Daemon, call: str, *paths: Path) -> Iterator[None]:
    """Make a system call return EIO in all threads, for all files or the given ones."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.fail("this test needs strace to make system calls fail: apt-get install strace")
    arguments = [strace, "-f", "-e", f"trace={call}", "-e", f"inject={call}:error=EIO", "-p", str(daemon.pid)]
    arguments += [word for path in paths for word in ("-P", str(path))]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        first = tracer.stderr.readline()
        assert "attached" in first, first
        try:
            yield
        finally:
            tracer.terminate()
            tracer.communicate(timeout=20)


def test_a_publish_with_a_failed_sync_is_refused_and_its_file_is_not_used_again(start, tmp_path):
    daemon = start("--durability=fsync", "--sync-timeout=100ms")
    daemon.create_channel("t", "c")
    bodies = [b"before %d" % number for number in range(10)]
    with Client(daemon.address()) as producer:
        producer.publish("t", *bodies)
    segments = set((tmp_path / "nsq_compat" / "t.topic").glob("log.*"))
    with failing(daemon, "fdatasync"):
        for command in (b"PUB t\n\0\0\0\1x", b"MPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\1y", b"DPUB t 50\n\0\0\0\1z"):
            with Client(daemon.address()) as producer, pytest.raises(Refused, match="failed input/output error"):
                producer.ask(command)
        assert daemon.http("pub", b"w", topic="t")[0] == 503
        assert daemon.ping() == "NOK - input/output error"
        with Client(daemon.address()) as consumer:
            consumer.subscribe("t", "c", 5)
            for message in consumer.take(5):
                consumer.requeue(message.id, 0)
    with Client(daemon.address()) as producer:
        deadline = time.monotonic() + 10
        while daemon.ping() != "OK":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        producer.publish("t", b"after")
    assert set((tmp_path / "nsq_compat" / "t.topic").glob("log.*")) - segments, "the log continues in a new file"
    daemon.kill()
    daemon = start("--durability=fsync")
    with Client(daemon.address()) as consumer:
        consumer.subscribe("t", "c", 100)
        seen: set[bytes] = set()
        while not {*bodies, b"after"} <= seen:
            messages = consumer.messages(10)
            assert messages, f"lost: {({*bodies, b'after'}) - seen}"
            seen |= {message.body for message in messages}
            consumer.finish(message.id for message in messages)
    # A refused message may exist nevertheless, because the disk may have stored it.
    assert seen <= {*bodies, b"after", b"w", b"x", b"y", b"z"}


def test_level_os_answers_ok_before_the_sync(start):
    daemon = start("--durability=os")
    with failing(daemon, "fdatasync"), Client(daemon.address()) as producer:
        producer.publish("t", b"x")
